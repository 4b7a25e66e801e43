//! A call comes up: check, handshake, channel, audio, each counted.

use super::support::*;
use std::time::Duration;
use syrinx_shared::wire::encap::Direction;
use syrinx_transceiver::backend::echo::Echo;
use syrinx_transceiver::session::EndReason;
use syrinx_transceiver::shard::counters::Fate;

#[test]
fn a_client_connects_and_every_phase_is_timed() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    let now = world.now;
    world.clients[client].speak(now, &opus(1));
    world.run(PACKET);

    let session = world.clients[client].session;
    let summary = world.shard.inspect(world.now, session).unwrap();
    let phases = summary.phases;
    let order = [
        phases.first_check,
        phases.connected,
        phases.channel,
        phases.first_audio,
    ]
    .map(Option::unwrap);
    assert!(order.is_sorted(), "{phases:?}");
    assert!(order[3] < Duration::from_secs(1), "{phases:?}");
    assert_eq!(summary.client.unwrap().addr(), world.clients[client].addr);
    assert_eq!((summary.moves, summary.reception.packets), (0, 1));
    assert_eq!(world.dropped(), []);
    assert_eq!(
        world.fate(Fate::Taken),
        world.shard.counters().records_total()
    );
    assert_eq!(summary.counts.datagrams_in, world.fate(Fate::Taken));
    assert_eq!(
        summary.counts.datagrams_out,
        world.shard.counters().records_out
    );
    assert!(world.strays.is_empty());
    assert_eq!(world.connected, [session], "the owner is told, once");
}

#[test]
fn a_client_on_ipv6_connects() {
    let mut world = World::new();
    let client = world.call("[2001:db8::77]:5000");
    world.connect();
    let now = world.now;
    world.clients[client].speak(now, &opus(1));
    world.run(PACKET);
    assert_eq!(world.clients[client].heard.len(), 1);
}

#[test]
fn a_client_without_audio_or_without_a_channel_connects() {
    use str0m::media::Direction as Way;
    let mut world = World::new();
    for (channel, audio) in [
        (true, None),
        (false, Some(Way::SendRecv)),
        (true, Some(Way::SendOnly)),
    ] {
        let session = world.reference();
        let addr = format!("192.0.2.10:{}", 6000 + session.slot.value());
        let client = Client::with(
            world.now,
            &addr,
            Shape {
                channel,
                audio,
                ..Shape::default()
            },
        );
        let backend = Box::new(Echo::default());
        world.call_with(session, client, backend);
    }
    world.run_until("all connect", |world| {
        world.clients.iter().all(|client| client.connected)
    });
    world.run(Duration::from_secs(1));
    assert_eq!(world.clients[0].messages.len(), 1);
    let now = world.now;
    world.clients[1].speak(now, &opus(1));
    world.clients[2].speak(now, &opus(1));
    world.run(PACKET);
    assert_eq!(world.clients[1].heard.len(), 1);
    assert_eq!(
        world.clients[2].heard.len(),
        0,
        "a send-only client is not played to"
    );
}

#[test]
fn clients_of_either_dtls_version_connect() {
    use str0m::config::DtlsVersion::{Auto, Dtls12, Dtls13};
    for dtls in [Dtls12, Dtls13, Auto] {
        let mut world = World::new();
        let shape = Shape {
            dtls,
            ..Shape::default()
        };
        let client = world.call_shaped("192.0.2.10:5000", shape);
        world.connect();
        let now = world.now;
        world.clients[client].speak(now, &opus(1));
        world.run(PACKET);
        assert_eq!(world.clients[client].heard.len(), 1, "{dtls:?}");
        assert_eq!(world.dropped(), [], "{dtls:?}");
    }
}

#[test]
fn a_channel_that_both_sides_agree_on_is_greeted_and_echoes() {
    for stream in [0, 1, 7, 1_023, 65_534] {
        agree_on(stream);
    }
}

fn agree_on(stream: u16) {
    let mut world = World::new();
    let shape = Shape {
        negotiated: Some(stream),
        ..Shape::default()
    };
    let client = world.call_shaped("192.0.2.10:5000", shape);
    world.connect();
    let now = world.now;
    world.clients[client].say(now, br#"{"type":"x"}"#, false);
    world.run(Duration::from_millis(100));
    let events = world.clients[client].events();
    assert_eq!(events.len(), 2, "{stream}");
    assert_eq!(events[0]["type"], "session.created");
    assert_eq!(events[1]["type"], "x");
}

#[test]
fn a_client_that_never_comes_is_freed_at_the_setup_deadline() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.clients[client].loses = Loses::Everything;
    world.run(LIFETIMES.setup - TICK);
    assert_eq!(world.shard.session_count(), 1);
    world.run(TICK);
    assert_eq!(world.shard.session_count(), 0);
    assert_eq!(world.shard.counters().ended(EndReason::SetupTimeout), 1);
    assert_eq!(world.ended.len(), 1);
    assert_eq!(
        world.shard.poll_timeout(),
        None,
        "nothing is left to wake for"
    );
    assert!(world.strays.is_empty(), "nobody is told, since nobody came");
}

#[test]
fn a_client_that_only_checks_is_freed_at_the_setup_deadline_and_told() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.clients[client].loses = Loses::AllButChecks;
    world.run(LIFETIMES.setup);
    assert_eq!(world.shard.counters().ended(EndReason::SetupTimeout), 1);
    let control = world
        .strays
        .iter()
        .filter(|sent| sent.header.direction == Direction::Control);
    assert_eq!(
        control.count(),
        1,
        "the relay is told that the flow is closed"
    );
}
