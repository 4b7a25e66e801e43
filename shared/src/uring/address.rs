//! `SocketAddr` to and from the kernel's `sockaddr_in` and `sockaddr_in6`, byte by byte.
//!
//! ```text
//! sockaddr_in    family u16 | port u16 be | address 4                              = 16 bytes
//! sockaddr_in6   family u16 | port u16 be | flowinfo u32 | address 16 | scope u32  = 28 bytes
//! ```
//!
//! Families and the scope are in host order (`linux/in.h`, `linux/in6.h`). Working on bytes keeps
//! this file free of `unsafe` and of alignment rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for the larger of the two families, padded so that what follows it stays 8-aligned.
pub(crate) const NAME_BYTES: usize = 32;

const V4_BYTES: usize = size_of::<libc::sockaddr_in>();
const V6_BYTES: usize = size_of::<libc::sockaddr_in6>();
const FAMILY_V4: u16 = libc::AF_INET as u16;
const FAMILY_V6: u16 = libc::AF_INET6 as u16;
const _: () = assert!(V4_BYTES == 16 && V6_BYTES == 28 && V6_BYTES <= NAME_BYTES);

/// An address in the kernel's form, in place.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Name {
    bytes: [u8; NAME_BYTES],
}

impl Name {
    /// An empty name, to be filled.
    pub(crate) const EMPTY: Name = Name {
        bytes: [0; NAME_BYTES],
    };

    /// Writes `address` in the form that a socket of `family_of` takes: an IPv4 address is mapped
    /// (`::ffff:a.b.c.d`) for an IPv6 socket. Returns the length in bytes.
    #[inline]
    pub(crate) fn set(&mut self, address: SocketAddr, socket_is_v6: bool) -> u32 {
        match address {
            SocketAddr::V4(v4) if !socket_is_v6 => {
                self.bytes[0..2].copy_from_slice(&FAMILY_V4.to_ne_bytes());
                self.bytes[2..4].copy_from_slice(&v4.port().to_be_bytes());
                self.bytes[4..8].copy_from_slice(&v4.ip().octets());
                self.bytes[8..16].fill(0);
                V4_BYTES as u32
            }
            SocketAddr::V4(v4) => self.set_v6(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0),
            SocketAddr::V6(v6) => self.set_v6(*v6.ip(), v6.port(), v6.flowinfo(), v6.scope_id()),
        }
    }

    #[inline]
    fn set_v6(&mut self, ip: Ipv6Addr, port: u16, flowinfo: u32, scope: u32) -> u32 {
        self.bytes[0..2].copy_from_slice(&FAMILY_V6.to_ne_bytes());
        self.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        self.bytes[4..8].copy_from_slice(&flowinfo.to_be_bytes());
        self.bytes[8..24].copy_from_slice(&ip.octets());
        self.bytes[24..28].copy_from_slice(&scope.to_ne_bytes());
        V6_BYTES as u32
    }

    /// The bytes, for the system call.
    pub(crate) fn bytes(&self) -> &[u8; NAME_BYTES] {
        &self.bytes
    }
}

/// Reads a name that the kernel wrote. `None` for a family other than IPv4 and IPv6.
///
/// A mapped IPv4 address is folded back; the flow label is left out: neither identifies a client.
#[inline]
pub(crate) fn decode(name: &[u8; NAME_BYTES]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([name[2], name[3]]);
    match u16::from_ne_bytes([name[0], name[1]]) {
        FAMILY_V4 => {
            let ip = Ipv4Addr::new(name[4], name[5], name[6], name[7]);
            Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
        }
        FAMILY_V6 => {
            let octets: [u8; 16] = name[8..24].try_into().expect("invariant: 16 bytes");
            let scope = u32::from_ne_bytes([name[24], name[25], name[26], name[27]]);
            Some(match Ipv6Addr::from(octets).to_ipv4_mapped() {
                Some(ip) => SocketAddr::V4(SocketAddrV4::new(ip, port)),
                None => SocketAddr::V6(SocketAddrV6::new(octets.into(), port, 0, scope)),
            })
        }
        _ => None,
    }
}

/// Folds `::ffff:a.b.c.d` to `a.b.c.d`.
#[inline]
pub(crate) fn canonical(ip: Ipv6Addr) -> IpAddr {
    ip.to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(address: SocketAddr, socket_is_v6: bool) -> Option<SocketAddr> {
        let mut name = Name::EMPTY;
        name.set(address, socket_is_v6);
        decode(name.bytes())
    }

    proptest! {
        #[test]
        fn an_ipv4_address_survives_both_socket_families(ip: [u8; 4], port: u16, v6: bool) {
            let address = SocketAddr::from((ip, port));
            prop_assert_eq!(round_trip(address, v6), Some(address));
        }

        #[test]
        fn an_ipv6_address_survives_with_its_scope(ip: [u8; 16], port: u16, scope: u32) {
            let ip = Ipv6Addr::from(ip);
            prop_assume!(ip.to_ipv4_mapped().is_none());
            let address = SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope));
            prop_assert_eq!(round_trip(address, true), Some(address));
        }
    }

    #[test]
    fn an_unknown_family_is_no_address() {
        let mut bytes = [0; NAME_BYTES];
        bytes[0..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        assert_eq!(decode(&bytes), None);
    }
}
