//! The caller on his way to the backend: one unbroken line of audio in the link's format.
//!
//! The protocol has no gaps, and a server's turn detection waits to hear silence. So lost and
//! unsent stretches are filled, and when the caller's encoder sends nothing for a while, silence
//! goes out as time passes instead of when the next packet tells how long it was.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::events::{AudioFormat, append};
use crate::backend::Actions;
use crate::backend::decoding::{Decoded, Decoding};
use crate::backend::g711::Law;
use crate::backend::link::{LinkBody, LinkClass, LinkCommand, LinkMessage};
use crate::backend::turns::{Speech, Turns};
use crate::engine::AudioCodec;
use crate::playout::samples_of;
use crate::session::inbound::{Gap, Placed};

/// After so long without a packet the caller's encoder has stopped.
const SILENCE_AFTER: Duration = Duration::from_millis(200);
/// How often silence is sent then, and by how much it stays behind what a late packet may fill.
const SILENCE_STEP: Duration = Duration::from_millis(100);
/// How much silence is sent after the last packet, in samples: more than any turn detection wants
/// to hear before the turn is over.
const SILENCE_SAMPLES_MAX: u64 = 10 * 48_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Listening {
    format: AudioFormat,
    decoding: Decoding,
    /// How far the backend has been given the line, in samples at 48 kHz; it begins where the
    /// caller is first heard of.
    given: Option<u64>,
    /// Where the line stood when its last packet came, and when that was.
    last: Option<(u64, Instant)>,
    silence_at: Option<Instant>,
    /// Whether the caller speaks, where the edge has to find out.
    turns: Option<Turns>,
    speech: VecDeque<Speech>,
}

impl Listening {
    pub(super) fn new(format: AudioFormat, with_turns: bool) -> Self {
        Self {
            turns: with_turns.then(Turns::new),
            speech: VecDeque::new(),
            format,
            decoding: Decoding::default(),
            given: None,
            last: None,
            silence_at: None,
        }
    }

    pub(super) fn set_format(&mut self, format: AudioFormat) {
        self.format = format;
    }

    pub(super) fn hear_audio(&mut self, now: Instant, audio: Placed, actions: &mut Actions) {
        let end = audio.at + u64::from(audio.samples);
        self.last = Some((end, now));
        self.silence_at = Some(now + SILENCE_AFTER);
        if self.passes(audio.packet.codec) {
            self.given = Some(end);
            send(&audio.packet.payload, actions);
            if let (AudioFormat::G711(law), true) = (self.format, self.turns.is_some()) {
                let payload = audio.packet.payload.iter();
                let pcm: Vec<_> = payload.map(|&byte| law.decode(byte)).collect();
                self.note_turn(end, &pcm, 8_000);
            }
        } else {
            self.decoding.hear_audio(0, audio, actions);
        }
    }

    pub(super) fn hear_gap(&mut self, gap: Gap, actions: &mut Actions) {
        self.decoding.hear_gap(0, gap, actions);
        self.send_decoded(actions);
    }

    pub(super) fn handle_pcm(
        &mut self,
        at: u64,
        pcm: Vec<i16>,
        is_concealed: bool,
        actions: &mut Actions,
    ) {
        self.decoding.handle_pcm(at, pcm, is_concealed);
        self.send_decoded(actions);
    }

    /// Sends the silence that has passed.
    pub(super) fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        if self.silence_at.is_none_or(|at| at > now) {
            return;
        }
        self.silence_at = None;
        let Some((end, heard)) = self.last else {
            return;
        };
        let silent = now.saturating_duration_since(heard + SILENCE_STEP);
        let silent = samples_of(silent).min(SILENCE_SAMPLES_MAX);
        self.fill(end + silent, actions);
        if silent < SILENCE_SAMPLES_MAX {
            self.silence_at = Some(now + SILENCE_STEP);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.silence_at
    }

    /// How the caller's turn has changed.
    pub(super) fn poll_speech(&mut self) -> Option<Speech> {
        self.speech.pop_front()
    }

    fn note_turn(&mut self, end: u64, pcm: &[i16], rate_hz: u32) {
        let turns = self.turns.as_mut();
        let change = turns.and_then(|turns| turns.hear(end, pcm, rate_hz));
        self.speech.extend(change);
    }

    /// Whether packets of this codec are what the link carries.
    fn passes(&self, codec: AudioCodec) -> bool {
        matches!(
            (self.format, codec),
            (AudioFormat::G711(Law::Mu), AudioCodec::Pcmu)
                | (AudioFormat::G711(Law::A), AudioCodec::Pcma)
        )
    }

    fn send_decoded(&mut self, actions: &mut Actions) {
        while let Some(decoded) = self.decoding.poll() {
            match decoded {
                Decoded::Gap { gap, .. } => {
                    self.given.get_or_insert(gap.at);
                    self.fill(gap.at + gap.samples, actions);
                }
                Decoded::Pcm(decoded) => {
                    let scale = u64::from(48_000 / self.format.rate_hz());
                    let end = decoded.at + decoded.pcm.len() as u64 * scale;
                    self.given = self.given.max(Some(end));
                    send(&self.format.encode(&decoded.pcm), actions);
                    self.note_turn(end, &decoded.pcm, self.format.rate_hz());
                }
            }
        }
    }

    /// Sends silence up to `end` of the line.
    fn fill(&mut self, end: u64, actions: &mut Actions) {
        let given = self.given.unwrap_or(end);
        let missing = end.saturating_sub(given).min(SILENCE_SAMPLES_MAX);
        if missing > 0 {
            let turns = self.turns.as_mut();
            self.speech
                .extend(turns.and_then(|turns| turns.pass(end, missing)));
        }
        self.given = Some(given.max(end));
        let samples = missing * u64::from(self.format.rate_hz()) / 48_000;
        let samples = usize::try_from(samples).unwrap_or(usize::MAX);
        // In pieces of a second, which any server takes.
        let second = self.format.rate_hz() as usize;
        let silence = vec![0; samples.min(second)];
        let mut left = samples;
        while left > 0 {
            let piece = left.min(second);
            send(&self.format.encode(&silence[..piece]), actions);
            left -= piece;
        }
    }
}

fn send(audio: &[u8], actions: &mut Actions) {
    actions.link(LinkCommand::Send(LinkMessage {
        class: LinkClass::Audio,
        body: LinkBody::Text(append(audio)),
    }));
}
