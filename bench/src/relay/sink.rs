//! The transceiver side: takes what the relay forwards, checks every byte of header and payload,
//! and sends the other way along the path it learned, as a transceiver does.
//!
//! A path is learned from a client's STUN check and from nothing else. Measured datagrams must
//! come along the path learned; one that does not counts as misdelivered, whatever its payload.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use syrinx_shared::keys::KeyRing;
use syrinx_shared::route::{ClientSocket, ShardIndex};
use syrinx_shared::wire::encap::{
    BundleView, Direction, Marks, RawHeader, Record, RecordHeader, return_header, same_flow,
};
use syrinx_shared::wire::stun::BindingRequest;
use syrinx_shared::wire::train::{PushError, TrainDestination, Trains};

use super::clients::{Clients, answer_to, client_of_transaction};
use super::header::{self, HEADER_BYTES, Header};
use super::ledger::Ledger;
use super::payload::{PAYLOAD_BYTES_MAX, Stamp};
use super::port::{Arrival, Port};

/// How the target wraps a client's datagram on its way to the sink.
#[derive(Debug)]
pub enum Encapsulation {
    /// Not at all: the source address tells the client.
    Bare,
    /// One datagram each behind the Go relay's header.
    Header,
    /// The project's inner leg.
    Bundles(Box<InnerLeg>),
}

/// The sink as one shard of a transceiver.
#[derive(Debug)]
pub struct InnerLeg {
    /// The keys that cookies are checked with.
    pub keys: KeyRing,
    /// The records on their way to the relay.
    pub trains: Trains,
}

/// The way back to one client.
#[derive(Clone, Copy, Debug)]
enum Path {
    Bare(SocketAddr),
    Header {
        relay: SocketAddr,
        header: Header,
    },
    Bundles {
        relay: TrainDestination,
        header: RawHeader,
    },
}

/// The sink's socket, and what it knows of each client.
#[derive(Debug)]
pub struct Sink {
    port: Port,
    encapsulation: Encapsulation,
    paths: Vec<Option<Path>>,
    /// For bare datagrams and the Go header: which client an address stands for.
    clients: HashMap<SocketAddr, u32>,
    answers: Vec<u32>,
}

impl Sink {
    /// Takes the port over; it knows no client yet.
    pub fn new(port: Port, encapsulation: Encapsulation, client_count: u32) -> Self {
        Self {
            port,
            encapsulation,
            paths: vec![None; client_count as usize],
            clients: HashMap::with_capacity(client_count as usize),
            answers: Vec::with_capacity(client_count as usize),
        }
    }

    /// Takes what has arrived: checks are learned from and answered, measured datagrams go to
    /// `ledger`, and those that count to `delivered`. Returns the datagram count.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receive(
        &mut self,
        clients: &Clients,
        ledger: &mut Ledger,
        mut delivered: impl FnMut(&Stamp),
    ) -> io::Result<usize> {
        let Self {
            port,
            encapsulation,
            paths,
            clients: known,
            answers,
        } = self;
        let mut taker = Taker {
            clients,
            paths,
            known,
            answers,
        };
        let count = port.receive(|arrival| match encapsulation {
            Encapsulation::Bare => {
                let client = taker.known.get(&arrival.from).copied();
                let path = Path::Bare(arrival.from);
                taker.take(client, path, arrival.payload, ledger, &mut delivered);
            }
            Encapsulation::Header => taker.take_header(&arrival, ledger, &mut delivered),
            Encapsulation::Bundles(leg) => {
                taker.take_bundle(leg, &arrival, ledger, &mut delivered);
            }
        })?;
        self.answer()?;
        Ok(count)
    }

    /// Sends, or packs for [`Sink::flush`], the measured datagram that `stamp` names; `false`
    /// when the kernel would not take it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&mut self, stamp: &Stamp) -> io::Result<bool> {
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let length = stamp.write(&mut payload);
        self.send_to(stamp.client, &payload[..length])
    }

    /// Sends what is packed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn flush(&mut self) -> io::Result<()> {
        let Encapsulation::Bundles(leg) = &mut self.encapsulation else {
            return Ok(());
        };
        for train in leg.trains.iter() {
            self.port
                .send(train.to, None, train.bytes, train.segment_bytes)?;
        }
        leg.trains.clear();
        Ok(())
    }

    fn answer(&mut self) -> io::Result<()> {
        while let Some(client) = self.answers.pop() {
            self.send_to(client, &answer_to(client))?;
        }
        self.flush()
    }

    fn send_to(&mut self, client: u32, datagram: &[u8]) -> io::Result<bool> {
        match self.paths[client as usize] {
            None => Ok(false),
            Some(Path::Bare(addr)) => self.port.send(addr, None, datagram, None),
            Some(Path::Header { relay, header }) => {
                let mut wrapped = [0; HEADER_BYTES + PAYLOAD_BYTES_MAX];
                let length = HEADER_BYTES + datagram.len();
                wrapped[..HEADER_BYTES].copy_from_slice(&header);
                wrapped[HEADER_BYTES..length].copy_from_slice(datagram);
                self.port.send(relay, None, &wrapped[..length], None)
            }
            Some(Path::Bundles { relay, header }) => self.pack(relay, &header, datagram),
        }
    }

    fn pack(
        &mut self,
        relay: TrainDestination,
        header: &RawHeader,
        datagram: &[u8],
    ) -> io::Result<bool> {
        for _ in 0..2 {
            let Encapsulation::Bundles(leg) = &mut self.encapsulation else {
                return Ok(false);
            };
            match leg.trains.push(relay, header, datagram) {
                Ok(()) => return Ok(true),
                Err(PushError::Full) => self.flush()?,
                Err(PushError::Oversize) => return Ok(false),
            }
        }
        Ok(false)
    }
}

