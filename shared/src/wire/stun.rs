//! STUN as a relay and a transceiver meet it: Binding requests of ICE connectivity checks
//! (RFC 8489 section 5, RFC 8445 section 7).
//!
//! Two steps, kept apart. [`BindingRequest::peek`] checks only the shape and finds the attributes,
//! so that the ufrag in USERNAME can be read before any key is known. [`BindingRequest::verify`]
//! judges MESSAGE-INTEGRITY with the password derived from that ufrag. FINGERPRINT is not judged:
//! where integrity holds it adds nothing, and where it does not nothing is done.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |0 0|     0x0001 (request)      |     length of attributes      |
//! |                   magic cookie 0x2112A442                     |
//! |                  transaction id (96 bits)                     |
//! | attribute type (16) | value length (16) | value, padded to 4 ..|
//! ```

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Length of the fixed header, in bytes (RFC 8489 section 5).
pub const HEADER_BYTES: usize = 20;
const MAGIC_COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const BINDING_REQUEST: [u8; 2] = [0x00, 0x01];

const USERNAME: u16 = 0x0006;
const MESSAGE_INTEGRITY: u16 = 0x0008;
const MESSAGE_INTEGRITY_SHA256: u16 = 0x001c;
const PRIORITY: u16 = 0x0024;
const USE_CANDIDATE: u16 = 0x0025;
const FINGERPRINT: u16 = 0x8028;
const ICE_CONTROLLING: u16 = 0x802a;

const SHA1_BYTES: usize = 20;
/// MESSAGE-INTEGRITY-SHA256 may be truncated to 16 bytes, in steps of four (RFC 8489, 14.6).
const SHA256_BYTES_MIN: usize = 16;
const SHA256_BYTES_MAX: usize = 32;
/// The whole FINGERPRINT attribute, and what its checksum is combined with (RFC 8489, 14.7).
const FINGERPRINT_BYTES: usize = 8;
const FINGERPRINT_MASK: u32 = 0x5354_554e;
/// The attribute header: type and length.
const ATTRIBUTE_HEADER_BYTES: usize = 4;

/// Why bytes are not a Binding request that could name a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StunError {
    /// Shorter than its header or than the length it states, longer, or not a multiple of four.
    #[error("the length of the STUN message is wrong")]
    Length,
    /// The magic cookie of RFC 8489 is missing.
    #[error("the STUN magic cookie is missing")]
    Cookie,
    /// A STUN message, but not a Binding request.
    #[error("not a Binding request")]
    NotBindingRequest,
    /// An attribute runs past the end of the message.
    #[error("an attribute runs past the end of the message")]
    Attribute,
    /// No USERNAME before the integrity attribute, or one without a colon.
    #[error("no USERNAME of the form server:client")]
    Username,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IntegrityAt {
    /// Where the attribute's header starts.
    offset: usize,
    value_bytes: usize,
}

/// A Binding request, as read without judging its integrity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindingRequest<'a> {
    bytes: &'a [u8],
    server_ufrag: &'a [u8],
    client_ufrag: &'a [u8],
    use_candidate: bool,
    sha1: Option<IntegrityAt>,
    sha256: Option<IntegrityAt>,
}

impl<'a> BindingRequest<'a> {
    /// Finds the attributes of a Binding request that fills `datagram` exactly.
    ///
    /// # Errors
    /// [`StunError`] when the bytes are not such a request or carry no `server:client` USERNAME.
    /// Attributes behind an integrity attribute are ignored (RFC 8489 section 14.5).
    pub fn peek(datagram: &'a [u8]) -> Result<Self, StunError> {
        let header = datagram
            .first_chunk::<HEADER_BYTES>()
            .ok_or(StunError::Length)?;
        let attribute_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header[4..8] != MAGIC_COOKIE {
            return Err(StunError::Cookie);
        }
        if header[..2] != BINDING_REQUEST {
            return Err(StunError::NotBindingRequest);
        }
        if !attribute_bytes.is_multiple_of(4) || HEADER_BYTES + attribute_bytes != datagram.len() {
            return Err(StunError::Length);
        }
        let mut found = Attributes::default();
        found.scan(datagram)?;
        let (server_ufrag, client_ufrag) = found
            .username
            .and_then(|name| {
                let colon = name.iter().position(|&byte| byte == b':')?;
                Some((&name[..colon], &name[colon + 1..]))
            })
            .ok_or(StunError::Username)?;
        Ok(Self {
            bytes: datagram,
            server_ufrag,
            client_ufrag,
            use_candidate: found.use_candidate,
            sha1: found.sha1,
            sha256: found.sha256,
        })
    }

