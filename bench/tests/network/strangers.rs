//! Any number of clients behind one socket: each datagram names its own source address out of
//! loopback's 127.0.0.0/8, and whatever comes back to any of them comes to this socket.

use std::io::{ErrorKind, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::libc::{in_addr, in_pktinfo};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};

/// Where strangers live: nobody else's part of loopback.
const FIRST: u32 = u32::from_be_bytes([127, 64, 0, 0]);
/// So many fit in front of loopback's broadcast address.
pub(crate) const STRANGERS_MAX: u32 = 1 << 21;

/// See the module's description.
pub(crate) struct Strangers {
    socket: UdpSocket,
    relay: SockaddrIn,
}

impl Strangers {
    pub(crate) fn new(relay: SocketAddr) -> Self {
        let SocketAddr::V4(relay) = relay else {
            panic!("strangers live in 127.0.0.0/8, not near {relay}");
        };
        let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        Self {
            socket,
            relay: relay.into(),
        }
    }

    /// Sends `payload` from the `index`-th address.
    pub(crate) fn send(&self, index: u32, payload: &[u8]) {
        assert!(index < STRANGERS_MAX, "the addresses end");
        let source = Ipv4Addr::from(FIRST + index);
        let info = in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: in_addr {
                s_addr: u32::from_ne_bytes(source.octets()),
            },
            ipi_addr: in_addr { s_addr: 0 },
        };
        let sent = sendmsg(
            self.socket.as_raw_fd(),
            &[IoSlice::new(payload)],
            &[ControlMessage::Ipv4PacketInfo(&info)],
            MsgFlags::empty(),
            Some(&self.relay),
        );
        assert_eq!(sent, Ok(payload.len()), "from {source}");
    }

    /// Datagrams that came back to any of the addresses since the last call.
    pub(crate) fn answers(&self) -> usize {
        self.socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 2_048];
        let mut count = 0;
        loop {
            match self.socket.recv(&mut bytes) {
                Ok(_) => count += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return count,
                Err(error) => panic!("{error}"),
            }
        }
    }
}
