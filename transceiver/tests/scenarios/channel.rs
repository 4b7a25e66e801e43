//! The data channel: greeted as it opens, JSON echoed, everything else answered by an error.

use super::support::*;
use std::time::{Duration, Instant};
use syrinx_transceiver::backend::echo::Echo;
use syrinx_transceiver::backend::{Actions, Backend, Input};

fn connected() -> (World, usize) {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    (world, client)
}

fn say(world: &mut World, client: usize, message: &[u8]) {
    let now = world.now;
    world.clients[client].say(now, message, false);
    world.run(Duration::from_millis(50));
}

#[test]
fn the_channel_is_greeted_once() {
    let (mut world, client) = connected();
    world.run(Duration::from_secs(2));
    let events = world.clients[client].events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["type"], "session.created");
    assert_eq!(events[0]["session"]["id"], "sess_test");
    assert_eq!(events[0]["session"]["object"], "realtime.session");
    assert_eq!(events[0]["session"]["type"], "realtime");
    assert_eq!(events[0]["session"]["model"], "echo-1");
}

#[test]
fn events_come_back_word_for_word_and_in_order() {
    let (mut world, client) = connected();
    let said: Vec<_> = (0..20)
        .map(|n| format!("{{ \"type\":\"x\", \"n\": {n} }}"))
        .collect();
    for event in &said {
        say(&mut world, client, event.as_bytes());
    }
    assert_eq!(world.clients[client].messages[1..], said);
}

