//! A client's address changes under it, or the relay between does: the session follows in one
//! round trip, both ways.

use super::support::*;
use std::time::Duration;
use syrinx_shared::route::ShardIndex;
use syrinx_shared::wire::train::TrainDestination;
use syrinx_transceiver::shard::counters::Fate;

/// Speaks until the client hears itself again, and returns how long that took and how many
/// datagrams went astray after the new path's first check had been answered.
fn speak_until_heard(world: &mut World, client: usize) -> (Duration, usize) {
    let since = world.now;
    let heard = world.clients[client].heard.len();
    let session = world.clients[client].session;
    let moves = world.shard.inspect(world.now, session).unwrap().moves;
    let mut astray = None;
    while world.clients[client].heard.len() == heard {
        assert!(
            world.now < since + Duration::from_secs(10),
            "the session follows"
        );
        let now = world.now;
        world.clients[client].speak(now, &opus(7));
        let before = world.strays.len();
        world.run(PACKET);
        if world
            .shard
            .inspect(world.now, session)
            .is_some_and(|now| now.moves > moves)
        {
            astray = astray.or(Some(before));
        }
    }
    (
        world.now - since,
        world.strays.len() - astray.unwrap_or(world.strays.len()),
    )
}

fn talking() -> (World, usize) {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    for n in 0..10 {
        let now = world.now;
        world.clients[client].speak(now, &opus(n));
        world.run(PACKET);
    }
    assert_eq!(world.clients[client].heard.len(), 10);
    (world, client)
}

#[test]
fn a_new_port_is_followed_by_the_first_check_from_it() {
    let (mut world, client) = talking();
    world.clients[client].addr.set_port(6001);
    let (took, astray) = speak_until_heard(&mut world, client);
    assert_eq!(
        astray, 0,
        "nothing goes to the old port once a check has come from the new"
    );
    assert!(
        took < Duration::from_secs(4),
        "the client's next check came after {took:?}"
    );
    assert!(
        world.fate(Fate::UnadmittedPath) > 0,
        "audio alone moves nothing"
    );
    let summary = world
        .shard
        .inspect(world.now, world.clients[client].session)
        .unwrap();
    assert_eq!(
        (summary.moves, summary.client.unwrap().addr().port()),
        (1, 6001)
    );
}

#[test]
fn the_client_moves_back_and_forth_and_across_families() {
    let (mut world, client) = talking();
    for addr in [
        "192.0.2.10:6001",
        "192.0.2.10:5000",
        "198.51.100.4:9",
        "192.0.2.11:7",
    ] {
        world.clients[client].addr = addr.parse().unwrap();
        let (_, astray) = speak_until_heard(&mut world, client);
        assert_eq!(astray, 0, "{addr}");
    }
    let summary = world
        .shard
        .inspect(world.now, world.clients[client].session)
        .unwrap();
    assert_eq!(summary.moves, 4);
}

#[test]
fn the_latest_nomination_is_followed_by_the_next_packet() {
    let (mut world, client) = talking();
    let password = world.clients[client].password;
    let session = world.clients[client].session;
    // Both are the client's; it hears at the first only.
    let home = world.clients[client].addr;
    let other = "198.51.100.4:9".parse().unwrap();
    for (round, (at, hears)) in [(other, 0), (home, 1), (other, 0), (home, 1)]
        .into_iter()
        .enumerate()
    {
        let nomination = check(&world, client, &password, true);
        let header = world.header(session, at);
        assert_eq!(world.inject(&header, &nomination).len(), 1);
        let (heard, strays) = (world.clients[client].heard.len(), world.strays.len());
        // An event moves nothing, and is answered where the nomination says.
        world.clients[client].loses = Loses::Checks;
        let now = world.now;
        world.clients[client].say(now, br#"{"type":"x"}"#, false);
        world.run(PACKET * 2);
        let went = &world.strays[strays..];
        let is_there = |sent: &&Sent| sent.header.client.addr() == other;
        assert_eq!(
            went.iter().filter(is_there).count() > 0,
            hears == 0,
            "{round}"
        );
        assert_eq!(world.clients[client].heard.len(), heard);
        let summary = world.shard.inspect(world.now, session).unwrap();
        assert_eq!(summary.client.unwrap().addr(), at);
        assert_eq!(summary.moves as usize, round + 1);
    }
}

#[test]
fn a_data_only_session_follows_too() {
    let mut world = World::new();
    let session = world.reference();
    let client = Client::with(
        world.now,
        "192.0.2.10:5000",
        Shape {
            audio: None,
            ..Shape::default()
        },
    );
    let backend = Box::new(syrinx_transceiver::backend::echo::Echo::default());
    let client = world.call_with(session, client, backend);
    world.connect();
    world.clients[client].addr.set_port(6001);
    world.run(Duration::from_secs(5));
    let now = world.now;
    world.clients[client].say(now, br#"{"type":"x"}"#, false);
    world.run(Duration::from_secs(1));
    assert_eq!(world.clients[client].messages.len(), 2);
}

#[test]
fn another_relay_or_another_of_its_workers_is_followed_like_a_new_address() {
    let (mut world, client) = talking();
    let elsewhere = [
        TrainDestination {
            shard: ShardIndex(0),
            ..relay()
        },
        TrainDestination {
            addr: "10.0.0.2:3480".parse().unwrap(),
            ..relay()
        },
    ];
    for relay in elsewhere {
        world.clients[client].relay = relay;
        let (_, astray) = speak_until_heard(&mut world, client);
        assert_eq!(astray, 0);
    }
}

#[test]
fn a_session_that_moves_lives_past_the_time_of_silence() {
    let (mut world, client) = talking();
    for minute in 0..4u16 {
        world.clients[client].addr.set_port(6001 + minute);
        world.run(LIFETIMES.silence);
        assert_eq!(world.shard.session_count(), 1);
    }
    let (_, astray) = speak_until_heard(&mut world, client);
    assert_eq!(astray, 0);
}
