//! One m-line of an offer and the attributes under it (RFC 8866, 5.14 and 6).

use std::fmt::Write as _;

use super::super::audio::AudioFormat;
use super::super::rtpmap::{Codec, EventRange, RtpMap, dtx_payload_type};
use super::transport::{Setup, Transport, TransportFacts};
use super::{OfferError, malformed};

/// Longest token (kind, protocol, format) that is repeated in an answer.
const TOKEN_BYTES_MAX: usize = 64;
/// The MID header extension in its one-byte form carries at most 16 bytes (RFC 8285, 4.2).
const MID_BYTES_MAX: usize = 16;
/// Ranges of telephone events taken from one section: one for each clock rate and one to spare.
const EVENT_RANGES_MAX: usize = 3;
/// Payload types of Opus with discontinuous transmission taken from one section.
const DTX_TYPES_MAX: usize = 4;
/// SSRCs taken from one section: a microphone has one, and a change of device adds one.
const SSRCS_MAX: usize = 4;
/// Largest message a peer takes that does not say (RFC 8841, 6.1).
pub(super) const MESSAGE_BYTES_DEFAULT: u32 = 64 * 1024;

/// The header extensions that are negotiated: who is heard, and which m-line a packet is of.
const EXTENSIONS: [&str; 2] = [
    "urn:ietf:params:rtp-hdrext:ssrc-audio-level",
    "urn:ietf:params:rtp-hdrext:sdes:mid",
];

/// Which way media flows, from the offerer's point of view (RFC 8866, 6.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    SendRecv,
    SendOnly,
    RecvOnly,
    Inactive,
}

/// One m-line and the attributes under it.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Section {
    pub(super) line: usize,
    pub(super) kind: String,
    protocol: String,
    formats: Vec<String>,
    pub(super) closed: bool,
    pub(super) bundle_only: bool,
    pub(super) mid: Option<String>,
    pub(super) direction: Option<Direction>,
    pub(super) transport: Transport,
    rtpmaps: Vec<RtpMap>,
    event_ranges: Vec<EventRange>,
    dtx_types: Vec<u8>,
    /// `(id, uri)` of the header extensions the engine knows.
    extensions: Vec<(u8, &'static str)>,
    ssrcs: Vec<u32>,
    pub(super) message_bytes_max: u32,
    /// Whether the answer serves this section; the others are refused in place.
    pub(super) served: bool,
}

/// The direction that an attribute of this name states.
pub(super) fn direction(name: &str) -> Option<Direction> {
    Some(match name {
        "sendrecv" => Direction::SendRecv,
        "sendonly" => Direction::SendOnly,
        "recvonly" => Direction::RecvOnly,
        "inactive" => Direction::Inactive,
        _ => return None,
    })
}

impl Direction {
    fn attribute(self) -> &'static str {
        match self {
            Self::SendRecv => "sendrecv",
            Self::SendOnly => "sendonly",
            Self::RecvOnly => "recvonly",
            Self::Inactive => "inactive",
        }
    }
}

impl Section {
    /// `m=<kind> <port> <protocol> <format> ..` (RFC 8866, 5.14).
    pub(super) fn read(number: usize, value: &str) -> Result<Self, OfferError> {
        let mut words = value.split_whitespace();
        let (Some(kind), Some(port), Some(protocol)) = (words.next(), words.next(), words.next())
        else {
            return Err(malformed(
                number,
                "an m-line needs a kind, a port and a protocol",
            ));
        };
        let formats: Vec<&str> = words.collect();
        let tokens = || [kind, protocol].into_iter().chain(formats.iter().copied());
        if tokens().any(|token| token.len() > TOKEN_BYTES_MAX) || formats.is_empty() {
            return Err(malformed(
                number,
                "an m-line needs formats, and no word over 64 bytes",
            ));
        }
        let port = port.split('/').next().unwrap_or(port);
        let port: u16 = port
            .parse()
            .map_err(|_| malformed(number, "the port is no number"))?;
        Ok(Self {
            line: number,
            kind: kind.to_owned(),
            protocol: protocol.to_owned(),
            formats: formats.iter().map(|&format| format.to_owned()).collect(),
            closed: port == 0,
            bundle_only: false,
            mid: None,
            direction: None,
            transport: Transport::default(),
            rtpmaps: Vec::new(),
            event_ranges: Vec::new(),
            dtx_types: Vec::new(),
            extensions: Vec::new(),
            ssrcs: Vec::new(),
            message_bytes_max: MESSAGE_BYTES_DEFAULT,
            served: false,
        })
    }

