//! Control messages (`cmsg(3)`) of UDP: what comes beside a datagram and what goes with one.
//!
//! ```text
//! | length usize | level i32 | type i32 | data .. | padding to a usize |   one after the other
//! ```
//!
//! `length` counts header and data without the padding. Read and written as plain bytes in fixed
//! buffers, so a truncated or malformed area ends the walk instead of running past it.
//! Levels and types are of `linux/in.h`, `linux/in6.h` and `linux/udp.h`.

use super::address::canonical;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const ALIGN_BYTES: usize = size_of::<usize>();

/// `struct in_pktinfo`: interface index, source or destination, header destination.
const PKTINFO_V4_BYTES: usize = size_of::<libc::in_pktinfo>();
/// `struct in6_pktinfo`: address, interface index.
const PKTINFO_V6_BYTES: usize = size_of::<libc::in6_pktinfo>();

/// Room for all that a socket of ours asks to receive: packet info, traffic class, GRO stride.
pub(crate) const RECEIVE_BYTES: usize = space(PKTINFO_V6_BYTES) + space(4) + space(4);

/// Room for all that may go with a send: packet info, traffic class, segment size.
pub(crate) const SEND_BYTES: usize = space(PKTINFO_V6_BYTES) + space(4) + space(2);

const _: () = assert!(RECEIVE_BYTES.is_multiple_of(8) && SEND_BYTES.is_multiple_of(8));

/// `CMSG_SPACE`: header, data and padding.
pub(crate) const fn space(data_bytes: usize) -> usize {
    HEADER_BYTES + data_bytes.next_multiple_of(ALIGN_BYTES)
}

/// What the kernel said beside a datagram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ancillary {
    /// The local address that the datagram was sent to.
    pub(crate) local_ip: Option<IpAddr>,
    /// TOS or traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub(crate) traffic_class: u8,
    /// The stride of a coalesced train.
    pub(crate) segment_bytes: Option<u16>,
}

/// Reads the control area of a received datagram. Unknown messages are passed over.
#[inline]
pub(crate) fn decode(mut area: &[u8]) -> Ancillary {
    let mut ancillary = Ancillary::default();
    while let Some((header, _)) = area.split_first_chunk::<HEADER_BYTES>() {
        let (length, level, kind) = split_header(header);
        let Some(data) = area.get(HEADER_BYTES..length) else {
            break;
        };
        apply(&mut ancillary, level, kind, data);
        area = area
            .get(length.next_multiple_of(ALIGN_BYTES)..)
            .unwrap_or(&[]);
    }
    ancillary
}

#[inline]
fn split_header(header: &[u8; HEADER_BYTES]) -> (usize, i32, i32) {
    let (length, rest) = header
        .split_first_chunk::<ALIGN_BYTES>()
        .expect("invariant: sized");
    let (level, kind) = rest.split_first_chunk::<4>().expect("invariant: sized");
    let kind = kind.first_chunk::<4>().expect("invariant: sized");
    (
        usize::from_ne_bytes(*length),
        i32::from_ne_bytes(*level),
        i32::from_ne_bytes(*kind),
    )
}

#[inline]
fn apply(ancillary: &mut Ancillary, level: i32, kind: i32, data: &[u8]) {
    match (level, kind) {
        // The kernel writes one byte for IPv4 and an int for IPv6.
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            ancillary.traffic_class = data.first().copied().unwrap_or(0);
        }
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            ancillary.traffic_class = first_int(data).map_or(0, |class| (class & 0xff) as u8);
        }
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            // ipi_addr, the header's destination, lies behind the index and the local address.
            if let Some(&[a, b, c, d]) = data.get(8..12) {
                ancillary.local_ip = Some(Ipv4Addr::new(a, b, c, d).into());
            }
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            if let Some(octets) = data.first_chunk::<16>() {
                ancillary.local_ip = Some(canonical(Ipv6Addr::from(*octets)));
            }
        }
        (libc::SOL_UDP, libc::UDP_GRO) => {
            let stride = first_int(data).and_then(|stride| u16::try_from(stride).ok());
            ancillary.segment_bytes = stride.filter(|stride| *stride != 0);
        }
        _ => {}
    }
}

#[inline]
fn first_int(data: &[u8]) -> Option<i32> {
    data.first_chunk::<4>()
        .map(|bytes| i32::from_ne_bytes(*bytes))
}

/// A control area under construction for one send.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; SEND_BYTES],
    length: usize,
}

impl Control {
    /// Nothing to say beside the datagram.
    pub(crate) const EMPTY: Control = Control {
        bytes: [0; SEND_BYTES],
        length: 0,
    };

    /// The finished area; empty when the datagram needs none.
    #[inline]
    pub(crate) fn area(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Sends with this TOS or traffic class byte.
    #[inline]
    pub(crate) fn push_traffic_class(&mut self, traffic_class: u8, socket_is_v6: bool) {
        let data = i32::from(traffic_class).to_ne_bytes();
        if socket_is_v6 {
            self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &data);
        } else {
            self.push(libc::IPPROTO_IP, libc::IP_TOS, &data);
        }
    }

