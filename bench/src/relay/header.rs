//! The Go relay's header between relay and transceiver; `peers/go-relay/header.go` is its twin.
//!
//! ```text
//! type u8 (0x0e) | version u8 (1) | client port u16 | client address 16 bytes
//! ```

use std::net::{Ipv6Addr, SocketAddr};

/// Length of the header.
pub const HEADER_BYTES: usize = 20;
const MARK: [u8; 2] = [0x0e, 1];

/// The header as it stands on the wire.
pub type Header = [u8; HEADER_BYTES];

/// Splits a datagram into its header, the client that it names, and what the client sent.
pub fn split(datagram: &[u8]) -> Option<(Header, SocketAddr, &[u8])> {
    let (header, rest) = datagram.split_first_chunk::<HEADER_BYTES>()?;
    (header[..2] == MARK).then(|| (*header, client(header), rest))
}

/// The client that a header names; an IPv4 address comes as `::ffff:a.b.c.d`.
pub fn client(header: &Header) -> SocketAddr {
    let port = u16::from_be_bytes([header[2], header[3]]);
    let octets: [u8; 16] = header[4..]
        .try_into()
        .expect("invariant: the rest is an address");
    SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_go_relay_writes() {
        let mut datagram = vec![0x0e, 1, 0x12, 0x34];
        datagram.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 16, 0, 9]);
        datagram.extend(b"voice");
        let (header, addr, rest) = split(&datagram).expect("a header");
        assert_eq!(addr, ([127, 16, 0, 9], 0x1234).into());
        assert_eq!(
            (header[..].to_vec(), rest),
            (datagram[..20].to_vec(), b"voice".as_slice())
        );
    }

    #[test]
    fn refuses_what_is_not_a_header() {
        assert!(split(&[0x0e, 1, 0]).is_none());
        assert!(split(&[0x0c; 40]).is_none());
    }
}
