//! One bad session never hurts another.

use super::support::*;
use std::time::{Duration, Instant};
use syrinx_transceiver::backend::echo::Echo;
use syrinx_transceiver::backend::{Actions, Addressee, Backend, Input};
use syrinx_transceiver::session::EndReason;
use syrinx_transceiver::shard::ShardEvent;
use syrinx_transceiver::shard::counters::Fate;

/// A backend with a bug.
struct Broken;

impl Backend for Broken {
    fn handle(&mut self, _: Instant, input: Input<'_>, actions: &mut Actions) {
        match input {
            Input::ChannelOpen(channel) => actions.greet(Addressee::Channel(channel)),
            Input::Audio(_) => panic!("a bug in a backend, as this test wants it"),
            _ => {}
        }
    }
}

#[test]
fn a_panic_ends_its_session_and_no_other() {
    let mut world = World::new();
    let bystander = world.call("192.0.2.10:5000");
    let session = world.reference();
    let client = Client::new(world.now, "192.0.2.20:5000");
    let victim = world.call_with(session, client, Box::new(Broken));
    world.connect();
    for n in 0..20 {
        let now = world.now;
        world.clients[bystander].speak(now, &opus(n));
        world.clients[victim].speak(now, &opus(n));
        world.run(PACKET);
    }
    assert_eq!(world.clients[bystander].heard.len(), 20);
    assert_eq!(world.clients[victim].heard.len(), 0);
    assert_eq!(world.shard.counters().ended(EndReason::Panicked), 1);
    assert_eq!(world.shard.session_count(), 1);
    assert!(
        world.fate(Fate::UnknownSlot) >= 19,
        "its later packets find nobody"
    );
}

#[test]
fn a_client_whose_certificate_is_not_the_offered_one_is_ended_with_the_reason() {
    let mut world = World::new();
    let bystander = world.call("192.0.2.10:5000");
    let session = world.reference();
    let mut client = Client::new(world.now, "192.0.2.20:5000");
    let line = client
        .offer
        .lines()
        .find(|line| line.starts_with("a=fingerprint:"))
        .unwrap();
    let other = format!("a=fingerprint:sha-256 {}", vec!["AB"; 32].join(":"));
    client.offer = client.offer.replace(&line.to_owned(), &other);
    world.call_with(session, client, Box::new(Echo::default()));
    world.run(Duration::from_secs(2));
    assert_eq!(world.shard.counters().ended(EndReason::HandshakeFailed), 1);
    let [ShardEvent::Ended { summary, .. }] = &world.ended[..] else {
        panic!("one end: {:?}", world.ended);
    };
    let failure = summary.failure.as_deref().unwrap();
    assert!(failure.contains("fingerprint"), "{failure}");
    assert!(world.clients[bystander].connected);
}
