//! The backend's answer on its way to the caller: credit, segments, marks, flush, and reports of
//! what was really played.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::messages::{Format, ToBackend};
use super::send;
use super::wire::{FLAG_LIVE, Header, HeaderError, MediaType, parse_pcm};
use crate::backend::Actions;
use crate::backend::codec::{CodecOutput, CodecSetup};
use crate::backend::voice::Voice;
use crate::engine::AudioCodec;
use crate::playout::{Frame, MarkId, Played, PlayoutEvent, SegmentId};

/// How far a backend may be ahead of the playout, in samples: half a minute. With it, the largest
/// queue of PCM takes less than three megabytes.
pub(super) const CREDIT_SAMPLES: u64 = 30 * 48_000;
/// Credit is raised when so much of it can be given back.
const CREDIT_STEP: u64 = CREDIT_SAMPLES / 8;
/// How often it is looked at while something is played.
const CREDIT_INTERVAL: Duration = Duration::from_millis(500);

/// Why something that the backend wants played is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("a backend sends audio_out, not audio_in")]
    Direction,
    #[error("the hello asked for no audio_out")]
    NotAsked,
    #[error("the payload is no Opus packet of 2.5 to 120 ms")]
    NotOpus,
    #[error("the payload is no whole number of 16-bit samples")]
    NotPcm,
    #[error("audio beyond the credit is left out")]
    OverCredit,
    #[error("too many marks and ends of segments wait")]
    TooManyMarks,
}

