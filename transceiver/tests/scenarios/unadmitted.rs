//! Nothing unauthenticated is answered, and nothing it says changes anything.

use super::support::*;
use std::time::Duration;
use syrinx_shared::keys::Cookie;
use syrinx_shared::route::{Generation, ShardIndex, Slot};
use syrinx_shared::wire::encap::{Direction, RecordHeader};
use syrinx_transceiver::shard::counters::Fate;

/// What a stranger can send without knowing anything: the start of a handshake, RTP and RTCP.
fn stranger_datagrams() -> [Vec<u8>; 3] {
    let mut hello = vec![22, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 60, 1, 0, 0, 48];
    hello.resize(73, 7);
    let mut rtp = vec![0x80, 111, 0, 1, 0, 0, 0, 1, 0, 0, 0, 9];
    rtp.resize(60, 1);
    let mut rtcp = vec![0x80, 201, 0, 7, 0, 0, 0, 9];
    rtcp.resize(40, 1);
    [hello, rtp, rtcp]
}

fn stranger_header(world: &World, client: usize) -> RecordHeader {
    // The cookie is right: the relay has a flow of this stranger, by a captured ufrag.
    world.header(
        world.clients[client].session,
        "198.51.100.66:6666".parse().unwrap(),
    )
}

#[test]
fn dtls_and_rtp_from_a_stranger_are_refused_before_during_and_after_the_handshake() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    let header = stranger_header(&world, client);
    let mut injected = 0;
    let mut stages = 0;
    for _ in 0..60 {
        stages += usize::from(world.clients[client].connected);
        for datagram in stranger_datagrams() {
            assert!(world.inject(&header, &datagram).is_empty());
            injected += 1;
        }
        world.run(TICK);
    }
    assert!(stages > 0, "the client connected meanwhile");
    assert_eq!(world.dropped(), [("unadmitted_path", injected)]);
    let now = world.now;
    world.clients[client].speak(now, &opus(1));
    world.run(PACKET);
    assert_eq!(world.clients[client].heard.len(), 1);
}

#[test]
fn a_check_with_the_wrong_password_gets_no_answer_and_admits_nothing() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    let header = stranger_header(&world, client);
    let forged = check(&world, client, &[b'x'; 32], true);
    assert!(world.inject(&header, &forged).is_empty());
    let [hello, ..] = stranger_datagrams();
    assert!(world.inject(&header, &hello).is_empty());
    assert_eq!(
        world.dropped(),
        [("bad_integrity", 1), ("unadmitted_path", 1)]
    );
    let summary = world
        .shard
        .inspect(world.now, world.clients[client].session)
        .unwrap();
    assert_eq!((summary.phases.first_check, summary.client), (None, None));
}

#[test]
fn a_forged_check_on_the_clients_own_path_is_refused_too() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    let header = world.header(world.clients[client].session, world.clients[client].addr);
    let forged = check(&world, client, &[b'x'; 32], true);
    assert!(world.inject(&header, &forged).is_empty());
    assert_eq!(world.dropped(), [("bad_integrity", 1)]);
}

#[test]
fn the_right_password_with_the_wrong_cookie_gets_no_answer() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    let password = world.clients[client].password;
    let good = check(&world, client, &password, true);
    let header = RecordHeader {
        cookie: Cookie([1; 8]),
        ..stranger_header(&world, client)
    };
    assert!(world.inject(&header, &good).is_empty());
    assert_eq!(world.dropped(), [("bad_cookie", 1)]);
}

#[test]
fn every_authenticated_check_is_answered_on_the_path_it_came_by() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    let password = world.clients[client].password;
    for nominate in [false, true] {
        let good = check(&world, client, &password, nominate);
        let header = stranger_header(&world, client);
        let sent = world.inject(&header, &good);
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].header.client, header.client);
        assert_eq!(sent[0].header.direction, Direction::ToClient);
        assert_eq!(sent[0].header.cookie, header.cookie);
        assert_eq!(sent[0].to, relay());
        assert_eq!(sent[0].payload[..2], [1, 1], "a Binding success response");
        assert_eq!(sent[0].payload[8..20], *b"abcdefghijkl");
    }
}

