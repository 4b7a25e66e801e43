//! Ephemeral keys, `ek_…`: leave to open calls, handed to a browser by the server that holds an
//! API key.
//!
//! An ephemeral key is not looked up, it is read: it carries everything, signed under the cluster's
//! access key. So any transceiver of the cluster honours it, a restart forgets none, and no table
//! of them can be filled. What it carries can be read by its holder, as the session it opens can.
//!
//! ```text
//! "ek_" base64url( version·epoch  key id  expires  nonce  session JSON  tag )
//!                  1              8       4        8      0 to 16,384   16 bytes
//! ```
//!
//! `version·epoch` has the format's number (1) in its high four bits and the epoch of the signing
//! key in its low ones; `expires` is Unix seconds, big-endian; the tag is HMAC-SHA256 over all that
//! precedes it, cut to 128 bits. Revoking the API key it was issued under, or retiring the epoch,
//! ends it before its time. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq as _;
use syrinx_shared::keys::{ACCESS_TAG_BYTES, KeyRing};
use syrinx_shared::route::Epoch;
use syrinx_shared::wire::ufrag::MintError;

use super::api_keys::KeyId;
use super::session_config::{SESSION_BYTES_MAX, SessionConfig};

/// What every ephemeral key starts with, as in the Realtime API.
pub const PREFIX: &str = "ek_";

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 1 + 8 + 4 + 8;
const TAG_BYTES: usize = 16;
const _: () = assert!(TAG_BYTES <= ACCESS_TAG_BYTES);
/// Longest text of one: three bytes are four characters.
const TEXT_BYTES_MAX: usize =
    PREFIX.len() + (HEADER_BYTES + SESSION_BYTES_MAX + TAG_BYTES).div_ceil(3) * 4;

/// What an ephemeral key says.
#[derive(Debug, Clone, PartialEq)]
pub struct Claims {
    /// The API key it was issued under.
    pub key: KeyId,
    /// When it expires, in Unix seconds.
    pub expires_at: u32,
    /// What the sessions it opens are to be.
    pub session: SessionConfig,
}

/// Text that is no ephemeral key of this cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an ephemeral key of this cluster")]
pub struct Forged;

/// Writes `claims` down; `nonce` makes two of the same claims differ.
///
/// # Errors
/// [`MintError`] when the ring only verifies.
pub fn seal(ring: &KeyRing, claims: &Claims, nonce: [u8; 8]) -> Result<String, MintError> {
    let epoch = ring.minting().ok_or(MintError::NoMintingEpoch)?;
    let session = match claims.session.is_empty() {
        true => String::new(),
        false => claims.session.to_json(),
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + session.len() + TAG_BYTES);
    bytes.push(VERSION << 4 | epoch.value());
    bytes.extend(claims.key.to_bytes());
    bytes.extend(claims.expires_at.to_be_bytes());
    bytes.extend(nonce);
    bytes.extend(session.as_bytes());
    let tag = tag(ring, epoch, &bytes).ok_or(MintError::NoMintingEpoch)?;
    bytes.extend(tag);
    let mut text = PREFIX.to_owned();
    URL_SAFE_NO_PAD.encode_string(bytes, &mut text);
    Ok(text)
}

/// Reads an ephemeral key of any age.
///
/// # Errors
/// [`Forged`], whatever is wrong.
pub fn open(ring: &KeyRing, text: &str) -> Result<Claims, Forged> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Forged);
    }
    let text = text.strip_prefix(PREFIX).ok_or(Forged)?;
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| Forged)?;
    let (signed, tag_given) = bytes.split_last_chunk::<TAG_BYTES>().ok_or(Forged)?;
    let (header, session) = signed.split_first_chunk::<HEADER_BYTES>().ok_or(Forged)?;
    let epoch = Epoch::new(header[0] & 0x0f).ok_or(Forged)?;
    let expected = tag(ring, epoch, signed).ok_or(Forged)?;
    if header[0] >> 4 != VERSION || !bool::from(expected.ct_eq(tag_given)) {
        return Err(Forged);
    }
    let session = match session {
        [] => SessionConfig::default(),
        json => SessionConfig::parse(json).map_err(|_| Forged)?,
    };
    let part = |at: usize| &header[at..];
    let key = part(1).first_chunk().expect("invariant: 21 bytes");
    let expires_at = part(9).first_chunk().expect("invariant: 21 bytes");
    Ok(Claims {
        key: KeyId::from_bytes(*key),
        expires_at: u32::from_be_bytes(*expires_at),
        session,
    })
}