    /// Sends from this local address. An address of the other family is left out, for the kernel
    /// would refuse the whole datagram.
    #[inline]
    pub(crate) fn push_source(&mut self, ip: IpAddr, socket_is_v6: bool) {
        match (ip, socket_is_v6) {
            (IpAddr::V4(v4), false) => {
                let mut info = [0; PKTINFO_V4_BYTES];
                // ipi_spec_dst is the source of an outgoing datagram (ip(7)).
                info[4..8].copy_from_slice(&v4.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            (IpAddr::V4(v4), true) => self.push_source_v6(v4.to_ipv6_mapped()),
            (IpAddr::V6(v6), true) => self.push_source_v6(v6),
            (IpAddr::V6(_), false) => {}
        }
    }

    #[inline]
    fn push_source_v6(&mut self, ip: Ipv6Addr) {
        let mut info = [0; PKTINFO_V6_BYTES];
        info[..16].copy_from_slice(&ip.octets());
        self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
    }

    /// Sends the payload as a train of datagrams of this size.
    #[inline]
    pub(crate) fn push_segment(&mut self, segment_bytes: u16) {
        self.push(
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            &segment_bytes.to_ne_bytes(),
        );
    }

    /// Takes back a segment size, which must have been pushed last.
    pub(crate) fn pop_segment(&mut self) {
        assert!(self.length >= space(2), "invariant: popped after a push");
        self.length -= space(2);
    }

    #[inline]
    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let start = self.length;
        let length = HEADER_BYTES + data.len();
        let area = &mut self.bytes[start..start + space(data.len())];
        area[..ALIGN_BYTES].copy_from_slice(&length.to_ne_bytes());
        area[ALIGN_BYTES..ALIGN_BYTES + 4].copy_from_slice(&level.to_ne_bytes());
        area[ALIGN_BYTES + 4..HEADER_BYTES].copy_from_slice(&kind.to_ne_bytes());
        area[HEADER_BYTES..length].copy_from_slice(data);
        area[length..].fill(0);
        self.length += space(data.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER_BYTES + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(space(data.len()), 0);
        bytes
    }

    #[test]
    fn reads_the_three_messages_of_an_ipv4_datagram() {
        let mut info = [0; PKTINFO_V4_BYTES];
        info[8..12].copy_from_slice(&[192, 0, 2, 7]);
        let mut area = message(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        area.extend(message(libc::IPPROTO_IP, libc::IP_TOS, &[0xb9]));
        area.extend(message(
            libc::SOL_UDP,
            libc::UDP_GRO,
            &1200i32.to_ne_bytes(),
        ));
        let expected = Ancillary {
            local_ip: Some("192.0.2.7".parse().unwrap()),
            traffic_class: 0xb9,
            segment_bytes: Some(1200),
        };
        assert_eq!(decode(&area), expected);
    }

    #[test]
    fn folds_a_mapped_address_and_reads_an_ipv6_traffic_class() {
        let ip: Ipv6Addr = "::ffff:192.0.2.9".parse().unwrap();
        let mut info = ip.octets().to_vec();
        info.extend([0; 4]);
        let mut area = message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        area.extend(message(
            libc::IPPROTO_IPV6,
            libc::IPV6_TCLASS,
            &0x2ai32.to_ne_bytes(),
        ));
        let ancillary = decode(&area);
        assert_eq!(ancillary.local_ip, Some("192.0.2.9".parse().unwrap()));
        assert_eq!(ancillary.traffic_class, 0x2a);
    }

    #[test]
    fn what_is_pushed_is_what_a_receiver_of_the_same_family_would_read() {
        let mut control = Control::EMPTY;
        control.push_source("2001:db8::5".parse().unwrap(), true);
        control.push_traffic_class(0x88, true);
        control.push_segment(1_400);
        assert_eq!(control.area().len(), SEND_BYTES);
        let ancillary = decode(control.area());
        assert_eq!(ancillary.local_ip, Some("2001:db8::5".parse().unwrap()));
        assert_eq!(ancillary.traffic_class, 0x88);
    }

    #[test]
    fn a_source_of_the_wrong_family_is_left_out() {
        let mut control = Control::EMPTY;
        control.push_source("2001:db8::5".parse().unwrap(), false);
        assert!(control.area().is_empty());
    }

    proptest! {
        #[test]
        fn no_area_makes_the_walk_panic_or_loop(area: [u8; 96], length in 0usize..=96) {
            decode(&area[..length]);
        }

        #[test]
        fn a_cut_area_never_invents_a_message(cut in 0usize..96) {
            let area = message(libc::IPPROTO_IP, libc::IP_TOS, &[7]);
            let cut = cut.min(area.len());
            let class = decode(&area[..cut]).traffic_class;
            prop_assert_eq!(class, if cut > HEADER_BYTES { 7 } else { 0 });
        }
    }
}
