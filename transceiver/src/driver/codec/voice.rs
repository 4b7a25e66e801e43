//! The codecs themselves behind two small traits: Opus by a kept library, G.711 by the book.
//!
//! All PCM is mono, signed 16 bit. A decoder and an encoder each run at one rate, which Opus speaks
//! natively and G.711 by a [`Resampler`].

use std::sync::Arc;

use opus_pure::{Application, MAX_PACKET_BYTES, OpusDecoder, OpusEncoder, packet};

use super::resample::Resampler;
use crate::backend::g711::Law;
use crate::engine::AudioCodec;

/// Length of the frames that are sent: what playout paces.
pub(super) const FRAME_MS: u32 = 20;
/// The longest Opus packet (RFC 6716, 3.2.5).
const PACKET_MS_MAX: u32 = 120;
/// What a loss is made up for by the decoder; beyond it, it has faded to silence anyway.
const CONCEALED_MS_MAX: u32 = 120;
/// The longest gap that is filled: more would be a mistake of the caller's clock.
const GAP_MS_MAX: u32 = 10_000;
/// G.711's rate.
const G711_HZ: u32 = 8_000;

/// Bits a second of speech that is sent: beyond it, one voice at 24 kHz gains nothing audible.
const BITRATE_BPS: i32 = 32_000;
/// How hard the encoder tries, of 10. A second of speech takes half of the CPU of the library's
/// default of 9, and three quarters of that of 5, which is what mobile clients use.
const COMPLEXITY: i32 = 3;
/// Makes PCM of what a client sends.
pub(super) trait Decoder: Send {
    /// Appends the packet's samples. Says whether it could be decoded; nothing is appended if not.
    fn decode(&mut self, payload: &[u8], pcm: &mut Vec<i16>) -> bool;

    /// Appends `count` samples in place of a loss, with the help of the packet `behind` it.
    fn conceal(&mut self, count: usize, behind: Option<&[u8]>, pcm: &mut Vec<i16>);
}

/// Makes packets of PCM.
pub(super) trait Encoder: Send {
    /// Encodes one frame of [`FRAME_MS`]. `None` if the library will not.
    fn encode(&mut self, frame: &[i16]) -> Option<Arc<[u8]>>;

    /// Forgets what was encoded.
    fn reset(&mut self);

    /// Makes packets for a client that loses so many of a hundred, where the codec can.
    fn expect_loss(&mut self, percent: u8);
}

/// A decoder to `rate_hz`; `None` for what is no audio.
pub(super) fn decoder(codec: AudioCodec, rate_hz: u32) -> Option<Box<dyn Decoder>> {
    match codec {
        AudioCodec::Opus => Some(Box::new(Opus::<OpusDecoder>::decoder(rate_hz)?)),
        AudioCodec::Pcmu => Some(Box::new(Telephone::decoder(Law::Mu, rate_hz))),
        AudioCodec::Pcma => Some(Box::new(Telephone::decoder(Law::A, rate_hz))),
        AudioCodec::TelephoneEvent => None,
    }
}

/// An encoder from `rate_hz`; `None` for what is no audio.
pub(super) fn encoder(codec: AudioCodec, rate_hz: u32) -> Option<Box<dyn Encoder>> {
    match codec {
        AudioCodec::Opus => Some(Box::new(Opus::<OpusEncoder>::encoder(rate_hz)?)),
        AudioCodec::Pcmu => Some(Box::new(Telephone::encoder(Law::Mu, rate_hz))),
        AudioCodec::Pcma => Some(Box::new(Telephone::encoder(Law::A, rate_hz))),
        AudioCodec::TelephoneEvent => None,
    }
}

/// Samples of a duration.
pub(super) fn samples_of(ms: u32, rate_hz: u32) -> usize {
    (rate_hz / 1_000 * ms) as usize
}

/// One direction of Opus.
struct Opus<T> {
    library: T,
    rate_hz: u32,
    packet: Vec<u8>,
}

