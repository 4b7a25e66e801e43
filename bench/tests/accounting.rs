//! Every datagram that a relay receives ends in exactly one counter: a real process is sent one or
//! more of every kind, from both sides, and its metrics are added up. Nothing that does not verify
//! gets a reply or leaves a flow.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use syrinx_bench::process::{Daemon, Exposition, binary, free_port};
use syrinx_shared::keys::{KeyRing, MasterSecret, cluster_key_file};
use syrinx_shared::route::{
    ClientSocket, ClusterId, Epoch, Generation, LocalEndpoint, SessionRef, ShardIndex, Slot,
    TransceiverId, Transport, UnixMinutes,
};
use syrinx_shared::wire::encap::{
    BundleView, Direction, Marks, Preamble, RecordHeader, push_record, return_header,
};
use syrinx_shared::wire::stun::{Integrity, RequestWriter};
use syrinx_shared::wire::ufrag::{Minted, mint};

const CLUSTER: ClusterId = ClusterId(1);
const RTP: &[u8] = &[0x80, 111, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4];
const PATIENCE: Duration = Duration::from_secs(10);

struct Ground {
    relay: Daemon,
    public: SocketAddr,
    inner: SocketAddr,
    transceiver: UdpSocket,
    keys: KeyRing,
    _folder: tempfile::TempDir,
}

fn master() -> MasterSecret {
    MasterSecret::new([7; 32])
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl Ground {
    fn start(io_model: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let epoch = Epoch::new(0).unwrap();
        let keys_file = folder.path().join("cluster.keys");
        std::fs::write(&keys_file, cluster_key_file(epoch, &master())).unwrap();
        let transceiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        transceiver.set_read_timeout(Some(PATIENCE)).unwrap();
        let [public, inner, admin] = [free_port(), free_port(), free_port()].map(loopback);
        let config = folder.path().join("relay.toml");
        let route = transceiver.local_addr().unwrap();
        let text = format!(
            "[public]\nlisten = [\"{public}\"]\n[inner]\nlisten = \"{inner}\"\n\
             [admin]\nlisten = \"{admin}\"\n[workers]\nio_model = \"{io_model}\"\n\
             [keys]\nfile = {keys_file:?}\n\
             [[routes]]\ntransceiver = 1\naddress = \"{route}\"\nworkers_count = 1\n"
        );
        std::fs::write(&config, text).unwrap();
        let relay = start_relay(&config, admin);
        let keys = KeyRing::single(epoch, &master());
        Self {
            relay,
            public,
            inner,
            transceiver,
            keys,
            _folder: folder,
        }
    }

    fn minted(&self, name: SessionRef, at: UnixMinutes) -> Minted {
        mint(&self.keys, CLUSTER, name, at, 1).unwrap()
    }

    fn client(&self) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.public).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Waits until the relay has published `count` client datagrams and `inner` inner ones.
    fn settle(&mut self, count: f64, inner: f64) -> Exposition {
        let all = |exposition: &Exposition| {
            exposition.sum("syrinx_relay_client_datagrams_total", &[]) == count
                && exposition.sum("syrinx_relay_inner_datagrams_total", &[]) == inner
        };
        let outcome = self.relay.wait("all counters", |relay| {
            relay.metrics().is_ok_and(|e| all(&e))
        });
        let exposition = self.relay.metrics().unwrap();
        outcome.unwrap_or_else(|error| {
            let drops = exposition.by("syrinx_relay_drops_total", "reason");
            panic!("{error}: {drops:?}")
        });
        exposition
    }
}

fn start_relay(config: &Path, admin: SocketAddr) -> Daemon {
    Daemon::start(&binary("syrinx-relay").unwrap(), config, admin).unwrap()
}

fn session(transceiver: u16, shard: u8) -> SessionRef {
    SessionRef {
        transceiver: TransceiverId(transceiver),
        shard: ShardIndex(shard),
        slot: Slot::new(5).unwrap(),
        generation: Generation(1),
    }
}

fn this_minute() -> UnixMinutes {
    UnixMinutes(u32::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / 60).unwrap())
}

fn check(minted: &Minted, password: &[u8]) -> Vec<u8> {
    RequestWriter {
        server_ufrag: minted.ufrag.as_bytes(),
        client_ufrag: b"abcd",
        password,
        transaction_id: [9; 12],
        nominate: true,
        integrity: Integrity::Sha1,
    }
    .to_bytes()
}

