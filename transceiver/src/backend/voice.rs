//! The backend's PCM on its way to the caller: kept as it came, encoded shortly before it is due,
//! and given to the playout.
//!
//! A backend may give a minute of speech in a second. Encoding all of it at once would keep the
//! codec from other sessions and be wasted when the caller barges in, so no more than
//! [`ENCODE_SAMPLES_MAX`] is ahead of the playout. Each segment is an epoch of the codec of its
//! own, which is how its frames are told from those of others and from what was flushed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Actions;
use super::codec::{CodecCommand, CodecEpoch, CodecOutput, CodecSetup, ENCODE_SAMPLES_MAX};
use crate::playout::{Frame, Full, MARKS_MAX, MarkId, SegmentId};

/// What is encoded in one job, in samples at 48 kHz: 60 ms, which takes less than a millisecond, so
/// that nobody waits long behind it.
const JOB_SAMPLES: u64 = 60 * 48;
/// How often the codec is given more while speech is played: it is never the last third of
/// [`ENCODE_SAMPLES_MAX`] that is played by then.
const FEED_INTERVAL: Duration = Duration::from_millis(200);
const _: () = assert!(FEED_INTERVAL.as_millis() as u64 * 48 * 3 <= ENCODE_SAMPLES_MAX);

/// See the module.
#[derive(Debug)]
pub(super) struct Voice {
    /// What the codec has been told last.
    setup: Option<CodecSetup>,
    /// Loss that the codec has been told to expect.
    loss_percent: u8,
    /// Rate of what is pushed, a divisor of 48,000.
    rate_hz: u32,
    queue_samples_max: u64,
    epoch: CodecEpoch,
    pieces: VecDeque<Piece>,
    /// What waits here and what the codec has, in samples at 48 kHz.
    waiting: u64,
    coding: u64,
    segments: VecDeque<Coding>,
    mark_count: usize,
    feed_at: Option<Instant>,
}

#[derive(Debug)]
enum Piece {
    Pcm(Pcm),
    End(SegmentId),
    Mark(MarkId),
}

#[derive(Debug)]
struct Pcm {
    segment: SegmentId,
    is_live: bool,
    rate_hz: u32,
    samples: Vec<i16>,
    /// How many of them have been handed over.
    done: usize,
}

/// A segment that the codec has some of.
#[derive(Debug)]
struct Coding {
    epoch: CodecEpoch,
    segment: SegmentId,
    is_live: bool,
    /// Whether no more of it will be given to the codec.
    is_complete: bool,
    given: u64,
    came: u64,
    /// Marks, and how much of the segment comes before each.
    marks: VecDeque<(u64, MarkId)>,
}

/// What a flush has put an end to before it reached the playout.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unsaid {
    /// Samples at 48 kHz.
    pub(super) dropped: u64,
    pub(super) marks: Vec<MarkId>,
}

impl Voice {
    /// With room for `queue_samples_max` at 48 kHz that wait.
    pub(super) fn new(queue_samples_max: u64) -> Self {
        Self {
            setup: None,
            loss_percent: 0,
            rate_hz: 48_000,
            queue_samples_max,
            epoch: CodecEpoch::default(),
            pieces: VecDeque::new(),
            waiting: 0,
            coding: 0,
            segments: VecDeque::new(),
            mark_count: 0,
            feed_at: None,
        }
    }

    /// Makes the session's codec, or changes it. What waits is of the former rate, and the codec
    /// keeps that until it has had it.
    pub(super) fn open(&mut self, setup: CodecSetup, actions: &mut Actions) {
        self.rate_hz = setup.encode_rate_hz;
        let encode_rate_hz = match self.setup {
            Some(former) if self.waiting > 0 => former.encode_rate_hz,
            _ => setup.encode_rate_hz,
        };
        self.set_up(
            CodecSetup {
                encode_rate_hz,
                ..setup
            },
            actions,
        );
    }

    /// Gives the codec back.
    pub(super) fn close(&mut self, actions: &mut Actions) {
        if self.setup.take().is_some() {
            actions.codec(CodecCommand::Close);
        }
    }

    fn set_up(&mut self, setup: CodecSetup, actions: &mut Actions) {
        if self.setup != Some(setup) {
            self.complete_last(actions);
            self.setup = Some(setup);
            self.loss_percent = 0;
            actions.codec(CodecCommand::Open(setup));
        }
    }