/// What taking one datagram needs besides the encapsulation.
struct Taker<'a> {
    clients: &'a Clients,
    paths: &'a mut [Option<Path>],
    known: &'a mut HashMap<SocketAddr, u32>,
    answers: &'a mut Vec<u32>,
}

impl Taker<'_> {
    fn take_header(
        &mut self,
        arrival: &Arrival<'_>,
        ledger: &mut Ledger,
        delivered: &mut impl FnMut(&Stamp),
    ) {
        let Some((header, addr, datagram)) = header::split(arrival.payload) else {
            return ledger.arrive_malformed();
        };
        let client = self.known.get(&addr).copied();
        let path = Path::Header {
            relay: arrival.from,
            header,
        };
        self.take(client, path, datagram, ledger, delivered);
    }

    fn take_bundle(
        &mut self,
        leg: &InnerLeg,
        arrival: &Arrival<'_>,
        ledger: &mut Ledger,
        delivered: &mut impl FnMut(&Stamp),
    ) {
        let Ok(bundle) = BundleView::parse(arrival.payload) else {
            return ledger.arrive_malformed();
        };
        let shard = bundle.preamble().source;
        for record in bundle.records() {
            match record {
                Ok(record) if record.header.direction == Direction::ToTransceiver => {
                    let relay = TrainDestination {
                        addr: arrival.from,
                        shard,
                    };
                    self.take_record(leg, relay, &record, ledger, delivered);
                }
                Ok(_) => {}
                Err(_) => ledger.arrive_malformed(),
            }
        }
    }

    fn take_record(
        &mut self,
        leg: &InnerLeg,
        relay: TrainDestination,
        record: &Record<'_>,
        ledger: &mut Ledger,
        delivered: &mut impl FnMut(&Stamp),
    ) {
        let slot = record.header.session.slot.value();
        let known = self.paths.get(slot as usize).and_then(Option::as_ref);
        let client = match known {
            Some(Path::Bundles { header, .. }) if same_flow(header, record.raw_header) => {
                Some(slot)
            }
            _ => None,
        };
        if client.is_none() && !self.is_genuine(leg, &record.header) {
            return ledger.arrive_malformed();
        }
        let back = return_header(record.raw_header, Direction::ToClient, Marks::default());
        let path = Path::Bundles {
            relay,
            header: back,
        };
        self.take(client, path, record.payload, ledger, delivered);
    }

    /// Whether a header seen for the first time names the client, its session, and a cookie that
    /// only a holder of the cluster's keys can have made.
    fn is_genuine(&self, leg: &InnerLeg, header: &RecordHeader) -> bool {
        let client = header.session.slot.value();
        client < self.clients.count()
            && self.clients.session(client) == Some(header.session)
            && self
                .clients
                .addr(client)
                .is_ok_and(|addr| ClientSocket::new(addr) == header.client)
            && leg
                .keys
                .live()
                .filter_map(|epoch| leg.keys.epoch(epoch)?.cluster())
                .any(|keys| {
                    let RecordHeader {
                        client,
                        session,
                        endpoint,
                        transport,
                        ..
                    } = *header;
                    keys.cookie(client, endpoint, transport, session) == header.cookie
                })
    }

    /// A datagram free of its wrapping, attributed to `client` where its path is known.
    fn take(
        &mut self,
        client: Option<u32>,
        path: Path,
        datagram: &[u8],
        ledger: &mut Ledger,
        delivered: &mut impl FnMut(&Stamp),
    ) {
        let Ok(check) = BindingRequest::peek(datagram) else {
            if let Some(stamp) = ledger.arrive(client, datagram) {
                delivered(&stamp);
            }
            return;
        };
        let Some(asked) = client_of_transaction(check.transaction_id())
            .filter(|asked| *asked < self.clients.count())
        else {
            return ledger.arrive_malformed();
        };
        match &path {
            Path::Bare(addr) => drop(self.known.insert(*addr, asked)),
            Path::Header { header, .. } => drop(self.known.insert(header::client(header), asked)),
            Path::Bundles { .. } => {}
        }
        self.paths[asked as usize] = Some(path);
        self.answers.push(asked);
    }
}

/// A transceiver's shard as the sink plays it.
impl InnerLeg {
    /// Bundles of at most `bundle_bytes`, checked with `keys`.
    pub fn new(keys: KeyRing, sender: u16, bundle_bytes: usize) -> Self {
        Self {
            keys,
            trains: Trains::new(ShardIndex(0), sender, bundle_bytes, TRAINS_MAX),
        }
    }
}

/// How many trains one flush may hold: each is up to 65,507 bytes.
const TRAINS_MAX: usize = 16;
