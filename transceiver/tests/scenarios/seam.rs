//! The seam to backends: what a session wants of its link comes out of the shard, what the link and
//! the sideband have comes in, and a link never outlives its session.

use super::support::*;
use std::time::{Duration, Instant};
use syrinx_shared::route::SessionRef;
use syrinx_transceiver::backend::link::{
    BackendId, LinkBody, LinkClass, LinkCommand, LinkEvent, LinkMessage, LinkTarget,
};
use syrinx_transceiver::backend::{Actions, Addressee, Backend, Input};
use syrinx_transceiver::session::EndReason;
use syrinx_transceiver::shard::ShardEvent;

/// Passes text both ways, and hangs up at a word. It forgets to close its link.
struct Telegraph;

fn text(text: &str) -> LinkCommand {
    LinkCommand::Send(LinkMessage {
        class: LinkClass::Control,
        body: LinkBody::Text(text.to_owned()),
    })
}

fn target() -> LinkTarget {
    LinkTarget {
        backend: BackendId(3),
        model: None,
        call: "sess_test".to_owned(),
        subprotocol: None,
    }
}

impl Backend for Telegraph {
    fn handle(&mut self, _: Instant, input: Input<'_>, actions: &mut Actions) {
        match input {
            Input::Start => actions.link(LinkCommand::Open(target())),
            Input::ChannelOpen(channel) => actions.greet(Addressee::Channel(channel)),
            Input::ClientEvent(event) => actions.link(text(event.text)),
            Input::Link(LinkEvent::Text(event)) if event == "enough" => {
                actions.close(EndReason::BackendClosed);
            }
            Input::Link(LinkEvent::Text(event)) => actions.say(Addressee::Client, event),
            _ => {}
        }
    }
}

fn call() -> (World, SessionRef) {
    let mut world = World::new();
    let session = world.reference();
    let client = Client::new(world.now, "192.0.2.10:5000");
    world.call_with(session, client, Box::new(Telegraph));
    (world, session)
}

fn commands(world: &mut World) -> Vec<(SessionRef, LinkCommand)> {
    std::iter::from_fn(|| world.shard.poll_link()).collect()
}

fn from_link(world: &mut World, session: SessionRef, event: &str) -> bool {
    let mut wire = Wire::default();
    let (now, event) = (world.now(), LinkEvent::Text(event.to_owned()));
    let is_there = world.shard.handle_link(now, session, event, &mut wire);
    world.deliver(wire.0.into());
    is_there
}

#[test]
fn the_link_is_asked_for_before_the_client_has_sent_anything() {
    let (mut world, session) = call();
    assert_eq!(
        commands(&mut world),
        [(session, LinkCommand::Open(target()))]
    );
}

#[test]
fn what_the_link_says_before_the_channel_opens_waits_for_it() {
    let (mut world, session) = call();
    assert!(from_link(&mut world, session, r#"{"type":"early"}"#));
    world.connect();
    world.run(Duration::from_millis(50));
    let events = world.clients[0].events();
    let types: Vec<_> = events.iter().map(|event| event["type"].as_str()).collect();
    assert_eq!(types, [Some("early"), Some("session.created")]);
}

#[test]
fn the_sideband_sees_what_the_client_is_told_and_speaks_as_he_does() {
    let (mut world, session) = call();
    world.connect();
    commands(&mut world);
    assert!(from_link(&mut world, session, r#"{"type":"before"}"#));
    assert!(world.shard.tap(session, true));
    assert!(from_link(&mut world, session, r#"{"type":"after"}"#));
    world.run(Duration::from_millis(50));
    let said: Vec<_> = world
        .ended
        .iter()
        .map(|event| match event {
            ShardEvent::Said { event, missed, .. } => (event.as_str(), *missed),
            other => panic!("nothing else has happened: {other:?}"),
        })
        .collect();
    assert_eq!(said, [(r#"{"type":"after"}"#, 0)]);
    assert_eq!(world.clients[0].messages.len(), 3, "the client is told all");

    let now = world.now();
    let mut wire = Wire::default();
    let word = r#"{"type":"injected"}"#;
    assert!(world.shard.inject(now, session, word, &mut wire));
    assert_eq!(commands(&mut world), [(session, text(word))]);
}

#[test]
fn a_backend_that_ends_the_session_says_good_bye_to_the_client_and_the_link_closes_once() {
    let (mut world, session) = call();
    world.connect();
    commands(&mut world);
    assert!(from_link(&mut world, session, "enough"));
    world.run(Duration::from_millis(50));
    assert!(world.clients[0].closed);
    assert_eq!(world.shard.counters().ended(EndReason::BackendClosed), 1);
    let closes = commands(&mut world);
    let [(of, LinkCommand::Close { code: 1001, reason })] = &closes[..] else {
        panic!("one close: {closes:?}");
    };
    assert_eq!((*of, reason.as_str()), (session, "backend_closed"));
    assert!(!from_link(&mut world, session, "too late"));
    assert!(!world.shard.tap(session, true));
    assert!(commands(&mut world).is_empty());
}
