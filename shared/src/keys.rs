//! The key schedule of a cluster: what may mint, read, and merely route a ufrag.
//!
//! One 32-byte master secret an [`Epoch`] yields five keys, by HKDF-SHA256 (RFC 5869) with a label
//! each, so that holding one tells nothing of the others:
//!
//! | key | label | who needs it | for |
//! |---|---|---|---|
//! | edge | `syrinx v1 edge` | every tier | the tag that makes a ufrag unforgeable |
//! | block | `syrinx v1 block` | cluster | the AES-128 block that hides session and slot |
//! | password | `syrinx v1 password` | cluster | deriving the ICE password from the ufrag |
//! | cookie | `syrinx v1 cookie` | cluster | authenticating the inner leg's records |
//! | access | `syrinx v1 access` | cluster | signing the ephemeral keys of the client-facing API |
//!
//! A key file is TOML, in one of two forms. The *cluster* form holds master secrets; the *edge*
//! form holds only edge keys, for a point of presence that forwards to clusters it must not be
//! able to impersonate. Secrets come from files, never from a command line, and are neither
//! printed nor logged: the types here have no `Debug` that shows them.

pub mod file;

use std::fmt;

use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use zeroize::{Zeroize, ZeroizeOnDrop};

pub use file::{KeyFile, KeyFileError, cluster_key_file, edge_key_file};

use crate::route::{ClientSocket, Epoch, LocalEndpoint, SessionRef, Transport};

/// Length of a master secret, in bytes.
pub const MASTER_BYTES: usize = 32;
const EDGE_KEY_BYTES: usize = 32;
const PASSWORD_KEY_BYTES: usize = 32;
const BLOCK_KEY_BYTES: usize = 16;
const COOKIE_KEY_BYTES: usize = 16;
const ACCESS_KEY_BYTES: usize = 32;
/// Length of a signature of the access key, in bytes: HMAC-SHA256, whole.
pub const ACCESS_TAG_BYTES: usize = 32;
/// Length of the block that the ufrag carries, one AES-128 block (FIPS 197).
pub const BLOCK_BYTES: usize = 16;
/// Length of a ufrag's tag: 40 bits of HMAC-SHA256.
pub const TAG_BYTES: usize = 5;
/// Length of a derived ICE password, in ice-chars (RFC 8839 section 5.4 asks for 22 to 256).
pub const PASSWORD_CHARS: usize = 32;

/// The secret of one epoch, from which all its keys come.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct MasterSecret([u8; MASTER_BYTES]);

impl MasterSecret {
    /// Takes 32 bytes of a cryptographically secure source.
    pub fn new(random: [u8; MASTER_BYTES]) -> Self {
        Self(random)
    }

    fn derive<const N: usize>(&self, label: &str) -> [u8; N] {
        let mut key = [0; N];
        Hkdf::<Sha256>::new(None, &self.0)
            .expand(label.as_bytes(), &mut key)
            .expect("invariant: HKDF-SHA256 expands to any length below 8,160 bytes");
        key
    }
}

impl fmt::Debug for MasterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterSecret(..)")
    }
}

/// Authenticates one record's addressing on the inner leg: 64 bits of SipHash-2-4 under the
/// epoch's cookie key. It is made once when a flow is created and constant for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie(pub [u8; 8]);

/// The part of an epoch that only a cluster's own relays and transceivers hold.
#[derive(Clone)]
pub struct ClusterKeys {
    block: Aes128,
    password: [u8; PASSWORD_KEY_BYTES],
    cookie: [u8; COOKIE_KEY_BYTES],
    access: [u8; ACCESS_KEY_BYTES],
}

impl ClusterKeys {
    /// Encrypts the ufrag's block in place.
    pub fn seal(&self, block: &mut [u8; BLOCK_BYTES]) {
        self.block.encrypt_block(block.into());
    }