impl Refusal {
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::Header(_) | Self::Direction => "malformed",
            Self::NotAsked | Self::NotOpus | Self::NotPcm => "bad_audio",
            Self::OverCredit => "over_credit",
            Self::TooManyMarks => "too_many_marks",
        }
    }

    /// Whether it is a mistake, rather than too much of what is right.
    pub(super) fn is_fault(self) -> bool {
        !matches!(self, Self::OverCredit | Self::TooManyMarks)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Outward {
    format: Format,
    /// Which of the session's links it comes from: the upper half of its segments' numbers.
    link: u16,
    segment: Option<u16>,
    received: u64,
    credit: u64,
    /// Whether the backend has been told that it exceeds its credit.
    is_over: bool,
    voice: Voice,
    marks: VecDeque<(MarkId, String)>,
    next_mark: u32,
    playout_every: Option<Duration>,
    report_at: Option<Instant>,
    credit_at: Option<Instant>,
}

impl Default for Outward {
    fn default() -> Self {
        Self {
            format: Format::None,
            link: 0,
            segment: None,
            received: 0,
            credit: CREDIT_SAMPLES,
            is_over: false,
            voice: Voice::new(2 * CREDIT_SAMPLES),
            marks: VecDeque::new(),
            next_mark: 0,
            playout_every: None,
            report_at: None,
            credit_at: None,
        }
    }
}

impl Outward {
    /// A link begins. What one before it has said is played all the same.
    pub(super) fn agree(
        &mut self,
        link: u16,
        format: Format,
        playout_every: Option<Duration>,
        actions: &mut Actions,
    ) {
        self.link = link;
        self.format = format;
        self.playout_every = playout_every;
        self.segment = None;
        self.is_over = false;
        // What still waits was paid for with another link's credit.
        self.received = self.waiting(actions);
        self.credit = CREDIT_SAMPLES + self.received;
    }

    /// Makes the session's codec, or changes it.
    pub(super) fn open_codec(&mut self, setup: CodecSetup, actions: &mut Actions) {
        self.voice.open(setup, actions);
    }

    /// Gives it back.
    pub(super) fn close_codec(&mut self, actions: &mut Actions) {
        self.voice.close(actions);
    }

    /// The link is gone: nothing is added to what it was saying.
    pub(super) fn handle_down(&mut self, now: Instant, actions: &mut Actions) {
        if let Some(segment) = self.segment.take() {
            // With too many marks waiting the segment ends with the next one instead.
            let _ = self.end_of_segment(now, segment, actions);
        }
        self.marks.clear();
        self.report_at = None;
    }

    pub(super) fn handle_audio(
        &mut self,
        now: Instant,
        message: &[u8],
        actions: &mut Actions,
    ) -> Result<(), Refusal> {
        let (header, payload) = Header::parse(message)?;
        if header.media != MediaType::AudioOut {
            return Err(Refusal::Direction);
        }
        let segment = self.segment_id(header.segment);
        let is_live = header.flags & FLAG_LIVE != 0;
        match self.format {
            Format::None => return Err(Refusal::NotAsked),
            Format::Opus => {
                let samples = AudioCodec::Opus.samples(payload);
                let samples = samples.ok_or(Refusal::NotOpus)?;
                self.spend(u64::from(samples), actions)?;
                actions.play(Frame {
                    segment,
                    payload: payload.into(),
                    samples,
                    content: samples,
                    is_live,
                });
            }
            Format::Pcm16 { rate_hz } => {
                let pcm = parse_pcm(payload).ok_or(Refusal::NotPcm)?;
                let samples = pcm.len() as u64 * 48_000 / u64::from(rate_hz);
                self.spend(samples, actions)?;
                let pushed = self.voice.push(segment, is_live, pcm);
                pushed.map_err(|_| Refusal::OverCredit)?;
                self.voice.feed(now, actions);
            }
        }
        self.segment = Some(header.segment);
        self.credit_at.get_or_insert(now + CREDIT_INTERVAL);
        Ok(())
    }

    pub(super) fn end_of_segment(
        &mut self,
        now: Instant,
        segment: u16,
        actions: &mut Actions,
    ) -> Result<(), Refusal> {
        let id = self.segment_id(segment);
        self.segment = None;
        let ended = match self.format {
            Format::Pcm16 { .. } => self.voice.end(id),
            Format::Opus | Format::None => actions.playout().end(id),
        };
        self.voice.feed(now, actions);
        ended.map_err(|_| Refusal::TooManyMarks)
    }

    pub(super) fn mark(
        &mut self,
        now: Instant,
        name: String,
        actions: &mut Actions,
    ) -> Result<(), Refusal> {
        let mark = MarkId(self.next_mark);
        let marked = match self.format {
            Format::Pcm16 { .. } => self.voice.mark(mark),
            Format::Opus | Format::None => actions.playout().mark(mark),
        };
        marked.map_err(|_| Refusal::TooManyMarks)?;
        self.next_mark = self.next_mark.wrapping_add(1);
        self.marks.push_back((mark, name));
        self.voice.feed(now, actions);
        Ok(())
    }

    /// Silence, and the truth about what was said.
    pub(super) fn flush(&mut self, now: Instant, actions: &mut Actions) {
        let unsaid = self.voice.flush(actions);
        let flushed = actions.playout().flush();
        for mark in flushed.marks.into_iter().chain(unsaid.marks) {
            self.answer_mark(mark, true, actions);
        }
        let playing = flushed.playing.filter(|played| self.is_own(played.segment));
        let sent_samples = playing.map_or(0, |played| played.samples);
        let dropped_samples = flushed.dropped + unsaid.dropped;
        if playing.is_some() || dropped_samples > 0 {
            actions.losses().flushes += 1;
        }
        let told = ToBackend::Flushed {
            segment: playing.map(|played| short(played.segment)),
            sent_samples,
            heard_samples: actions.way().heard_samples(sent_samples),
            dropped_samples,
        };
        send(&told, actions);
        self.segment = None;
        self.report_at = None;
        self.raise_credit(now, actions);
    }

    pub(super) fn handle_codec(
        &mut self,
        now: Instant,
        output: CodecOutput,
        actions: &mut Actions,
    ) {
        self.voice.handle_codec(output, actions);
        self.voice.feed(now, actions);
    }

    pub(super) fn handle_playout(
        &mut self,
        now: Instant,
        time_ns: u64,
        event: PlayoutEvent,
        is_agreed: bool,
        actions: &mut Actions,
    ) {
        match event {
            PlayoutEvent::Started(segment) if is_agreed && self.is_own(segment) => {
                let samples = 0;
                self.report("started", Played { segment, samples }, time_ns, actions);
                self.report_at = self.playout_every.map(|every| now + every);
            }
            PlayoutEvent::Ended(played) if is_agreed && self.is_own(played.segment) => {
                self.report_at = None;
                self.report("ended", played, time_ns, actions);
                self.raise_credit(now, actions);
            }
            PlayoutEvent::Started(_) | PlayoutEvent::Ended(_) => {}
            PlayoutEvent::Reached(mark) => self.answer_mark(mark, false, actions),
        }
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        time_ns: u64,
        is_agreed: bool,
        actions: &mut Actions,
    ) {
        if self.voice.poll_timeout().is_some_and(|at| at <= now) {
            self.voice.feed(now, actions);
        }
        if self.report_at.is_some_and(|at| at <= now) {
            self.report_at = self.playout_every.map(|every| now + every);
            let playing = actions.playout().position();
            if let Some(played) = playing.filter(|played| self.is_own(played.segment)) {
                self.report("playing", played, time_ns, actions);
            }
        }
        if self.credit_at.is_some_and(|at| at <= now) {
            self.credit_at = None;
            if is_agreed {
                self.raise_credit(now, actions);
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.voice.poll_timeout(), self.report_at, self.credit_at]
            .into_iter()
            .flatten()
            .min()
    }

    fn spend(&mut self, samples: u64, actions: &mut Actions) -> Result<(), Refusal> {
        if self.received + samples > self.credit {
            actions.losses().refused_samples += samples;
            // Told once until there is credit again: a backend that does not count sends much.
            let is_told = std::mem::replace(&mut self.is_over, true);
            return if is_told {
                Ok(())
            } else {
                Err(Refusal::OverCredit)
            };
        }
        self.received += samples;
        Ok(())
    }

    fn raise_credit(&mut self, now: Instant, actions: &mut Actions) {
        let waiting = self.waiting(actions);
        let credit_samples = self.received.saturating_sub(waiting) + CREDIT_SAMPLES;
        if credit_samples >= self.credit + CREDIT_STEP {
            self.credit = credit_samples;
            self.is_over = false;
            send(&ToBackend::Credit { credit_samples }, actions);
        }
        self.credit_at = (waiting > 0).then(|| now + CREDIT_INTERVAL);
    }

    fn waiting(&self, actions: &mut Actions) -> u64 {
        self.voice.waiting_samples() + actions.playout().queued_samples()
    }

    fn report(&self, state: &'static str, played: Played, time_ns: u64, actions: &mut Actions) {
        let way = actions.way();
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let report = ToBackend::Playout {
            segment: short(played.segment),
            state,
            sent_samples: played.samples,
            heard_samples: way.heard_samples(played.samples),
            rtt_ms: way.round_trip.map(ms),
            jitter_ms: way.jitter.map(ms),
            loss: way.loss,
            time_ns,
        };
        send(&report, actions);
    }

    fn answer_mark(&mut self, mark: MarkId, flushed: bool, actions: &mut Actions) {
        let known = self.marks.iter().position(|(known, _)| *known == mark);
        if let Some((_, name)) = known.and_then(|at| self.marks.remove(at)) {
            let name = &name;
            send(&ToBackend::Mark { name, flushed }, actions);
        }
    }

    fn segment_id(&self, segment: u16) -> SegmentId {
        SegmentId(u32::from(self.link) << 16 | u32::from(segment))
    }

    fn is_own(&self, segment: SegmentId) -> bool {
        segment.0 >> 16 == u32::from(self.link)
    }
}

/// The backend's own number of a segment.
fn short(segment: SegmentId) -> u16 {
    (segment.0 & 0xffff) as u16
}
