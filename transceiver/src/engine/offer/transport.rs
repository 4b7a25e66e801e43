//! The client's side of ICE and DTLS, as an offer states it: at the session or in any section.

use super::super::fingerprint::{Fingerprint, Hash};
use super::{OfferError, malformed};

/// Shortest and longest ICE ufrag and password (RFC 8839, 5.4).
const UFRAG_CHARS: std::ops::RangeInclusive<usize> = 4..=256;
const PASSWORD_CHARS: std::ops::RangeInclusive<usize> = 22..=256;

/// Which DTLS roles the offerer can take (RFC 8842, 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setup {
    ActPass,
    Active,
    Passive,
}

/// The client's side of ICE and DTLS: everything its transport must prove.
#[derive(Debug, Clone, Default)]
pub(super) struct Transport {
    ufrag: Option<String>,
    password: Option<String>,
    fingerprint: Option<Fingerprint>,
    /// Whether there is one of a hash function that is not served.
    other_fingerprint: bool,
    setup: Option<Setup>,
}

/// The transport of an offer, complete.
pub(super) struct TransportFacts<'a> {
    pub(super) ufrag: &'a str,
    pub(super) password: &'a str,
    pub(super) fingerprint: &'a Fingerprint,
    pub(super) setup: Setup,
}

impl<'a> TransportFacts<'a> {
    /// Puts a transport together from `places`, in order of preference.
    pub(super) fn first_of(
        places: impl Iterator<Item = &'a Transport> + Clone,
    ) -> Result<Self, OfferError> {
        let places = || places.clone();
        let both = |place: &'a Transport| place.ufrag.as_deref().zip(place.password.as_deref());
        let Some((ufrag, password)) = places().find_map(both) else {
            return Err(malformed(0, "no a=ice-ufrag with an a=ice-pwd"));
        };
        let Some(fingerprint) = places().find_map(|place| place.fingerprint.as_ref()) else {
            return Err(if places().any(|place| place.other_fingerprint) {
                OfferError::NothingUsable("its a=fingerprint is not of sha-256, sha-384 or sha-512")
            } else {
                malformed(0, "no a=fingerprint")
            });
        };
        let setup = places()
            .find_map(|place| place.setup)
            .unwrap_or(Setup::ActPass);
        Ok(Self {
            ufrag,
            password,
            fingerprint,
            setup,
        })
    }
}

impl Transport {
    pub(super) fn read_attribute(
        &mut self,
        number: usize,
        name: &str,
        value: &str,
    ) -> Result<(), OfferError> {
        match name {
            "ice-ufrag" => self.ufrag = Some(ice_ufrag(number, value)?),
            "ice-pwd" => self.password = Some(ice_password(number, value)?),
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

    /// SHA-256 is preferred, which everybody has; otherwise the first counts (RFC 8122, 5).
    fn read_fingerprint(&mut self, number: usize, value: &str) -> Result<(), OfferError> {
        let Some(read) = Fingerprint::parse(number, value)? else {
            self.other_fingerprint = true;
            return Ok(());
        };
        if self.fingerprint.is_none() || read.hash() == Hash::Sha256 {
            self.fingerprint = Some(read);
        }
        Ok(())
    }
}

/// A client's ufrag.
pub(in crate::engine) fn ice_ufrag(number: usize, value: &str) -> Result<String, OfferError> {
    ice_token(number, value, UFRAG_CHARS)
}

/// A client's ICE password.
pub(in crate::engine) fn ice_password(number: usize, value: &str) -> Result<String, OfferError> {
    ice_token(number, value, PASSWORD_CHARS)
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
