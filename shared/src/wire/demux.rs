//! Which protocol a datagram belongs to, judged by its first byte (RFC 7983 section 7, as updated
//! by RFC 9443). Both ends of the inner leg and the transceiver's sessions ask.
//!
//! ```text
//!   0..=3     STUN            20..=63    DTLS
//!   4..=15    free            64..=79    TURN channel
//!   12        inner leg       80..=127   QUIC
//!   16..=19   ZRTP            128..=191  RTP and RTCP
//! ```

/// The first byte of every inner-leg bundle. It lies in the range that RFC 9443 leaves free, so a
/// stray client datagram is never taken for a bundle, nor a bundle for anything a client sends.
pub const INNER_LEG_FIRST_BYTE: u8 = 0x0c;

const _: () = assert!(INNER_LEG_FIRST_BYTE >= 4 && INNER_LEG_FIRST_BYTE <= 15);

/// The protocol that a datagram's first byte announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// STUN (RFC 8489).
    Stun,
    /// DTLS (RFC 9147).
    Dtls,
    /// RTP or RTCP, protected by SRTP (RFC 3711).
    Rtp,
    /// An inner-leg bundle ([`crate::wire::encap`]).
    InnerLeg,
}

/// Names the protocol of `datagram`, or `None` for one that no WebRTC client sends: empty, ZRTP,
/// TURN channels, QUIC, or an unassigned first byte.
pub fn classify(datagram: &[u8]) -> Option<Protocol> {
    match *datagram.first()? {
        0..=3 => Some(Protocol::Stun),
        INNER_LEG_FIRST_BYTE => Some(Protocol::InnerLeg),
        20..=63 => Some(Protocol::Dtls),
        128..=191 => Some(Protocol::Rtp),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_first_byte_has_the_meaning_of_rfc_9443() {
        for first in 0..=255u8 {
            let want = match first {
                0..=3 => Some(Protocol::Stun),
                12 => Some(Protocol::InnerLeg),
                20..=63 => Some(Protocol::Dtls),
                128..=191 => Some(Protocol::Rtp),
                _ => None,
            };
            assert_eq!(classify(&[first, 0]), want, "first byte {first}");
        }
        assert_eq!(classify(&[]), None);
    }
}