    /// Says `samples` behind what waits.
    ///
    /// # Errors
    /// [`Full`], and nothing was added.
    pub(super) fn push(
        &mut self,
        segment: SegmentId,
        is_live: bool,
        samples: Vec<i16>,
    ) -> Result<(), Full> {
        let rate_hz = self.rate_hz;
        let length = samples.len() as u64 * scale_of(rate_hz);
        if self.waiting + length > self.queue_samples_max {
            return Err(Full);
        }
        self.waiting += length;
        self.pieces.push_back(Piece::Pcm(Pcm {
            segment,
            is_live,
            rate_hz,
            samples,
            done: 0,
        }));
        Ok(())
    }

    /// No more of the segment comes.
    pub(super) fn end(&mut self, segment: SegmentId) -> Result<(), Full> {
        self.push_mark(Piece::End(segment))
    }

    /// Reports when all before it has been played. Within a frame, it waits for the frame's end.
    pub(super) fn mark(&mut self, mark: MarkId) -> Result<(), Full> {
        self.push_mark(Piece::Mark(mark))
    }

    /// Forgets all that waits here or with the codec; the playout is flushed beside it.
    pub(super) fn flush(&mut self, actions: &mut Actions) -> Unsaid {
        let mut unsaid = Unsaid {
            dropped: self.waiting_samples(),
            marks: Vec::new(),
        };
        let with_codec = self.segments.drain(..).flat_map(|coding| coding.marks);
        unsaid.marks.extend(with_codec.map(|(_, mark)| mark));
        for piece in self.pieces.drain(..) {
            if let Piece::Mark(mark) = piece {
                unsaid.marks.push(mark);
            }
        }
        (self.waiting, self.coding, self.mark_count) = (0, 0, 0);
        self.feed_at = None;
        self.epoch.0 += 1;
        if self.setup.is_some() {
            actions.codec(CodecCommand::Flush { epoch: self.epoch });
        }
        unsaid
    }

    /// Gives the codec as much as it may have.
    pub(super) fn feed(&mut self, now: Instant, actions: &mut Actions) {
        self.expect_loss(actions);
        let queued = actions.playout().queued_samples();
        self.hand_over(ENCODE_SAMPLES_MAX.saturating_sub(queued), actions);
        self.feed_at = (!self.pieces.is_empty()).then(|| now + FEED_INTERVAL);
    }

    /// Protects what is encoded as well as the client's reports ask for.
    fn expect_loss(&mut self, actions: &mut Actions) {
        let percent = expected_loss_percent(actions.way().recent_loss);
        if self.setup.is_some() && percent != self.loss_percent {
            self.loss_percent = percent;
            actions.codec(CodecCommand::ExpectLoss { percent });
        }
    }