/// What no relay may answer, and the reason for which it is dropped.
fn refused_datagrams(ground: &Ground) -> Vec<(&'static str, Vec<u8>)> {
    let now = this_minute();
    let good = ground.minted(session(1, 0), now);
    let of = |name| {
        let minted = ground.minted(name, now);
        check(&minted, &minted.password)
    };
    let expired = ground.minted(session(1, 0), UnixMinutes(now.0 - 2_000));
    let retired_keys = KeyRing::single(Epoch::new(3).unwrap(), &master());
    let retired = mint(&retired_keys, CLUSTER, session(1, 0), now, 1).unwrap();
    let foreign = mint(&ground.keys, ClusterId(2), session(1, 0), now, 1).unwrap();
    let mut forged = check(&good, &good.password);
    forged[24 + 6] ^= 2;
    vec![
        ("empty", Vec::new()),
        ("not_webrtc", vec![0xff; 100]),
        ("not_webrtc", vec![0x0c; 48]),
        ("truncated", vec![0x80; 5_000]),
        ("no_flow", RTP.to_vec()),
        ("no_flow", vec![22, 254, 253, 0, 0, 0, 0]),
        ("stun_malformed", vec![0, 1, 0, 8, 0x21, 0x12, 0xa4, 0x42]),
        ("ufrag_tag", forged),
        ("ufrag_epoch", check(&retired, &retired.password)),
        ("ufrag_expired", check(&expired, &expired.password)),
        ("foreign_cluster", check(&foreign, &foreign.password)),
        ("unknown_transceiver", of(session(2, 0))),
        ("unknown_shard", of(session(1, 9))),
        ("integrity", check(&good, b"not the password")),
    ]
}

fn counted_by_reason(exposition: &Exposition, reason: &str) -> f64 {
    exposition.sum("syrinx_relay_drops_total", &[("reason", reason)])
}

fn refuses_strangers_and_adds_up(io_model: &str) {
    let mut ground = Ground::start(io_model);
    let stranger = ground.client();
    let refused = refused_datagrams(&ground);
    for (_, datagram) in &refused {
        stranger.send(datagram).unwrap();
    }
    // A real caller in between: its check reaches the transceiver, and so does its media.
    let good = ground.minted(session(1, 0), this_minute());
    let caller = ground.client();
    caller.send(&check(&good, &good.password)).unwrap();
    let mut bytes = [0; 4_096];
    let (count, relay) = ground.transceiver.recv_from(&mut bytes).unwrap();
    let view = BundleView::parse(&bytes[..count]).unwrap();
    let record = view.records().next().unwrap().unwrap();
    assert_eq!(record.header.client.addr(), caller.local_addr().unwrap());
    let back = return_header(record.raw_header, Direction::ToClient, Marks::default());

    let forged = RecordHeader {
        direction: Direction::ToClient,
        marks: Marks::default(),
        transport: Transport::Udp,
        endpoint: LocalEndpoint(0),
        client: ClientSocket::new(stranger.local_addr().unwrap()),
        session: record.header.session,
        cookie: record.header.cookie,
    };
    let preamble = Preamble {
        destination: view.preamble().source,
        source: ShardIndex(0),
        sender: 1,
        count: 3,
    };
    let mut bundle = Vec::from(preamble.to_bytes());
    push_record(&mut bundle, &back, b"answer");
    push_record(&mut bundle, &forged.to_raw(), b"to a stranger");
    push_record(&mut bundle, record.raw_header, b"the wrong way");
    assert_eq!(relay, ground.inner);
    ground.transceiver.send_to(&bundle, relay).unwrap();
    ground.transceiver.send_to(b"no bundle", relay).unwrap();
    let answer_bytes = caller.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..answer_bytes], b"answer");

    let exposition = ground.settle(refused.len() as f64 + 1.0, 2.0);
    for (reason, _) in &refused {
        let want = refused.iter().filter(|(other, _)| other == reason).count() as f64;
        assert_eq!(counted_by_reason(&exposition, reason), want, "{reason}");
    }
    assert_eq!(exposition.sum("syrinx_relay_flows", &[]), 1.0);
    assert_adds_up(&exposition);
    stranger.set_nonblocking(true).unwrap();
    assert!(
        stranger.recv(&mut bytes).is_err(),
        "a stranger was answered"
    );
    assert!(ground.relay.stop().unwrap().success());
}

/// The sums of the manual: each datagram and each record in exactly one counter.
fn assert_adds_up(exposition: &Exposition) {
    let sum = |name: &str, labels: &[(&str, &str)]| {
        exposition.sum(&format!("syrinx_relay_{name}_total"), labels)
    };
    let client_drops = sum("drops", &[("side", "client")]);
    let to_transceiver = sum("forwarded", &[("direction", "to_transceiver")]);
    assert_eq!(sum("client_datagrams", &[]), to_transceiver + client_drops);

    let not_bundles = counted_by_reason(exposition, "not_bundle")
        + counted_by_reason(exposition, "bundle_truncated");
    assert_eq!(
        sum("inner_datagrams", &[]),
        sum("bundles", &[]) + not_bundles
    );
    let record_drops = sum("drops", &[("side", "transceiver")]) - not_bundles;
    let to_client = sum("forwarded", &[("direction", "to_client")]);
    assert_eq!(
        sum("records", &[]),
        to_client + sum("control_records", &[]) + record_drops
    );
    assert_eq!((to_transceiver, to_client, record_drops), (1.0, 1.0, 2.0));
}

#[test]
fn every_datagram_ends_in_one_counter_on_the_ring() {
    refuses_strangers_and_adds_up("ring");
}

#[test]
fn every_datagram_ends_in_one_counter_on_recvmmsg() {
    refuses_strangers_and_adds_up("mmsg");
}