    /// Decrypts the ufrag's block in place.
    pub fn open(&self, block: &mut [u8; BLOCK_BYTES]) {
        self.block.decrypt_block(block.into());
    }

    /// The ICE password that belongs to `ufrag`: `base64(HMAC-SHA256(password key, ufrag))`, cut
    /// to 32 ice-chars (192 bits).
    pub fn password(&self, ufrag: &[u8]) -> [u8; PASSWORD_CHARS] {
        let digest = hmac_sha256(&self.password, &[ufrag]);
        let mut password = [0; PASSWORD_CHARS];
        let written = STANDARD_NO_PAD
            .encode_slice(&digest[..PASSWORD_CHARS / 4 * 3], &mut password)
            .expect("invariant: 24 bytes are 32 base64 characters");
        debug_assert_eq!(written, PASSWORD_CHARS);
        password
    }

    /// The cookie of a flow between `client` and `session`.
    pub fn cookie(
        &self,
        client: ClientSocket,
        endpoint: LocalEndpoint,
        transport: Transport,
        session: SessionRef,
    ) -> Cookie {
        let mut input = [0u8; 28];
        input[..16].copy_from_slice(&client.octets());
        input[16..18].copy_from_slice(&client.addr().port().to_be_bytes());
        input[18] = endpoint.0;
        input[19] = u8::from(transport == Transport::Tcp);
        input[20..].copy_from_slice(&session.to_bytes());
        let mut hasher = SipHasher24::new_with_key(&self.cookie);
        hasher.write(&input);
        Cookie(hasher.finish().to_be_bytes())
    }

    /// Signs what a transceiver of this cluster hands out, so that each of them knows it again.
    /// Compare in constant time.
    pub fn access_tag(&self, signed: &[u8]) -> [u8; ACCESS_TAG_BYTES] {
        hmac_sha256(&self.access, &[signed])
    }
}

impl Drop for ClusterKeys {
    fn drop(&mut self) {
        self.password.zeroize();
        self.cookie.zeroize();
        self.access.zeroize();
    }
}

/// One epoch's keys: the edge key always, the cluster's where the holder belongs to the cluster.
#[derive(Clone)]
pub struct EpochKeys {
    edge: [u8; EDGE_KEY_BYTES],
    cluster: Option<ClusterKeys>,
}

impl EpochKeys {
    /// All keys of an epoch.
    pub fn from_master(master: &MasterSecret) -> Self {
        Self {
            edge: master.derive("syrinx v1 edge"),
            cluster: Some(ClusterKeys {
                block: Aes128::new(&master.derive::<BLOCK_KEY_BYTES>("syrinx v1 block").into()),
                password: master.derive("syrinx v1 password"),
                cookie: master.derive("syrinx v1 cookie"),
                access: master.derive("syrinx v1 access"),
            }),
        }
    }

    /// The cluster's own keys, or `None` at an edge that holds only the edge key.
    pub fn cluster(&self) -> Option<&ClusterKeys> {
        self.cluster.as_ref()
    }

    /// The tag over a ufrag's clear bytes and its sealed block: 40 bits of HMAC-SHA256.
    pub fn tag(&self, clear: &[u8], sealed: &[u8]) -> [u8; TAG_BYTES] {
        let digest = hmac_sha256(&self.edge, &[clear, sealed]);
        *digest
            .first_chunk()
            .expect("invariant: a digest has 32 bytes")
    }
}

impl Drop for EpochKeys {
    fn drop(&mut self) {
        self.edge.zeroize();
    }
}

fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key)
        .expect("invariant: HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// The live epochs of a cluster, and which of them mints.
#[derive(Clone)]
pub struct KeyRing {
    epochs: [Option<EpochKeys>; Epoch::COUNT],
    mint: Option<Epoch>,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live: Vec<u8> = self.live().map(Epoch::value).collect();
        f.debug_struct("KeyRing")
            .field("live", &live)
            .field("mint", &self.mint)
            .finish()
    }
}