    /// When [`Voice::feed`] is next wanted.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.feed_at
    }

    /// The codec has encoded something: it goes to the playout, or nowhere if it was flushed.
    pub(super) fn handle_codec(&mut self, output: CodecOutput, actions: &mut Actions) {
        match output {
            CodecOutput::Frame {
                epoch,
                payload,
                samples,
                content,
            } => {
                let Some(coding) = self.segments.front_mut() else {
                    return;
                };
                if coding.epoch != epoch {
                    return;
                }
                coding.came += u64::from(content);
                self.coding = self.coding.saturating_sub(u64::from(content));
                let frame = Frame {
                    segment: coding.segment,
                    payload,
                    samples,
                    content,
                    is_live: coding.is_live,
                };
                actions.play(frame);
                while let Some(&(at, mark)) = coding.marks.front() {
                    if at > coding.came {
                        return;
                    }
                    coding.marks.pop_front();
                    self.mark_count -= 1;
                    actions.mark(mark);
                }
            }
            CodecOutput::Ended { epoch } => {
                let is_first = self.segments.front().map(|coding| coding.epoch) == Some(epoch);
                let Some(coding) = self.segments.pop_front().filter(|_| is_first) else {
                    return;
                };
                self.coding = self
                    .coding
                    .saturating_sub(coding.given.saturating_sub(coding.came));
                self.mark_count -= coding.marks.len();
                for (_, mark) in coding.marks {
                    actions.mark(mark);
                }
                actions.end_segment(coding.segment);
            }
            CodecOutput::Pcm { .. } | CodecOutput::Overloaded => {}
        }
    }

    /// What waits here and what the codec has, in samples at 48 kHz.
    pub(super) fn waiting_samples(&self) -> u64 {
        self.waiting + self.coding
    }

    fn push_mark(&mut self, piece: Piece) -> Result<(), Full> {
        if self.mark_count == MARKS_MAX {
            return Err(Full);
        }
        self.mark_count += 1;
        self.pieces.push_back(piece);
        Ok(())
    }

    /// Gives the codec pieces until it has `coding_max`.
    fn hand_over(&mut self, coding_max: u64, actions: &mut Actions) {
        while let Some(piece) = self.pieces.front() {
            if matches!(piece, Piece::Pcm(_)) && self.coding >= coding_max {
                return;
            }
            match self.pieces.pop_front() {
                Some(Piece::Pcm(pcm)) => self.hand_over_pcm(pcm, actions),
                Some(Piece::End(segment)) => {
                    self.mark_count -= 1;
                    self.begin(segment, false, actions);
                    self.complete_last(actions);
                }
                Some(Piece::Mark(mark)) => match self.segments.back_mut() {
                    Some(coding) => coding.marks.push_back((coding.given, mark)),
                    None => {
                        self.mark_count -= 1;
                        actions.mark(mark);
                    }
                },
                None => return,
            }
        }
    }

    /// One job's worth of PCM; the rest stays the first piece.
    fn hand_over_pcm(&mut self, mut pcm: Pcm, actions: &mut Actions) {
        if let Some(setup) = self.setup {
            let encode_rate_hz = pcm.rate_hz;
            self.set_up(
                CodecSetup {
                    encode_rate_hz,
                    ..setup
                },
                actions,
            );
        }
        let scale = scale_of(pcm.rate_hz);
        let job = usize::try_from(JOB_SAMPLES / scale).unwrap_or(usize::MAX);
        let end = pcm.samples.len().min(pcm.done + job);
        let length = (end - pcm.done) as u64 * scale;
        self.waiting -= length;
        self.coding += length;
        let coding = self.begin(pcm.segment, pcm.is_live, actions);
        coding.given += length;
        actions.codec(CodecCommand::Encode {
            epoch: coding.epoch,
            pcm: pcm.samples[pcm.done..end].to_vec(),
        });
        pcm.done = end;
        if pcm.done < pcm.samples.len() {
            self.pieces.push_front(Piece::Pcm(pcm));
        }
    }

    /// The epoch of `segment`, which is the last that the codec has; one before it is completed.
    fn begin(&mut self, segment: SegmentId, is_live: bool, actions: &mut Actions) -> &mut Coding {
        let goes_on = |coding: &Coding| coding.segment == segment && !coding.is_complete;
        if !self.segments.back().is_some_and(goes_on) {
            self.complete_last(actions);
            self.epoch.0 += 1;
            self.segments.push_back(Coding {
                epoch: self.epoch,
                segment,
                is_live,
                is_complete: false,
                given: 0,
                came: 0,
                marks: VecDeque::new(),
            });
        }
        self.segments
            .back_mut()
            .expect("invariant: one was just made sure of")
    }

    fn complete_last(&mut self, actions: &mut Actions) {
        if let Some(coding) = self.segments.back_mut()
            && !coding.is_complete
        {
            coding.is_complete = true;
            let epoch = coding.epoch;
            actions.codec(CodecCommand::EndEncode { epoch });
        }
    }
}

/// Samples at 48 kHz that one sample of this rate stands for.
fn scale_of(rate_hz: u32) -> u64 {
    48_000 / u64::from(rate_hz)
}

