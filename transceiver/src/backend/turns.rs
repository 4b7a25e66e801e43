//! Turn taking at the edge: whether the caller speaks, for backends that do not find out for
//! themselves or not soon enough.
//!
//! A small neural network judges each 16 ms of the decoded line (`earshot`: pure Rust, no
//! dependencies, about 5 µs a judgement and 8 KB a session). Speech has started after a few such
//! frames in a row, and stopped after half a second without one.

use earshot::Detector;

/// The detector's rate, in Hz.
pub(super) const RATE_HZ: u32 = 16_000;
/// The detector's frame.
const FRAME_SAMPLES: usize = 256;
/// A frame in samples at 48 kHz.
const FRAME_LENGTH: u64 = FRAME_SAMPLES as u64 * 3;
/// From this score on a frame is speech, as its authors advise; below the other it is none. What
/// is between changes nothing.
const SPEECH_SCORE: f32 = 0.5;
const QUIET_SCORE: f32 = 0.35;
/// Speech starts with so many frames in a row: 48 ms, longer than most clicks.
const START_FRAMES: u32 = 3;
/// Speech stops after so many frames without any: half a second, the protocol's usual pause.
const STOP_FRAMES: u32 = 31;

/// What the caller has begun to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speech {
    /// To speak, from this place of his line on, in samples at 48 kHz.
    Started(u64),
    /// To be silent.
    Stopped(u64),
}

/// See the module.
pub(super) struct Turns {
    detector: Box<Detector>,
    frame: Vec<i16>,
    rates: Rates,
    turn: Turn,
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns")
            .field("turn", &self.turn)
            .finish_non_exhaustive()
    }
}

/// From the line's rate to the detector's, by straight lines between samples: enough to tell
/// speech.
#[derive(Debug, Default)]
struct Rates {
    last: i16,
    /// Where the next sample stands behind `last`, in parts of the line's sample: its rate is one.
    position: u32,
}

/// The state that scores lead to.
#[derive(Debug, Default)]
struct Turn {
    is_speaking: bool,
    /// Frames in a row that speak for a change.
    frames: u32,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            detector: Detector::default_boxed(),
            frame: Vec::with_capacity(FRAME_SAMPLES),
            rates: Rates::default(),
            turn: Turn::default(),
        }
    }

    /// PCM of the line that ends at `end`, in samples at 48 kHz, and what changes with it.
    pub(super) fn hear(&mut self, end: u64, pcm: &[i16], rate_hz: u32) -> Option<Speech> {
        let mut change = None;
        for &sample in pcm {
            let Self {
                detector,
                frame,
                rates,
                turn,
            } = self;
            rates.push(sample, rate_hz, |sample| {
                frame.push(sample);
                if frame.len() == FRAME_SAMPLES {
                    let score = detector.predict_i16(frame);
                    frame.clear();
                    change = turn.note(score, end).or(change);
                }
            });
        }
        change
    }

    /// `samples` at 48 kHz without any sound, up to `end`.
    pub(super) fn pass(&mut self, end: u64, samples: u64) -> Option<Speech> {
        // More silence than ends a turn says no more.
        let silence = (samples.min(SILENCE_SAMPLES_MAX) / 3) as usize;
        self.hear(end, &SILENCE[..silence], RATE_HZ)
    }
}

/// A second, in samples at 48 kHz and as the detector hears it.
const SILENCE_SAMPLES_MAX: u64 = 48_000;
static SILENCE: [i16; RATE_HZ as usize] = [0; RATE_HZ as usize];
const _: () = assert!(STOP_FRAMES as u64 * FRAME_LENGTH < SILENCE_SAMPLES_MAX);

impl Rates {
    fn push(&mut self, sample: i16, rate_hz: u32, mut give: impl FnMut(i16)) {
        while self.position < RATE_HZ {
            let (from, to) = (i64::from(self.last), i64::from(sample));
            let part = i64::from(self.position);
            let between = from + (to - from) * part / i64::from(RATE_HZ);
            // Between two samples of 16 bits lies one.
            give(between as i16);
            self.position += rate_hz;
        }
        self.position -= RATE_HZ;
        self.last = sample;
    }
}

