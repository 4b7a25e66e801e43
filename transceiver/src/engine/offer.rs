//! Reads an SDP offer (RFC 8866, RFC 8829) as real clients write it: what of it can be served,
//! and what the answer must keep in its place.
//!
//! The text comes from a stranger and in many hands' spelling: LF or CRLF, a byte order mark,
//! session-level attributes, m-lines without `a=mid`, video nobody can serve, candidates with
//! names instead of addresses. This module takes out the few facts the engine needs, under limits,
//! and forgets the rest; in particular candidates, because an ICE-lite server learns a client's
//! address from its first check. [`Offer::canonical`] writes those facts down again in the one
//! spelling str0m reads, so that no odd line can make str0m drop a section silently.

mod section;
mod transport;

use super::audio::AudioFormat;
use super::fingerprint::Hash;
use super::ice::ClientCredentials;
use section::{Direction, MESSAGE_BYTES_DEFAULT, direction};
use transport::{Transport, TransportFacts};

pub(super) use section::Section;
pub(super) use transport::{ice_password, ice_ufrag};

/// Largest offer that is read. Chrome with many transceivers and gathered candidates was seen to
/// send 112 KB.
pub const OFFER_BYTES_MAX: usize = 128 * 1024;
/// Most lines of an offer: the size limit at a mean of 16 bytes a line.
const LINES_MAX: usize = OFFER_BYTES_MAX / 16;
/// Most m-lines of an offer: each one, served or not, is a section of the answer.
const SECTIONS_MAX: usize = 64;

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

pub(super) fn malformed(line: usize, what: &'static str) -> OfferError {
    OfferError::Malformed { line, what }
}

/// An offer that can be answered: at least one section of it is served.
#[derive(Debug, Clone)]
pub struct Offer {
    session: Transport,
    direction: Option<Direction>,
    bundle: Option<Vec<String>>,
    sections: Vec<Section>,
}

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

    /// The client's ICE credentials.
    pub fn client_credentials(&self) -> ClientCredentials {
        let transport = self
            .transport()
            .expect("invariant: parse() has found a transport");
        ClientCredentials::parse(0, transport.ufrag, transport.password)
            .expect("invariant: parse() has judged them")
    }

    /// The hash function that the client's certificate is known by.
    pub(super) fn fingerprint_hash(&self) -> Hash {
        self.transport()
            .expect("invariant: parse() has found a transport")
            .fingerprint
            .hash()
    }

    /// What audio for the client is made of, where a section of audio is served.
    pub fn audio_format(&self) -> Option<AudioFormat> {
        self.served().find_map(Section::audio_format)
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
                self.is_open(section) && section.is_voice() && inactive != active
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
            "no audio line offers opus/48000/2, PCMU/8000 or PCMA/8000 over UDP/TLS/RTP/SAVPF, and \
             there is no data channel"
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
        let first = self
            .served()
            .next()
            .map(|section| &section.transport)
            .into_iter();
        let any = self.sections.iter().map(|section| &section.transport);
        TransportFacts::first_of(first.chain(std::iter::once(&self.session)).chain(any))
    }

    /// The served part of the offer in the one spelling str0m reads, CRLF and all.
    pub(super) fn canonical(&self) -> String {
        let transport = self
            .transport()
            .expect("invariant: parse() has found a transport");
        let mids: Vec<&str> = self.served().map(Section::engine_mid).collect();
        let mut text = format!(
            "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=group:BUNDLE {}\r\n",
            mids.join(" ")
        );
        for section in self.served() {
            section.write_canonical(&mut text, self.direction_of(section), &transport);
        }
        text
    }
}
