//! Malformed STUN, DTLS, SRTP and SRTCP, before, during and after the handshake: never a panic,
//! never harm to another session, every record in one counter.

use super::support::*;
use proptest::prelude::*;
use std::sync::OnceLock;
use syrinx_transceiver::session::EndReason;
use syrinx_transceiver::shard::counters::Fate;

/// A real datagram bent in one way, or made up.
#[derive(Debug, Clone)]
enum Bend {
    Truncate(usize),
    Flip(usize, u8),
    Overwrite(usize, Vec<u8>),
    Extend(Vec<u8>),
    Replace(u8, Vec<u8>),
}

impl Bend {
    fn apply(&self, mut datagram: Vec<u8>) -> Vec<u8> {
        let at = |index: usize, length: usize| index % length.max(1);
        match self {
            Self::Truncate(to) => datagram.truncate(at(*to, datagram.len() + 1)),
            Self::Flip(index, bit) => {
                let index = at(*index, datagram.len());
                datagram
                    .iter_mut()
                    .skip(index)
                    .take(1)
                    .for_each(|byte| *byte ^= 1 << (bit % 8));
            }
            Self::Overwrite(index, with) => {
                let index = at(*index, datagram.len());
                datagram
                    .iter_mut()
                    .skip(index)
                    .zip(with)
                    .for_each(|(byte, new)| *byte = *new);
            }
            Self::Extend(with) => datagram.extend(with),
            Self::Replace(first, rest) => {
                datagram = rest.clone();
                datagram.insert(0, *first);
            }
        }
        datagram
    }
}

fn any_bend() -> impl Strategy<Value = Bend> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 1..most);
    let first = prop::sample::select(vec![0u8, 1, 20, 21, 22, 23, 25, 0x2f, 0x80, 0x90, 0xb0]);
    prop_oneof![
        any::<usize>().prop_map(Bend::Truncate),
        (any::<usize>(), any::<u8>()).prop_map(|(at, bit)| Bend::Flip(at, bit)),
        (0..60usize, any::<u8>()).prop_map(|(at, bit)| Bend::Flip(at, bit)),
        (any::<usize>(), bytes(5)).prop_map(|(at, with)| Bend::Overwrite(at, with)),
        bytes(64).prop_map(Bend::Extend),
        (first, bytes(200)).prop_map(|(first, rest)| Bend::Replace(first, rest)),
    ]
}