impl Opus<OpusDecoder> {
    fn decoder(rate_hz: u32) -> Option<Self> {
        Some(Self {
            library: OpusDecoder::new(i32::try_from(rate_hz).ok()?, 1).ok()?,
            rate_hz,
            packet: Vec::new(),
        })
    }

    /// Decodes into room for `count` samples; what was not filled is taken off again.
    fn run(
        &mut self,
        count: usize,
        pcm: &mut Vec<i16>,
        run: impl FnOnce(&mut OpusDecoder, &mut [i16]) -> opus_pure::Result<usize>,
    ) -> bool {
        let start = pcm.len();
        pcm.resize(start + count, 0);
        let filled = run(&mut self.library, &mut pcm[start..]);
        pcm.truncate(start + filled.as_ref().map_or(0, |filled| *filled));
        filled.is_ok()
    }
}

impl Decoder for Opus<OpusDecoder> {
    fn decode(&mut self, payload: &[u8], pcm: &mut Vec<i16>) -> bool {
        // An empty payload means a loss to the library; from a client it means nothing.
        if payload.is_empty() {
            return false;
        }
        let count = samples_of(PACKET_MS_MAX, self.rate_hz);
        self.run(count, pcm, |library, out| {
            library.decode_s16(payload, count, out)
        })
    }

    fn conceal(&mut self, count: usize, behind: Option<&[u8]>, pcm: &mut Vec<i16>) {
        let count = count.min(samples_of(GAP_MS_MAX, self.rate_hz));
        let end = pcm.len() + count;
        let frame = samples_of(FRAME_MS, self.rate_hz);
        // The packet behind the gap can tell of one frame: the last.
        let rate_hz = i32::try_from(self.rate_hz).unwrap_or_default();
        let told = behind.and_then(|packet| packet::samples_per_frame(packet, rate_hz).ok());
        let told = told.filter(|told| *told <= count).unwrap_or(0);
        let concealed = samples_of(CONCEALED_MS_MAX, self.rate_hz);
        // The library conceals in multiples of 2.5 ms.
        let unit = (self.rate_hz / 400) as usize;
        let mut left = (count - told).min(concealed) / unit * unit;
        while left > 0 {
            let piece = left.min(frame);
            self.run(piece, pcm, |library, out| {
                library.decode_s16(&[], piece, out)
            });
            left -= piece;
        }
        pcm.resize(end - told, 0);
        if let (Some(packet), 1..) = (behind, told) {
            self.run(told, pcm, |library, out| {
                library.decode_fec_s16(packet, told, out)
            });
        }
        pcm.resize(end, 0);
    }
}

impl Opus<OpusEncoder> {
    fn encoder(rate_hz: u32) -> Option<Self> {
        let rate = i32::try_from(rate_hz).ok()?;
        let mut library = OpusEncoder::new(rate, 1, Application::Voip).ok()?;
        library.bitrate_bps = BITRATE_BPS;
        library.complexity = COMPLEXITY;
        library.use_dtx = true;
        library.use_inband_fec = true;
        Some(Self {
            library,
            rate_hz,
            packet: vec![0; MAX_PACKET_BYTES],
        })
    }
}

impl Encoder for Opus<OpusEncoder> {
    fn encode(&mut self, frame: &[i16]) -> Option<Arc<[u8]>> {
        debug_assert_eq!(frame.len(), samples_of(FRAME_MS, self.rate_hz));
        let encoded = self
            .library
            .encode_s16(frame, frame.len(), &mut self.packet);
        Some(self.packet[..encoded.ok()?].into())
    }

    fn reset(&mut self) {
        if self.library.reset_state().is_err() {
            tracing::warn!("an Opus encoder could not be reset");
        }
    }

    /// The library does without forward error correction as long as no loss is expected.
    fn expect_loss(&mut self, percent: u8) {
        self.library.packet_loss_perc = i32::from(percent);
    }
}