impl Turn {
    fn note(&mut self, score: f32, end: u64) -> Option<Speech> {
        let speaks_for_change = if self.is_speaking {
            score < QUIET_SCORE
        } else {
            score >= SPEECH_SCORE
        };
        self.frames = if speaks_for_change {
            self.frames + 1
        } else {
            0
        };
        let wanted = if self.is_speaking {
            STOP_FRAMES
        } else {
            START_FRAMES
        };
        if self.frames < wanted {
            return None;
        }
        self.frames = 0;
        self.is_speaking = !self.is_speaking;
        let began = end.saturating_sub(u64::from(wanted) * FRAME_LENGTH);
        Some(if self.is_speaking {
            Speech::Started(began)
        } else {
            Speech::Stopped(began)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::g711::Law;

    /// Words of a speech synthesizer, "Tell me about the weather": 1.3 s in µ-law at 8 kHz.
    static WORDS: &[u8] = include_bytes!("../../tests/data/question.ulaw");

    fn words(rate_hz: u32) -> Vec<i16> {
        let at = |n: usize| f64::from(Law::Mu.decode(WORDS[n.min(WORDS.len() - 1)]));
        let count = WORDS.len() * rate_hz as usize / 8_000;
        let between = |n: usize| {
            let place = n as f64 * 8_000.0 / f64::from(rate_hz);
            let (from, to) = (at(place as usize), at(place as usize + 1));
            (from + (to - from) * place.fract()) as i16
        };
        (0..count).map(between).collect()
    }

    fn changes(turns: &mut Turns, pcm: &[i16], rate_hz: u32, from: u64) -> Vec<Speech> {
        let scale = u64::from(48_000 / rate_hz);
        let packet = rate_hz as usize / 50;
        let packets = pcm.chunks(packet).enumerate();
        packets
            .filter_map(|(n, packet)| {
                let end = from + (n as u64 + 1) * packet.len() as u64 * scale;
                turns.hear(end, packet, rate_hz)
            })
            .collect()
    }

    #[test]
    fn speech_starts_and_stops_at_every_rate() {
        for rate_hz in [8_000, 16_000, 24_000, 48_000] {
            let mut turns = Turns::new();
            let quiet = vec![0; rate_hz as usize];
            assert_eq!(changes(&mut turns, &quiet, rate_hz, 0), []);
            let started = changes(&mut turns, &words(rate_hz), rate_hz, 48_000);
            assert!(
                matches!(started[..], [Speech::Started(at)] if (45_000..72_000).contains(&at)),
                "{rate_hz}: {started:?}"
            );
            let stopped = changes(&mut turns, &quiet, rate_hz, 110_400);
            assert!(
                matches!(stopped[..], [Speech::Stopped(at)] if (100_000..130_000).contains(&at)),
                "{rate_hz}: {stopped:?}"
            );
        }
    }

    #[test]
    fn noise_and_clicks_are_no_speech() {
        let mut turns = Turns::new();
        let mut noise = 1u32;
        let pcm: Vec<_> = (0..32_000)
            .map(|n| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let hiss = (noise >> 24) as i16 - 128;
                if n % 8_000 < 4 { 20_000 } else { hiss }
            })
            .collect();
        assert_eq!(changes(&mut turns, &pcm, 16_000, 0), []);
    }

    #[test]
    fn a_change_needs_frames_in_a_row() {
        let mut turn = Turn::default();
        for score in [0.9, 0.9, 0.1, 0.9, 0.9] {
            assert_eq!(turn.note(score, 10_000), None);
        }
        assert_eq!(
            turn.note(0.9, 10_000),
            Some(Speech::Started(10_000 - 3 * 768))
        );
        for _ in 0..30 {
            assert_eq!(turn.note(0.1, 0), None);
        }
        assert_eq!(turn.note(0.4, 0), None, "neither");
        for _ in 0..30 {
            assert_eq!(turn.note(0.1, 0), None);
        }
        assert_eq!(
            turn.note(0.1, 90_000),
            Some(Speech::Stopped(90_000 - 31 * 768))
        );
    }

    #[test]
    fn the_number_of_samples_follows_the_rates() {
        for rate_hz in [8_000, 12_000, 16_000, 24_000, 48_000] {
            let (mut rates, mut given) = (Rates::default(), 0);
            for _ in 0..rate_hz {
                rates.push(0, rate_hz, |_| given += 1);
            }
            assert_eq!(given, RATE_HZ, "{rate_hz}");
        }
    }
}
