//! The server ICE ufrag: the one routing information that exists before any state does.
//!
//! A client's first packet is a STUN Binding request whose USERNAME is
//! `server-ufrag:client-ufrag`, and we choose the server's half. RFC 8839 section 5.4 lets us send
//! at most 32 ice-chars (`A-Z a-z 0-9 + /`), which is exactly 24 bytes in unpadded base64:
//!
//! ```text
//! byte  0       version (5 bits) | epoch (3 bits; 7 = unroutable)
//! bytes 1..3    cluster id, big endian                     readable by every tier
//! bytes 3..8    tag: 40 bits of HMAC-SHA256 over bytes 0..3 and 8..24 under the edge key
//! bytes 8..24   one AES-128 block under the block key:
//!                 transceiver u16 | shard u8 | slot u24 | generation u16 |
//!                 issued-at minutes u16 | random u16 | check u32 = 0
//! ```
//!
//! The tag makes a ufrag unforgeable (one guess in 2^40), so a relay verifies it before it keeps
//! any state. The block hides which session it names; to anyone without the key it is 128
//! unpredictable bits, above the 24 random ones that the RFC asks for. The issue time bounds how
//! long a captured ufrag is good for. The ICE password is derived from the ufrag
//! ([`crate::keys::ClusterKeys::password`]), so a relay can judge a request's integrity with no
//! state either.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::fmt;
use std::ops::Range;
use subtle::ConstantTimeEq;

use crate::keys::{BLOCK_BYTES, EpochKeys, KeyRing, PASSWORD_CHARS, TAG_BYTES};
use crate::route::{ClusterId, Epoch, SessionRef, UnixMinutes};

/// Length of a ufrag in ice-chars, the most that RFC 8839 section 5.4 lets anyone send.
pub const UFRAG_CHARS: usize = 32;
const RAW_BYTES: usize = 24;
const _: () = assert!(RAW_BYTES * 4 == UFRAG_CHARS * 3);

const VERSION: u8 = 1;
const EPOCH_BITS: u32 = 3;
const EPOCH_MASK: u8 = (1 << EPOCH_BITS) - 1;
const UNROUTABLE: u8 = 7;
/// Clocks of one cluster may differ by this much before a fresh ufrag looks like a stale one.
const CLOCK_SKEW_MINUTES: u16 = 5;

const CLEAR: Range<usize> = 0..3;
const CLUSTER: Range<usize> = 1..3;
const TAG: Range<usize> = 3..8;
const BLOCK: Range<usize> = 8..24;
const _: () = assert!(TAG.end - TAG.start == TAG_BYTES && BLOCK.end - BLOCK.start == BLOCK_BYTES);

// Within the decrypted block.
const SESSION: Range<usize> = 0..8;
const ISSUED: Range<usize> = 8..10;
const RANDOM: Range<usize> = 10..12;
const CHECK: Range<usize> = 12..16;

/// A minted ufrag: 32 ice-chars.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ufrag([u8; UFRAG_CHARS]);

impl Ufrag {
    /// The ice-chars as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("invariant: base64 is ASCII")
    }

    /// The ice-chars as bytes.
    pub fn as_bytes(&self) -> &[u8; UFRAG_CHARS] {
        &self.0
    }
}

impl fmt::Debug for Ufrag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a ufrag says once it has been verified and decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    /// Which keys it was minted with.
    pub epoch: Epoch,
    /// The cluster that owns the session.
    pub cluster: ClusterId,
    /// The session it names.
    pub session: SessionRef,
    /// When it was minted: Unix minutes modulo 65,536.
    pub issued_minutes: u16,
    /// Random bits, which differ between the ufrags of one session (ICE restart).
    pub random: u16,
}

/// What a tier that holds only edge keys learns from a ufrag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeDecoded {
    /// Which keys it was minted with.
    pub epoch: Epoch,
    /// The cluster to forward to.
    pub cluster: ClusterId,
}

/// Why a ufrag names no session. Each is a drop reason of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UfragError {
    /// Not 32 characters of unpadded base64.
    #[error("not 32 ice-chars")]
    Malformed,
    /// A version of the format that this build does not read.
    #[error("unknown version {0}")]
    Version(u8),
    /// The epoch bits say that no relay can route it.
    #[error("marked unroutable")]
    Unroutable,
    /// Minted under an epoch that this process does not hold, or holds no longer.
    #[error("epoch {0} is unknown or retired")]
    Epoch(u8),
    /// The tag does not verify: forged or corrupted.
    #[error("the tag does not verify")]
    Tag,
    /// This process holds only the epoch's edge key.
    #[error("the epoch's cluster keys are not held here")]
    EdgeOnly,
    /// The block does not decrypt to a check of zero: minted with other cluster keys.
    #[error("the check is not zero")]
    Check,
    /// Minted longer ago than a session may last, or in the future.
    #[error("minted {age_minutes} minutes ago, outside its lifetime")]
    Expired {
        /// Its age, modulo 65,536.
        age_minutes: u16,
    },
}