/// One direction of G.711.
struct Telephone {
    law: Law,
    resampler: Resampler,
    scratch: Vec<i16>,
    /// What concealment repeats, ever more quietly.
    last: Vec<i16>,
}

impl Telephone {
    fn decoder(law: Law, rate_hz: u32) -> Self {
        Self::new(law, Resampler::new(G711_HZ, rate_hz))
    }

    fn encoder(law: Law, rate_hz: u32) -> Self {
        Self::new(law, Resampler::new(rate_hz, G711_HZ))
    }

    fn new(law: Law, resampler: Resampler) -> Self {
        Self {
            law,
            resampler,
            scratch: Vec::new(),
            last: Vec::new(),
        }
    }
}

impl Decoder for Telephone {
    fn decode(&mut self, payload: &[u8], pcm: &mut Vec<i16>) -> bool {
        let longest = samples_of(PACKET_MS_MAX, G711_HZ);
        if payload.is_empty() || payload.len() > longest {
            return false;
        }
        self.scratch.clear();
        self.scratch
            .extend(payload.iter().map(|byte| self.law.decode(*byte)));
        let start = pcm.len();
        self.resampler.run(&self.scratch, pcm);
        self.last.clear();
        self.last.extend_from_slice(&pcm[start..]);
        true
    }

    fn conceal(&mut self, count: usize, _: Option<&[u8]>, pcm: &mut Vec<i16>) {
        let end = pcm.len() + count.min(samples_of(GAP_MS_MAX, self.resampler.rate_out_hz()));
        // Once more at half of its level, and then silence: a plain form of what G.711's Appendix I
        // does with pitch periods.
        let repeated = self.last.drain(..).map(|sample| sample / 2);
        pcm.extend(repeated.take(end - pcm.len()));
        pcm.resize(end, 0);
    }
}

impl Encoder for Telephone {
    fn encode(&mut self, frame: &[i16]) -> Option<Arc<[u8]>> {
        self.scratch.clear();
        self.resampler.run(frame, &mut self.scratch);
        let bytes = self.scratch.iter().map(|sample| self.law.encode(*sample));
        Some(bytes.collect())
    }

    fn reset(&mut self) {
        self.resampler.reset();
    }

    fn expect_loss(&mut self, _: u8) {}
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const RATE_HZ: u32 = 24_000;

    /// Speech-like: a tone of 220 Hz with overtones, its level rising and falling.
    pub(in crate::driver::codec) fn voice(count: usize) -> Vec<i16> {
        let sample = |n: usize| {
            let t = n as f64 / f64::from(RATE_HZ);
            let tone = |hz: f64| (std::f64::consts::TAU * hz * t).sin();
            let level = 0.6 + 0.4 * tone(3.0);
            (8_000.0 * level * (tone(220.0) + 0.5 * tone(440.0) + 0.2 * tone(880.0))) as i16
        };
        (0..count).map(sample).collect()
    }

    fn energy(pcm: &[i16]) -> f64 {
        pcm.iter().map(|sample| f64::from(*sample).powi(2)).sum()
    }

    /// The best correlation of `heard` with `said` over shifts of up to 20 ms, 1 being the same.
    fn likeness(said: &[i16], heard: &[i16]) -> f64 {
        let shifts = 0..samples_of(20, RATE_HZ);
        let correlation = |shift: usize| {
            let heard = &heard[shift..];
            let said = &said[..heard.len()];
            let products = said.iter().zip(heard);
            let product: f64 = products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            product / (energy(said) * energy(heard)).sqrt()
        };
        shifts.map(correlation).fold(0.0, f64::max)
    }

    fn packets(said: &[i16]) -> Vec<Arc<[u8]>> {
        let mut encoder = encoder(AudioCodec::Opus, RATE_HZ).unwrap();
        encoder.expect_loss(5);
        let frames = said.chunks_exact(samples_of(FRAME_MS, RATE_HZ));
        frames.map(|frame| encoder.encode(frame).unwrap()).collect()
    }

