//! Handshakes: they begin with the first check, and one that never ends is ended by the set-up
//! deadline, neither earlier nor later nor by anything else.

use super::support::*;
use std::time::Duration;
use str0m::config::DtlsVersion;
use syrinx_shared::wire::encap::Direction;
use syrinx_transceiver::session::{EndReason, Lifetimes};
use syrinx_transceiver::shard::ShardEvent;

/// The content type of a DTLS record that carries a handshake (RFC 6347, 4.1).
const DTLS_HANDSHAKE: u8 = 22;

/// What a client's handshake begins with.
fn client_hello() -> Vec<u8> {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    let header = world.header(world.clients[client].session, world.clients[client].addr);
    for _ in 0..1_000 {
        world.now += TICK;
        world.clients[client].handle_timeout(world.now);
        while let Some((payload, _)) = world.clients[client].outgoing.pop_front() {
            if payload[0] == DTLS_HANDSHAKE {
                return payload;
            }
            let sent = world.inject(&header, &payload);
            world.deliver(sent);
        }
    }
    panic!("the client never begins a handshake");
}

#[test]
fn a_handshake_does_not_wait_for_the_clients_nomination() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    let password = world.clients[client].password;
    let header = world.header(world.clients[client].session, world.clients[client].addr);
    let attempt = check(&world, client, &password, false);
    let sent = world.inject(&header, &attempt);
    let [answer] = sent.as_slice() else {
        panic!("one answer to one check: {}", sent.len());
    };
    assert_eq!(answer.payload[..2], [1, 1], "a Binding success response");
    assert_eq!(answer.payload[8..20], *b"abcdefghijkl");

    let sent = world.inject(&header, &client_hello());
    let mut flight = sent.iter().map(|sent| sent.payload[0]);
    assert!(flight.any(|first| first == DTLS_HANDSHAKE), "{sent:?}");
    assert_eq!(world.dropped(), []);
}

/// Lets the set-up deadline come, and asserts that it ends the call, once and for its own reason.
fn assert_ended_by_the_deadline(world: &mut World, lifetimes: Lifetimes) {
    assert_eq!(world.shard.session_count(), 1, "{:?}", world.ended);
    world.run(TICK);
    assert_eq!(world.shard.counters().ended(EndReason::SetupTimeout), 1);
    let [ShardEvent::Ended { reason, summary }] = &world.ended[..] else {
        panic!("one end: {:?}", world.ended);
    };
    assert_eq!(*reason, EndReason::SetupTimeout);
    assert_eq!((summary.age, &summary.failure), (lifetimes.setup, &None));
    assert_eq!(world.shard.poll_timeout(), None);
    let is_control = |sent: &&Sent| sent.header.direction == Direction::Control;
    assert_eq!(world.strays.iter().filter(is_control).count(), 1);
}

/// Set-up that may take as long as it may by default, and as long as it can be configured to.
fn lifetimes() -> [Lifetimes; 2] {
    let patient = Lifetimes {
        setup: Duration::from_secs(3_600),
        ..LIFETIMES
    };
    [LIFETIMES, patient]
}

#[test]
fn a_client_that_hears_none_of_the_handshake_is_ended_by_the_setup_deadline() {
    for lifetimes in lifetimes() {
        let mut world = World::with_lifetimes(lifetimes);
        let client = world.call("192.0.2.10:5000");
        world.clients[client].misses_dtls = true;
        world.run(lifetimes.setup - TICK);
        assert_ended_by_the_deadline(&mut world, lifetimes);
    }
}

#[test]
fn a_client_whose_handshake_breaks_off_is_ended_by_the_setup_deadline() {
    for lifetimes in lifetimes() {
        for dtls in [DtlsVersion::Dtls12, DtlsVersion::Dtls13] {
            let mut world = World::with_lifetimes(lifetimes);
            let shape = Shape {
                dtls,
                ..Shape::default()
            };
            let client = world.call_shaped("192.0.2.10:5000", shape);
            // Its hello comes, and nothing that follows.
            world.clients[client].loses = Loses::DtlsAfter(1);
            world.run(lifetimes.setup - TICK);
            assert_ended_by_the_deadline(&mut world, lifetimes);
        }
    }
}

#[test]
fn a_client_that_says_hello_over_and_over_is_ended_by_the_setup_deadline() {
    let hello = client_hello();
    for lifetimes in lifetimes() {
        let mut world = World::with_lifetimes(lifetimes);
        let client = world.call("192.0.2.10:5000");
        // Its own handshake stays out of the way.
        world.clients[client].loses = Loses::Everything;
        world.clients[client].misses_dtls = true;
        let password = world.clients[client].password;
        let header = world.header(world.clients[client].session, world.clients[client].addr);
        let deadline = world.now + lifetimes.setup - TICK;
        let valid = check(&world, client, &password, true);
        world.inject(&header, &valid);
        while world.now < deadline {
            world.inject(&header, &hello);
            world.run(Duration::from_millis(50).min(deadline - world.now));
        }
        assert_ended_by_the_deadline(&mut world, lifetimes);
    }
}
