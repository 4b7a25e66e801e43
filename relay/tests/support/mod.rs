//! A forwarder on a bench: virtual time, minted sessions, and checks as clients send them.

#![allow(dead_code, unreachable_pub)] // Each scenario uses its own part of the bench.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use syrinx_relay::forwarder::admission::{AdmissionOptions, Rate};
use syrinx_relay::forwarder::routes::{Route, Routes};
use syrinx_relay::forwarder::{
    ClientDatagram, ClientVerdict, Counters, DropReason, Forwarder, ForwarderOptions, ToClient,
    Verify,
};
use syrinx_shared::keys::{Cookie, KeyRing, MasterSecret};
use syrinx_shared::route::{
    ClientSocket, ClusterId, Epoch, Generation, LocalEndpoint, Now, SessionRef, ShardIndex, Slot,
    TransceiverId, Transport, UnixMinutes,
};
use syrinx_shared::wire::encap::{
    BundleView, Direction, Marks, Preamble, RawHeader, RecordHeader, push_record,
};
use syrinx_shared::wire::stun::{Integrity, RequestWriter};
use syrinx_shared::wire::ufrag::{Minted, mint};

pub const CLUSTER: ClusterId = ClusterId(9);
pub const TRANSCEIVER: TransceiverId = TransceiverId(3);
pub const WALL: UnixMinutes = UnixMinutes(29_000_000);
pub const LIFETIME_MINUTES: u16 = 60;
pub const IDLE: Duration = Duration::from_secs(30);
pub const RTP: &[u8] = &[0x80, 111, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4];

pub struct Bench {
    pub forwarder: Forwarder,
    pub keys: Arc<KeyRing>,
    pub now: Now,
}

/// A session, its ufrag and its password.
#[derive(Clone, Copy)]
pub struct Session {
    pub name: SessionRef,
    pub minted: Minted,
}

pub fn epoch(id: u8) -> Epoch {
    Epoch::new(id).unwrap()
}

pub fn master(fill: u8) -> MasterSecret {
    MasterSecret::new([fill; 32])
}

pub fn keys() -> Arc<KeyRing> {
    Arc::new(KeyRing::single(epoch(0), &master(1)))
}

pub fn routes() -> Arc<Routes> {
    let addr = SocketAddr::from(([10, 0, 0, 3], 3490));
    Arc::new(
        Routes::new(&[Route {
            transceiver: TRANSCEIVER,
            addr,
            shard_count: 2,
        }])
        .unwrap(),
    )
}

pub fn options() -> ForwarderOptions {
    let ample = Rate {
        per_second: 1_000_000,
        burst: 1_000_000,
    };
    ForwarderOptions {
        cluster: CLUSTER,
        verify: Verify::Integrity,
        flow_count_max: 1_024,
        flow_idle: IDLE,
        ufrag_lifetime_minutes: LIFETIME_MINUTES,
        admission: AdmissionOptions {
            per_prefix: ample,
            total: ample,
            prefix_count_max: 1_024,
        },
        seed: 7,
    }
}

pub fn client(text: &str) -> ClientSocket {
    ClientSocket::new(text.parse().unwrap())
}

/// The `index`-th of many clients, each at an address of its own.
pub fn nth_client(index: u32) -> ClientSocket {
    ClientSocket::new(SocketAddr::from((
        (0x0a00_0000 + index).to_be_bytes(),
        40_000,
    )))
}

pub fn session_name(slot: u32, generation: u16) -> SessionRef {
    SessionRef {
        transceiver: TRANSCEIVER,
        shard: ShardIndex(1),
        slot: Slot::new(slot).unwrap(),
        generation: Generation(generation),
    }
}

#[expect(
    clippy::wrong_self_convention,
    reason = "a datagram comes from a client; nothing is converted"
)]
impl Bench {
    pub fn new() -> Self {
        Self::with(options())
    }

    pub fn with(options: ForwarderOptions) -> Self {
        let (keys, now) = (
            keys(),
            Now {
                mono: Instant::now(),
                wall: WALL,
            },
        );
        let forwarder = Forwarder::new(options, Arc::clone(&keys), routes(), now);
        Self {
            forwarder,
            keys,
            now,
        }
    }

    pub fn session(&self, slot: u32, generation: u16) -> Session {
        self.session_named(session_name(slot, generation), CLUSTER, WALL)
    }

    pub fn session_named(&self, name: SessionRef, cluster: ClusterId, at: UnixMinutes) -> Session {
        Session {
            name,
            minted: mint(&self.keys, cluster, name, at, 0xabcd).unwrap(),
        }
    }

    pub fn wait(&mut self, by: Duration) {
        self.now.mono += by;
        if self
            .forwarder
            .poll_timeout()
            .is_some_and(|at| at <= self.now.mono)
        {
            self.forwarder.handle_timeout(self.now);
        }
    }

    pub fn from_client(&mut self, client: ClientSocket, payload: &[u8]) -> ClientVerdict {
        self.from_client_marked(client, payload, Marks::default())
    }

    pub fn from_client_marked(
        &mut self,
        client: ClientSocket,
        payload: &[u8],
        marks: Marks,
    ) -> ClientVerdict {
        let datagram = ClientDatagram {
            client,
            endpoint: LocalEndpoint(0),
            transport: Transport::Udp,
            marks,
            payload,
        };
        self.forwarder.handle_client(self.now, &datagram)
    }

