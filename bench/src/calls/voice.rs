//! What a client says and how it knows it again: Opus packets that carry a number and a stamp where
//! sound would be, in the rhythm of speech.
//!
//! An echo passes Opus through, so what comes back is compared byte for byte with what was said.
//! The rhythm is drawn from the call's seed: the same seed says the same at the same times.
//!
//! ```text
//!  0      1        5          9                    17        25
//! +------+--------+----------+--------------------+---------+---------------------+
//! | TOC  | call   | sequence | intended send, ns  | mark    | filler of the call  |
//! +------+--------+----------+--------------------+---------+---------------------+
//! ```
//!
//! The mark is zero. An echo of this program writes there what its clock shows when it has the
//! packet, so that the way to it and the way back have a delay each; other echoes leave it alone.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Length of a packet, and the distance of two during speech.
pub const FRAME: Duration = Duration::from_millis(20);
/// The same on Opus' RTP clock, which is 48 kHz whatever the content (RFC 7587, 4.1).
pub const FRAME_SAMPLES: u32 = 960;
/// RFC 6716, 3.1: configuration 15 (hybrid, fullband, 20 ms), mono, one frame.
const TOC: u8 = 15 << 3;
const HEAD_BYTES: usize = 25;
/// Where in it the mark is.
const MARK: Range<usize> = 17..25;
/// Opus at 24 to 40 kbit/s, the range of voice, is 60 to 100 bytes in 20 ms.
const PAYLOAD_BYTES_MIN: usize = 60;
const PAYLOAD_BYTES_MAX: usize = 100;
/// In silence an Opus encoder with DTX sends one frame every 400 ms (RFC 7587, 3.1.3).
const COMFORT_FRAMES: u32 = 20;
/// Mean lengths of talk spurts and of pauses in conversation (ITU-T P.59, table 1).
const SPURT_MEAN: Duration = Duration::from_millis(1_004);
const PAUSE_MEAN: Duration = Duration::from_millis(1_587);

/// The rhythm in which a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Speech {
    /// 50 packets a second without a pause: the heaviest load a call makes.
    Continuous,
    /// Talk spurts and pauses of conversation (ITU-T P.59), silence by DTX.
    Conversation,
}

/// One packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its number in the call, from 0.
    pub sequence: u32,
    /// When to send it, counted from the start of the call's media.
    pub at: Duration,
    /// RTP timestamp: runs on through silence.
    pub timestamp: u32,
    /// Whether a talk spurt starts here (RFC 3551, 4.1).
    pub marker: bool,
}

/// The speaker of one call: an endless, seeded sequence of frames.
#[derive(Clone, Debug)]
pub struct Voice {
    speech: Speech,
    random: fastrand::Rng,
    sequence: u32,
    /// The next frame's place, in frames since the start.
    slot: u32,
    /// Frames left of the current talk spurt, or of the current pause.
    left: u32,
    talks: bool,
    starts: bool,
}

impl Voice {
    /// A speaker with the given rhythm, who starts with a talk spurt.
    pub fn new(speech: Speech, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            speech,
            left: frames(SPURT_MEAN, &mut random),
            random,
            sequence: 0,
            slot: 0,
            talks: true,
            starts: true,
        }
    }

    /// The next packet.
    pub fn speak(&mut self) -> Frame {
        let frame = Frame {
            sequence: self.sequence,
            at: FRAME * self.slot,
            timestamp: self.slot.wrapping_mul(FRAME_SAMPLES),
            marker: self.starts,
        };
        self.sequence += 1;
        self.starts = false;
        match self.speech {
            Speech::Continuous => self.slot += 1,
            Speech::Conversation => self.turn(),
        }
        frame
    }

    /// Goes on to the next place at which there is something to send.
    fn turn(&mut self) {
        let step = if self.talks {
            1
        } else {
            COMFORT_FRAMES.min(self.left)
        };
        self.slot += step;
        self.left -= step;
        if self.left == 0 {
            self.talks = !self.talks;
            self.starts = self.talks;
            let mean = if self.talks { SPURT_MEAN } else { PAUSE_MEAN };
            self.left = frames(mean, &mut self.random);
        }
    }
}

/// An exponentially distributed number of frames, at least one.
fn frames(mean: Duration, random: &mut fastrand::Rng) -> u32 {
    let mean_frames = mean.as_secs_f64() / FRAME.as_secs_f64();
    let drawn = -(1.0 - random.f64()).ln() * mean_frames;
    drawn.round().max(1.0) as u32
}

/// What a packet says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The call that said it.
    pub call: u32,
    /// Its number in the call.
    pub sequence: u32,
    /// When it should have been sent, in nanoseconds since the run's epoch.
    pub intended_ns: u64,
}

impl Stamp {
    /// The Opus packet that carries this stamp.
    pub fn write(&self) -> Arc<[u8]> {
        let mut packet = [0; PAYLOAD_BYTES_MAX];
        let length = self.length();
        self.fill(&mut packet[..length]);
        packet[..length].into()
    }

