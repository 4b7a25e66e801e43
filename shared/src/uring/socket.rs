//! UDP sockets with the options that the packet path relies on.
//!
//! A socket is opened once, at start, by a daemon's driver, and given to a worker. Options that the
//! product cannot do without are errors with their likely cause; those that only cost speed or room
//! (buffer sizes above the system's limit, UDP_GRO) degrade and say so.

use super::address::Name;
use super::syscall::{bind, int_option, option_words, set_option, udp_socket};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// `SO_MEMINFO`'s index of the datagrams dropped by a full receive buffer (`linux/sock_diag.h`).
const SK_MEMINFO_DROPS: usize = 8;
/// Number of words of `SO_MEMINFO` (`SK_MEMINFO_VARS`).
const SK_MEMINFO_VARS: usize = 9;
/// `SO_MEMINFO` of `asm-generic/socket.h`, which libc does not name on every target.
const SO_MEMINFO: i32 = 55;

/// How long a port in use is waited for: many times what the kernel takes to release a killed
/// process's, and short enough for an operator who mistyped it.
const PORT_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two tries.
const PORT_PAUSE: Duration = Duration::from_millis(5);

/// How a socket treats datagrams that are longer than the way to their destination carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathMtu {
    /// Forbid the network to fragment, and learn the path's MTU from what it answers. Such a
    /// datagram needs no IPv4 identification, whose generator costs the kernel a tenth of a small
    /// send. One that does not fit is sent again with fragments allowed.
    #[default]
    Discover,
    /// Fragment whenever it does not fit, never ask the network not to: for the inner leg, where an
    /// oversize record must arrive rather than be refused.
    Fragment,
}

/// What a UDP socket is opened with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpOptions {
    /// The address to bind; port 0 lets the kernel choose.
    pub bind: SocketAddr,
    /// Let further sockets of this process share the address (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// An IPv6 socket takes no IPv4 traffic (`IPV6_V6ONLY`); without meaning for IPv4.
    pub only_v6: bool,
    /// Receive buffer wanted, in bytes of payload and the kernel's overhead.
    pub receive_buffer_bytes: usize,
    /// Send buffer wanted, in bytes of payload and the kernel's overhead.
    pub send_buffer_bytes: usize,
    /// Learn the local address of each datagram. Wanted for wildcard binds, so that answers leave
    /// from the address that was asked.
    pub packet_info: bool,
    /// Learn the TOS or traffic class of each datagram.
    pub traffic_class: bool,
    /// Receive trains of equal datagrams as one (`UDP_GRO`, Linux 5.0).
    pub gro: bool,
    /// What happens to datagrams that are too long for their way.
    pub path_mtu: PathMtu,
}

impl UdpOptions {
    /// An exclusive socket with 4 MiB buffers, packet info if the address is a wildcard, traffic
    /// class on, no GRO.
    pub fn new(bind: SocketAddr) -> UdpOptions {
        UdpOptions {
            bind,
            reuse_port: false,
            only_v6: true,
            receive_buffer_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
            packet_info: bind.ip().is_unspecified(),
            traffic_class: true,
            gro: false,
            path_mtu: PathMtu::Discover,
        }
    }
}

