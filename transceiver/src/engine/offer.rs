//! Reads an SDP offer (RFC 8866, RFC 8829) as real clients write it: what of it can be served,
//! and what the answer must keep in its place.
//!
//! The text comes from a stranger and in many hands' spelling: LF or CRLF, a byte order mark,
//! session-level attributes, m-lines without `a=mid`, video nobody can serve, candidates with
//! names instead of addresses. This module takes out the few facts the engine needs, under limits,
//! and forgets the rest; in particular candidates, because an ICE-lite server learns a client's
//! address from its first check. [`Offer::canonical`] writes those facts down again in the one
//! spelling str0m reads, so that no odd line can make str0m drop a section silently.

use std::fmt::Write as _;

use super::rtpmap::{Codec, EventRange, RtpMap};

/// Largest offer that is read. Chrome with many transceivers and gathered candidates was seen to
/// send 112 KB.
pub const OFFER_BYTES_MAX: usize = 128 * 1024;
/// Most lines of an offer: the size limit at a mean of 16 bytes a line.
const LINES_MAX: usize = OFFER_BYTES_MAX / 16;
/// Most m-lines of an offer: each one, served or not, is a section of the answer.
const SECTIONS_MAX: usize = 64;
/// Longest token (kind, protocol, format) that is repeated in an answer.
const TOKEN_BYTES_MAX: usize = 64;
/// The MID header extension in its one-byte form carries at most 16 bytes (RFC 8285, 4.2).
const MID_BYTES_MAX: usize = 16;
/// Ranges of telephone events taken from one section: one for each clock rate and one to spare.
const EVENT_RANGES_MAX: usize = 3;
/// SSRCs taken from one section: a microphone has one, and a change of device adds one.
const SSRCS_MAX: usize = 4;
/// Shortest and longest ICE ufrag and password (RFC 8839, 5.4).
const UFRAG_CHARS: std::ops::RangeInclusive<usize> = 4..=256;
const PASSWORD_CHARS: std::ops::RangeInclusive<usize> = 22..=256;
/// Largest message a peer takes that does not say (RFC 8841, 6.1).
const MESSAGE_BYTES_DEFAULT: u32 = 64 * 1024;
/// Bytes of a SHA-256 digest.
const SHA256_BYTES: usize = 32;

/// Why an offer cannot be answered. The message is written for the client's developer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// The text is not an SDP offer that WebRTC could have made.
    #[error("the SDP offer cannot be read: line {line}: {what}")]
    Malformed {
        /// Line of the offer, counted from 1; 0 when something is missing altogether.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The text exceeds a limit.
    #[error("the SDP offer is too large: at most {limit} {unit} are read")]
    TooLarge {
        /// The limit.
        limit: usize,
        /// What is counted: bytes, lines or m-lines.
        unit: &'static str,
    },
    /// Readable, but with nothing this server can serve.
    #[error("nothing in the SDP offer can be served: {0}")]
    NothingUsable(&'static str),
    /// The engine refused what was read.
    #[error("the SDP offer cannot be served: {0}")]
    Refused(String),
}

fn malformed(line: usize, what: &'static str) -> OfferError {
    OfferError::Malformed { line, what }
}

/// Which way media flows, from the offerer's point of view (RFC 8866, 6.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    SendRecv,
    SendOnly,
    RecvOnly,
    Inactive,
}

/// Which DTLS roles the offerer can take (RFC 8842, 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setup {
    ActPass,
    Active,
    Passive,
}

/// The client's side of ICE and DTLS: everything its transport must prove.
#[derive(Debug, Clone, Default)]
struct Transport {
    ufrag: Option<String>,
    password: Option<String>,
    /// Upper-case hexadecimal with colons, of SHA-256.
    fingerprint: Option<String>,
    other_fingerprint: bool,
    setup: Option<Setup>,
}