    /// The part of USERNAME before the colon: the ufrag of whoever receives the request
    /// (RFC 8445 section 7.2.2), which is ours.
    pub fn server_ufrag(&self) -> &'a [u8] {
        self.server_ufrag
    }

    /// The part of USERNAME behind the colon: the sender's own ufrag.
    pub fn client_ufrag(&self) -> &'a [u8] {
        self.client_ufrag
    }

    /// Whether the controlling client nominates this pair (RFC 8445 section 8.1.1).
    pub fn nominates(&self) -> bool {
        self.use_candidate
    }

    /// The 96-bit transaction id.
    pub fn transaction_id(&self) -> &'a [u8] {
        &self.bytes[8..HEADER_BYTES]
    }

    /// Which attribute [`BindingRequest::verify`] judges, in which an answer is owed, too (RFC 8489
    /// section 9.1.3); `None` when there is none.
    pub fn integrity(&self) -> Option<Integrity> {
        let sha1 = self.sha1.map(|_| Integrity::Sha1);
        self.sha256.map(|_| Integrity::Sha256).or(sha1)
    }

    /// Whether the request was made by someone who knows `password`: checks
    /// MESSAGE-INTEGRITY-SHA256 where there is one, else MESSAGE-INTEGRITY (RFC 8489 section
    /// 9.1.3), in constant time. A request with neither never verifies.
    pub fn verify(&self, password: &[u8]) -> bool {
        match (self.sha256, self.sha1) {
            (Some(at), _) => self.digest_matches::<Hmac<Sha256>>(password, at),
            (None, Some(at)) => self.digest_matches::<Hmac<Sha1>>(password, at),
            (None, None) => false,
        }
    }

    fn digest_matches<M: Mac + KeyInit>(&self, password: &[u8], at: IntegrityAt) -> bool {
        let Ok(mut mac) = <M as KeyInit>::new_from_slice(password) else {
            return false;
        };
        let value_at = at.offset + ATTRIBUTE_HEADER_BYTES;
        let end = value_at + at.value_bytes;
        // The length in the header counts up to the end of the integrity attribute only.
        let covered = u16::try_from(end - HEADER_BYTES).expect("invariant: fits the length field");
        mac.update(&self.bytes[..2]);
        mac.update(&covered.to_be_bytes());
        mac.update(&self.bytes[4..at.offset]);
        let digest = mac.finalize().into_bytes();
        digest[..at.value_bytes]
            .ct_eq(&self.bytes[value_at..end])
            .into()
    }
}

#[derive(Default)]
struct Attributes<'a> {
    username: Option<&'a [u8]>,
    use_candidate: bool,
    sha1: Option<IntegrityAt>,
    sha256: Option<IntegrityAt>,
}

impl<'a> Attributes<'a> {
    fn scan(&mut self, message: &'a [u8]) -> Result<(), StunError> {
        let mut offset = HEADER_BYTES;
        while offset < message.len() {
            let header = message[offset..]
                .first_chunk::<ATTRIBUTE_HEADER_BYTES>()
                .ok_or(StunError::Attribute)?;
            let kind = u16::from_be_bytes([header[0], header[1]]);
            let value_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let value_at = offset + ATTRIBUTE_HEADER_BYTES;
            let value = message
                .get(value_at..value_at + value_bytes)
                .ok_or(StunError::Attribute)?;
            self.note(kind, value, offset)?;
            offset = value_at + value_bytes.next_multiple_of(4);
        }
        Ok(())
    }

    fn note(&mut self, kind: u16, value: &'a [u8], offset: usize) -> Result<(), StunError> {
        let at = IntegrityAt {
            offset,
            value_bytes: value.len(),
        };
        let protected = self.sha1.is_none() && self.sha256.is_none();
        match kind {
            USERNAME if protected && self.username.is_none() => self.username = Some(value),
            USE_CANDIDATE if protected => self.use_candidate = true,
            MESSAGE_INTEGRITY if protected => {
                if value.len() != SHA1_BYTES {
                    return Err(StunError::Attribute);
                }
                self.sha1 = Some(at);
            }
            MESSAGE_INTEGRITY_SHA256 if self.sha256.is_none() => {
                let legal = SHA256_BYTES_MIN..=SHA256_BYTES_MAX;
                if !legal.contains(&value.len()) || !value.len().is_multiple_of(4) {
                    return Err(StunError::Attribute);
                }
                self.sha256 = Some(at);
            }
            _ => {}
        }
        Ok(())
    }
}