/// Why no ufrag could be minted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MintError {
    /// The key ring names no epoch to mint with.
    #[error("the key file names no epoch to mint with: set mint = N to an epoch with a master")]
    NoMintingEpoch,
}

/// A freshly minted ufrag with the password and the epoch that belong to it.
#[derive(Clone, Copy)]
pub struct Minted {
    /// The server's half of USERNAME.
    pub ufrag: Ufrag,
    /// The ICE password: 32 ice-chars.
    pub password: [u8; PASSWORD_CHARS],
    /// The epoch whose keys the session's cookies use.
    pub epoch: Epoch,
}

/// Mints the ufrag that names `session`, with 16 bits of `random` to tell it from the session's
/// other ufrags.
///
/// # Errors
/// [`MintError::NoMintingEpoch`] for a ring that only verifies.
pub fn mint(
    keys: &KeyRing,
    cluster: ClusterId,
    session: SessionRef,
    issued: UnixMinutes,
    random: u16,
) -> Result<Minted, MintError> {
    let epoch = keys.minting().ok_or(MintError::NoMintingEpoch)?;
    let epoch_keys = keys.epoch(epoch).ok_or(MintError::NoMintingEpoch)?;
    let cluster_keys = epoch_keys.cluster().ok_or(MintError::NoMintingEpoch)?;

    let mut block = [0; BLOCK_BYTES];
    block[SESSION].copy_from_slice(&session.to_bytes());
    block[ISSUED].copy_from_slice(&modulo_minutes(issued).to_be_bytes());
    block[RANDOM].copy_from_slice(&random.to_be_bytes());
    cluster_keys.seal(&mut block);

    let mut raw = [0; RAW_BYTES];
    raw[0] = VERSION << EPOCH_BITS | epoch.value();
    raw[CLUSTER].copy_from_slice(&cluster.0.to_be_bytes());
    raw[BLOCK].copy_from_slice(&block);
    let tag = epoch_keys.tag(&raw[CLEAR], &block);
    raw[TAG].copy_from_slice(&tag);

    let mut chars = [0; UFRAG_CHARS];
    let written = STANDARD_NO_PAD
        .encode_slice(raw, &mut chars)
        .expect("invariant: 24 bytes are 32 base64 characters");
    debug_assert_eq!(written, UFRAG_CHARS);
    let ufrag = Ufrag(chars);
    Ok(Minted {
        ufrag,
        password: cluster_keys.password(ufrag.as_bytes()),
        epoch,
    })
}

/// Verifies the tag and reads what every tier may read.
///
/// # Errors
/// [`UfragError`], in the order of its variants: shape before keys, keys before the tag.
pub fn decode_edge(keys: &KeyRing, ufrag: &[u8]) -> Result<EdgeDecoded, UfragError> {
    verify(keys, ufrag).map(|verified| verified.edge)
}

/// Verifies the tag, decrypts the block, and judges the age against `lifetime_minutes`.
///
/// # Errors
/// [`UfragError`]; whatever it is, nothing in the ufrag may be believed.
pub fn decode(
    keys: &KeyRing,
    ufrag: &[u8],
    now: UnixMinutes,
    lifetime_minutes: u16,
) -> Result<Decoded, UfragError> {
    let decoded = decode_undated(keys, ufrag)?;
    let age_minutes = modulo_minutes(now).wrapping_sub(decoded.issued_minutes);
    let ahead_minutes = age_minutes.wrapping_neg();
    if age_minutes > lifetime_minutes && ahead_minutes > CLOCK_SKEW_MINUTES {
        return Err(UfragError::Expired { age_minutes });
    }
    Ok(decoded)
}

/// As [`decode`], with no opinion on the age: for explaining a ufrag to an operator.
///
/// # Errors
/// [`UfragError`], but never [`UfragError::Expired`].
pub fn decode_undated(keys: &KeyRing, ufrag: &[u8]) -> Result<Decoded, UfragError> {
    let Verified {
        raw,
        edge,
        epoch_keys,
    } = verify(keys, ufrag)?;
    let cluster_keys = epoch_keys.cluster().ok_or(UfragError::EdgeOnly)?;
    let mut block: [u8; BLOCK_BYTES] = raw[BLOCK]
        .try_into()
        .expect("invariant: the range is one block long");
    cluster_keys.open(&mut block);
    if block[CHECK] != [0; 4] {
        return Err(UfragError::Check);
    }
    let session: [u8; SessionRef::BYTES] = block[SESSION]
        .try_into()
        .expect("invariant: the range is one reference long");
    Ok(Decoded {
        epoch: edge.epoch,
        cluster: edge.cluster,
        session: SessionRef::from_bytes(session),
        issued_minutes: u16::from_be_bytes([block[ISSUED.start], block[ISSUED.start + 1]]),
        random: u16::from_be_bytes([block[RANDOM.start], block[RANDOM.start + 1]]),
    })
}