/// What the victim really sent up to now.
fn record(world: &mut World, victim: usize, into: &mut Vec<Vec<u8>>) {
    let now = world.now;
    let client = &mut world.clients[victim];
    if client.connected {
        client.speak(now, &opus(3));
    } else {
        client.handle_timeout(now);
    }
    into.extend(client.outgoing.iter().map(|(payload, _)| payload.clone()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_hostile_client_harms_only_itself(
        stage in 0..40usize,
        bends in prop::collection::vec((any::<prop::sample::Index>(), any_bend()), 1..150),
    ) {
        let mut world = World::new();
        let victim = world.call("192.0.2.20:5000");
        let bystander = world.call("192.0.2.10:5000");
        let mut corpus = vec![vec![22; 60]];
        for _ in 0..stage {
            record(&mut world, victim, &mut corpus);
            world.run(TICK);
        }
        // On the victim's own path, so that everything reaches the engine.
        let header = world.header(world.clients[victim].session, world.clients[victim].addr);
        let before = world.shard.counters().records_total();
        for (index, bend) in &bends {
            let datagram = bend.apply(index.get(&corpus).clone());
            let sent = world.inject(&header, &datagram);
            world.deliver(sent);
        }
        let counted = world.shard.counters().records_total() - before;
        prop_assert_eq!(counted, bends.len() as u64);

        world.run_until("the bystander connects", |world| {
            world.clients[bystander].connected && world.clients[bystander].channel.is_some()
        });
        let now = world.now;
        world.clients[bystander].speak(now, &opus(9));
        world.clients[bystander].say(now, br#"{"type":"x"}"#, false);
        world.run(PACKET * 10);
        prop_assert_eq!(world.clients[bystander].heard.len(), 1);
        prop_assert_eq!(world.clients[bystander].messages.len(), 2);
        prop_assert_eq!(world.shard.counters().ended(EndReason::Panicked), 0);
        prop_assert_eq!(world.shard.counters().ended(EndReason::Runaway), 0);
    }

    #[test]
    fn no_datagram_on_the_inner_port_does_anything(
        datagram in prop::collection::vec(any::<u8>(), 0..400),
        as_bundle: bool,
    ) {
        let mut world = World::new();
        world.call("192.0.2.20:5000");
        let mut datagram = datagram;
        if as_bundle && datagram.len() > 8 {
            datagram[..8].copy_from_slice(&[0x0c, 0x10, 1, 0, 0, 0, 2, 0]);
        }
        let mut wire = Wire::default();
        let now = world.now();
        let from = relay().addr;
        world.shard.handle_bundle(now, from, &datagram, &mut wire);
        prop_assert!(wire.0.is_empty());
        prop_assert_eq!(world.fate(Fate::Taken), 0);
        let counters = world.shard.counters();
        prop_assert_eq!(counters.bundles + counters.bad_bundles, 1);
    }
}

/// What a client sends, in a call that lasts until its first report.
#[derive(Debug, Clone, Default)]
struct Recorded {
    stun: Vec<Vec<u8>>,
    /// The handshake.
    dtls: Vec<Vec<u8>>,
    /// What is carried by DTLS.
    sctp: Vec<Vec<u8>>,
    srtp: Vec<Vec<u8>>,
    srtcp: Vec<Vec<u8>>,
}

impl Recorded {
    fn of(world: &mut World, victim: usize) -> Self {
        world.clients[victim].record = Some(Vec::new());
        for n in 0..300 {
            let now = world.now;
            if world.clients[victim].connected {
                world.clients[victim].speak(now, &opus(3));
            }
            if n == 100 {
                world.clients[victim].say(now, br#"{"type":"x"}"#, false);
            }
            world.run(PACKET);
        }
        let all = world.clients[victim].record.take().unwrap_or_default();
        let mut recorded = Self::default();
        for datagram in all {
            let kind = match (datagram[0], datagram.get(1)) {
                (0..=3, _) => &mut recorded.stun,
                (23, _) => &mut recorded.sctp,
                (20..=63, _) => &mut recorded.dtls,
                // RFC 5761, 4.
                (_, Some(192..=223)) => &mut recorded.srtcp,
                _ => &mut recorded.srtp,
            };
            kind.push(datagram);
        }
        recorded
    }

    fn kinds(&self) -> [&Vec<Vec<u8>>; 5] {
        [&self.stun, &self.dtls, &self.sctp, &self.srtp, &self.srtcp]
    }
}

/// How far the victim has come.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// Its path is known, and its handshake has not begun.
    Before,
    /// Its hello has been answered.
    During,
    After,
}

/// A world in which the victim has come as far as this.
fn at(moment: Moment) -> (World, usize) {
    let mut world = World::new();
    let victim = world.call("192.0.2.20:5000");
    match moment {
        Moment::Before => world.clients[victim].loses = Loses::DtlsAfter(0),
        Moment::During => world.clients[victim].loses = Loses::DtlsAfter(1),
        Moment::After => {}
    }
    world.run(TICK * 40);
    let is_through = matches!(moment, Moment::After);
    assert_eq!(world.clients[victim].connected, is_through);
    (world, victim)
}

/// What bent datagrams are made of: another call's, and the victim's own where it has sent any.
fn material(moment: Moment, world: &mut World, victim: usize) -> [Vec<Vec<u8>>; 5] {
    static ELSEWHERE: OnceLock<Recorded> = OnceLock::new();
    let elsewhere = ELSEWHERE.get_or_init(|| {
        let mut world = World::new();
        let other = world.call("192.0.2.20:5000");
        let recorded = Recorded::of(&mut world, other);
        let counts = recorded.kinds().map(Vec::len);
        assert!(!counts.contains(&0), "every protocol is spoken: {counts:?}");
        recorded
    });
    let mut material = elsewhere.kinds().map(Vec::clone);
    if matches!(moment, Moment::After) {
        let own = Recorded::of(world, victim);
        for (all, own) in material.iter_mut().zip(own.kinds()) {
            all.extend(own.iter().cloned());
        }
    }
    material
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn bent_datagrams_of_every_protocol_at_every_moment_harm_only_their_sender(
        bends in prop::collection::vec((any::<prop::sample::Index>(), any_bend()), 60),
    ) {
        for moment in [Moment::Before, Moment::During, Moment::After] {
            for kind in 0..5 {
                let (mut world, victim) = at(moment);
                let material = material(moment, &mut world, victim);
                let bystander = world.call("192.0.2.10:5000");
                let session = world.clients[victim].session;
                let header = world.header(session, world.clients[victim].addr);
                let before = world.shard.counters().records_total();
                for (index, bend) in &bends {
                    let datagram = bend.apply(index.get(&material[kind]).clone());
                    let _ = world.inject(&header, &datagram);
                }
                let counted = world.shard.counters().records_total() - before;
                prop_assert_eq!(counted, bends.len() as u64);
                world.clients[victim].loses = Loses::Everything;
                world.run_until("the bystander connects", |world| {
                    world.clients[bystander].connected && world.clients[bystander].channel.is_some()
                });
                for n in 0..10 {
                    let now = world.now;
                    world.clients[bystander].speak(now, &opus(n));
                    world.run(PACKET);
                }
                prop_assert_eq!(world.clients[bystander].heard.len(), 10, "{:?} {}", moment, kind);
                prop_assert_eq!(world.shard.counters().ended(EndReason::Panicked), 0);
                prop_assert_eq!(world.shard.counters().ended(EndReason::Runaway), 0);
            }
        }
    }
}

#[test]
fn forged_dtls_on_the_clients_own_path_after_the_handshake_does_not_end_the_call() {
    let mut world = World::new();
    let client = world.call("192.0.2.20:5000");
    world.connect();
    let header = world.header(world.clients[client].session, world.clients[client].addr);
    for n in 0..200u8 {
        let mut forged = vec![20 + n % 6, 0xfe, 0xfd, 0, n % 3, 0, 0, 0, 0, 0, n, 0, 40];
        forged.resize(53, n);
        world.inject(&header, &forged);
        let mut forged = vec![0x80, 111, 0, n, 0, 0, 0, n, 1, 2, 3, 4];
        forged.resize(80, n);
        world.inject(&header, &forged);
    }
    for n in 0..5 {
        let now = world.now;
        world.clients[client].speak(now, &opus(n));
        world.run(PACKET);
    }
    assert_eq!(world.clients[client].heard.len(), 5);
    assert_eq!(world.shard.session_count(), 1);
}