/// `response` with MESSAGE-INTEGRITY-SHA256 and FINGERPRINT in the place of what closed it: its
/// attributes up to the first integrity attribute or FINGERPRINT stay. For a client that asked so
/// (RFC 8489 section 9.1.3), where whoever wrote the response knows MESSAGE-INTEGRITY only.
///
/// # Errors
/// [`StunError`] when `response` is too short for STUN's header, or an attribute runs past its end.
pub fn seal_sha256(response: &[u8], password: &[u8]) -> Result<Vec<u8>, StunError> {
    let mut end = HEADER_BYTES;
    while let Some(header) = response.get(end..end + ATTRIBUTE_HEADER_BYTES) {
        let kind = u16::from_be_bytes([header[0], header[1]]);
        if matches!(
            kind,
            MESSAGE_INTEGRITY | MESSAGE_INTEGRITY_SHA256 | FINGERPRINT
        ) {
            break;
        }
        let value_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
        end += ATTRIBUTE_HEADER_BYTES + value_bytes.next_multiple_of(4);
    }
    let kept = response.get(..end).ok_or(StunError::Length)?;
    let mut sealed = kept.to_vec();
    push_integrity::<Hmac<Sha256>>(&mut sealed, MESSAGE_INTEGRITY_SHA256, password);
    let fingerprint_ends = sealed.len() + FINGERPRINT_BYTES;
    set_length(&mut sealed, fingerprint_ends);
    let sum = crc32fast::hash(&sealed) ^ FINGERPRINT_MASK;
    push_attribute(&mut sealed, FINGERPRINT, &sum.to_be_bytes());
    Ok(sealed)
}

/// Which integrity attribute a written request carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integrity {
    /// MESSAGE-INTEGRITY: HMAC-SHA1, 20 bytes.
    Sha1,
    /// MESSAGE-INTEGRITY-SHA256, all 32 bytes.
    Sha256,
}

/// A Binding request to be written: what a client's connectivity check looks like. Used by the
/// load generator and by tests; the daemons only read requests.
#[derive(Debug, Clone, Copy)]
pub struct RequestWriter<'a> {
    /// The receiver's ufrag, in front of the colon.
    pub server_ufrag: &'a [u8],
    /// The sender's ufrag, behind the colon.
    pub client_ufrag: &'a [u8],
    /// The receiver's ICE password, the HMAC key.
    pub password: &'a [u8],
    /// 96 random bits.
    pub transaction_id: [u8; 12],
    /// Adds USE-CANDIDATE.
    pub nominate: bool,
    /// Which integrity attribute closes the request.
    pub integrity: Integrity,
}

impl RequestWriter<'_> {
    /// The request's bytes, without FINGERPRINT.
    ///
    /// # Panics
    /// When USERNAME exceeds the 513 bytes of RFC 8489 section 14.3.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(160);
        message.extend_from_slice(&BINDING_REQUEST);
        message.extend_from_slice(&[0, 0]);
        message.extend_from_slice(&MAGIC_COOKIE);
        message.extend_from_slice(&self.transaction_id);
        let username = [self.server_ufrag, b":", self.client_ufrag].concat();
        assert!(username.len() <= 513, "USERNAME is at most 513 bytes");
        push_attribute(&mut message, USERNAME, &username);
        push_attribute(&mut message, PRIORITY, &0x6e7f_1effu32.to_be_bytes());
        push_attribute(&mut message, ICE_CONTROLLING, &[0; 8]);
        if self.nominate {
            push_attribute(&mut message, USE_CANDIDATE, &[]);
        }
        match self.integrity {
            Integrity::Sha1 => {
                push_integrity::<Hmac<Sha1>>(&mut message, MESSAGE_INTEGRITY, self.password);
            }
            Integrity::Sha256 => {
                push_integrity::<Hmac<Sha256>>(
                    &mut message,
                    MESSAGE_INTEGRITY_SHA256,
                    self.password,
                );
            }
        }
        message
    }
}

fn push_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let value_bytes = u16::try_from(value.len()).expect("invariant: attributes are short");
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&value_bytes.to_be_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
    let message_bytes = message.len();
    set_length(message, message_bytes);
}

fn push_integrity<M: Mac + KeyInit>(message: &mut Vec<u8>, kind: u16, password: &[u8]) {
    let mut mac = <M as KeyInit>::new_from_slice(password).expect("HMAC takes a key of any length");
    let covered_bytes = message.len() + ATTRIBUTE_HEADER_BYTES + M::output_size();
    set_length(message, covered_bytes);
    mac.update(message);
    push_attribute(message, kind, &mac.finalize().into_bytes());
}