struct Verified<'k> {
    raw: [u8; RAW_BYTES],
    edge: EdgeDecoded,
    epoch_keys: &'k EpochKeys,
}

fn verify<'k>(keys: &'k KeyRing, ufrag: &[u8]) -> Result<Verified<'k>, UfragError> {
    if ufrag.len() != UFRAG_CHARS {
        return Err(UfragError::Malformed);
    }
    let mut raw = [0; RAW_BYTES];
    match STANDARD_NO_PAD.decode_slice(ufrag, &mut raw) {
        Ok(RAW_BYTES) => {}
        _ => return Err(UfragError::Malformed),
    }
    if raw[0] >> EPOCH_BITS != VERSION {
        return Err(UfragError::Version(raw[0] >> EPOCH_BITS));
    }
    let epoch_bits = raw[0] & EPOCH_MASK;
    if epoch_bits == UNROUTABLE {
        return Err(UfragError::Unroutable);
    }
    let epoch = Epoch::new(epoch_bits).ok_or(UfragError::Unroutable)?;
    let epoch_keys = keys.epoch(epoch).ok_or(UfragError::Epoch(epoch_bits))?;
    let tag = epoch_keys.tag(&raw[CLEAR], &raw[BLOCK]);
    if !bool::from(tag.ct_eq(&raw[TAG])) {
        return Err(UfragError::Tag);
    }
    let cluster = ClusterId(u16::from_be_bytes([
        raw[CLUSTER.start],
        raw[CLUSTER.start + 1],
    ]));
    Ok(Verified {
        raw,
        edge: EdgeDecoded { epoch, cluster },
        epoch_keys,
    })
}

