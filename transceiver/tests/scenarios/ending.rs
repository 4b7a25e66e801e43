//! Every session ends once, for a reason, and leaves nothing behind.

use super::support::*;
use std::time::Duration;
use syrinx_shared::wire::encap::{Control, Direction};
use syrinx_transceiver::backend::echo::Echo;
use syrinx_transceiver::session::EndReason;
use syrinx_transceiver::shard::counters::Fate;
use syrinx_transceiver::shard::{OpenError, ShardEvent};

fn talking(world: &mut World) -> usize {
    let client = world.call("192.0.2.10:5000");
    world.connect();
    let now = world.now;
    world.clients[client].speak(now, &opus(1));
    world.run(PACKET);
    client
}

fn assert_ended(world: &World, reason: EndReason) {
    assert_eq!(world.shard.session_count(), 0);
    assert_eq!(world.shard.counters().ended(reason), 1, "{reason:?}");
    let [
        ShardEvent::Ended {
            reason: told,
            summary,
        },
    ] = &world.ended[..]
    else {
        panic!("the end is told once: {:?}", world.ended);
    };
    assert_eq!(*told, reason);
    assert_eq!(summary.reception.packets, 1);
    assert_eq!(world.shard.poll_timeout(), None);
}

fn closed_flows(world: &World) -> usize {
    let closed = world
        .strays
        .iter()
        .filter(|sent| sent.header.direction == Direction::Control);
    closed
        .inspect(|sent| assert_eq!(sent.payload, Control::FlowClosed.to_bytes()))
        .count()
}

#[test]
fn a_client_that_vanishes_is_noticed_after_the_time_of_silence() {
    let mut world = World::new();
    let client = talking(&mut world);
    let gone = world.clients.remove(client);
    let last = world.now;
    world.run(LIFETIMES.silence - Duration::from_secs(1));
    assert_eq!(world.shard.session_count(), 1);
    world.run(Duration::from_secs(1) + TICK);
    assert_ended(&world, EndReason::ClientSilent);
    assert!(world.now - last <= LIFETIMES.silence + TICK);
    assert_eq!(closed_flows(&world), 1);
    let goodbyes = world
        .strays
        .iter()
        .filter(|sent| sent.header.client.addr() == gone.addr);
    assert!(goodbyes.count() > 1, "it is told, in case it hears");
}

#[test]
fn a_hang_up_closes_the_client_and_frees_the_flow() {
    let mut world = World::new();
    let client = talking(&mut world);
    let session = world.clients[client].session;
    let mut wire = Wire::default();
    let now = world.now();
    assert!(
        world
            .shard
            .close(now, session, EndReason::HungUp, &mut wire)
    );
    assert!(
        !world
            .shard
            .close(now, session, EndReason::HungUp, &mut wire),
        "once"
    );
    assert_eq!(
        wire.0.back().unwrap().header.direction,
        Direction::Control,
        "the last word"
    );
    world.deliver(wire.0.into());
    world.run(TICK);
    assert_ended(&world, EndReason::HungUp);
    assert_eq!(closed_flows(&world), 1);
    assert!(world.clients[client].closed, "the client has heard of it");
    let taken = world.fate(Fate::Taken);
    world.run(Duration::from_secs(5));
    assert_eq!(world.fate(Fate::Taken), taken);
}

#[test]
fn a_client_that_closes_is_believed() {
    let mut world = World::new();
    let client = talking(&mut world);
    world.clients[client].rtc.close().unwrap();
    world.clients[client].drain();
    world.run(Duration::from_millis(100));
    assert_ended(&world, EndReason::ClientClosed);
    assert_eq!(closed_flows(&world), 1);
}

#[test]
fn a_drain_ends_every_session_and_tells_every_client() {
    let mut world = World::new();
    for port in 5000..5004 {
        world.call(&format!("192.0.2.10:{port}"));
    }
    world.connect();
    let mut wire = Wire::default();
    let now = world.now();
    world.shard.close_all(now, EndReason::Drained, &mut wire);
    world.deliver(wire.0.into());
    world.run(TICK);
    assert_eq!(world.shard.session_count(), 0);
    assert_eq!(world.shard.counters().ended(EndReason::Drained), 4);
    assert!(world.clients.iter().all(|client| client.closed));
    assert_eq!(world.ended.len(), 4);
}

#[test]
fn late_packets_of_an_ended_session_never_reach_its_successor() {
    let mut world = World::new();
    let first = talking(&mut world);
    let old = world.clients[first].session;
    let mut wire = Wire::default();
    let now = world.now();
    world.shard.close(now, old, EndReason::HungUp, &mut wire);
    let mut session = old;
    session.generation = old.generation.next();
    let second = Client::new(world.now, "192.0.2.20:5000");
    let second = world.call_with(session, second, Box::new(Echo::default()));
    let before = world.fate(Fate::StaleGeneration);
    // The first client has not heard of the end and goes on.
    for n in 0..20 {
        let now = world.now;
        world.clients[first].speak(now, &opus(n));
        world.run(PACKET);
    }
    assert!(world.fate(Fate::StaleGeneration) >= before + 20);
    world.run_until("the successor connects", |world| {
        world.clients[second].connected
    });
    let now = world.now;
    world.clients[second].speak(now, &opus(9));
    world.run(PACKET);
    assert_eq!(world.clients[second].heard.len(), 1);
    let summary = world.shard.inspect(world.now, session).unwrap();
    assert_eq!(summary.reception.packets, 1);
}

#[test]
fn an_opening_for_a_taken_or_foreign_slot_is_refused_and_harms_nobody() {
    let mut world = World::new();
    let client = talking(&mut world);
    let offer = Client::new(world.now, "192.0.2.30:1").offer;
    let mut wire = Wire::default();
    let taken = world.clients[client].session;
    let mut foreign = taken;
    foreign.shard.0 += 1;
    let mut outside = taken;
    outside.slot = syrinx_shared::route::Slot::new(1_000_000).unwrap();
    for (session, error) in [
        (taken, OpenError::SlotTaken),
        (foreign, OpenError::WrongShard),
        (outside, OpenError::WrongShard),
    ] {
        let (opening, _) = world.opening(session, &offer, Box::new(Echo::default()));
        let now = world.now();
        assert_eq!(world.shard.open(now, opening, &mut wire), Err(error));
    }
    assert_eq!(world.shard.counters().openings_refused, 3);
    let now = world.now;
    world.clients[client].speak(now, &opus(2));
    world.run(PACKET);
    assert_eq!(world.clients[client].heard.len(), 2);
}
