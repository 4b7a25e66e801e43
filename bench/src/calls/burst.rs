//! Speech that survives a codec: bursts of sound with pauses between, encoded in earnest.
//!
//! A stamp in a payload is gone once something decodes and encodes it. What is left is when a burst
//! begins: the caller knows when he began one, and hears one begin when packets come again after a
//! pause, in which a backend that sends only what is loud sends nothing.

use std::sync::Arc;

use anyhow::Context;
use opus_pure::{Application, MAX_PACKET_BYTES, OpusEncoder};

use super::voice::FRAME_SAMPLES;

/// A sample as loud as this is sound: far above what a decoder makes of silence.
pub(super) const LOUD: u16 = 1_000;
/// A burst and the pause behind it are a second, in frames.
const BURST_FRAMES: u32 = 42;
const CYCLE_FRAMES: u32 = 50;
/// Packets that come after so much of the stream's time without any begin a burst: half of the
/// pause, so that neither a lost packet nor one that was late for its place looks like one.
const PAUSE_SAMPLES: u64 = 4 * FRAME_SAMPLES as u64;
/// What Opus encodes at.
const RATE_HZ: u32 = 48_000;
/// A voice's bit rate (RFC 7587, 3.1.1: fullband speech).
const BITRATE_BPS: i32 = 32_000;
/// The pitch of the sound, and how often a syllable of it begins, in Hz: an even tone would pass
/// for noise, of which an encoder with DTX sends nothing.
const PITCH_HZ: f64 = 160.0;
const SYLLABLES_HZ: f64 = 4.0;
const HARMONICS: u32 = 6;
const AMPLITUDE: f64 = 9_000.0;

/// A cycle of packets, to be said over and over.
#[derive(Clone, Debug)]
pub struct Bursts {
    packets: Arc<[Arc<[u8]>]>,
}

impl Bursts {
    /// Encodes them.
    ///
    /// # Errors
    /// When the codec will not.
    pub fn new() -> anyhow::Result<Self> {
        let mut encoder = OpusEncoder::new(RATE_HZ.cast_signed(), 1, Application::Voip)
            .context("no Opus encoder")?;
        encoder.bitrate_bps = BITRATE_BPS;
        let mut packet = vec![0; MAX_PACKET_BYTES];
        let frames = (0..CYCLE_FRAMES).map(|frame| {
            let pcm = if frame < BURST_FRAMES {
                sound(RATE_HZ, frame * FRAME_SAMPLES, FRAME_SAMPLES)
            } else {
                vec![0; FRAME_SAMPLES as usize]
            };
            let length = encoder.encode_s16(&pcm, pcm.len(), &mut packet);
            let length = length.context("Opus does not encode")?;
            Ok(Arc::from(&packet[..length]))
        });
        Ok(Self {
            packets: frames.collect::<anyhow::Result<_>>()?,
        })
    }

    /// The packet that is said in this place.
    #[must_use]
    pub fn packet(&self, sequence: u32) -> Arc<[u8]> {
        Arc::clone(&self.packets[(sequence % CYCLE_FRAMES) as usize])
    }

    /// The number of the burst that begins with this packet, if one does.
    #[must_use]
    pub fn beginning(sequence: u32) -> Option<u32> {
        sequence
            .is_multiple_of(CYCLE_FRAMES)
            .then_some(sequence / CYCLE_FRAMES)
    }
}

/// Hears bursts begin.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Onset {
    next: Option<u64>,
}

impl Onset {
    /// A packet with this RTP timestamp came; whether a burst begins with it.
    pub(super) fn hear(&mut self, timestamp: u64) -> bool {
        let begins = self
            .next
            .is_none_or(|next| timestamp >= next + PAUSE_SAMPLES);
        let end = timestamp + u64::from(FRAME_SAMPLES);
        self.next = self.next.max(Some(end));
        begins
    }
}

/// `count` samples of the sound, from sample `from` on: a voiced tone that swells and ebbs.
#[must_use]
pub(super) fn sound(rate_hz: u32, from: u32, count: u32) -> Vec<i16> {
    let turn = std::f64::consts::TAU;
    let samples = (from..from + count).map(|at| {
        let at_s = f64::from(at) / f64::from(rate_hz);
        let tone: f64 = (1..=HARMONICS)
            .map(|n| (turn * PITCH_HZ * f64::from(n) * at_s).sin() / f64::from(n))
            .sum();
        // Loud from the first sample on: the onset is what is listened for.
        let swell = 0.65 + 0.35 * (turn * SYLLABLES_HZ * at_s).cos();
        (AMPLITUDE * swell * tone) as i16
    });
    samples.collect()
}

#[cfg(test)]
mod tests {
    use opus_pure::OpusDecoder;

    use super::*;

    #[test]
    fn a_decoder_hears_each_burst_from_its_first_packet_on_and_the_pause_behind_it() {
        let bursts = Bursts::new().expect("Opus");
        let mut decoder = OpusDecoder::new(24_000, 1).expect("Opus");
        let mut pcm = vec![0; 480];
        let peaks = (0..3 * CYCLE_FRAMES).map(|sequence| {
            let decoded = decoder.decode_s16(&bursts.packet(sequence), 480, &mut pcm);
            assert_eq!(decoded.expect("a packet"), 480);
            pcm.iter().map(|sample| sample.unsigned_abs()).max()
        });
        let loud: Vec<bool> = peaks.map(|peak| peak >= Some(LOUD)).collect();
        let begins = |place: usize| loud[place] && (place == 0 || !loud[place - 1]);
        let begun: Vec<usize> = (0..loud.len()).filter(|place| begins(*place)).collect();
        assert_eq!(begun, [0, 50, 100]);
        for cycle in loud.chunks(CYCLE_FRAMES as usize) {
            let silent = cycle.iter().filter(|loud| !**loud).count() as u64;
            assert!(
                silent * u64::from(FRAME_SAMPLES) > PAUSE_SAMPLES,
                "{cycle:?}"
            );
        }
    }

    #[test]
    fn only_a_pause_begins_a_burst() {
        let mut onset = Onset::default();
        let frame = u64::from(FRAME_SAMPLES);
        // A lost packet, one out of order, one twice, and then a pause.
        let heard = [10, 11, 13, 12, 13, 14, 20].map(|place| onset.hear(place * frame));
        assert_eq!(heard, [true, false, false, false, false, false, true]);
    }

    #[test]
    fn bursts_are_numbered_by_their_first_packets() {
        assert_eq!(Bursts::beginning(0), Some(0));
        assert_eq!(Bursts::beginning(1), None);
        assert_eq!(Bursts::beginning(100), Some(2));
    }
}