    pub fn check(&mut self, client: ClientSocket, session: &Session) -> ClientVerdict {
        self.from_client(client, &check(session))
    }

    /// Feeds one bundle of the transceiver, and returns what goes to clients.
    pub fn from_transceiver<'a>(&mut self, bundle: &'a [u8]) -> Vec<ToClient<'a>> {
        let mut sent = Vec::new();
        self.forwarder.handle_bundle(self.now, bundle, |verdict| {
            sent.extend(verdict.outcome.ok().flatten());
        });
        sent
    }

    pub fn cookie(&self, client: ClientSocket, session: &Session) -> Cookie {
        let keys = self
            .keys
            .epoch(session.minted.epoch)
            .unwrap()
            .cluster()
            .unwrap();
        keys.cookie(client, LocalEndpoint(0), Transport::Udp, session.name)
    }

    /// The header of a record from the transceiver to `client`, as an honest one would send it.
    pub fn header_to(&self, client: ClientSocket, session: &Session) -> RecordHeader {
        RecordHeader {
            direction: Direction::ToClient,
            marks: Marks::default(),
            transport: Transport::Udp,
            endpoint: LocalEndpoint(0),
            client,
            session: session.name,
            cookie: self.cookie(client, session),
        }
    }

    /// Runs `act`, and returns what it changed in the counters.
    pub fn delta(&mut self, act: impl FnOnce(&mut Self)) -> Counters {
        let before = self.forwarder.counters().clone();
        act(self);
        let after = self.forwarder.counters();
        assert!(after.balance(), "{after:?}");
        difference(after, &before)
    }
}

fn difference(after: &Counters, before: &Counters) -> Counters {
    let mut drops = syrinx_relay::forwarder::verdict::DropCounters::default();
    for &reason in DropReason::ALL {
        drops.add(
            reason,
            after.drops.count(reason) - before.drops.count(reason),
        );
    }
    Counters {
        client_datagrams: after.client_datagrams - before.client_datagrams,
        forwarded_to_transceiver: after.forwarded_to_transceiver - before.forwarded_to_transceiver,
        inner_datagrams: after.inner_datagrams - before.inner_datagrams,
        bundles: after.bundles - before.bundles,
        records: after.records - before.records,
        forwarded_to_client: after.forwarded_to_client - before.forwarded_to_client,
        control_records: after.control_records - before.control_records,
        flows_created: after.flows_created - before.flows_created,
        flows_healed: after.flows_healed - before.flows_healed,
        flows_repointed: after.flows_repointed - before.flows_repointed,
        flows_expired: after.flows_expired - before.flows_expired,
        flows_closed: after.flows_closed - before.flows_closed,
        flows_evicted: after.flows_evicted - before.flows_evicted,
        drops,
    }
}

/// The counters of one client datagram that was dropped for `reason`.
pub fn one_client_drop(reason: DropReason) -> Counters {
    let mut counters = Counters {
        client_datagrams: 1,
        ..Counters::default()
    };
    counters.drops.add(reason, 1);
    counters
}

/// The counters of one client datagram that was forwarded.
pub fn one_forward() -> Counters {
    Counters {
        client_datagrams: 1,
        forwarded_to_transceiver: 1,
        ..Counters::default()
    }
}

/// The counters of one record in one bundle, before its fate.
pub fn one_record() -> Counters {
    Counters {
        inner_datagrams: 1,
        bundles: 1,
        records: 1,
        ..Counters::default()
    }
}

/// The counters of one record that was dropped for `reason`.
pub fn one_record_drop(reason: DropReason) -> Counters {
    let mut counters = one_record();
    counters.drops.add(reason, 1);
    counters
}

pub fn check(session: &Session) -> Vec<u8> {
    check_with(session, &session.minted.password)
}

pub fn check_with(session: &Session, password: &[u8]) -> Vec<u8> {
    RequestWriter {
        server_ufrag: session.minted.ufrag.as_bytes(),
        client_ufrag: b"abcd",
        password,
        transaction_id: [5; 12],
        nominate: true,
        integrity: Integrity::Sha1,
    }
    .to_bytes()
}

pub fn bundle(records: &[(RawHeader, &[u8])]) -> Vec<u8> {
    let preamble = Preamble {
        destination: ShardIndex(0),
        source: ShardIndex(1),
        sender: 3,
        count: records.len() as u8,
    };
    let mut bytes = Vec::from(preamble.to_bytes());
    for (header, payload) in records {
        push_record(&mut bytes, header, payload);
    }
    assert!(BundleView::parse(&bytes).is_ok());
    bytes
}

/// Where a verdict sends a datagram, and behind which header.
pub fn forwarded(verdict: ClientVerdict) -> RecordHeader {
    match verdict {
        ClientVerdict::Forward { to, header } => {
            let header = RecordHeader::from_raw(&header).unwrap();
            assert_eq!(to.addr, "10.0.0.3:3490".parse().unwrap());
            assert_eq!(to.shard, header.session.shard);
            header
        }
        ClientVerdict::Drop(reason) => panic!("dropped: {reason:?}"),
    }
}
