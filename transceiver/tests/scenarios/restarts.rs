//! ICE restarts: the client takes new credentials, and nobody hears it.

use super::support::*;
use std::time::Duration;
use str0m::change::SdpAnswer;
use syrinx_shared::route::ClusterId;
use syrinx_shared::wire::stun::{Integrity, RequestWriter};
use syrinx_shared::wire::ufrag::mint;
use syrinx_transceiver::engine::{Credentials, Offer};
use syrinx_transceiver::session::IceRestart;

fn attribute<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.expect("the text has the attribute")
}

/// Credentials of both sides: what a check is made with.
#[derive(Clone)]
struct Sides {
    ours: Credentials,
    client_ufrag: String,
}

impl Sides {
    fn of(answer: &str, offer: &str) -> Self {
        Self {
            ours: Credentials {
                ufrag: attribute(answer, "a=ice-ufrag:").into(),
                password: attribute(answer, "a=ice-pwd:").into(),
            },
            client_ufrag: attribute(offer, "a=ice-ufrag:").into(),
        }
    }

    fn check(&self, nominate: bool) -> Vec<u8> {
        RequestWriter {
            server_ufrag: self.ours.ufrag.as_bytes(),
            client_ufrag: self.client_ufrag.as_bytes(),
            password: self.ours.password.as_bytes(),
            transaction_id: *b"abcdefghijkl",
            nominate,
            integrity: Integrity::Sha1,
        }
        .to_bytes()
    }
}

/// The transceiver's half of a restart, for an offer with new credentials: the new answer.
fn restart_session(world: &mut World, client: usize, offer: &str, random: u16) -> Sides {
    let session = world.clients[client].session;
    let minted = mint(&world.keys, ClusterId(1), session, world.now().wall, random).unwrap();
    let ours = Credentials {
        ufrag: minted.ufrag.as_str().to_owned(),
        password: String::from_utf8(minted.password.to_vec()).unwrap(),
    };
    let client = Offer::parse(offer.as_bytes()).unwrap().client_credentials();
    let restart = IceRestart {
        epoch: minted.epoch,
        ours: ours.clone(),
        client,
    };
    assert!(world.shard.restart(session, restart));
    Sides {
        ours,
        client_ufrag: attribute(offer, "a=ice-ufrag:").into(),
    }
}

/// Both halves.
fn restart(world: &mut World, client: usize, random: u16) {
    let mut api = world.clients[client].rtc.sdp_api();
    api.ice_restart(true);
    let (offer, pending) = api.apply().unwrap();
    let sides = restart_session(world, client, &offer.to_sdp_string(), random);
    let client = &mut world.clients[client];
    let former = Sides::of(&client.answer, &client.offer);
    client.answer = client
        .answer
        .replace(&former.ours.ufrag, &sides.ours.ufrag)
        .replace(&former.ours.password, &sides.ours.password);
    let answer = SdpAnswer::from_sdp_string(&client.answer).unwrap();
    client.rtc.sdp_api().accept_answer(pending, answer).unwrap();
}

fn talk(world: &mut World, client: usize, packets: u8) {
    for n in 0..packets {
        let now = world.now;
        world.clients[client].speak(now, &opus(n));
        world.run(PACKET);
    }
}

#[test]
fn media_flows_through_restarts_without_a_lost_packet() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    talk(&mut world, client, 10);
    for random in [78, 79] {
        restart(&mut world, client, random);
        talk(&mut world, client, 150);
    }
    assert_eq!(world.clients[client].heard.len(), 310);
    assert_eq!(world.dropped(), []);
    let session = world.clients[client].session;
    let summary = world.shard.inspect(world.now, session).unwrap();
    assert_eq!((summary.counts.ice_restarts, summary.moves), (2, 0));
    let now = world.now;
    world.clients[client].say(now, br#"{"type":"x"}"#, false);
    world.run(Duration::from_millis(100));
    assert_eq!(
        world.clients[client].messages.len(),
        2,
        "the channel lives on"
    );
}

#[test]
fn a_restart_together_with_a_new_address_is_followed() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    talk(&mut world, client, 10);
    world.clients[client].addr = "198.51.100.9:7000".parse().unwrap();
    restart(&mut world, client, 78);
    talk(&mut world, client, 50);
    assert!(world.clients[client].heard.len() >= 55);
    let session = world.clients[client].session;
    let summary = world.shard.inspect(world.now, session).unwrap();
    assert_eq!(summary.client.unwrap().addr(), world.clients[client].addr);
}

#[test]
fn checks_of_both_generations_are_answered_until_the_new_one_is_nominated() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    let header = world.header(world.clients[client].session, world.clients[client].addr);
    let former = Sides::of(&world.clients[client].answer, &world.clients[client].offer);
    let offer = Client::new(world.now, "192.0.2.10:5000").offer;
    let latest = restart_session(&mut world, client, &offer, 78);
    // What was never used gives way to what comes after it.
    let unused = latest;
    let offer = Client::new(world.now, "192.0.2.10:5000").offer;
    let latest = restart_session(&mut world, client, &offer, 79);
    let answers = |world: &mut World, sides: &Sides, nominate| {
        let sent = world.inject(&header, &sides.check(nominate));
        sent.iter()
            .filter(|sent| sent.payload[..2] == [1, 1])
            .count()
    };
    for _ in 0..3 {
        assert_eq!(answers(&mut world, &former, true), 1);
        assert_eq!(answers(&mut world, &latest, false), 1);
        assert_eq!(answers(&mut world, &unused, false), 0);
    }
    assert_eq!(answers(&mut world, &latest, true), 1);
    assert_eq!(answers(&mut world, &former, true), 0, "retired");
    assert_eq!(answers(&mut world, &latest, false), 1);
    assert_eq!(world.dropped(), [("bad_integrity", 4)]);
}

#[test]
fn a_restart_of_nobody_says_so() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    let offer = Offer::parse(world.clients[client].offer.as_bytes()).unwrap();
    let epoch = world.keys.minting().unwrap();
    let mut session = world.clients[client].session;
    session.generation = session.generation.next();
    let ours = Credentials {
        ufrag: "x".into(),
        password: "y".into(),
    };
    let restart = IceRestart {
        epoch,
        ours,
        client: offer.client_credentials(),
    };
    assert!(!world.shard.restart(session, restart));
}