    /// The stamp of a packet that [`Stamp::write`] made, marked or not; `None` for anything else,
    /// bent or foreign.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let head = packet.first_chunk::<HEAD_BYTES>()?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let stamp = Self {
            call: word(1),
            sequence: word(5),
            intended_ns: u64::from(word(9)) << 32 | u64::from(word(13)),
        };
        let mut expected = [0; PAYLOAD_BYTES_MAX];
        let expected = &mut expected[..stamp.length()];
        stamp.fill(expected);
        expected[MARK].copy_from_slice(&head[MARK]);
        (packet == expected).then_some(stamp)
    }

    /// Marks a packet that [`Stamp::write`] made with what a clock shows; leaves others alone.
    pub fn mark(packet: &mut [u8], clock_ns: u64) {
        if Self::read(packet).is_some() {
            packet[MARK].copy_from_slice(&clock_ns.to_be_bytes());
        }
    }

    /// What a packet with a stamp was marked with; `None` when it was not.
    pub fn marked_ns(packet: &[u8]) -> Option<u64> {
        let mark = packet.get(MARK)?.first_chunk()?;
        Some(u64::from_be_bytes(*mark)).filter(|clock_ns| *clock_ns != 0)
    }

    fn fill(&self, packet: &mut [u8]) {
        let filler = (self.call ^ self.sequence).to_le_bytes()[0];
        packet.fill(filler);
        packet[0] = TOC;
        packet[1..5].copy_from_slice(&self.call.to_be_bytes());
        packet[5..9].copy_from_slice(&self.sequence.to_be_bytes());
        packet[9..17].copy_from_slice(&self.intended_ns.to_be_bytes());
        packet[MARK].fill(0);
    }

    /// Lengths vary with the sequence as an encoder's do, without a draw a packet.
    fn length(&self) -> usize {
        let span = (PAYLOAD_BYTES_MAX - PAYLOAD_BYTES_MIN + 1) as u32;
        // Knuth's multiplicative hash spreads neighbours over the span.
        let spread = self
            .sequence
            .wrapping_add(self.call)
            .wrapping_mul(2_654_435_761)
            >> 16;
        PAYLOAD_BYTES_MIN + (spread % span) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(sequence: u32) -> Stamp {
        Stamp {
            call: 7,
            sequence,
            intended_ns: 0x0123_4567_89ab_cdef,
        }
    }

    #[test]
    fn knows_its_own_packets_again_and_no_others() {
        for sequence in 0..500 {
            let packet = stamp(sequence).write();
            assert_eq!(Stamp::read(&packet), Some(stamp(sequence)));
            let place = sequence as usize % packet.len();
            let mut bent = packet.to_vec();
            bent[place] ^= 1;
            let known = Stamp::read(&bent) == Some(stamp(sequence));
            assert_eq!(known, MARK.contains(&place));
            assert_eq!(Stamp::marked_ns(&bent).is_some(), known);
            assert_eq!(Stamp::read(&packet[..packet.len() - 1]), None);
        }
        assert_eq!(Stamp::read(&[]), None);
    }

    #[test]
    fn only_its_own_packets_can_be_marked_and_stay_known() {
        let mut packet = stamp(3).write().to_vec();
        assert_eq!(Stamp::marked_ns(&packet), None);
        Stamp::mark(&mut packet, 77);
        assert_eq!(Stamp::marked_ns(&packet), Some(77));
        assert_eq!(Stamp::read(&packet), Some(stamp(3)));
        let mut foreign = vec![0x78; 60];
        Stamp::mark(&mut foreign, 77);
        assert_eq!(foreign, [0x78; 60]);
        Stamp::mark(&mut [], 77);
        assert_eq!(Stamp::marked_ns(&packet[..20]), None);
    }

    #[test]
    fn continuous_speech_has_a_packet_every_20_ms_and_one_marker() {
        let mut voice = Voice::new(Speech::Continuous, 1);
        for sequence in 0..1_000 {
            let expected = Frame {
                sequence,
                at: FRAME * sequence,
                timestamp: sequence * FRAME_SAMPLES,
                marker: sequence == 0,
            };
            assert_eq!(voice.speak(), expected);
        }
    }

    #[test]
    fn conversation_talks_and_pauses_as_long_as_p59_says() {
        let mut voice = Voice::new(Speech::Conversation, 3);
        let frames: Vec<Frame> = (0..200_000).map(|_| voice.speak()).collect();
        let spurts = frames.iter().filter(|frame| frame.marker).count() as f64;
        let last = frames[frames.len() - 1];
        let cycle_s = last.at.as_secs_f64() / spurts;
        let expected_s = (SPURT_MEAN + PAUSE_MEAN).as_secs_f64();
        assert!(
            (cycle_s / expected_s - 1.0).abs() < 0.03,
            "{cycle_s} s a cycle"
        );
        let pairs = frames.windows(2);
        assert!(pairs.clone().all(|pair| pair[1].at > pair[0].at));
        let longest = pairs.map(|pair| pair[1].at - pair[0].at).max();
        assert_eq!(longest, Some(FRAME * COMFORT_FRAMES));
        assert!(frames.iter().all(|frame| {
            FRAME_SAMPLES.wrapping_mul((frame.at.as_millis() / 20) as u32) == frame.timestamp
        }));
    }

    #[test]
    fn the_same_seed_says_the_same() {
        let said = |seed| {
            let mut voice = Voice::new(Speech::Conversation, seed);
            (0..1_000).map(|_| voice.speak()).collect::<Vec<_>>()
        };
        assert_eq!(said(5), said(5));
        assert_ne!(said(5), said(6));
    }
}
