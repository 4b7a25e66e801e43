//! What is fuzzed, as plain functions of bytes: called by the fuzz targets, and by the ordinary
//! test run with every input of the corpus. Each panics when what it promises does not hold.

#![allow(dead_code, unreachable_pub)] // Each target is one program, which uses one function.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use syrinx_relay::forwarder::admission::{AdmissionOptions, Rate};
use syrinx_relay::forwarder::routes::{Route, Routes};
use syrinx_relay::forwarder::{
    ClientDatagram, ClientVerdict, Forwarder, ForwarderOptions, RecordVerdict, Verify,
};
use syrinx_shared::keys::{KeyRing, MasterSecret};
use syrinx_shared::route::{
    ClientSocket, ClusterId, Epoch, LocalEndpoint, Now, SessionRef, ShardIndex, TransceiverId,
    Transport, UnixMinutes,
};
use syrinx_shared::wire::encap::{
    BundleView, Control, Direction, Marks, PREAMBLE_BYTES, Preamble, RECORD_HEADER_BYTES,
    RecordHeader, push_record,
};
use syrinx_shared::wire::stun::{BindingRequest, Integrity, RequestWriter};
use syrinx_shared::wire::train::{PushError, TrainDestination, Trains};
use syrinx_shared::wire::ufrag::{decode, mint};

const CLUSTER: ClusterId = ClusterId(1);
const WALL: UnixMinutes = UnixMinutes(29_000_000);
const FLOWS_MAX: u32 = 8;
const STRIDE_BYTES: usize = 1_400;

/// Reading a Binding request and judging it never panics, and what it names lies in its bytes.
pub fn stun(data: &[u8]) {
    if let Ok(request) = BindingRequest::peek(data) {
        let named = request.server_ufrag().len() + request.client_ufrag().len() + 1;
        assert!(named <= data.len());
        assert_eq!(request.verify(b"secret"), request.verify(b"secret"));
    }
}

/// No bytes decode without the keys' consent: what does decode is exactly what minting gives.
pub fn ufrag(data: &[u8]) {
    let keys = keys();
    if let Ok(decoded) = decode(&keys, data, WALL, u16::MAX) {
        let issued = UnixMinutes(u32::from(decoded.issued_minutes));
        let again = mint(
            &keys,
            decoded.cluster,
            decoded.session,
            issued,
            decoded.random,
        );
        assert_eq!(again.expect("the ring mints").ufrag.as_bytes()[..], *data);
    }
    // A ufrag of any session decodes to it.
    let session = SessionRef::from_bytes(eight(data));
    let minted = mint(&keys, CLUSTER, session, WALL, 7).expect("the ring mints");
    let decoded = decode(&keys, minted.ufrag.as_bytes(), WALL, 0).expect("just minted");
    assert_eq!(decoded.session, session);
}

/// A bundle that parses holds as many records as it says, each within its bytes, and writing them
/// again gives the same bytes.
pub fn bundle(data: &[u8]) {
    let Ok(view) = BundleView::parse(data) else {
        return;
    };
    let mut written = Vec::from(view.preamble().to_bytes());
    let mut count = 0;
    for record in view.records() {
        count += 1;
        let Ok(record) = record else { return };
        push_record(&mut written, &record.header.to_raw(), record.payload);
        if record.header.direction == Direction::Control {
            let _ = Control::parse(record.payload);
        }
    }
    assert_eq!(count, usize::from(view.preamble().count));
    assert_eq!(written[..], data[..written.len()]);
}

/// Whatever is packed comes out once, in order, in segments that a kernel takes.
pub fn train(data: &[u8]) {
    let mut trains = Trains::new(ShardIndex(0), 1, STRIDE_BYTES, 4);
    let addr = SocketAddr::from(([127, 0, 0, 1], 9));
    let to = TrainDestination {
        addr,
        shard: ShardIndex(2),
    };
    let header = [0; RECORD_HEADER_BYTES];
    let mut pushed = Vec::new();
    for (index, pair) in data.chunks_exact(2).enumerate() {
        let length = usize::from(u16::from_be_bytes([pair[0], pair[1]])) % 2_000;
        let payload = vec![index as u8; length];
        match trains.push(to, &header, &payload) {
            Ok(()) => pushed.push(payload),
            Err(error) => assert_eq!(error, PushError::Full),
        }
    }
    let mut delivered = Vec::new();
    for train in trains.iter() {
        let segment_bytes = train.segment_bytes.map_or(train.bytes.len(), usize::from);
        for segment in train.bytes.chunks(segment_bytes) {
            let view = BundleView::parse(segment).expect("a segment is a bundle");
            let payloads = view
                .records()
                .map(|record| record.expect("valid").payload.to_vec());
            delivered.extend(payloads);
        }
    }
    assert_eq!(delivered, pushed);
}

/// A script of datagrams from both sides: never a panic, every datagram in one counter, bounded
/// state, and nothing for a client that no transceiver answered.
pub fn forwarder(data: &[u8]) {
    let now = Now {
        mono: Instant::now(),
        wall: WALL,
    };
    let mut script = Script {
        data,
        now,
        answered: Vec::new(),
    };
    let mut forwarder = Forwarder::new(options(), keys(), routes(), now);
    while let Some(step) = script.byte() {
        script.step(step, &mut forwarder);
        assert!(forwarder.flow_count() <= FLOWS_MAX);
        assert!(forwarder.counters().balance());
        let idle = forwarder.poll_timeout().is_none();
        assert_eq!(idle, forwarder.flow_count() == 0);
    }
}