#[test]
fn a_record_for_no_session_of_ours_ends_in_the_counter_of_its_reason() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    let session = world.clients[client].session;
    let addr = world.clients[client].addr;
    let [hello, ..] = stranger_datagrams();
    let mut cases = Vec::new();
    let good = world.header(session, addr);
    let mut case = |fate, change: &dyn Fn(&mut RecordHeader)| {
        let mut header = good;
        change(&mut header);
        cases.push((fate, header));
    };
    case(Fate::WrongShard, &|header| {
        header.session.shard = ShardIndex(9)
    });
    case(Fate::WrongShard, &|header| {
        header.session.transceiver.0 += 1
    });
    case(Fate::UnknownSlot, &|header| {
        header.session.slot = Slot::new(3).unwrap()
    });
    case(Fate::UnknownSlot, &|header| {
        header.session.slot = Slot::new(Slot::MAX).unwrap()
    });
    case(Fate::StaleGeneration, &|header| {
        header.session.generation = Generation(4)
    });
    case(Fate::Direction, &|header| {
        header.direction = Direction::ToClient
    });
    case(Fate::Direction, &|header| {
        header.direction = Direction::Control
    });
    for (fate, header) in cases {
        let before = world.fate(fate);
        assert!(world.inject(&header, &hello).is_empty());
        assert_eq!(world.fate(fate), before + 1, "{}", fate.label());
    }
    for odd in [&b""[..], &[0x0c, 1, 2], &[0xff; 40], &[70; 40]] {
        assert!(world.inject(&good, odd).is_empty());
    }
    assert_eq!(world.fate(Fate::Protocol), 4);
    assert_eq!(world.shard.counters().records_total(), 7 + 4);
    assert_eq!(world.shard.session_count(), 1);
}

#[test]
fn stun_that_is_no_check_is_counted_and_not_answered() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    let header = world.header(world.clients[client].session, world.clients[client].addr);
    let mut indication = check(&world, client, &[b'x'; 32], false);
    indication[..2].copy_from_slice(&[0x00, 0x11]);
    assert!(world.inject(&header, &indication).is_empty());
    assert!(world.inject(&header, &indication[..30]).is_empty());
    assert!(world.inject(&header, &[0; 3]).is_empty());
    assert_eq!(world.fate(Fate::NotBindingRequest), 2);
    assert_eq!(world.fate(Fate::MalformedStun), 1);
}

#[test]
fn a_check_on_a_spare_path_does_not_pull_the_audio_over() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    let password = world.clients[client].password;
    for n in 0..20 {
        let spare = check(&world, client, &password, false);
        let header = stranger_header(&world, client);
        assert_eq!(world.inject(&header, &spare).len(), 1);
        let now = world.now;
        world.clients[client].speak(now, &opus(n));
        world.run(PACKET);
    }
    assert_eq!(world.clients[client].heard.len(), 20);
    let summary = world
        .shard
        .inspect(world.now, world.clients[client].session)
        .unwrap();
    assert_eq!(summary.moves, 0);
}

#[test]
fn a_captured_check_replayed_from_elsewhere_is_undone_by_the_next_audio_packet() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    let now = world.now;
    world.clients[client].speak(now, &opus(0));
    world.run(PACKET);
    let password = world.clients[client].password;
    let captured = check(&world, client, &password, true);
    let header = stranger_header(&world, client);
    world.inject(&header, &captured);
    for n in 1..11 {
        let now = world.now;
        world.clients[client].speak(now, &opus(n));
        world.run(PACKET);
    }
    assert_eq!(
        world.clients[client].heard.len(),
        11,
        "not one packet went astray"
    );
    world.run(Duration::from_secs(1));
    let summary = world
        .shard
        .inspect(world.now, world.clients[client].session)
        .unwrap();
    assert_eq!(summary.client.unwrap().addr(), world.clients[client].addr);
}
