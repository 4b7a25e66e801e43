//! The codecs of an audio line: `a=rtpmap` and the part of `a=fmtp` that matters (RFC 8866, 6.6).
//!
//! Opus (RFC 7587) carries the voice; G.711 (RFC 3551) does for clients that offer no Opus. Key
//! presses come as telephone events (RFC 4733), which browsers offer at 8 kHz, at 48 kHz, or at
//! both. Everything else a client offers (RED, comfort noise, G.722) is left out of the answer.

use std::fmt::Write as _;

use super::audio::AudioCodec;

/// A codec this server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    /// `opus/48000/2`: always written so, whatever is really in it (RFC 7587, 7).
    Opus,
    /// `PCMU/8000`.
    Pcmu,
    /// `PCMA/8000`.
    Pcma,
    /// Key presses, with the clock rate in Hz.
    TelephoneEvent(u32),
}

/// One payload type of an audio line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RtpMap {
    pub(super) payload_type: u8,
    pub(super) codec: Codec,
}

impl Codec {
    /// The codec of a payload type that needs no `a=rtpmap` (RFC 3551, 6).
    pub(super) fn of_static(payload_type: u8) -> Option<Self> {
        match payload_type {
            0 => Some(Self::Pcmu),
            8 => Some(Self::Pcma),
            _ => None,
        }
    }

    /// What of it the rest of the engine knows.
    pub(super) fn audio(self) -> AudioCodec {
        match self {
            Self::Opus => AudioCodec::Opus,
            Self::Pcmu => AudioCodec::Pcmu,
            Self::Pcma => AudioCodec::Pcma,
            Self::TelephoneEvent(_) => AudioCodec::TelephoneEvent,
        }
    }
}

/// `a=fmtp` of telephone events: a payload type, and the highest event of its range `0-x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventRange {
    payload_type: u8,
    event_max: u8,
}

impl EventRange {
    /// `<payload type> 0-<highest>`, or `None` for any other parameters.
    pub(super) fn parse(value: &str) -> Option<Self> {
        let (payload_type, parameters) = value.split_once(char::is_whitespace)?;
        let event_max = parameters.trim().strip_prefix("0-")?.parse().ok()?;
        Some(Self {
            payload_type: payload_type.parse().ok()?,
            event_max,
        })
    }
}

/// The payload type of an Opus `a=fmtp` that asks for discontinuous transmission (RFC 7587, 6.1).
/// Its other parameters say what the client can receive, and what is sent to it was made for it.
pub(super) fn dtx_payload_type(value: &str) -> Option<u8> {
    let (payload_type, parameters) = value.split_once(char::is_whitespace)?;
    let asks = parameters
        .split(';')
        .any(|parameter| parameter.trim().eq_ignore_ascii_case("usedtx=1"));
    payload_type.parse().ok().filter(|_| asks)
}

impl RtpMap {
    /// `<payload type> <name>/<clock rate>[/<channels>]`, or `None` when it is no codec of ours.
    pub(super) fn parse(value: &str) -> Option<Self> {
        let (payload_type, codec) = value.split_once(char::is_whitespace)?;
        let payload_type = payload_type.parse().ok().filter(|&number| number <= 127)?;
        let mut parts = codec.trim().split('/');
        let (name, rate) = (parts.next()?, parts.next()?);
        let channels = parts.next();
        let codec = match (name.to_ascii_lowercase().as_str(), rate, channels) {
            ("opus", "48000", Some("2")) => Codec::Opus,
            ("pcmu", "8000", None | Some("1")) => Codec::Pcmu,
            ("pcma", "8000", None | Some("1")) => Codec::Pcma,
            ("telephone-event", "48000", None | Some("1")) => Codec::TelephoneEvent(48_000),
            ("telephone-event", "8000", None | Some("1")) => Codec::TelephoneEvent(8_000),
            _ => return None,
        };
        Some(Self {
            payload_type,
            codec,
        })
    }

    /// Writes the line or lines of it, CRLF and all.
    pub(super) fn write(&self, ranges: &[EventRange], text: &mut String) {
        let number = self.payload_type;
        let range = ranges.iter().find(|range| range.payload_type == number);
        let written = match (self.codec, range) {
            (Codec::Opus, _) => write!(
                text,
                "a=rtpmap:{number} opus/48000/2\r\na=fmtp:{number} minptime=10;useinbandfec=1\r\n"
            ),
            (Codec::Pcmu, _) => write!(text, "a=rtpmap:{number} PCMU/8000\r\n"),
            (Codec::Pcma, _) => write!(text, "a=rtpmap:{number} PCMA/8000\r\n"),
            (Codec::TelephoneEvent(rate), None) => {
                write!(text, "a=rtpmap:{number} telephone-event/{rate}\r\n")
            }
            (Codec::TelephoneEvent(rate), Some(EventRange { event_max, .. })) => write!(
                text,
                "a=rtpmap:{number} telephone-event/{rate}\r\na=fmtp:{number} 0-{event_max}\r\n"
            ),
        };
        written.expect("invariant: writing to a String does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_opus_g711_and_telephone_events_in_any_case_and_nothing_else() {
        let codec = |value| RtpMap::parse(value).map(|map| (map.payload_type, map.codec));
        assert_eq!(codec("111 opus/48000/2"), Some((111, Codec::Opus)));
        assert_eq!(codec("96 OPUS/48000/2"), Some((96, Codec::Opus)));
        assert_eq!(codec("0 PCMU/8000"), Some((0, Codec::Pcmu)));
        assert_eq!(codec("97 pcma/8000/1"), Some((97, Codec::Pcma)));
        assert_eq!(
            codec("110 telephone-event/48000"),
            Some((110, Codec::TelephoneEvent(48_000)))
        );
        assert_eq!(
            codec("101 telephone-event/8000/1"),
            Some((101, Codec::TelephoneEvent(8_000)))
        );
        for other in [
            "111 opus/48000",
            "63 red/48000/2",
            "9 G722/8000",
            "0 PCMU/16000",
            "13 CN/8000",
            "128 opus/48000/2",
            "x",
        ] {
            assert_eq!(codec(other), None, "{other}");
        }
    }

    #[test]
    fn sees_who_asks_for_discontinuous_transmission() {
        assert_eq!(dtx_payload_type("111 minptime=10; usedtx=1"), Some(111));
        assert_eq!(dtx_payload_type("96 UseDTX=1;x"), Some(96));
        for other in [
            "111 minptime=10",
            "111 usedtx=0",
            "111 usedtx=10",
            "x usedtx=1",
            "111",
        ] {
            assert_eq!(dtx_payload_type(other), None, "{other}");
        }
    }

    #[test]
    fn keeps_a_plain_event_range_and_drops_other_parameters() {
        let written = |fmtp: &str| {
            let ranges: Vec<_> = EventRange::parse(fmtp).into_iter().collect();
            let mut text = String::new();
            RtpMap::parse("101 telephone-event/8000")
                .unwrap()
                .write(&ranges, &mut text);
            text
        };
        assert!(written("101 0-15").ends_with("a=fmtp:101 0-15\r\n"));
        for other in ["101 0-15,66", "102 0-15", "101", "x 0-15", "101 0-999"] {
            assert!(!written(other).contains("fmtp"), "{other}");
        }
    }
}
