//! Who is still there: checks of any kind or media keep a session, silence ends it, and a pause is
//! no end.

use super::support::*;
use std::time::Duration;
use syrinx_transceiver::session::EndReason;

fn talking() -> (World, usize) {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    talk(&mut world, client, 5);
    (world, client)
}

fn talk(world: &mut World, client: usize, packets: u8) {
    for n in 0..packets {
        let now = world.now;
        world.clients[client].speak(now, &opus(n));
        world.run(PACKET);
    }
}

/// A check without USE-CANDIDATE, as Firefox sends them once a pair is chosen; says how many
/// answers came.
fn plain_check(world: &mut World, client: usize) -> usize {
    let password = world.clients[client].password;
    let header = world.header(world.clients[client].session, world.clients[client].addr);
    let plain = check(world, client, &password, false);
    world.inject(&header, &plain).len()
}

#[test]
fn checks_without_use_candidate_keep_a_muted_call_for_as_long_as_they_come() {
    let (mut world, client) = talking();
    world.clients[client].loses = Loses::Everything;
    for _ in 0..30 {
        world.run(Duration::from_secs(5));
        assert_eq!(plain_check(&mut world, client), 1);
    }
    assert_eq!(world.shard.session_count(), 1);
    world.clients[client].loses = Loses::Nothing;
    world.run(LIFETIMES.silence - TICK * 2);
    assert_eq!(world.shard.counters().ended(EndReason::ClientSilent), 0);
}

#[test]
fn media_alone_keeps_a_call_whose_checks_are_lost_and_is_answered() {
    let (mut world, client) = talking();
    world.clients[client].loses = Loses::Checks;
    let heard = world.clients[client].heard.len();
    // The client itself gives up after a while, so it is not asked how it feels about it.
    for n in 0..250u16 {
        let now = world.now;
        if world.clients[client].closed {
            break;
        }
        world.clients[client].speak(now, &opus(n as u8));
        world.run(PACKET);
    }
    assert_eq!(world.clients[client].heard.len() - heard, 250);
    assert_eq!(world.shard.session_count(), 1);
}

#[test]
fn a_client_that_was_away_for_longer_than_ice_would_wait_is_heard_at_once() {
    let (mut world, client) = talking();
    world.clients[client].loses = Loses::Everything;
    world.run(Duration::from_secs(25));
    assert_eq!(world.shard.session_count(), 1, "away is not gone");
    world.clients[client].loses = Loses::Nothing;
    world.clients[client].outgoing.clear();
    let heard = world.clients[client].heard.len();
    world.clients[client].stay_silent(1_250);
    // Before any check of it, and with nothing but checks that do not nominate.
    talk(&mut world, client, 3);
    assert_eq!(plain_check(&mut world, client), 1);
    talk(&mut world, client, 3);
    assert_eq!(world.clients[client].heard.len() - heard, 6);
}

#[test]
fn forged_packets_do_not_keep_a_session() {
    let (mut world, client) = talking();
    world.clients[client].loses = Loses::Everything;
    let last = world.now;
    let header = world.header(world.clients[client].session, world.clients[client].addr);
    while world.shard.session_count() == 1 {
        assert!(world.now < last + LIFETIMES.silence * 2);
        let mut forged = vec![0x80, OPUS, 9, 9, 0, 0, 0, 1, 1, 2, 3, 4];
        forged.resize(80, 9);
        world.inject(&header, &forged);
        let forged = check(&world, client, &[b'x'; 32], true);
        world.inject(&header, &forged);
        world.run(Duration::from_millis(500));
    }
    assert_eq!(world.shard.counters().ended(EndReason::ClientSilent), 1);
}