fn tag(ring: &KeyRing, epoch: Epoch, signed: &[u8]) -> Option<[u8; TAG_BYTES]> {
    let cluster = ring.epoch(epoch)?.cluster()?;
    cluster.access_tag(signed).first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use syrinx_shared::keys::{MasterSecret, edge_key_file};

    fn ring(epoch: u8, master: u8) -> KeyRing {
        let epoch = Epoch::new(epoch).unwrap();
        KeyRing::single(epoch, &MasterSecret::new([master; 32]))
    }

    fn claims() -> Claims {
        Claims {
            key: KeyId::from_bytes([1, 2, 3, 4, 5, 6, 7, 8]),
            expires_at: 1_800_000_000,
            session: SessionConfig::parse(br#"{"model":"m","tools":[1]}"#).unwrap(),
        }
    }

    #[test]
    fn what_was_sealed_is_read_and_two_of_the_same_claims_differ() {
        let ring = ring(2, 7);
        let one = seal(&ring, &claims(), [1; 8]).unwrap();
        let other = seal(&ring, &claims(), [2; 8]).unwrap();
        assert_ne!(one, other);
        assert!(one.starts_with("ek_"), "{one}");
        assert_eq!(open(&ring, &one), Ok(claims()));
        let bare = Claims {
            session: SessionConfig::default(),
            ..claims()
        };
        let text = seal(&ring, &bare, [1; 8]).unwrap();
        assert!(text.len() < 60, "{text}");
        assert_eq!(open(&ring, &text), Ok(bare));
    }

    #[test]
    fn the_largest_session_fits() {
        let json = format!(r#"{{"a":"{}"}}"#, "x".repeat(SESSION_BYTES_MAX - 8));
        let claims = Claims {
            session: SessionConfig::parse(json.as_bytes()).unwrap(),
            ..claims()
        };
        let ring = ring(0, 7);
        let text = seal(&ring, &claims, [0; 8]).unwrap();
        assert!(text.len() <= TEXT_BYTES_MAX);
        assert_eq!(open(&ring, &text), Ok(claims));
        assert_eq!(open(&ring, &format!("{text}AAAA")), Err(Forged));
    }

    #[test]
    fn another_clusters_key_and_a_retired_epochs_are_forged() {
        let text = seal(&ring(2, 7), &claims(), [1; 8]).unwrap();
        assert_eq!(open(&ring(2, 8), &text), Err(Forged));
        assert_eq!(open(&ring(3, 7), &text), Err(Forged));
        let edge = edge_key_file(Epoch::new(2).unwrap(), &MasterSecret::new([7; 32]));
        let edge = KeyRing::parse(&edge).unwrap();
        assert_eq!(open(&edge, &text), Err(Forged));
        assert_eq!(
            seal(&edge, &claims(), [1; 8]),
            Err(MintError::NoMintingEpoch)
        );
    }

    proptest! {
        #[test]
        fn no_changed_character_goes_unnoticed(at in 3usize..60, other in "[A-Za-z0-9_-]") {
            let ring = ring(2, 7);
            let text = seal(&ring, &claims(), [1; 8]).unwrap();
            let mut changed = text.clone();
            changed.replace_range(at..=at, &other);
            prop_assume!(changed != text);
            prop_assert_eq!(open(&ring, &changed), Err(Forged));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = open(&ring(2, 7), &text);
            let _ = open(&ring(2, 7), &format!("ek_{text}"));
        }
    }
}