    #[test]
    fn speech_survives_each_codec() {
        let said = voice(24_000);
        for (codec, least) in [
            (AudioCodec::Opus, 0.95),
            (AudioCodec::Pcmu, 0.98),
            (AudioCodec::Pcma, 0.98),
        ] {
            let mut encoder = encoder(codec, RATE_HZ).unwrap();
            let mut decoder = decoder(codec, RATE_HZ).unwrap();
            let mut heard = Vec::new();
            for frame in said.chunks_exact(samples_of(FRAME_MS, RATE_HZ)) {
                let packet = encoder.encode(frame).unwrap();
                assert!(decoder.decode(&packet, &mut heard));
            }
            assert_eq!(heard.len(), said.len(), "{codec:?}");
            let likeness = likeness(&said, &heard);
            assert!(likeness > least, "{codec:?}: {likeness}");
        }
    }

    #[test]
    fn a_lost_frame_is_heard_from_the_packet_behind_it() {
        let said = voice(24_000);
        let packets = packets(&said);
        let frame = samples_of(FRAME_MS, RATE_HZ);
        let mut decoder = decoder(AudioCodec::Opus, RATE_HZ).unwrap();
        let mut heard = Vec::new();
        for (index, packet) in packets.iter().enumerate() {
            if index == 20 {
                decoder.conceal(frame, Some(&packets[21]), &mut heard);
            } else {
                assert!(decoder.decode(packet, &mut heard));
            }
        }
        assert_eq!(heard.len(), said.len());
        assert!(likeness(&said, &heard) > 0.9);
        let lost = 20 * frame..21 * frame;
        assert!(energy(&heard[lost.clone()]) > 0.1 * energy(&said[lost]));
    }

    #[test]
    fn a_gap_is_as_long_as_it_was_whatever_is_behind_it() {
        let said = voice(24_000);
        let packets = packets(&said);
        for codec in [AudioCodec::Opus, AudioCodec::Pcmu] {
            for count in [0, 1, 480, 481, 2_400, 48_000] {
                for behind in [
                    None,
                    Some(&packets[5][..]),
                    Some(&[][..]),
                    Some(&[0xff][..]),
                ] {
                    let mut decoder = decoder(codec, RATE_HZ).unwrap();
                    let mut heard = Vec::new();
                    decoder.decode(&packets[4], &mut heard);
                    let before = heard.len();
                    decoder.conceal(count, behind, &mut heard);
                    assert_eq!(heard.len() - before, count, "{codec:?} {behind:?}");
                }
            }
        }
        let mut decoder = decoder(AudioCodec::Opus, RATE_HZ).unwrap();
        let mut heard = Vec::new();
        decoder.conceal(usize::MAX / 2, None, &mut heard);
        assert_eq!(heard.len(), 240_000, "and bounded");
    }

    #[test]
    fn silence_is_sent_as_next_to_nothing() {
        let mut encoder = encoder(AudioCodec::Opus, RATE_HZ).unwrap();
        let silence = vec![0; samples_of(FRAME_MS, RATE_HZ)];
        let lengths: Vec<_> = (0..100)
            .map(|_| encoder.encode(&silence).unwrap().len())
            .collect();
        assert!(
            lengths[50..].iter().filter(|length| **length <= 2).count() > 30,
            "{lengths:?}"
        );
    }

    #[test]
    fn what_is_no_packet_is_refused_and_leaves_nothing() {
        for (codec, payload) in [
            (AudioCodec::Opus, &[][..]),
            (AudioCodec::Opus, &[0xff][..]),
            (AudioCodec::Pcmu, &[][..]),
            (AudioCodec::Pcma, &[0; 2_000][..]),
        ] {
            let mut heard = Vec::new();
            assert!(!decoder(codec, RATE_HZ).unwrap().decode(payload, &mut heard));
            assert!(heard.is_empty());
        }
    }
}