    pub(super) fn read_attribute(
        &mut self,
        number: usize,
        name: &str,
        value: &str,
    ) -> Result<(), OfferError> {
        match name {
            "mid" => {
                if value.len() > MID_BYTES_MAX || !value.bytes().all(|byte| byte.is_ascii_graphic())
                {
                    return Err(malformed(
                        number,
                        "a=mid has 1 to 16 visible ASCII characters",
                    ));
                }
                if !value.is_empty() && self.mid.replace(value.to_owned()).is_some() {
                    return Err(malformed(number, "a second a=mid under one m-line"));
                }
            }
            "bundle-only" => self.bundle_only = true,
            "rtpmap" => self.read_rtpmap(value),
            "fmtp" => self.read_fmtp(value),
            "extmap" => self.read_extmap(value),
            "ssrc" => self.read_ssrc(value),
            "max-message-size" => {
                // 0 means any size (RFC 8841, 6.1).
                let bytes: u64 = value
                    .parse()
                    .map_err(|_| malformed(number, "a=max-message-size is no number"))?;
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                self.message_bytes_max = if bytes == 0 { u32::MAX } else { bytes };
            }
            _ => self.direction = direction(name).or(self.direction),
        }
        Ok(())
    }

    /// Keeps the first payload type of each codec that is spoken, in the order of the m-line's
    /// attributes. What is not understood is not offered to us.
    fn read_rtpmap(&mut self, value: &str) {
        let Some(map) = RtpMap::parse(value) else {
            return;
        };
        let listed = self.formats.contains(&map.payload_type.to_string());
        if listed && self.rtpmaps.iter().all(|known| known.codec != map.codec) {
            self.rtpmaps.push(map);
        }
    }

    /// Firefox writes `a=fmtp` in front of the `a=rtpmap` it belongs to, so it is only noted.
    fn read_fmtp(&mut self, value: &str) {
        if let Some(range) = EventRange::parse(value)
            && self.event_ranges.len() < EVENT_RANGES_MAX
        {
            self.event_ranges.push(range);
        }
        if let Some(payload_type) = dtx_payload_type(value)
            && self.dtx_types.len() < DTX_TYPES_MAX
        {
            self.dtx_types.push(payload_type);
        }
    }

    fn read_extmap(&mut self, value: &str) {
        let mut words = value.split_whitespace();
        let id = words
            .next()
            .and_then(|id| id.split('/').next()?.parse().ok());
        let uri = words
            .next()
            .and_then(|uri| EXTENSIONS.into_iter().find(|&known| known == uri));
        // Ids 1 to 14 are the one-byte form, the only one the engine writes (RFC 8285, 4.2).
        if let (Some(id @ 1..=14), Some(uri)) = (id, uri)
            && self
                .extensions
                .iter()
                .all(|known| known.0 != id && known.1 != uri)
        {
            self.extensions.push((id, uri));
        }
    }

    fn read_ssrc(&mut self, value: &str) {
        let ssrc = value
            .split_whitespace()
            .next()
            .and_then(|ssrc| ssrc.parse().ok());
        if let Some(ssrc) = ssrc
            && self.ssrcs.len() < SSRCS_MAX
            && !self.ssrcs.contains(&ssrc)
        {
            self.ssrcs.push(ssrc);
        }
    }

    /// Whether it is an audio line with a codec that is spoken.
    pub(super) fn is_voice(&self) -> bool {
        // The profiles a WebRTC answerer must take for the same thing (RFC 8829, 5.1.2).
        let secure = [
            "UDP/TLS/RTP/SAVPF",
            "UDP/TLS/RTP/SAVP",
            "RTP/SAVPF",
            "RTP/SAVP",
        ];
        self.kind == "audio"
            && secure.contains(&self.protocol.as_str())
            && self.voice_map().is_some()
    }

    /// The payload type that carries the voice: Opus, or the G.711 that comes first.
    fn voice_map(&self) -> Option<RtpMap> {
        let opus = self.rtpmaps.iter().find(|map| map.codec == Codec::Opus);
        opus.cloned().or_else(|| {
            self.formats.iter().find_map(|format| {
                let payload_type: u8 = format.parse().ok()?;
                let mapped = self
                    .rtpmaps
                    .iter()
                    .find(|map| map.payload_type == payload_type)
                    .map(|map| map.codec);
                let codec = mapped.or_else(|| Codec::of_static(payload_type))?;
                matches!(codec, Codec::Pcmu | Codec::Pcma).then_some(RtpMap {
                    payload_type,
                    codec,
                })
            })
        })
    }

