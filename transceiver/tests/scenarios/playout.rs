//! What a backend says in bursts reaches the client paced, once it can hear, and stops at once.

use super::support::*;
use std::time::{Duration, Instant};
use syrinx_transceiver::backend::{Actions, Addressee, Backend, Input};
use syrinx_transceiver::playout::{Frame, PlayoutEvent, SegmentId};
use syrinx_transceiver::session::EndReason;

/// Has two seconds to say from the very beginning, and stops at any event of the client.
struct Speaker;

const FRAMES: u8 = 100;

impl Backend for Speaker {
    fn handle(&mut self, _: Instant, input: Input<'_>, actions: &mut Actions) {
        match input {
            Input::Start => {
                for n in 0..FRAMES {
                    actions.play(Frame {
                        segment: SegmentId(1),
                        payload: opus(n).into(),
                        samples: 960,
                        content: 960,
                        is_live: false,
                    });
                }
                actions.end_segment(SegmentId(1));
            }
            Input::ChannelOpen(channel) => actions.greet(Addressee::Channel(channel)),
            Input::ClientEvent(_) => {
                let flushed = actions.playout().flush();
                let samples = flushed.playing.map_or(0, |playing| playing.samples);
                let event = format!("{{\"type\":\"flushed\",\"samples\":{samples}}}");
                actions.say(Addressee::Client, event);
            }
            Input::Playout(PlayoutEvent::Ended(played)) => {
                assert_eq!(played.samples, u64::from(FRAMES) * 960);
                actions.close(EndReason::BackendClosed);
            }
            _ => {}
        }
    }
}

fn call() -> World {
    let mut world = World::new();
    let session = world.reference();
    let client = Client::new(world.now, "192.0.2.10:5000");
    world.call_with(session, client, Box::new(Speaker));
    world
}

#[test]
fn the_first_word_waits_for_the_client_and_none_is_lost() {
    let mut world = call();
    world.connect();
    world.run(Duration::from_millis(2_100));
    let heard = &world.clients[0].heard;
    let payloads: Vec<_> = heard.iter().map(|packet| packet.payload.to_vec()).collect();
    assert_eq!(payloads, (0..FRAMES).map(opus).collect::<Vec<_>>());
    for pair in heard.windows(2) {
        assert_eq!(*pair[1].seq_no - *pair[0].seq_no, 1);
        assert_eq!(
            pair[1].header.timestamp - pair[0].header.timestamp,
            PACKET_SAMPLES
        );
        // The shard is woken on the scenario's grid of five milliseconds.
        let spacing = pair[1].timestamp - pair[0].timestamp;
        assert!(
            spacing >= PACKET - TICK && spacing <= PACKET + TICK,
            "{spacing:?}"
        );
    }
    let markers = heard.iter().filter(|packet| packet.header.marker).count();
    assert_eq!((markers, heard[0].header.marker), (1, true));
    assert_eq!(world.shard.counters().ended(EndReason::BackendClosed), 1);
}

#[test]
fn a_flush_lets_no_further_packet_out_and_knows_how_much_was_sent() {
    let mut world = call();
    world.connect();
    world.run(Duration::from_millis(500));
    let now = world.now;
    world.clients[0].say(now, br#"{"type":"hush"}"#, false);
    world.run(TICK + TICK);
    let heard = world.clients[0].heard.len();
    world.run(Duration::from_secs(1));
    let client = &world.clients[0];
    assert_eq!(client.heard.len(), heard, "nothing after the flush");
    let flushed = client.events().pop().unwrap();
    assert_eq!(flushed["samples"], heard as u64 * 960);
}

#[test]
fn a_client_that_takes_no_audio_is_played_nothing_and_nothing_counts_as_sent() {
    let mut world = World::new();
    let session = world.reference();
    let shape = Shape {
        audio: Some(str0m::media::Direction::SendOnly),
        ..Shape::default()
    };
    let client = Client::with(world.now, "192.0.2.10:5000", shape);
    world.call_with(session, client, Box::new(Speaker));
    world.connect();
    world.run(Duration::from_millis(500));
    let now = world.now;
    world.clients[0].say(now, br#"{"type":"hush"}"#, false);
    world.run(Duration::from_millis(100));
    let flushed = world.clients[0].events().pop().unwrap();
    assert_eq!(flushed["samples"], 0);
    assert!(world.clients[0].heard.is_empty());
}

/// Speaks for an hour, ten seconds at a time and always some ahead.
struct Orator {
    said: u32,
    next: Option<Instant>,
}

const HOUR_FRAMES: u32 = 3_600 * 50;
const PIECE_FRAMES: u32 = 500;

impl Backend for Orator {
    fn handle(&mut self, now: Instant, input: Input<'_>, actions: &mut Actions) {
        if !matches!(input, Input::MediaReady | Input::Timeout) {
            return;
        }
        let pieces = if self.said == 0 { 2 } else { 1 };
        for _ in 0..(pieces * PIECE_FRAMES).min(HOUR_FRAMES - self.said) {
            actions.play(Frame {
                segment: SegmentId(1),
                payload: opus(self.said as u8).into(),
                samples: 960,
                content: 960,
                is_live: false,
            });
            self.said += 1;
        }
        let more = self.said < HOUR_FRAMES;
        self.next = more.then(|| now + PACKET * PIECE_FRAMES);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }
}

#[test]
fn an_hour_of_speech_neither_drifts_nor_bursts_though_the_worker_is_late_now_and_then() {
    let mut world = World::new();
    let session = world.reference();
    let client = Client::new(world.now, "192.0.2.10:5000");
    let orator = Orator {
        said: 0,
        next: None,
    };
    world.call_with(session, client, Box::new(orator));
    world.run_until("he begins", |world| !world.clients[0].heard.is_empty());
    let late = Duration::from_millis(45);
    for _ in 0..60 {
        world.run(Duration::from_secs(60) - late);
        // Nobody is woken.
        world.now += late;
    }
    world.run(PACKET);
    let heard = &world.clients[0].heard;
    assert_eq!(heard.len(), HOUR_FRAMES as usize);
    let first = &heard[0];
    for (n, packet) in (0u32..).zip(heard) {
        assert_eq!(*packet.seq_no - *first.seq_no, u64::from(n));
        let samples = packet.header.timestamp.wrapping_sub(first.header.timestamp);
        assert_eq!(samples, n * PACKET_SAMPLES);
        assert_eq!(packet.header.marker, n == 0, "one talk spurt");
        let due = first.timestamp + PACKET * n;
        assert!(packet.timestamp + TICK >= due, "packet {n} is early");
        let behind = packet.timestamp.saturating_duration_since(due);
        assert!(behind <= late + TICK, "packet {n} is {behind:?} behind");
    }
    let spacing = heard
        .windows(2)
        .map(|pair| pair[1].timestamp - pair[0].timestamp);
    assert!(spacing.min() >= Some(PACKET / 2 - TICK), "no burst");
    let took = heard[heard.len() - 1].timestamp - first.timestamp;
    let due = PACKET * (HOUR_FRAMES - 1);
    assert!(
        took.abs_diff(due) <= late + TICK,
        "{took:?} instead of {due:?}"
    );
}