impl KeyRing {
    /// A ring of one epoch that mints: what a fresh installation and most tests use.
    pub fn single(epoch: Epoch, master: &MasterSecret) -> Self {
        let mut epochs = [const { None }; Epoch::COUNT];
        epochs[epoch.index()] = Some(EpochKeys::from_master(master));
        Self {
            epochs,
            mint: Some(epoch),
        }
    }

    /// Reads the text of a key file, of either form.
    ///
    /// # Errors
    /// [`KeyFileError`], which names the epoch and the remedy, never the secret.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        KeyFile::parse(text)?.ring()
    }

    /// The keys of `epoch`, or `None` when it is unknown or retired.
    pub fn epoch(&self, epoch: Epoch) -> Option<&EpochKeys> {
        self.epochs[epoch.index()].as_ref()
    }

    /// The epoch that mints new ufrags, where this ring may mint at all.
    pub fn minting(&self) -> Option<Epoch> {
        self.mint
    }

    /// The live epochs, in ascending order.
    pub fn live(&self) -> impl Iterator<Item = Epoch> {
        (0..Epoch::COUNT as u8)
            .filter_map(Epoch::new)
            .filter(|epoch| self.epochs[epoch.index()].is_some())
    }

    /// Whether any live epoch holds the cluster's own keys.
    pub fn reads_sessions(&self) -> bool {
        self.epochs
            .iter()
            .flatten()
            .any(|keys| keys.cluster().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master() -> MasterSecret {
        MasterSecret::new(std::array::from_fn(|at| at as u8))
    }

    #[test]
    fn derives_the_keys_of_a_known_master() {
        let keys = EpochKeys::from_master(&master());
        // Golden values from an independent HKDF-SHA256 (Python's hmac module).
        assert_eq!(hex(&keys.edge), GOLDEN_EDGE);
        assert_eq!(hex(&keys.cluster().unwrap().password), GOLDEN_PASSWORD);
        assert_eq!(hex(&keys.cluster().unwrap().cookie), GOLDEN_COOKIE);
        assert_eq!(hex(&keys.cluster().unwrap().access), GOLDEN_ACCESS);
    }

    const GOLDEN_EDGE: &str = "da9798419c30568abdcacdb917fcb358d57a57e3d889970b69d9c5d4fb64a3e8";
    const GOLDEN_PASSWORD: &str =
        "a2d20d7ff66869e7692000dfc13582f439081d615ed21a346a42ca289b2740df";
    const GOLDEN_COOKIE: &str = "d91d6624142b6d45b307c98a7a4bee06";
    const GOLDEN_ACCESS: &str = "4f5e0f2a43c5089242bf7d41777c808a8aba82759a333b310ea86ad91b17bd25";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_cookie_depends_on_every_part_of_the_addressing() {
        let keys = EpochKeys::from_master(&master());
        let cluster = keys.cluster().unwrap();
        let client = ClientSocket::new("192.0.2.1:1000".parse().unwrap());
        let session = SessionRef::from_bytes([0, 1, 2, 0, 0, 3, 0, 4]);
        let base = cluster.cookie(client, LocalEndpoint(0), Transport::Udp, session);
        let other_client = ClientSocket::new("192.0.2.1:1001".parse().unwrap());
        let other_session = SessionRef::from_bytes([0, 1, 2, 0, 0, 3, 0, 5]);
        for changed in [
            cluster.cookie(other_client, LocalEndpoint(0), Transport::Udp, session),
            cluster.cookie(client, LocalEndpoint(1), Transport::Udp, session),
            cluster.cookie(client, LocalEndpoint(0), Transport::Tcp, session),
            cluster.cookie(client, LocalEndpoint(0), Transport::Udp, other_session),
        ] {
            assert_ne!(changed, base);
        }
        assert_eq!(
            cluster.cookie(client, LocalEndpoint(0), Transport::Udp, session),
            base
        );
    }
}