/// One m-line and the attributes under it.
#[derive(Debug, Clone)]
pub(super) struct Section {
    line: usize,
    kind: String,
    protocol: String,
    formats: Vec<String>,
    closed: bool,
    bundle_only: bool,
    mid: Option<String>,
    direction: Option<Direction>,
    transport: Transport,
    rtpmaps: Vec<RtpMap>,
    event_ranges: Vec<EventRange>,
    /// `(id, uri)` of the header extensions the engine knows.
    extensions: Vec<(u8, &'static str)>,
    ssrcs: Vec<u32>,
    message_bytes_max: u32,
    /// Whether the answer serves this section; the others are refused in place.
    served: bool,
}

/// An offer that can be answered: at least one section of it is served.
#[derive(Debug, Clone)]
pub struct Offer {
    session: Transport,
    direction: Option<Direction>,
    bundle: Option<Vec<String>>,
    sections: Vec<Section>,
}

/// The header extensions that are negotiated: who is heard, and which m-line a packet is of.
const EXTENSIONS: [&str; 2] = [
    "urn:ietf:params:rtp-hdrext:ssrc-audio-level",
    "urn:ietf:params:rtp-hdrext:sdes:mid",
];

impl Offer {
    /// Reads the body of an offer.
    ///
    /// # Errors
    /// [`OfferError`]: malformed (HTTP 400), too large (413) or nothing usable in it (406).
    pub fn parse(body: &[u8]) -> Result<Self, OfferError> {
        if body.len() > OFFER_BYTES_MAX {
            return Err(OfferError::TooLarge {
                limit: OFFER_BYTES_MAX,
                unit: "bytes",
            });
        }
        let text = std::str::from_utf8(body).map_err(|_| malformed(0, "not UTF-8 text"))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut offer = Self {
            session: Transport::default(),
            direction: None,
            bundle: None,
            sections: Vec::new(),
        };
        let mut started = false;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            if number > LINES_MAX {
                return Err(OfferError::TooLarge {
                    limit: LINES_MAX,
                    unit: "lines",
                });
            }
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let Some((field, value)) = line.split_once('=').filter(|(field, _)| field.len() == 1)
            else {
                return Err(malformed(number, "not of the form <letter>=<value>"));
            };
            if !started && (field, value.trim()) != ("v", "0") {
                return Err(malformed(number, "an SDP offer starts with v=0"));
            }
            started = true;
            offer.read_line(number, field, value.trim())?;
        }
        if !started {
            return Err(malformed(
                0,
                "the body is empty; an SDP offer starts with v=0",
            ));
        }
        offer.choose()?;
        Ok(offer)
    }

    /// Largest message the client takes on its data channels, in bytes.
    pub fn message_bytes_max(&self) -> usize {
        self.served()
            .find(|section| section.is_channel())
            .map_or(MESSAGE_BYTES_DEFAULT, |section| section.message_bytes_max)
            .try_into()
            .unwrap_or(usize::MAX)
    }

    /// Whether a section of audio is served.
    pub fn has_audio(&self) -> bool {
        self.served().any(|section| !section.is_channel())
    }

    /// Whether a section of data channels is served.
    pub fn has_channel(&self) -> bool {
        self.served().any(Section::is_channel)
    }

    pub(super) fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The mids of the BUNDLE group, where the offer has one.
    pub(super) fn is_bundled(&self) -> bool {
        self.bundle.is_some()
    }

    fn served(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(|section| section.served)
    }

    fn read_line(&mut self, number: usize, field: &str, value: &str) -> Result<(), OfferError> {
        match field {
            "m" => {
                if self.sections.len() == SECTIONS_MAX {
                    return Err(OfferError::TooLarge {
                        limit: SECTIONS_MAX,
                        unit: "m-lines",
                    });
                }
                self.sections.push(Section::read(number, value)?);
                Ok(())
            }
            "a" => {
                let (name, value) = value.split_once(':').unwrap_or((value, ""));
                self.read_attribute(number, name.trim(), value.trim())
            }
            _ => Ok(()),
        }
    }

    fn read_attribute(&mut self, number: usize, name: &str, value: &str) -> Result<(), OfferError> {
        let section = self.sections.last_mut();
        let transport = match section {
            Some(section) => {
                section.read_attribute(number, name, value)?;
                &mut section.transport
            }
            None => {
                match name {
                    "group" => self.read_group(value),
                    "ice-lite" => {
                        return Err(OfferError::NothingUsable(
                            "both sides are ICE-lite, so neither would send a check",
                        ));
                    }
                    _ => self.direction = direction(name).or(self.direction),
                }
                &mut self.session
            }
        };
        transport.read_attribute(number, name, value)
    }

    fn read_group(&mut self, value: &str) {
        let mut words = value.split_whitespace();
        if words.next() == Some("BUNDLE") && self.bundle.is_none() {
            self.bundle = Some(words.map(str::to_owned).collect());
        }
    }

    /// Marks what is served: the first audio line with a codec we speak, preferring one with media
    /// on it, and the first line of data channels. Where nothing is bundled each line would be a
    /// transport of its own, of which a session has one, so only one is served.
    fn choose(&mut self) -> Result<(), OfferError> {
        self.check_mids()?;
        if self.sections.is_empty() {
            return Err(malformed(0, "no m-line"));
        }
        let audio = |active: bool| {
            self.sections.iter().position(|section| {
                let inactive = self.direction_of(section) == Direction::Inactive;
                self.is_open(section) && section.is_opus() && inactive != active
            })
        };
        let audio = audio(true).or_else(|| audio(false));
        let channel = self
            .sections
            .iter()
            .position(|section| self.is_open(section) && section.is_channel());
        let channel = channel.filter(|_| audio.is_none() || self.bundle.is_some());
        let silent =
            audio.is_some_and(|at| self.direction_of(&self.sections[at]) == Direction::Inactive);
        match (audio, channel) {
            (None, None) => return Err(self.nothing_usable()),
            (Some(_), None) if silent => {
                return Err(OfferError::NothingUsable("its only audio line is inactive"));
            }
            _ => {}
        }
        for at in audio.into_iter().chain(channel) {
            self.sections[at].served = true;
        }
        self.transport().map(drop)
    }