#[test]
fn what_is_no_event_is_answered_by_an_error_and_the_channel_lives_on() {
    let (mut world, client) = connected();
    for bad in [&b"hello"[..], b"[1]", b"{\"type\":3}", b"\xff\xfe"] {
        say(&mut world, client, bad);
    }
    say(&mut world, client, br#"{"type":"still.there"}"#);
    let events = world.clients[client].events();
    assert_eq!(events.len(), 6);
    for event in &events[1..5] {
        assert_eq!(event["type"], "error");
        assert_eq!(event["error"]["code"], "invalid_event");
    }
    assert_eq!(events[5]["type"], "still.there");
}

#[test]
fn a_large_event_crosses_and_one_too_large_for_the_client_becomes_an_error() {
    let mut world = World::new();
    let session = world.reference();
    let mut client = Client::new(world.now, "192.0.2.10:5000");
    let announced = client
        .offer
        .lines()
        .find(|line| line.starts_with("a=max-message-size:"));
    let announced = announced.expect("str0m says how much it takes").to_owned();
    client.offer = client.offer.replace(&announced, "a=max-message-size:1000");
    let client = world.call_with(session, client, Box::new(Echo::default()));
    world.connect();

    let event = |bytes: usize| format!("{{\"type\":\"x\",\"pad\":\"{}\"}}", "y".repeat(bytes - 21));
    assert_eq!(event(1000).len(), 1000);
    say(&mut world, client, event(1000).as_bytes());
    say(&mut world, client, event(1001).as_bytes());
    say(&mut world, client, event(900).as_bytes());
    let client = &world.clients[client];
    assert_eq!(client.messages[1], event(1000));
    assert_eq!(client.events()[2]["error"]["code"], "event_too_large");
    assert_eq!(client.messages[3], event(900));
}

#[test]
fn events_wait_while_the_client_acknowledges_nothing_and_then_come_in_order() {
    let (mut world, client) = connected();
    // 60 KB each: two fit the engine's buffer, the others wait in the session.
    let events: Vec<_> = (0..5)
        .map(|n| format!("{{\"type\":\"{n}\",\"pad\":\"{}\"}}", "z".repeat(60_000)))
        .collect();
    for event in &events {
        let now = world.now;
        world.clients[client].say(now, event.as_bytes(), false);
        world.run(Duration::from_millis(400));
    }
    world.run(Duration::from_secs(5));
    assert_eq!(world.clients[client].messages[1..], events);
    let summary = world
        .shard
        .inspect(world.now, world.clients[client].session)
        .unwrap();
    assert_eq!(summary.replies_dropped, 0);
}

/// Answers each event with more than anyone can take.
#[derive(Default)]
struct Flood(Echo);

impl Backend for Flood {
    fn handle(&mut self, now: Instant, input: Input<'_>, actions: &mut Actions) {
        let Input::ClientEvent(event) = input else {
            return self.0.handle(now, input, actions);
        };
        for n in 0..200 {
            let pad = "z".repeat(10_000);
            actions.say(
                event.from,
                format!("{{\"type\":\"{n}\",\"pad\":\"{pad}\"}}"),
            );
        }
    }
}

#[test]
fn a_flood_of_events_is_bounded_counted_and_does_not_touch_the_audio() {
    let mut world = World::new();
    let session = world.reference();
    let client = Client::new(world.now, "192.0.2.10:5000");
    let client = world.call_with(session, client, Box::new(Flood::default()));
    world.connect();
    let now = world.now;
    world.clients[client].say(now, br#"{"type":"x"}"#, false);
    for n in 0..100 {
        let now = world.now;
        world.clients[client].speak(now, &opus(n));
        world.run(PACKET);
    }
    assert_eq!(world.clients[client].heard.len(), 100);
    let summary = world.shard.inspect(world.now, session).unwrap();
    let came = world.clients[client].messages.len() as u64 - 1;
    assert!(came >= 25, "the first 256 KiB come: {came} events of 10 KB");
    assert_eq!(came + summary.replies_dropped, 200);
    for (n, event) in world.clients[client].events()[1..].iter().enumerate() {
        assert_eq!(event["type"], n.to_string());
    }
}

#[test]
fn an_update_of_the_session_is_answered_with_what_it_has_become() {
    let (mut world, client) = connected();
    for update in [
        r#"{"type":"session.update","session":{"audio":{"output":{"voice":"a"}},"n":1}}"#,
        r#"{"type":"session.update","session":{"audio":{"output":{"speed":2}}}}"#,
    ] {
        say(&mut world, client, update.as_bytes());
    }
    let events = world.clients[client].events();
    let kinds: Vec<_> = events.iter().map(|event| &event["type"]).collect();
    assert_eq!(
        kinds,
        ["session.created", "session.updated", "session.updated"]
    );
    let session = &events[2]["session"];
    assert_eq!(session["id"], "sess_test");
    assert_eq!(session["n"], 1);
    let output = serde_json::json!({ "voice": "a", "speed": 2 });
    assert_eq!(session["audio"]["output"], output);

    // What is no update of a session comes back like any other event.
    let odd = r#"{"type":"session.update","session":7}"#;
    say(&mut world, client, odd.as_bytes());
    let last = world.clients[client].messages.last();
    assert_eq!(last.map(String::as_str), Some(odd));
}

#[test]
fn the_label_makes_no_difference() {
    for label in ["", "chat", "oai-events", "\u{1f600}"] {
        let mut world = World::new();
        let shape = Shape {
            label,
            ..Shape::default()
        };
        let client = world.call_shaped("192.0.2.10:5000", shape);
        world.run_until("the channel opens", |world| {
            world.clients[client].channel.is_some()
        });
        let now = world.now;
        world.clients[client].say(now, br#"{"type":"first"}"#, false);
        world.run(Duration::from_millis(100));
        let events = world.clients[client].events();
        let types: Vec<_> = events.iter().map(|event| event["type"].clone()).collect();
        assert_eq!(types, ["session.created", "first"], "{label:?}");
    }
}

#[test]
fn a_client_that_floods_its_channel_still_hears_itself() {
    let (mut world, client) = connected();
    for n in 0..100u8 {
        let now = world.now;
        let channel = world.clients[client].channel.unwrap();
        let pad = "z".repeat(15_000);
        let event = format!("{{\"type\":\"{n}\",\"pad\":\"{pad}\"}}");
        // As much as its own buffer takes.
        if let Some(mut channel) = world.clients[client].rtc.channel(channel) {
            let _ = channel.write(false, event.as_bytes());
        }
        world.clients[client].speak(now, &opus(n));
        world.run(PACKET);
    }
    assert_eq!(world.clients[client].heard.len(), 100);
    assert_eq!(world.shard.session_count(), 1);
}