/// Loss to encode for, by what was lost of late, 0 to 1. In steps, so that not every report changes
/// it; beyond the last the encoder has nothing more to give.
fn expected_loss_percent(recent_loss: f64) -> u8 {
    const STEPS_PERCENT: [u8; 4] = [20, 10, 5, 2];
    let steps = STEPS_PERCENT.into_iter();
    let mut reached = steps.filter(|&step| recent_loss * 100.0 >= f64::from(step) / 2.0);
    reached.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::playout::{Output, PlayoutEvent};

    const SEGMENT: SegmentId = SegmentId(1);

    fn setup(encode_rate_hz: u32) -> CodecSetup {
        CodecSetup {
            client: crate::engine::AudioCodec::Opus,
            decode_rate_hz: 16_000,
            encode_rate_hz,
        }
    }

    fn opened() -> (Voice, Codec, Actions) {
        let (mut voice, mut actions) = (Voice::new(u64::MAX), Actions::for_tests());
        voice.open(setup(24_000), &mut actions);
        assert_eq!(actions.pop_codec(), Some(CodecCommand::Open(setup(24_000))));
        (voice, Codec::default(), actions)
    }

    /// Encodes as a codec would: 20 ms a frame, whose payload is its first sample.
    #[derive(Default)]
    struct Codec {
        epoch: CodecEpoch,
        rest: Vec<i16>,
    }

    impl Codec {
        fn run(&mut self, voice: &mut Voice, actions: &mut Actions) -> usize {
            let mut jobs = 0;
            while let Some(command) = actions.pop_codec() {
                jobs += 1;
                match command {
                    CodecCommand::Encode { epoch, pcm } => {
                        self.epoch = epoch;
                        self.rest.extend(pcm);
                        while self.rest.len() >= 480 {
                            let frame: Vec<_> = self.rest.drain(..480).collect();
                            self.frame(&frame, voice, actions);
                        }
                    }
                    CodecCommand::EndEncode { epoch } => {
                        self.epoch = epoch;
                        if !self.rest.is_empty() {
                            let frame = std::mem::take(&mut self.rest);
                            self.frame(&frame, voice, actions);
                        }
                        voice.handle_codec(CodecOutput::Ended { epoch }, actions);
                    }
                    CodecCommand::Flush { .. } => self.rest.clear(),
                    other => panic!("not asked for: {other:?}"),
                }
            }
            jobs
        }

        fn frame(&self, pcm: &[i16], voice: &mut Voice, actions: &mut Actions) {
            let frame = CodecOutput::Frame {
                epoch: self.epoch,
                payload: [pcm[0] as u8].as_slice().into(),
                samples: 960,
                content: pcm.len() as u32 * 2,
            };
            voice.handle_codec(frame, actions);
        }
    }

    fn pcm(ms: usize) -> Vec<i16> {
        vec![7; ms * 24]
    }

    /// All that is played in the next `ms`, feeding when it is time.
    fn play(
        voice: &mut Voice,
        codec: &mut Codec,
        actions: &mut Actions,
        start: Instant,
        ms: std::ops::Range<u64>,
    ) -> Vec<PlayoutEvent> {
        let mut events = Vec::new();
        for ms in ms {
            let now = start + Duration::from_millis(ms);
            if voice.poll_timeout().is_some_and(|at| at <= now) {
                voice.feed(now, actions);
                codec.run(voice, actions);
            }
            while let Some(output) = actions.playout().poll(now) {
                if let Output::Event(event) = output {
                    events.push(event);
                }
            }
        }
        events
    }

    #[test]
    fn a_long_burst_is_encoded_little_by_little_and_played_without_a_hole() {
        let start = Instant::now();
        let (mut voice, mut codec, mut actions) = opened();
        voice.push(SEGMENT, false, pcm(10_007)).unwrap();
        voice.end(SEGMENT).unwrap();
        voice.feed(start, &mut actions);
        let jobs = codec.run(&mut voice, &mut actions);
        assert_eq!(jobs as u64, ENCODE_SAMPLES_MAX / JOB_SAMPLES);
        let events = play(&mut voice, &mut codec, &mut actions, start, 0..10_030);
        let played = crate::playout::Played {
            segment: SEGMENT,
            samples: 10_007 * 48,
        };
        assert_eq!(
            events,
            [PlayoutEvent::Started(SEGMENT), PlayoutEvent::Ended(played)]
        );
        assert_eq!(voice.waiting_samples(), 0);
    }

    #[test]
    fn the_codec_is_told_what_the_client_loses_once_and_again_after_a_change_of_rate() {
        let start = Instant::now();
        let (mut voice, _, mut actions) = opened();
        let mut told = |recent_loss, rate_hz| {
            let way = crate::playout::Way {
                recent_loss,
                ..Default::default()
            };
            actions.set_way(way);
            voice.open(setup(rate_hz), &mut actions);
            voice.feed(start, &mut actions);
            let commands = std::iter::from_fn(|| actions.pop_codec());
            let percent = |command| match command {
                CodecCommand::ExpectLoss { percent } => Some(percent),
                _ => None,
            };
            commands.filter_map(percent).collect::<Vec<_>>()
        };
        assert_eq!(told(0.0, 24_000), [0; 0]);
        assert_eq!(told(0.004, 24_000), [0; 0]);
        assert_eq!(told(0.03, 24_000), [5]);
        assert_eq!(told(0.04, 24_000), [0; 0], "no news");
        assert_eq!(told(0.04, 16_000), [5], "a new encoder");
        assert_eq!(told(0.5, 16_000), [20]);
        assert_eq!(told(0.0, 16_000), [0]);
    }

    #[test]
    fn what_was_flushed_is_not_played_even_if_the_codec_gives_it_later() {
        let start = Instant::now();
        let (mut voice, mut codec, mut actions) = opened();
        voice.push(SEGMENT, false, pcm(1_000)).unwrap();
        voice.mark(MarkId(5)).unwrap();
        voice.feed(start, &mut actions);
        let late = CodecOutput::Frame {
            epoch: CodecEpoch(1),
            payload: [0].as_slice().into(),
            samples: 960,
            content: 960,
        };
        let unsaid = voice.flush(&mut actions);
        assert_eq!(unsaid.dropped, 48_000);
        assert_eq!(unsaid.marks, [MarkId(5)]);
        voice.handle_codec(late, &mut actions);
        assert_eq!(actions.playout().queued_samples(), 0);
        assert_eq!(voice.poll_timeout(), None);

        while actions.pop_codec().is_some() {}
        voice.push(SegmentId(2), false, pcm(20)).unwrap();
        voice.feed(start, &mut actions);
        codec.run(&mut voice, &mut actions);
        assert_eq!(actions.playout().queued_samples(), 960);
    }

    #[test]
    fn marks_and_ends_keep_their_places() {
        let start = Instant::now();
        let (mut voice, mut codec, mut actions) = opened();
        voice.mark(MarkId(0)).unwrap();
        voice.push(SEGMENT, false, pcm(30)).unwrap();
        voice.mark(MarkId(1)).unwrap();
        voice.push(SegmentId(2), false, pcm(20)).unwrap();
        voice.mark(MarkId(2)).unwrap();
        voice.end(SegmentId(2)).unwrap();
        voice.end(SegmentId(3)).unwrap();
        voice.feed(start, &mut actions);
        codec.run(&mut voice, &mut actions);
        let events = play(&mut voice, &mut codec, &mut actions, start, 0..200);
        let ended = |segment, samples| {
            let segment = SegmentId(segment);
            PlayoutEvent::Ended(crate::playout::Played { segment, samples })
        };
        assert_eq!(
            events,
            [
                PlayoutEvent::Reached(MarkId(0)),
                PlayoutEvent::Started(SEGMENT),
                PlayoutEvent::Reached(MarkId(1)),
                ended(1, 30 * 48),
                PlayoutEvent::Started(SegmentId(2)),
                PlayoutEvent::Reached(MarkId(2)),
                ended(2, 20 * 48),
                ended(3, 0),
            ]
        );
    }

    #[test]
    fn a_change_of_rate_reaches_the_codec_behind_what_waits() {
        let start = Instant::now();
        let (mut voice, _, mut actions) = opened();
        voice.push(SEGMENT, false, pcm(700)).unwrap();
        voice.open(setup(8_000), &mut actions);
        voice.push(SEGMENT, false, vec![0; 160]).unwrap();
        assert_eq!(actions.pop_codec(), None);
        voice.feed(start, &mut actions);
        let count = |actions: &mut Actions| std::iter::from_fn(|| actions.pop_codec()).count();
        assert_eq!(count(&mut actions), 10, "600 ms of the former rate");
        voice.coding = 0;
        voice.feed(start, &mut actions);
        let commands: Vec<_> = std::iter::from_fn(|| actions.pop_codec()).collect();
        let epoch = CodecEpoch(1);
        assert!(
            matches!(commands[1], CodecCommand::Encode { .. }),
            "the rest of it"
        );
        assert_eq!(commands[2], CodecCommand::EndEncode { epoch });
        assert_eq!(commands[3], CodecCommand::Open(setup(8_000)));
    }

    #[test]
    fn more_than_may_wait_is_refused() {
        let mut voice = Voice::new(48_000);
        voice.open(setup(24_000), &mut Actions::for_tests());
        voice.push(SEGMENT, false, pcm(900)).unwrap();
        assert_eq!(voice.push(SEGMENT, false, pcm(101)), Err(Full));
        voice.push(SEGMENT, false, pcm(100)).unwrap();
    }
}