fn set_length(message: &mut [u8], message_bytes: usize) {
    let length =
        u16::try_from(message_bytes - HEADER_BYTES).expect("invariant: requests are short");
    message[2..4].copy_from_slice(&length.to_be_bytes());
}

/// Whether `datagram` carries a FINGERPRINT as its last attribute, the mark by which ICE agents
/// tell STUN from other traffic (RFC 8489 section 14.7). Only its place is checked.
pub fn ends_with_fingerprint(datagram: &[u8]) -> bool {
    datagram.len() >= HEADER_BYTES + FINGERPRINT_BYTES
        && datagram[datagram.len() - FINGERPRINT_BYTES..datagram.len() - 6]
            == FINGERPRINT.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 5769 section 2.1: sample request.
    const RFC_5769_REQUEST: [u8; 108] = [
        0x00, 0x01, 0x00, 0x58, 0x21, 0x12, 0xa4, 0x42, 0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6,
        0x86, 0xfa, 0x87, 0xdf, 0xae, 0x80, 0x22, 0x00, 0x10, 0x53, 0x54, 0x55, 0x4e, 0x20, 0x74,
        0x65, 0x73, 0x74, 0x20, 0x63, 0x6c, 0x69, 0x65, 0x6e, 0x74, 0x00, 0x24, 0x00, 0x04, 0x6e,
        0x00, 0x01, 0xff, 0x80, 0x29, 0x00, 0x08, 0x93, 0x2f, 0xf9, 0xb1, 0x51, 0x26, 0x3b, 0x36,
        0x00, 0x06, 0x00, 0x09, 0x65, 0x76, 0x74, 0x6a, 0x3a, 0x68, 0x36, 0x76, 0x59, 0x20, 0x20,
        0x20, 0x00, 0x08, 0x00, 0x14, 0x9a, 0xea, 0xa7, 0x0c, 0xbf, 0xd8, 0xcb, 0x56, 0x78, 0x1e,
        0xf2, 0xb5, 0xb2, 0xd3, 0xf2, 0x49, 0xc1, 0xb5, 0x71, 0xa2, 0x80, 0x28, 0x00, 0x04, 0xe5,
        0x7a, 0x3b, 0xcf,
    ];
    const RFC_5769_PASSWORD: &[u8] = b"VOkJxbRl1RmTxUk/WvJxBt";

    fn request(integrity: Integrity) -> Vec<u8> {
        RequestWriter {
            server_ufrag: b"serverServer",
            client_ufrag: b"cli+",
            password: b"a password of ICE characters",
            transaction_id: [7; 12],
            nominate: true,
            integrity,
        }
        .to_bytes()
    }

    #[test]
    fn reads_and_verifies_the_sample_request_of_rfc_5769() {
        let request = BindingRequest::peek(&RFC_5769_REQUEST).unwrap();
        assert_eq!(request.server_ufrag(), b"evtj");
        assert_eq!(request.client_ufrag(), b"h6vY");
        assert_eq!(request.transaction_id(), &RFC_5769_REQUEST[8..20]);
        assert!(!request.nominates());
        assert!(request.verify(RFC_5769_PASSWORD));
        assert!(!request.verify(b"VOkJxbRl1RmTxUk/WvJxBu"));
        assert!(!request.verify(b""));
        assert!(ends_with_fingerprint(&RFC_5769_REQUEST));
    }

    #[test]
    fn any_flipped_bit_before_the_integrity_value_ends_fails_verification() {
        let integrity_ends = RFC_5769_REQUEST.len() - 8;
        for at in 0..integrity_ends * 8 {
            let mut bent = RFC_5769_REQUEST;
            bent[at / 8] ^= 1 << (at % 8);
            let verified =
                BindingRequest::peek(&bent).is_ok_and(|request| request.verify(RFC_5769_PASSWORD));
            assert!(!verified, "bit {at}");
        }
    }

    #[test]
    fn written_requests_verify_with_both_kinds_of_integrity() {
        for integrity in [Integrity::Sha1, Integrity::Sha256] {
            let bytes = request(integrity);
            let request = BindingRequest::peek(&bytes).unwrap();
            assert_eq!(request.server_ufrag(), b"serverServer");
            assert_eq!(request.client_ufrag(), b"cli+");
            assert!(request.nominates());
            assert!(request.verify(b"a password of ICE characters"));
            assert!(!request.verify(b"another password"));
        }
    }

    #[test]
    fn a_response_is_sealed_anew_with_the_fingerprint_of_rfc_5769() {
        // The sample request's FINGERPRINT is of the same function.
        let fingerprint = RFC_5769_REQUEST.len() - FINGERPRINT_BYTES;
        let sum = crc32fast::hash(&RFC_5769_REQUEST[..fingerprint]) ^ FINGERPRINT_MASK;
        assert_eq!(RFC_5769_REQUEST[fingerprint + 4..], sum.to_be_bytes());

        let mut response = request(Integrity::Sha1);
        let integrity_starts = response.len() - 24;
        push_attribute(&mut response, FINGERPRINT, &[0; 4]);
        let sealed = seal_sha256(&response, b"secret").unwrap();
        assert_eq!(sealed[4..integrity_starts], response[4..integrity_starts]);
        assert_eq!(sealed.len(), integrity_starts + 36 + FINGERPRINT_BYTES);
        assert!(ends_with_fingerprint(&sealed));
        let (covered, sum) = sealed.split_at(sealed.len() - FINGERPRINT_BYTES);
        let right = crc32fast::hash(covered) ^ FINGERPRINT_MASK;
        assert_eq!(sum[4..], right.to_be_bytes());
        let read = BindingRequest::peek(&sealed).unwrap();
        assert_eq!(read.integrity(), Some(Integrity::Sha256));
        assert!(read.verify(b"secret") && !read.verify(b"other"));

        assert_eq!(seal_sha256(&response[..19], b"x"), Err(StunError::Length));
        assert_eq!(seal_sha256(&response[..27], b"x"), Err(StunError::Length));
    }

    #[test]
    fn refuses_each_kind_of_malformed_message_by_its_own_reason() {
        let good = request(Integrity::Sha1);
        let bent = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        assert_eq!(BindingRequest::peek(&[]), Err(StunError::Length));
        assert_eq!(BindingRequest::peek(&good[..19]), Err(StunError::Length));
        assert_eq!(
            BindingRequest::peek(&good[..good.len() - 4]),
            Err(StunError::Length)
        );
        assert_eq!(BindingRequest::peek(&bent(3, 1)), Err(StunError::Length));
        assert_eq!(BindingRequest::peek(&bent(4, 0)), Err(StunError::Cookie));
        assert_eq!(
            BindingRequest::peek(&bent(0, 1)),
            Err(StunError::NotBindingRequest)
        );
        assert_eq!(
            BindingRequest::peek(&bent(22, 0xff)),
            Err(StunError::Attribute)
        );
        assert_eq!(BindingRequest::peek(&bent(21, 7)), Err(StunError::Username));
        let colon = good.iter().position(|&byte| byte == b':').unwrap();
        assert_eq!(
            BindingRequest::peek(&bent(colon, b'x')),
            Err(StunError::Username)
        );
    }

    #[test]
    fn a_username_behind_the_integrity_attribute_is_not_believed() {
        let mut bytes = request(Integrity::Sha1);
        bytes[21] = 0x07;
        push_attribute(&mut bytes, USERNAME, b"forged:name");
        assert_eq!(BindingRequest::peek(&bytes), Err(StunError::Username));
    }

    #[test]
    fn a_request_without_integrity_never_verifies() {
        let mut bytes = Vec::from(&request(Integrity::Sha1)[..HEADER_BYTES]);
        push_attribute(&mut bytes, USERNAME, b"server:client");
        let request = BindingRequest::peek(&bytes).unwrap();
        assert!(!request.verify(b"a password of ICE characters"));
    }

    #[test]
    fn username_is_found_at_the_end_of_a_near_mtu_request() {
        let mut bytes = Vec::from(&request(Integrity::Sha1)[..HEADER_BYTES]);
        for _ in 0..20 {
            push_attribute(&mut bytes, 0x8022, &[b'x'; 62]);
        }
        push_attribute(&mut bytes, USERNAME, b"server:client");
        push_integrity::<Hmac<Sha1>>(&mut bytes, MESSAGE_INTEGRITY, b"secret");
        assert!(bytes.len() > 1350);
        let request = BindingRequest::peek(&bytes).unwrap();
        assert_eq!(request.server_ufrag(), b"server");
        assert!(request.verify(b"secret"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_peek_or_verify_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = BindingRequest::peek(&bytes) {
                request.verify(b"secret");
            }
        }

        #[test]
        fn no_mutation_of_a_request_panics_or_verifies(
            at in 0usize..100, value: u8, cut in 0usize..120,
        ) {
            let good = request(Integrity::Sha256);
            let mut bytes = good.clone();
            let at = at % bytes.len();
            bytes[at] = value;
            bytes.truncate(bytes.len() - cut % bytes.len());
            if bytes != good && let Ok(request) = BindingRequest::peek(&bytes) {
                prop_assert!(!request.verify(b"a password of ICE characters"));
            }
        }
    }
}