fn modulo_minutes(minutes: UnixMinutes) -> u16 {
    (minutes.0 & 0xffff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{MasterSecret, edge_key_file};
    use crate::route::{Generation, ShardIndex, Slot, TransceiverId};
    use proptest::prelude::*;

    const NOW: UnixMinutes = UnixMinutes(29_000_000);
    const LIFETIME: u16 = 24 * 60;

    fn epoch(id: u8) -> Epoch {
        Epoch::new(id).unwrap()
    }

    fn master() -> MasterSecret {
        MasterSecret::new(std::array::from_fn(|at| at as u8))
    }

    fn ring() -> KeyRing {
        KeyRing::single(epoch(0), &master())
    }

    fn session() -> SessionRef {
        SessionRef {
            transceiver: TransceiverId(0x0102),
            shard: ShardIndex(3),
            slot: Slot::new(0x04_0506).unwrap(),
            generation: Generation(0x0708),
        }
    }

    fn minted() -> Minted {
        mint(&ring(), ClusterId(0x2a2b), session(), NOW, 0xbeef).unwrap()
    }

    /// Made by an independent implementation: AES from OpenSSL's command line, HMAC and HKDF from
    /// Python's standard library.
    const GOLDEN_UFRAG: &str = "CCor8aDnSrMXwMzV3s51dV6ReDSt6tXi";
    const GOLDEN_PASSWORD: &str = "s6ViqvKyWl+y2Ys4ETL/kuGnGYO5oct+";

    #[test]
    fn mints_the_golden_ufrag_and_password() {
        let minted = minted();
        assert_eq!(minted.ufrag.as_str(), GOLDEN_UFRAG);
        assert_eq!(
            std::str::from_utf8(&minted.password).unwrap(),
            GOLDEN_PASSWORD
        );
    }

    #[test]
    fn decodes_the_golden_ufrag() {
        let decoded = decode(&ring(), GOLDEN_UFRAG.as_bytes(), NOW, LIFETIME).unwrap();
        assert_eq!(decoded.session, session());
        assert_eq!(decoded.cluster, ClusterId(0x2a2b));
        assert_eq!(decoded.random, 0xbeef);
        assert_eq!(decoded.issued_minutes, (NOW.0 & 0xffff) as u16);
    }

    #[test]
    fn an_edge_ring_reads_the_cluster_and_no_more() {
        let edge = KeyRing::parse(&edge_key_file(epoch(0), &master())).unwrap();
        let ufrag = minted().ufrag;
        let decoded = decode_edge(&edge, ufrag.as_bytes()).unwrap();
        assert_eq!(
            decoded,
            EdgeDecoded {
                epoch: epoch(0),
                cluster: ClusterId(0x2a2b)
            }
        );
        assert_eq!(
            decode(&edge, ufrag.as_bytes(), NOW, LIFETIME),
            Err(UfragError::EdgeOnly)
        );
        let minting = mint(&edge, ClusterId(1), session(), NOW, 0);
        assert_eq!(minting.err(), Some(MintError::NoMintingEpoch));
    }

    #[test]
    fn every_changed_character_is_refused() {
        let good = *minted().ufrag.as_bytes();
        for at in 0..good.len() {
            for replacement in *b"Az09+/-:" {
                let mut bent = good;
                bent[at] = replacement;
                if bent != good {
                    assert!(
                        decode(&ring(), &bent, NOW, LIFETIME).is_err(),
                        "{at} {replacement}"
                    );
                }
            }
        }
    }

    #[test]
    fn refuses_each_invalid_ufrag_by_its_own_reason() {
        let raw = {
            let mut raw = [0; RAW_BYTES];
            STANDARD_NO_PAD
                .decode_slice(GOLDEN_UFRAG, &mut raw)
                .unwrap();
            raw
        };
        let refused = |change: &dyn Fn(&mut [u8; RAW_BYTES])| {
            let mut bent = raw;
            change(&mut bent);
            let text = STANDARD_NO_PAD.encode(bent);
            decode(&ring(), text.as_bytes(), NOW, LIFETIME).unwrap_err()
        };
        let shape = |text: &[u8]| decode(&ring(), text, NOW, LIFETIME).unwrap_err();
        assert_eq!(shape(b""), UfragError::Malformed);
        assert_eq!(shape(&GOLDEN_UFRAG.as_bytes()[..31]), UfragError::Malformed);
        assert_eq!(shape(&[b'='; 32]), UfragError::Malformed);
        assert_eq!(refused(&|raw| raw[0] = 2 << 3), UfragError::Version(2));
        assert_eq!(refused(&|raw| raw[0] |= 7), UfragError::Unroutable);
        assert_eq!(refused(&|raw| raw[0] |= 5), UfragError::Epoch(5));
        assert_eq!(refused(&|raw| raw[2] ^= 1), UfragError::Tag);
        assert_eq!(refused(&|raw| raw[5] ^= 1), UfragError::Tag);
        assert_eq!(refused(&|raw| raw[20] ^= 1), UfragError::Tag);
    }

    #[test]
    fn a_block_sealed_with_other_cluster_keys_fails_its_check() {
        let ring = ring();
        let keys = ring.epoch(epoch(0)).unwrap();
        let mut raw = [0; RAW_BYTES];
        raw[0] = VERSION << EPOCH_BITS;
        raw[BLOCK].copy_from_slice(&[0x5a; BLOCK_BYTES]);
        let tag = keys.tag(&raw[CLEAR], &raw[BLOCK]);
        raw[TAG].copy_from_slice(&tag);
        let text = STANDARD_NO_PAD.encode(raw);
        assert_eq!(
            decode(&ring, text.as_bytes(), NOW, LIFETIME),
            Err(UfragError::Check)
        );
    }

    #[test]
    fn age_is_judged_across_the_wrap_and_with_a_little_skew() {
        let wrap = UnixMinutes(3 << 16);
        let at = |minutes: u32| UnixMinutes(minutes);
        let minted = mint(&ring(), ClusterId(1), session(), at(wrap.0 - 10), 1).unwrap();
        let judge = |now: u32| decode(&ring(), minted.ufrag.as_bytes(), at(now), 60).is_ok();
        assert!(judge(wrap.0 - 10));
        assert!(judge(wrap.0 + 50));
        assert!(!judge(wrap.0 + 51));
        assert!(judge(wrap.0 - 15));
        assert!(!judge(wrap.0 - 16));
        assert_eq!(
            decode(&ring(), minted.ufrag.as_bytes(), at(wrap.0 + 51), 60),
            Err(UfragError::Expired { age_minutes: 61 })
        );
    }

    proptest! {
        #[test]
        fn round_trips_every_session(bytes: [u8; 8], cluster: u16, random: u16, minutes: u32) {
            let session = SessionRef::from_bytes(bytes);
            let issued = UnixMinutes(minutes);
            let minted = mint(&ring(), ClusterId(cluster), session, issued, random).unwrap();
            let decoded = decode(&ring(), minted.ufrag.as_bytes(), issued, 0).unwrap();
            prop_assert_eq!(decoded.session, session);
            prop_assert_eq!(decoded.cluster, ClusterId(cluster));
            prop_assert_eq!(decoded.random, random);
            let ice_char = |c: u8| c.is_ascii_alphanumeric() || c == b'+' || c == b'/';
            prop_assert!(minted.ufrag.as_bytes().iter().copied().all(ice_char));
            prop_assert!(minted.password.iter().copied().all(ice_char));
        }

        #[test]
        fn no_bytes_panic_or_decode(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(decode(&ring(), &bytes, NOW, LIFETIME).is_err());
        }
    }
}