/// Why a socket could not be had.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Another socket holds the address.
    #[error(
        "UDP {address} is in use by another process: stop that one (`ss -ulpn` shows it) or \
         configure another port"
    )]
    AddressInUse {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The host has no such address.
    #[error(
        "UDP {address}: this host has no such address; configure one that `ip address` shows, or \
         the wildcard"
    )]
    AddressNotAvailable {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The port is privileged.
    #[error(
        "UDP {address}: not permitted; ports below net.ipv4.ip_unprivileged_port_start need \
         CAP_NET_BIND_SERVICE"
    )]
    NotPermitted {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The host has no IPv6.
    #[error("UDP {address}: the kernel has no support for this address family")]
    FamilyNotSupported {
        /// The address asked for.
        address: SocketAddr,
    },
    /// A call failed otherwise.
    #[error("UDP {address}: {step}: {cause}")]
    Failed {
        /// The address asked for.
        address: SocketAddr,
        /// The option or call.
        step: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl SocketError {
    fn new(address: SocketAddr, step: &'static str, cause: io::Error) -> SocketError {
        match cause.raw_os_error() {
            Some(libc::EADDRINUSE) => SocketError::AddressInUse { address },
            Some(libc::EADDRNOTAVAIL) => SocketError::AddressNotAvailable { address },
            Some(libc::EACCES) => SocketError::NotPermitted { address },
            Some(libc::EAFNOSUPPORT) => SocketError::FamilyNotSupported { address },
            _ => SocketError::Failed {
                address,
                step,
                cause,
            },
        }
    }
}

impl From<SocketError> for io::Error {
    fn from(error: SocketError) -> io::Error {
        let kind = match &error {
            SocketError::AddressInUse { .. } => io::ErrorKind::AddrInUse,
            SocketError::AddressNotAvailable { .. } => io::ErrorKind::AddrNotAvailable,
            SocketError::NotPermitted { .. } => io::ErrorKind::PermissionDenied,
            SocketError::FamilyNotSupported { .. } => io::ErrorKind::Unsupported,
            SocketError::Failed { cause, .. } => cause.kind(),
        };
        io::Error::new(kind, error)
    }
}

/// A bound UDP socket.
#[derive(Debug)]
pub struct UdpSocket {
    descriptor: OwnedFd,
    local: SocketAddr,
    path_mtu: PathMtu,
    granted_receive_buffer_bytes: usize,
    granted_send_buffer_bytes: usize,
}

/// Opens and binds one socket.
///
/// Errors: [`SocketError`], naming the address and the likely cause.
pub fn open_udp(options: &UdpOptions) -> Result<UdpSocket, SocketError> {
    let socket = UnboundSocket::new(options)?;
    if options.reuse_port {
        socket.set("SO_REUSEPORT", libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    socket.bind(options.bind)
}

/// Opens `count` sockets that share one address, in the order in which steering counts them.
///
/// The first binds alone, and only then is sharing allowed: a second process of the same user,
/// which `SO_REUSEPORT` alone would let in to take half of the clients, gets
/// [`SocketError::AddressInUse`]. It does not get that at once: a process that was killed keeps its
/// ports while the kernel takes its io_uring apart (29 to 39 ms where we looked), and its successor
/// must not fail for that.
///
/// Errors: as [`open_udp`].
pub fn open_udp_group(options: &UdpOptions, count: usize) -> Result<Vec<UdpSocket>, SocketError> {
    let mut sockets = Vec::with_capacity(count);
    let mut options = options.clone();
    for index in 0..count {
        let socket = match index {
            0 => bind_first(&options)?,
            _ => {
                let socket = UnboundSocket::new(&options)?;
                socket.set("SO_REUSEPORT", libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
                socket.bind(options.bind)?
            }
        };
        if index == 0 {
            options.bind = socket.local;
            set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
                .map_err(|error| SocketError::new(options.bind, "SO_REUSEPORT", error))?;
        }
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Binds alone, and waits for the port of a process that is just gone.
fn bind_first(options: &UdpOptions) -> Result<UdpSocket, SocketError> {
    let started = Instant::now();
    loop {
        match UnboundSocket::new(options)?.bind(options.bind) {
            Err(SocketError::AddressInUse { .. }) if started.elapsed() < PORT_PATIENCE => {
                thread::sleep(PORT_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

impl UdpSocket {
    /// The bound address, with the port the kernel chose if it was asked to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Whether the socket is of the IPv6 family.
    pub fn is_v6(&self) -> bool {
        self.local.is_ipv6()
    }

    /// Lets the datagrams that follow be fragmented, or forbids it; for IPv4, on sockets of
    /// [`PathMtu::Discover`].
    pub(crate) fn allow_fragments(&self, is_allowed: bool) -> io::Result<()> {
        let discovery = if is_allowed {
            libc::IP_PMTUDISC_DONT
        } else {
            libc::IP_PMTUDISC_DO
        };
        set_option(
            self.as_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            discovery,
        )
    }

    /// Whether datagrams that do not fit their way are refused at first.
    pub(crate) fn path_mtu(&self) -> PathMtu {
        self.path_mtu
    }

    /// The receive buffer in bytes, as asked for or what the system's limit left of it.
    pub fn granted_receive_buffer_bytes(&self) -> usize {
        self.granted_receive_buffer_bytes
    }

    /// The send buffer in bytes, as asked for or what the system's limit left of it.
    pub fn granted_send_buffer_bytes(&self) -> usize {
        self.granted_send_buffer_bytes
    }

    /// Datagrams dropped since the socket was opened because its receive buffer was full.
    ///
    /// The kernel's counter has 32 bits and wraps. Nought where the kernel has no `SO_MEMINFO`.
    pub fn dropped_datagrams(&self) -> u32 {
        let mut words = [0i32; SK_MEMINFO_VARS];
        match option_words(self.as_fd(), libc::SOL_SOCKET, SO_MEMINFO, &mut words) {
            Ok(count) if count > SK_MEMINFO_DROPS => words[SK_MEMINFO_DROPS].cast_unsigned(),
            _ => 0,
        }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl From<UdpSocket> for std::net::UdpSocket {
    fn from(socket: UdpSocket) -> std::net::UdpSocket {
        socket.descriptor.into()
    }
}

/// A socket with its options, before it has an address.
struct UnboundSocket {
    descriptor: OwnedFd,
    options: UdpOptions,
}

impl UnboundSocket {
    fn new(options: &UdpOptions) -> Result<UnboundSocket, SocketError> {
        let descriptor = udp_socket(options.bind.is_ipv6())
            .map_err(|error| SocketError::new(options.bind, "socket", error))?;
        let socket = UnboundSocket {
            descriptor,
            options: options.clone(),
        };
        socket.request_buffers();
        if options.bind.is_ipv6() {
            socket.set_v6_options()?;
        }
        if !options.bind.is_ipv6() || !options.only_v6 {
            socket.set_v4_options()?;
        }
        socket.request_gro();
        Ok(socket)
    }

    fn set_v6_options(&self) -> Result<(), SocketError> {
        let options = &self.options;
        let level = libc::IPPROTO_IPV6;
        self.set(
            "IPV6_V6ONLY",
            level,
            libc::IPV6_V6ONLY,
            i32::from(options.only_v6),
        )?;
        if options.packet_info {
            self.set("IPV6_RECVPKTINFO", level, libc::IPV6_RECVPKTINFO, 1)?;
        }
        if options.traffic_class {
            self.set("IPV6_RECVTCLASS", level, libc::IPV6_RECVTCLASS, 1)?;
        }
        if options.path_mtu == PathMtu::Fragment {
            let mode = libc::IPV6_PMTUDISC_DONT;
            self.set("IPV6_MTU_DISCOVER", level, libc::IPV6_MTU_DISCOVER, mode)?;
        }
        Ok(())
    }

    fn set_v4_options(&self) -> Result<(), SocketError> {
        let options = &self.options;
        let level = libc::IPPROTO_IP;
        if options.packet_info && !options.bind.is_ipv6() {
            self.set("IP_PKTINFO", level, libc::IP_PKTINFO, 1)?;
        }
        if options.traffic_class {
            self.set("IP_RECVTOS", level, libc::IP_RECVTOS, 1)?;
        }
        let discovery = match options.path_mtu {
            PathMtu::Discover => libc::IP_PMTUDISC_DO,
            PathMtu::Fragment => libc::IP_PMTUDISC_DONT,
        };
        self.set("IP_MTU_DISCOVER", level, libc::IP_MTU_DISCOVER, discovery)
    }

    /// Asks past the system's limit first, which takes CAP_NET_ADMIN, then within it.
    fn request_buffers(&self) {
        let level = libc::SOL_SOCKET;
        let wanted = [
            (
                libc::SO_RCVBUFFORCE,
                libc::SO_RCVBUF,
                self.options.receive_buffer_bytes,
            ),
            (
                libc::SO_SNDBUFFORCE,
                libc::SO_SNDBUF,
                self.options.send_buffer_bytes,
            ),
        ];
        for (force, limited, bytes) in wanted {
            // The kernel doubles the value, so half of the largest int is the most it can take.
            let bytes = i32::try_from(bytes).unwrap_or(i32::MAX).min(i32::MAX / 2);
            if set_option(self.descriptor.as_fd(), level, force, bytes).is_err() {
                // A refusal leaves the default; what was granted is read back and reported.
                let _ = set_option(self.descriptor.as_fd(), level, limited, bytes);
            }
        }
    }

    fn request_gro(&self) {
        if self.options.gro {
            let on = set_option(self.descriptor.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
            if let Err(error) = &on {
                tracing::warn!(
                    address = %self.options.bind, %error,
                    "UDP_GRO is not available: each datagram is received by itself"
                );
            }
        }
    }

    fn set(
        &self,
        step: &'static str,
        level: i32,
        option: i32,
        value: i32,
    ) -> Result<(), SocketError> {
        set_option(self.descriptor.as_fd(), level, option, value)
            .map_err(|error| SocketError::new(self.options.bind, step, error))
    }

    fn bind(self, address: SocketAddr) -> Result<UdpSocket, SocketError> {
        let mut name = Name::EMPTY;
        let length = name.set(address, address.is_ipv6());
        bind(self.descriptor.as_fd(), name.bytes(), length)
            .map_err(|error| SocketError::new(address, "bind", error))?;
        let socket = std::net::UdpSocket::from(self.descriptor);
        let local = socket
            .local_addr()
            .map_err(|error| SocketError::new(address, "getsockname", error))?;
        let mut socket = UdpSocket {
            descriptor: socket.into(),
            local,
            path_mtu: self.options.path_mtu,
            granted_receive_buffer_bytes: 0,
            granted_send_buffer_bytes: 0,
        };
        socket.read_granted_buffers(&self.options);
        Ok(socket)
    }
}

impl UdpSocket {
    fn read_granted_buffers(&mut self, options: &UdpOptions) {
        let granted = |option| {
            let doubled = int_option(self.as_fd(), libc::SOL_SOCKET, option).unwrap_or(0);
            // socket(7): the kernel doubles what is set, and returns the doubled value.
            usize::try_from(doubled).unwrap_or(0) / 2
        };
        let receive = granted(libc::SO_RCVBUF);
        let send = granted(libc::SO_SNDBUF);
        // Who opened the socket says what a small receive buffer means, with its key.
        if send < options.send_buffer_bytes {
            tracing::warn!(
                address = %self.local, wanted_bytes = options.send_buffer_bytes,
                granted_bytes = send,
                "the send buffer is smaller than asked; raise net.core.wmem_max or grant \
                 CAP_NET_ADMIN"
            );
        }
        self.granted_receive_buffer_bytes = receive;
        self.granted_send_buffer_bytes = send;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uring::attach_shard_steering;
    use std::net::{Ipv4Addr, UdpSocket as Peer};
    use std::time::Duration;

    fn loopback() -> UdpOptions {
        UdpOptions::new((Ipv4Addr::LOCALHOST, 0).into())
    }

    fn standard(socket: UdpSocket) -> Peer {
        let socket = Peer::from(socket);
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        socket
    }

    #[test]
    fn a_taken_address_is_an_error_that_names_it_and_the_remedy() {
        let taken = open_udp(&loopback()).unwrap();
        let mut options = loopback();
        options.bind = taken.local_addr();
        let error = open_udp(&options).unwrap_err();
        assert!(matches!(error, SocketError::AddressInUse { address } if address == options.bind));
        assert!(
            error.to_string().contains(&options.bind.to_string()),
            "{error}"
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_second_group_on_the_same_port_is_refused_rather_than_sharing_the_clients() {
        let group = open_udp_group(&loopback(), 2).unwrap();
        let mut options = loopback();
        options.bind = group[0].local_addr();
        let error = open_udp_group(&options, 2).unwrap_err();
        assert!(matches!(error, SocketError::AddressInUse { .. }), "{error}");
    }

    #[test]
    fn an_address_of_another_host_is_an_error_that_says_so() {
        let mut options = loopback();
        options.bind = "192.0.2.1:0".parse().unwrap();
        let error = open_udp(&options).unwrap_err();
        assert!(
            matches!(error, SocketError::AddressNotAvailable { .. }),
            "{error}"
        );
    }

    #[test]
    fn ipv4_and_ipv6_wildcards_share_a_port() {
        let v4 = open_udp(&UdpOptions::new("0.0.0.0:0".parse().unwrap())).unwrap();
        let port = v4.local_addr().port();
        let v6 = open_udp(&UdpOptions::new(format!("[::]:{port}").parse().unwrap()));
        assert!(v6.is_ok(), "{v6:?}");
    }

    #[test]
    fn the_granted_buffers_are_reported() {
        let mut options = loopback();
        options.receive_buffer_bytes = 150_000;
        options.send_buffer_bytes = 140_000;
        let socket = open_udp(&options).unwrap();
        assert_eq!(socket.granted_receive_buffer_bytes(), 150_000);
        assert_eq!(socket.granted_send_buffer_bytes(), 140_000);
    }

    #[test]
    fn datagrams_dropped_by_a_full_buffer_are_counted() {
        let mut options = loopback();
        options.receive_buffer_bytes = 4_096;
        let socket = open_udp(&options).unwrap();
        assert_eq!(socket.dropped_datagrams(), 0);
        let peer = Peer::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..100 {
            peer.send_to(&[0; 1_000], socket.local_addr()).unwrap();
        }
        let dropped = socket.dropped_datagrams();
        assert!(
            (50..100).contains(&dropped),
            "{dropped} of 100 that 8 KiB cannot hold"
        );
    }

    #[test]
    fn steering_delivers_to_the_socket_that_the_byte_names() {
        let group = open_udp_group(&loopback(), 4).unwrap();
        attach_shard_steering(&group, 2).unwrap();
        let address = group[0].local_addr();
        let group: Vec<Peer> = group.into_iter().map(standard).collect();
        for sender in 0..8u8 {
            let peer = Peer::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            for shard in 0..4u8 {
                peer.send_to(&[9, 9, shard, sender], address).unwrap();
                let mut buffer = [0; 8];
                let length = group[usize::from(shard)].recv(&mut buffer).unwrap();
                assert_eq!(buffer[..length], [9, 9, shard, sender]);
            }
        }
    }

    #[test]
    fn a_datagram_too_short_to_steer_goes_to_the_first_socket() {
        let group = open_udp_group(&loopback(), 3).unwrap();
        attach_shard_steering(&group, 2).unwrap();
        let address = group[0].local_addr();
        let peer = Peer::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        peer.send_to(&[7], address).unwrap();
        let first = standard(group.into_iter().next().unwrap());
        let mut buffer = [0; 8];
        assert_eq!(first.recv(&mut buffer).unwrap(), 1);
    }

    #[test]
    fn steering_an_empty_group_is_an_error() {
        let error = attach_shard_steering(&[], 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