    /// What is answered: the voice, and key presses. Beside G.711 only those of its own clock,
    /// because the two share their timestamps (RFC 4733, 2.1).
    fn spoken(&self) -> impl Iterator<Item = RtpMap> {
        let voice = self.voice_map();
        let keys = self.rtpmaps.iter().filter(|map| match map.codec {
            Codec::TelephoneEvent(rate_hz) => {
                rate_hz == 8_000 || self.rtpmaps.iter().any(|map| map.codec == Codec::Opus)
            }
            _ => false,
        });
        voice.into_iter().chain(keys.cloned())
    }

    /// What audio for the client is made of.
    pub(in crate::engine) fn audio_format(&self) -> Option<AudioFormat> {
        let voice = self.voice_map()?;
        let codec = voice.codec.audio();
        Some(AudioFormat {
            codec,
            payload_type: voice.payload_type,
            clock_rate_hz: codec.clock_rate_hz()?,
        })
    }

    /// Whether the client wants nothing sent while nobody speaks.
    pub(in crate::engine) fn wants_dtx(&self) -> bool {
        self.voice_map().is_some_and(|voice| {
            voice.codec == Codec::Opus && self.dtx_types.contains(&voice.payload_type)
        })
    }

    pub(super) fn is_channel(&self) -> bool {
        self.kind == "application"
            && ["UDP/DTLS/SCTP", "TCP/DTLS/SCTP"].contains(&self.protocol.as_str())
            && self
                .formats
                .iter()
                .any(|format| format == "webrtc-datachannel")
    }

    pub(in crate::engine) fn is_served(&self) -> bool {
        self.served
    }

    /// The m-line of an answer that serves this section with `formats`.
    pub(in crate::engine) fn served_line(&self, port: u16, formats: &str) -> String {
        format!("m={} {port} {} {formats}", self.kind, self.protocol)
    }

    /// The m-line of an answer that refuses this section (RFC 3264, 6). It must list a format,
    /// which means nothing; for RTP the one that needs no `a=rtpmap`, which strict readers want.
    pub(in crate::engine) fn refused_line(&self) -> String {
        let rtp = self.protocol.contains("RTP/");
        let format = if rtp {
            "0"
        } else {
            self.formats.first().map_or("0", String::as_str)
        };
        format!("m={} 0 {} {format}", self.kind, self.protocol)
    }

    /// The offered mid.
    pub(in crate::engine) fn mid(&self) -> Option<&str> {
        self.mid.as_deref()
    }

    /// The mid under which the engine knows it. Only a section that is served alone can lack one,
    /// so any name will do.
    pub(super) fn engine_mid(&self) -> &str {
        self.mid().unwrap_or("0")
    }

    /// Writes the section in the one spelling str0m reads.
    pub(super) fn write_canonical(
        &self,
        text: &mut String,
        direction: Direction,
        transport: &TransportFacts<'_>,
    ) {
        if self.is_channel() {
            text.push_str("m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\n");
        } else {
            text.push_str("m=audio 9 UDP/TLS/RTP/SAVPF");
            for map in self.spoken() {
                push(text, format_args!(" {}", map.payload_type));
            }
            text.push_str("\r\n");
        }
        let TransportFacts {
            ufrag,
            password,
            fingerprint,
            setup,
        } = transport;
        let setup = match setup {
            Setup::ActPass => "actpass",
            Setup::Active => "active",
            Setup::Passive => "passive",
        };
        let mid = self.engine_mid();
        push(
            text,
            format_args!("c=IN IP4 0.0.0.0\r\na=ice-ufrag:{ufrag}\r\n"),
        );
        push(
            text,
            format_args!(
                "a=ice-pwd:{password}\r\na=fingerprint:sha-256 {}\r\n",
                fingerprint.expected()
            ),
        );
        push(text, format_args!("a=setup:{setup}\r\na=mid:{mid}\r\n"));
        if self.is_channel() {
            let bytes = self.message_bytes_max;
            push(
                text,
                format_args!("a=sctp-port:5000\r\na=max-message-size:{bytes}\r\n"),
            );
        } else {
            push(
                text,
                format_args!("a={}\r\na=rtcp-mux\r\n", direction.attribute()),
            );
            for map in self.spoken() {
                map.write(&self.event_ranges, text);
            }
            for (id, uri) in &self.extensions {
                push(text, format_args!("a=extmap:{id} {uri}\r\n"));
            }
            for ssrc in &self.ssrcs {
                push(text, format_args!("a=ssrc:{ssrc} cname:-\r\n"));
            }
        }
    }
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments)
        .expect("invariant: writing to a String does not fail");
}
