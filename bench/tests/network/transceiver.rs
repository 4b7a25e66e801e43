//! The transceiver's side of the inner leg, played by the test: takes bundles apart, remembers the
//! way each record came, and answers along it.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use syrinx_shared::route::ShardIndex;
use syrinx_shared::wire::encap::{
    BundleView, Direction, Marks, Preamble, RawHeader, RecordHeader, push_record, return_header,
};

/// How long anything that must come is waited for; a loaded machine may take a while.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Room for what a flood gets through, as far as the system grants it.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Other records that may come before the one that is waited for.
const OTHERS_MAX: usize = 100_000;

/// A transceiver of one shard.
pub(crate) struct Transceiver {
    socket: UdpSocket,
    inbox: VecDeque<Arrival>,
    bytes: Vec<u8>,
}

/// One client datagram, and the way back to its client.
#[derive(Clone)]
pub(crate) struct Arrival {
    pub(crate) header: RecordHeader,
    pub(crate) payload: Vec<u8>,
    raw: RawHeader,
    relay: SocketAddr,
    relay_shard: ShardIndex,
}

impl Transceiver {
    pub(crate) fn bind(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES).unwrap();
        Self {
            socket,
            inbox: VecDeque::new(),
            bytes: vec![0; 1 << 16],
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// The next record.
    pub(crate) fn receive(&mut self) -> Arrival {
        loop {
            if let Some(arrival) = self.inbox.pop_front() {
                return arrival;
            }
            let received = self.socket.recv_from(&mut self.bytes);
            let (bytes, relay) = received.expect("a record reaches the transceiver");
            self.unpack(bytes, relay);
        }
    }

    /// The record with this payload; those before it are passed over.
    pub(crate) fn receive_payload(&mut self, payload: &[u8]) -> Arrival {
        for _ in 0..OTHERS_MAX {
            let arrival = self.receive();
            if arrival.payload == payload {
                return arrival;
            }
        }
        panic!("{OTHERS_MAX} records came, and not the one that was sent");
    }

    /// Passes over everything that is here already, and says how many records that were.
    pub(crate) fn drain(&mut self) -> usize {
        self.socket.set_nonblocking(true).unwrap();
        let mut count = 0;
        loop {
            count += self.inbox.len();
            self.inbox.clear();
            match self.socket.recv_from(&mut self.bytes) {
                Ok((bytes, relay)) => self.unpack(bytes, relay),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.socket.set_nonblocking(false).unwrap();
        count
    }

    /// Sends a datagram to the client that `path` came from.
    pub(crate) fn send(&self, path: &Arrival, payload: &[u8]) {
        self.send_marked(path, Marks::default(), payload);
    }

    pub(crate) fn send_marked(&self, path: &Arrival, marks: Marks, payload: &[u8]) {
        let preamble = Preamble {
            destination: path.relay_shard,
            source: ShardIndex(0),
            sender: 1,
            count: 1,
        };
        let mut bundle = Vec::from(preamble.to_bytes());
        let header = return_header(&path.raw, Direction::ToClient, marks);
        push_record(&mut bundle, &header, payload);
        self.socket.send_to(&bundle, path.relay).unwrap();
    }

    fn unpack(&mut self, bytes: usize, relay: SocketAddr) {
        let bundle = BundleView::parse(&self.bytes[..bytes]).expect("the relay sends bundles");
        for record in bundle.records() {
            let record = record.expect("the relay's records are whole");
            assert_eq!(record.header.direction, Direction::ToTransceiver);
            self.inbox.push_back(Arrival {
                header: record.header,
                payload: record.payload.to_vec(),
                raw: *record.raw_header,
                relay,
                relay_shard: bundle.preamble().source,
            });
        }
    }
}
