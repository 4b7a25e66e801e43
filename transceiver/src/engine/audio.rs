//! Audio packets as the engine takes and gives them, and what their payloads say of themselves.

use std::sync::Arc;

/// An audio packet from the client, decrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AudioIn {
    /// RTP sequence number, extended over wraps.
    pub sequence: u64,
    /// RTP timestamp, extended over wraps, in units of `clock_rate_hz`.
    pub timestamp: u64,
    /// Clock of the timestamp, in Hz.
    pub clock_rate_hz: u32,
    /// Marker bit: the first packet of a talk spurt (RFC 3551, 4.1).
    pub marker: bool,
    /// Whose packet it is; changes when the client changes its source.
    pub ssrc: u32,
    /// Payload type as negotiated.
    pub payload_type: u8,
    /// What the payload is.
    pub codec: AudioCodec,
    /// Loudness from 0 (loudest) to -127 dBov (RFC 6464), where the client says.
    pub level_dbov: Option<i8>,
    /// The payload, without header and padding.
    pub payload: Arc<[u8]>,
}

/// What an audio payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AudioCodec {
    /// Opus (RFC 7587).
    Opus,
    /// G.711 µ-law at 8 kHz (RFC 3551, 4.5.14).
    Pcmu,
    /// G.711 A-law at 8 kHz (RFC 3551, 4.5.14).
    Pcma,
    /// A key press (RFC 4733).
    TelephoneEvent,
}

/// What audio for the client is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AudioFormat {
    /// The codec: any but [`AudioCodec::TelephoneEvent`].
    pub codec: AudioCodec,
    /// The payload type the client gave it.
    pub payload_type: u8,
    /// Clock of its timestamps, in Hz: 48,000 for Opus, 8,000 for G.711.
    pub clock_rate_hz: u32,
}

/// An audio packet for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AudioOut {
    /// RTP sequence number, extended; a session's first is below 65,536 (RFC 3711, 3.3.1).
    pub sequence: u64,
    /// RTP timestamp in units of the codec's clock.
    pub timestamp: u32,
    /// Whether a talk spurt starts here.
    pub marker: bool,
    /// A payload type the client offered.
    pub payload_type: u8,
    /// The payload.
    pub payload: Arc<[u8]>,
}

impl AudioCodec {
    /// How long a payload plays, in samples at 48 kHz: 120 to 5,760. `None` for one that makes no
    /// sense, and for key presses.
    pub fn samples(self, payload: &[u8]) -> Option<u32> {
        let samples = match self {
            Self::Opus => opus_samples(payload)?,
            // One byte a sample, six samples of 48 kHz.
            Self::Pcmu | Self::Pcma => u32::try_from(payload.len()).ok()?.checked_mul(6)?,
            Self::TelephoneEvent => return None,
        };
        // No Opus packet holds more than 120 ms (RFC 6716, 3.2.5); nobody sends more in G.711.
        (1..=5_760).contains(&samples).then_some(samples)
    }

    /// Its name in SDP (RFC 8866, 6.6), in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Opus => "opus",
            Self::Pcmu => "pcmu",
            Self::Pcma => "pcma",
            Self::TelephoneEvent => "telephone-event",
        }
    }

    /// The clock of its timestamps, in Hz; `None` for key presses, which have several.
    pub fn clock_rate_hz(self) -> Option<u32> {
        match self {
            Self::Opus => Some(48_000),
            Self::Pcmu | Self::Pcma => Some(8_000),
            Self::TelephoneEvent => None,
        }
    }
}

/// Samples at 48 kHz in an Opus packet, from its first bytes (RFC 6716, 3.1 and 3.2).
fn opus_samples(payload: &[u8]) -> Option<u32> {
    let toc = *payload.first()?;
    let config = toc >> 3;
    let frame = match config {
        // SILK: 10, 20, 40, 60 ms.
        0..=11 => [480, 960, 1_920, 2_880][usize::from(config & 3)],
        // Hybrid: 10, 20 ms.
        12..=15 => [480, 960][usize::from(config & 1)],
        // CELT: 2.5, 5, 10, 20 ms.
        _ => [120, 240, 480, 960][usize::from(config & 3)],
    };
    let frames = match toc & 3 {
        0 => 1,
        1 | 2 => 2,
        _ => u32::from(*payload.get(1)? & 0x3f),
    };
    Some(frame * frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_length_of_every_kind_of_opus_packet() {
        let samples = |payload: &[u8]| AudioCodec::Opus.samples(payload);
        assert_eq!(samples(&[]), None);
        assert_eq!(samples(&[0]), Some(480));
        assert_eq!(samples(&[(3 << 3) | 1]), Some(5_760));
        assert_eq!(samples(&[13 << 3]), Some(960));
        assert_eq!(samples(&[16 << 3]), Some(120));
        assert_eq!(samples(&[(31 << 3) | 3]), None);
        assert_eq!(samples(&[(31 << 3) | 3, 6]), Some(5_760));
        assert_eq!(samples(&[(31 << 3) | 3, 7]), None);
        assert_eq!(samples(&[(31 << 3) | 3, 0]), None);
    }

    #[test]
    fn g711_is_one_byte_a_sample_of_8_khz() {
        assert_eq!(AudioCodec::Pcmu.samples(&[0; 160]), Some(960));
        assert_eq!(AudioCodec::Pcma.samples(&[0; 960]), Some(5_760));
        assert_eq!(AudioCodec::Pcma.samples(&[0; 961]), None);
        assert_eq!(AudioCodec::Pcmu.samples(&[]), None);
        assert_eq!(AudioCodec::TelephoneEvent.samples(&[1, 2, 3, 4]), None);
    }
}