    fn nothing_usable(&self) -> OfferError {
        let has_audio = self.sections.iter().any(|section| section.kind == "audio");
        OfferError::NothingUsable(if has_audio {
            "no audio line offers opus/48000/2 over UDP/TLS/RTP/SAVPF, and there is no data channel"
        } else {
            "it has neither an audio line nor a data channel"
        })
    }

    fn check_mids(&self) -> Result<(), OfferError> {
        for (at, section) in self.sections.iter().enumerate() {
            let earlier = &self.sections[..at];
            if section.mid.is_some() && earlier.iter().any(|other| other.mid == section.mid) {
                return Err(malformed(
                    section.line,
                    "its a=mid is used by an earlier m-line",
                ));
            }
        }
        Ok(())
    }

    /// Port 0 refuses an m-line, unless it is `bundle-only` within the group (RFC 9143, 6).
    fn is_open(&self, section: &Section) -> bool {
        let Some(bundle) = &self.bundle else {
            return !section.closed;
        };
        let grouped = section.mid.as_ref().is_some_and(|mid| bundle.contains(mid));
        grouped && (!section.closed || section.bundle_only)
    }

    fn direction_of(&self, section: &Section) -> Direction {
        section
            .direction
            .or(self.direction)
            .unwrap_or(Direction::SendRecv)
    }

    /// The transport of the bundle: what the first served section says, else the session, else
    /// any section, because a bundled section need not repeat it (RFC 9143, 7.1.3).
    fn transport(&self) -> Result<TransportFacts<'_>, OfferError> {
        let places = || {
            let first = self.served().take(1).map(|section| &section.transport);
            let any = self.sections.iter().map(|section| &section.transport);
            first.chain(std::iter::once(&self.session)).chain(any)
        };
        let with_ice = places().find(|place| place.ufrag.is_some() && place.password.is_some());
        let (Some(ufrag), Some(password)) = (
            with_ice.and_then(|place| place.ufrag.as_deref()),
            with_ice.and_then(|place| place.password.as_deref()),
        ) else {
            return Err(malformed(0, "no a=ice-ufrag with an a=ice-pwd"));
        };
        let Some(fingerprint) = places().find_map(|place| place.fingerprint.as_deref()) else {
            return Err(if places().any(|place| place.other_fingerprint) {
                OfferError::NothingUsable("its a=fingerprint is not of sha-256")
            } else {
                malformed(0, "no a=fingerprint")
            });
        };
        let setup = places()
            .find_map(|place| place.setup)
            .unwrap_or(Setup::ActPass);
        Ok(TransportFacts {
            ufrag,
            password,
            fingerprint,
            setup,
        })
    }

    /// The served part of the offer in the one spelling str0m reads, CRLF and all.
    ///
    /// Sections without `a=mid` get one that no offer could have given them.
    pub(super) fn canonical(&self) -> String {
        let transport = self
            .transport()
            .expect("invariant: parse() has found a transport");
        let mut text = String::with_capacity(2048);
        text.push_str("v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=group:BUNDLE");
        for (at, section) in self.served().enumerate() {
            push(&mut text, format_args!(" {}", section.engine_mid(at)));
        }
        text.push_str("\r\n");
        for (at, section) in self.served().enumerate() {
            section.write_canonical(&mut text, at, self.direction_of(section), &transport);
        }
        text
    }
}

/// The transport of an offer, complete.
struct TransportFacts<'a> {
    ufrag: &'a str,
    password: &'a str,
    fingerprint: &'a str,
    setup: Setup,
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments)
        .expect("invariant: writing to a String does not fail");
}