struct Script<'a> {
    data: &'a [u8],
    now: Now,
    answered: Vec<ClientSocket>,
}

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.data.split_first()?;
        self.data = rest;
        Some(*first)
    }

    fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte().unwrap_or(0)).min(self.data.len());
        let (head, rest) = self.data.split_at(length);
        self.data = rest;
        head
    }

    fn client(&mut self) -> ClientSocket {
        let host = self.byte().unwrap_or(0);
        ClientSocket::new(SocketAddr::from((
            [192, 0, 2, host % 4],
            1_000 + u16::from(host),
        )))
    }

    fn session(&mut self) -> SessionRef {
        let slot = self.byte().unwrap_or(0) % 3;
        SessionRef::from_bytes([0, 1, 0, 0, 0, slot, 0, 1])
    }

    fn step(&mut self, step: u8, forwarder: &mut Forwarder) {
        match step % 8 {
            0 => {
                let client = self.client();
                let payload = self.bytes();
                self.from_client(forwarder, client, payload);
            }
            1 | 2 => {
                let (client, session) = (self.client(), self.session());
                let minted = mint(&keys(), CLUSTER, session, WALL, 1).expect("the ring mints");
                let honest = step % 8 == 1;
                let password = if honest {
                    &minted.password[..]
                } else {
                    b"wrong"
                };
                let request = RequestWriter {
                    server_ufrag: minted.ufrag.as_bytes(),
                    client_ufrag: b"abcd",
                    password,
                    transaction_id: [0; 12],
                    nominate: false,
                    integrity: Integrity::Sha1,
                };
                self.from_client(forwarder, client, &request.to_bytes());
            }
            3 => {
                let bytes = self.bytes();
                forwarder.handle_bundle(self.now, bytes, |verdict| {
                    check_answered(&self.answered, &verdict);
                });
            }
            4 | 5 => {
                let (client, session) = (self.client(), self.session());
                let direction = if step % 8 == 4 {
                    Direction::ToClient
                } else {
                    Direction::Control
                };
                self.answered.push(client);
                let bundle = answer(client, session, direction, self.bytes());
                forwarder.handle_bundle(self.now, &bundle, |verdict| {
                    check_answered(&self.answered, &verdict);
                });
            }
            6 => {
                self.now.mono += Duration::from_millis(u64::from(step) * 500);
                forwarder.handle_timeout(self.now);
            }
            _ => forwarder.handle_timeout(self.now),
        }
    }

    #[expect(
        clippy::wrong_self_convention,
        reason = "a datagram comes from a client; nothing is converted"
    )]
    fn from_client(&self, forwarder: &mut Forwarder, client: ClientSocket, payload: &[u8]) {
        let datagram = ClientDatagram {
            client,
            endpoint: LocalEndpoint(0),
            transport: Transport::Udp,
            marks: Marks::default(),
            payload,
        };
        if let ClientVerdict::Forward { header, .. } = forwarder.handle_client(self.now, &datagram)
        {
            let header = RecordHeader::from_raw(&header).expect("a valid header");
            assert_eq!(header.client, client);
            assert_eq!(header.direction, Direction::ToTransceiver);
        }
    }
}

fn check_answered(answered: &[ClientSocket], verdict: &RecordVerdict<'_>) {
    let Ok(Some(to)) = &verdict.outcome else {
        return;
    };
    assert!(
        answered.contains(&to.client),
        "sent to a client that nobody answered"
    );
}

/// A record as an honest transceiver sends it.
fn answer(
    client: ClientSocket,
    session: SessionRef,
    direction: Direction,
    payload: &[u8],
) -> Vec<u8> {
    let ring = keys();
    let keys = ring
        .epoch(epoch())
        .and_then(|epoch| epoch.cluster())
        .expect("cluster keys");
    let header = RecordHeader {
        direction,
        marks: Marks::default(),
        transport: Transport::Udp,
        endpoint: LocalEndpoint(0),
        client,
        session,
        cookie: keys.cookie(client, LocalEndpoint(0), Transport::Udp, session),
    };
    let preamble = Preamble {
        destination: ShardIndex(0),
        source: ShardIndex(0),
        sender: 1,
        count: 1,
    };
    let mut bundle = Vec::with_capacity(PREAMBLE_BYTES + RECORD_HEADER_BYTES + payload.len());
    bundle.extend_from_slice(&preamble.to_bytes());
    push_record(&mut bundle, &header.to_raw(), payload);
    bundle
}

fn epoch() -> Epoch {
    Epoch::new(0).expect("an epoch")
}

fn keys() -> Arc<KeyRing> {
    static KEYS: LazyLock<Arc<KeyRing>> =
        LazyLock::new(|| Arc::new(KeyRing::single(epoch(), &MasterSecret::new([1; 32]))));
    Arc::clone(&KEYS)
}

fn routes() -> Arc<Routes> {
    let addr = SocketAddr::from(([127, 0, 0, 1], 3490));
    let route = Route {
        transceiver: TransceiverId(1),
        addr,
        shard_count: 1,
    };
    Arc::new(Routes::new(&[route]).expect("one route"))
}

fn options() -> ForwarderOptions {
    let rate = Rate {
        per_second: 5,
        burst: 20,
    };
    ForwarderOptions {
        cluster: CLUSTER,
        verify: Verify::Integrity,
        flow_count_max: FLOWS_MAX,
        flow_idle: Duration::from_secs(30),
        ufrag_lifetime_minutes: 60,
        admission: AdmissionOptions {
            per_prefix: rate,
            total: rate,
            prefix_count_max: 4,
        },
        seed: 7,
    }
}

fn eight(data: &[u8]) -> [u8; 8] {
    let mut bytes = [0; 8];
    let count = data.len().min(8);
    bytes[..count].copy_from_slice(&data[..count]);
    bytes
}
