//! However a session ends, its backend is told why, once.

use super::support::*;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use syrinx_transceiver::backend::{Actions, Backend, Input};
use syrinx_transceiver::session::EndReason;
use syrinx_transceiver::shard::ShardEvent;

/// Writes down why it was told that the session ends, and what it is told afterwards.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<EndReason>>>);

impl Backend for Listener {
    fn handle(&mut self, _: Instant, input: Input<'_>, _: &mut Actions) {
        let mut told = self.0.lock().unwrap();
        assert!(told.is_empty(), "nothing comes after the end: {input:?}");
        if let Input::Closing(reason) = input {
            told.push(reason);
        }
    }
}

fn world_with(change: impl FnOnce(&mut Client)) -> (World, usize, Listener) {
    let mut world = World::new();
    let session = world.reference();
    let mut client = Client::new(world.now, "192.0.2.10:5000");
    change(&mut client);
    let listener = Listener::default();
    let client = world.call_with(session, client, Box::new(listener.clone()));
    (world, client, listener)
}

fn connected() -> (World, usize, Listener) {
    let (mut world, client, listener) = world_with(|_| {});
    world.run_until("the client connects", |world| {
        world.clients[client].connected
    });
    (world, client, listener)
}

/// Lets the session end, and a minute pass.
fn assert_told(world: &mut World, listener: &Listener, reason: EndReason) {
    world.run(LIFETIMES.silence * 2);
    assert_eq!(*listener.0.lock().unwrap(), [reason]);
    assert_eq!(world.shard.session_count(), 0);
    assert_eq!(world.shard.poll_timeout(), None);
    let ends: Vec<_> = world
        .ended
        .iter()
        .filter_map(|event| match event {
            ShardEvent::Ended { reason, .. } => Some(*reason),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [reason]);
}

#[test]
fn a_client_that_never_comes() {
    let (mut world, client, listener) = world_with(|client| client.loses = Loses::Everything);
    assert!(!world.clients[client].connected);
    assert_told(&mut world, &listener, EndReason::SetupTimeout);
}

#[test]
fn a_client_that_vanishes() {
    let (mut world, client, listener) = connected();
    world.clients[client].loses = Loses::Everything;
    assert_told(&mut world, &listener, EndReason::ClientSilent);
}

#[test]
fn a_client_that_closes() {
    let (mut world, client, listener) = connected();
    world.clients[client].rtc.close().unwrap();
    world.clients[client].drain();
    assert_told(&mut world, &listener, EndReason::ClientClosed);
}

#[test]
fn a_client_with_another_certificate_than_it_offered() {
    let (mut world, _, listener) = world_with(|client| {
        let offered = client
            .offer
            .lines()
            .find(|l| l.starts_with("a=fingerprint:"));
        let offered = offered.unwrap().to_owned();
        let other = format!("a=fingerprint:sha-256 {}", ["AB"; 32].join(":"));
        client.offer = client.offer.replace(&offered, &other);
    });
    assert_told(&mut world, &listener, EndReason::HandshakeFailed);
}

#[test]
fn a_hang_up_and_a_drain() {
    for reason in [EndReason::HungUp, EndReason::Drained] {
        let (mut world, client, listener) = connected();
        let session = world.clients[client].session;
        let mut wire = Wire::default();
        let now = world.now();
        match reason {
            EndReason::HungUp => assert!(world.shard.close(now, session, reason, &mut wire)),
            _ => world.shard.close_all(now, reason, &mut wire),
        }
        world.deliver(wire.0.into());
        world.run(TICK);
        assert!(world.clients[client].closed, "the client hears of it");
        assert_told(&mut world, &listener, reason);
    }
}