fn direction(name: &str) -> Option<Direction> {
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

impl Transport {
    fn read_attribute(&mut self, number: usize, name: &str, value: &str) -> Result<(), OfferError> {
        match name {
            "ice-ufrag" => self.ufrag = Some(ice_token(number, value, UFRAG_CHARS)?),
            "ice-pwd" => self.password = Some(ice_token(number, value, PASSWORD_CHARS)?),
            "fingerprint" => self.read_fingerprint(number, value)?,
            "setup" => {
                self.setup = Some(match value {
                    "actpass" => Setup::ActPass,
                    "active" => Setup::Active,
                    "passive" => Setup::Passive,
                    _ => return Err(malformed(number, "a=setup is actpass, active or passive")),
                });
            }
            _ => {}
        }
        Ok(())
    }

    fn read_fingerprint(&mut self, number: usize, value: &str) -> Result<(), OfferError> {
        let Some((hash, digest)) = value.split_once(char::is_whitespace) else {
            return Err(malformed(
                number,
                "a=fingerprint needs a hash function and a digest",
            ));
        };
        if !hash.eq_ignore_ascii_case("sha-256") {
            self.other_fingerprint = true;
            return Ok(());
        }
        let digest = digest.trim();
        let is_byte = |hex: &str| hex.len() == 2 && hex.bytes().all(|c| c.is_ascii_hexdigit());
        if digest.split(':').count() != SHA256_BYTES || !digest.split(':').all(is_byte) {
            return Err(malformed(
                number,
                "a sha-256 fingerprint is 32 hexadecimal bytes",
            ));
        }
        self.fingerprint = Some(digest.to_ascii_uppercase());
        Ok(())
    }
}

/// Some stacks use characters beyond RFC 8839's ice-char; any visible ASCII is taken.
fn ice_token(
    number: usize,
    value: &str,
    length: std::ops::RangeInclusive<usize>,
) -> Result<String, OfferError> {
    if length.contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(value.to_owned())
    } else {
        Err(malformed(
            number,
            "an ICE ufrag has 4 to 256 characters, a password 22 to 256",
        ))
    }
}

impl Section {
    /// `m=<kind> <port> <protocol> <format> ..` (RFC 8866, 5.14).
    fn read(number: usize, value: &str) -> Result<Self, OfferError> {
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
            extensions: Vec::new(),
            ssrcs: Vec::new(),
            message_bytes_max: MESSAGE_BYTES_DEFAULT,
            served: false,
        })
    }

    fn read_attribute(&mut self, number: usize, name: &str, value: &str) -> Result<(), OfferError> {
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

    fn is_opus(&self) -> bool {
        // The profiles a WebRTC answerer must take for the same thing (RFC 8829, 5.1.2).
        let secure = [
            "UDP/TLS/RTP/SAVPF",
            "UDP/TLS/RTP/SAVP",
            "RTP/SAVPF",
            "RTP/SAVP",
        ];
        self.kind == "audio"
            && secure.contains(&self.protocol.as_str())
            && self.rtpmaps.iter().any(|map| map.codec == Codec::Opus)
    }

    fn is_channel(&self) -> bool {
        self.kind == "application"
            && ["UDP/DTLS/SCTP", "TCP/DTLS/SCTP"].contains(&self.protocol.as_str())
            && self
                .formats
                .iter()
                .any(|format| format == "webrtc-datachannel")
    }

    pub(super) fn is_served(&self) -> bool {
        self.served
    }

    /// The m-line of an answer that serves this section with `formats`.
    pub(super) fn served_line(&self, port: u16, formats: &str) -> String {
        format!("m={} {port} {} {formats}", self.kind, self.protocol)
    }

    /// The m-line of an answer that refuses this section (RFC 3264, 6). It must list a format,
    /// which means nothing; for RTP the one that needs no `a=rtpmap`, which strict readers want.
    pub(super) fn refused_line(&self) -> String {
        let rtp = self.protocol.contains("RTP/");
        let format = if rtp {
            "0"
        } else {
            self.formats.first().map_or("0", String::as_str)
        };
        format!("m={} 0 {} {format}", self.kind, self.protocol)
    }

    /// The offered mid.
    pub(super) fn mid(&self) -> Option<&str> {
        self.mid.as_deref()
    }

    /// The mid under which the engine knows the `at`th served section.
    fn engine_mid(&self, at: usize) -> String {
        self.mid.clone().unwrap_or_else(|| format!("unnamed{at}"))
    }

    fn write_canonical(
        &self,
        text: &mut String,
        at: usize,
        direction: Direction,
        transport: &TransportFacts<'_>,
    ) {
        if self.is_channel() {
            text.push_str("m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\n");
        } else {
            text.push_str("m=audio 9 UDP/TLS/RTP/SAVPF");
            for map in &self.rtpmaps {
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
        let mid = self.engine_mid(at);
        push(
            text,
            format_args!("c=IN IP4 0.0.0.0\r\na=ice-ufrag:{ufrag}\r\n"),
        );
        push(
            text,
            format_args!("a=ice-pwd:{password}\r\na=fingerprint:sha-256 {fingerprint}\r\n"),
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
            for map in &self.rtpmaps {
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
