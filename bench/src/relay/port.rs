//! One UDP socket of the generator: batches in, batches of segments out, with the local address of
//! each datagram in both directions.
//!
//! The system calls are quinn-udp's (recvmmsg, sendmsg with `UDP_SEGMENT` and `IP_PKTINFO`), not
//! the project's own: the yardstick shares no I/O code with what it measures. The local address is
//! what makes two thousand clients out of one wildcard socket: each sends from, and is answered at,
//! an address of its own in 127.0.0.0/8, and no `bind` per client is paid or run out of.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};

/// What the generator asks for each socket buffer, in bytes: the largest backlog of a run, at
/// about 800 bytes of kernel memory a datagram, several times over.
const SOCKET_BUFFER_BYTES: usize = 32 << 20;
/// One receive buffer: the largest datagram or `UDP_GRO` run that UDP's length field allows.
const RECEIVE_BYTES: usize = 1 << 16;
/// How often a full send buffer is tried again before the datagram counts as refused.
const SEND_TRIES: u32 = 10_000;

/// A datagram as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Who sent it.
    pub from: SocketAddr,
    /// The local address it was sent to.
    pub at: Option<IpAddr>,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// A non-blocking socket with its receive buffers.
#[derive(Debug)]
pub struct Port {
    socket: UdpSocket,
    state: UdpSocketState,
    buffers: Vec<u8>,
    metas: [RecvMeta; BATCH_SIZE],
}

impl Port {
    /// Binds `addr`.
    ///
    /// # Errors
    /// When the address is taken or not this machine's.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(addr)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // Time stamps would be taken for every packet of the machine, the relay's included.
        setsockopt(&socket, sockopt::ReceiveTimestampns, &false)?;
        grow_buffers(&socket)?;
        let metas = [RecvMeta::default(); BATCH_SIZE];
        Ok(Self {
            socket,
            state,
            buffers: vec![0; RECEIVE_BYTES * BATCH_SIZE],
            metas,
        })
    }

    /// The address it is bound to.
    ///
    /// # Errors
    /// The kernel's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends `payload`, from the local address `from` where one is given; with `segment_bytes`
    /// the kernel cuts it into datagrams of that size. Returns whether the kernel took it: a
    /// full send buffer is waited for, briefly.
    ///
    /// # Errors
    /// What no retry helps: an address that is not ours, no route, a datagram too long.
    pub fn send(
        &self,
        to: SocketAddr,
        from: Option<IpAddr>,
        payload: &[u8],
        segment_bytes: Option<u16>,
    ) -> io::Result<bool> {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: payload,
            segment_size: segment_bytes.map(usize::from),
            src_ip: from,
        };
        for _ in 0..SEND_TRIES {
            match self
                .state
                .try_send(UdpSockRef::from(&self.socket), &transmit)
            {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                // An ICMP error of an earlier datagram, reported on this one.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Takes what has arrived, at most one batch, and never waits. Returns the datagram count.
    ///
    /// # Errors
    /// The kernel's, but for an empty socket and ICMP errors.
    pub fn receive(&mut self, mut each: impl FnMut(Arrival<'_>)) -> io::Result<usize> {
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] = {
            let mut chunks = self.buffers.chunks_exact_mut(RECEIVE_BYTES);
            std::array::from_fn(|_| {
                IoSliceMut::new(chunks.next().expect("invariant: one buffer a slice"))
            })
        };
        let socket = UdpSockRef::from(&self.socket);
        let count = match self.state.recv(socket, &mut slices, &mut self.metas) {
            Ok(count) => count,
            Err(error) if is_transient(&error) => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut datagram_count = 0;
        for (meta, buffer) in self.metas[..count]
            .iter()
            .zip(self.buffers.chunks(RECEIVE_BYTES))
        {
            for payload in buffer[..meta.len].chunks(meta.stride.max(1)) {
                datagram_count += 1;
                each(Arrival {
                    from: meta.addr,
                    at: meta.dst_ip,
                    payload,
                });
            }
        }
        Ok(datagram_count)
    }
}

fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionRefused)
}

/// Asks for large buffers past the system's limit, which takes CAP_NET_ADMIN, else up to it.
fn grow_buffers(socket: &UdpSocket) -> io::Result<()> {
    let bytes = SOCKET_BUFFER_BYTES;
    if setsockopt(socket, sockopt::RcvBufForce, &bytes).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &bytes)?;
    }
    if setsockopt(socket, sockopt::SndBufForce, &bytes).is_err() {
        setsockopt(socket, sockopt::SndBuf, &bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn collect(port: &mut Port, count: usize) -> Vec<(SocketAddr, Option<IpAddr>, Vec<u8>)> {
        let (mut got, begun) = (Vec::new(), Instant::now());
        while got.len() < count && begun.elapsed() < Duration::from_secs(5) {
            port.receive(|arrival| got.push((arrival.from, arrival.at, arrival.payload.to_vec())))
                .expect("receive");
        }
        got
    }

    #[test]
    fn sends_from_and_receives_at_many_addresses_of_one_socket() {
        let mut wildcard = Port::bind(([0, 0, 0, 0], 0).into()).expect("wildcard");
        let mut peer = Port::bind(([127, 0, 0, 1], 0).into()).expect("peer");
        let peer_addr = peer.local_addr().expect("peer address");
        let own_port = wildcard.local_addr().expect("own address").port();
        let own: IpAddr = [127, 1, 2, 3].into();
        assert!(
            wildcard
                .send(peer_addr, Some(own), b"up", None)
                .expect("send")
        );
        let got = collect(&mut peer, 1);
        assert_eq!(got[0].0, SocketAddr::new(own, own_port));
        assert!(peer.send(got[0].0, None, b"down", None).expect("send"));
        let got = collect(&mut wildcard, 1);
        assert_eq!(
            (got[0].1, got[0].2.as_slice()),
            (Some(own), b"down".as_slice())
        );
    }

    #[test]
    fn cuts_a_train_into_its_segments() {
        let mut peer = Port::bind(([127, 0, 0, 1], 0).into()).expect("peer");
        let port = Port::bind(([127, 0, 0, 1], 0).into()).expect("port");
        let to = peer.local_addr().expect("address");
        assert!(port.send(to, None, &[7; 250], Some(100)).expect("send"));
        let lengths: Vec<usize> = collect(&mut peer, 3)
            .iter()
            .map(|got| got.2.len())
            .collect();
        assert_eq!(lengths, [100, 100, 50]);
    }

    #[test]
    fn an_empty_socket_is_no_error() {
        let mut port = Port::bind(([127, 0, 0, 1], 0).into()).expect("port");
        assert_eq!(port.receive(|_| ()).expect("receive"), 0);
    }
}
