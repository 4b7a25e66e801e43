//! Fingerprints of certificates (RFC 8122, 5) in the hash functions that are strong enough.
//!
//! str0m compares SHA-256 only. For a client that states another hash of its certificate, str0m is
//! told to expect the SHA-256 of the stated digest, and is given a SHA-256 that hashes certificates
//! by the other function first ([`Digester`]). So the comparison stays in one place, and is as
//! strong as the weaker of both hashes.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256, Sha384, Sha512};
use str0m::crypto::Sha256Provider;

use super::offer::{OfferError, malformed};

/// A hash function that fingerprints are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// What a client says of its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fingerprint {
    hash: Hash,
    digest: Vec<u8>,
}

impl Hash {
    /// Every one of them, in the order of [`Hash::index`].
    pub(super) const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    pub(super) fn index(self) -> usize {
        self as usize
    }

    fn named(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "sha-256" => Some(Self::Sha256),
            "sha-384" => Some(Self::Sha384),
            "sha-512" => Some(Self::Sha512),
            _ => None,
        }
    }

    fn digest_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

/// The SHA-256 that str0m makes fingerprints with.
#[derive(Debug)]
pub(super) struct Digester {
    /// The function that clients' certificates are hashed by first.
    pub(super) hash: Hash,
    /// Our certificate, whose fingerprint in answers is of SHA-256.
    pub(super) own_certificate: Vec<u8>,
}

impl Sha256Provider for Digester {
    fn sha256(&self, certificate: &[u8]) -> [u8; 32] {
        let hash = if certificate == self.own_certificate {
            Hash::Sha256
        } else {
            self.hash
        };
        match hash {
            Hash::Sha256 => Sha256::digest(certificate),
            Hash::Sha384 => Sha256::digest(Sha384::digest(certificate)),
            Hash::Sha512 => Sha256::digest(Sha512::digest(certificate)),
        }
        .into()
    }
}

impl Fingerprint {
    /// `<hash function> <digest>`; the digest in hexadecimal of either case, with or without
    /// colons. `None` for a hash function that is not served.
    pub(super) fn parse(line: usize, value: &str) -> Result<Option<Self>, OfferError> {
        let Some((name, text)) = value.split_once(char::is_whitespace) else {
            return Err(malformed(
                line,
                "a=fingerprint needs a hash function and a digest",
            ));
        };
        let Some(hash) = Hash::named(name) else {
            return Ok(None);
        };
        let wrong = || {
            malformed(
                line,
                "a fingerprint of sha-256, sha-384 or sha-512 is 32, 48 or 64 hexadecimal bytes",
            )
        };
        let digest = bytes(text.trim()).ok_or_else(wrong)?;
        if digest.len() != hash.digest_bytes() {
            return Err(wrong());
        }
        Ok(Some(Self { hash, digest }))
    }

    pub(super) fn hash(&self) -> Hash {
        self.hash
    }

    /// The digest that str0m is told to expect: upper-case hexadecimal with colons, of SHA-256.
    pub(super) fn expected(&self) -> String {
        let digest = match self.hash {
            Hash::Sha256 => self.digest.clone(),
            Hash::Sha384 | Hash::Sha512 => Sha256::digest(&self.digest).to_vec(),
        };
        let mut text = String::with_capacity(digest.len() * 3);
        for (at, byte) in digest.iter().enumerate() {
            let colon = if at > 0 { ":" } else { "" };
            write!(text, "{colon}{byte:02X}")
                .expect("invariant: writing to a String does not fail");
        }
        text
    }
}

/// Hexadecimal bytes, all of them or none separated by colons.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let byte = |hex: &[u8]| {
        let hex = std::str::from_utf8(hex).ok()?;
        let is_hex = hex.len() == 2 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
        u8::from_str_radix(hex, 16).ok().filter(|_| is_hex)
    };
    if text.contains(':') {
        text.split(':').map(|hex| byte(hex.as_bytes())).collect()
    } else {
        text.as_bytes().chunks(2).map(byte).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_spelling_of_a_digest_is_the_same() {
        let plain = "0a".repeat(32);
        let colons = vec!["0A"; 32].join(":");
        let read = |value: &str| Fingerprint::parse(1, value).unwrap().unwrap();
        let all = [
            format!("sha-256 {plain}"),
            format!("SHA-256  {colons}"),
            format!("sha-256\t{}", colons.to_lowercase()),
        ];
        for spelling in &all {
            assert_eq!(read(spelling).expected(), colons, "{spelling}");
        }
        assert_eq!(
            read(&format!("sha-384 {}", "0b".repeat(48))).hash(),
            Hash::Sha384
        );
        assert_eq!(
            read(&format!("Sha-512 {}", "0b".repeat(64))).hash(),
            Hash::Sha512
        );
    }

    #[test]
    fn what_is_no_digest_is_malformed_and_a_weak_hash_is_not_served() {
        for bad in [
            "sha-256",
            "sha-256 0a",
            "sha-512 0a:0b",
            &format!("sha-256 {}", "0a".repeat(48)),
            &format!("sha-256 {}+1", "0a".repeat(31)),
            &format!("sha-256 {}é", "0a".repeat(31)),
        ] {
            assert!(Fingerprint::parse(1, bad).is_err(), "{bad}");
        }
        assert_eq!(Fingerprint::parse(1, "sha-1 00:11"), Ok(None));
        assert_eq!(Fingerprint::parse(1, "md5 00"), Ok(None));
    }

    #[test]
    fn what_str0m_computes_is_what_it_is_told_to_expect() {
        let certificate = b"a certificate";
        for (hash, digest) in [
            (Hash::Sha256, Sha256::digest(certificate).to_vec()),
            (Hash::Sha384, Sha384::digest(certificate).to_vec()),
            (Hash::Sha512, Sha512::digest(certificate).to_vec()),
        ] {
            let digester = Digester {
                hash,
                own_certificate: b"ours".to_vec(),
            };
            let stated = Fingerprint { hash, digest };
            let expected = bytes(&stated.expected()).unwrap();
            assert_eq!(digester.sha256(certificate).to_vec(), expected);
            assert_eq!(
                digester.sha256(b"ours").to_vec(),
                Sha256::digest(b"ours").to_vec()
            );
        }
    }
}
