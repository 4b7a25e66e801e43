//! What a backend hears of the caller: packets in order, what is missing between them, and keys.

use super::support::*;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use syrinx_transceiver::backend::{Actions, Backend, Input};

/// Writes down what it is told of audio: `audio@0+960`, `lost@960+960`, `dtx@..`, `key5@..`.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<String>>>);

impl Backend for Ear {
    fn handle(&mut self, _: Instant, input: Input<'_>, _: &mut Actions) {
        let heard = match input {
            Input::Audio(audio) => {
                let level = audio.packet.level_dbov;
                let level = level.map(|level| format!(" at {level}"));
                let level = level.unwrap_or_default();
                format!("audio@{}+{}{level}", audio.at, audio.samples)
            }
            Input::Gap(gap) => {
                let kind = format!("{:?}", gap.kind).to_lowercase();
                format!("{kind}@{}+{}", gap.at, gap.samples)
            }
            Input::Key(key) => format!("key{}@{}", key.key, key.at),
            _ => return,
        };
        self.0.lock().unwrap().push(heard);
    }
}

impl Ear {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn listening(shape: Shape) -> (World, usize, Ear) {
    let mut world = World::new();
    let session = world.reference();
    let client = Client::with(world.now, "192.0.2.10:5000", shape);
    let ear = Ear::default();
    let client = world.call_with(session, client, Box::new(ear.clone()));
    world.run_until("the client connects", |world| {
        world.clients[client].connected
    });
    (world, client, ear)
}

fn speak(world: &mut World, client: usize, payload: &[u8]) {
    let now = world.now;
    world.clients[client].speak(now, payload);
}

#[test]
fn what_the_network_swaps_is_put_back_and_what_it_loses_is_told() {
    let (mut world, client, ear) = listening(Shape::default());
    for n in 0..3 {
        speak(&mut world, client, &opus(n));
    }
    world.clients[client].outgoing.swap(1, 2);
    world.run(PACKET);
    assert_eq!(
        ear.take(),
        ["audio@0+960", "audio@960+960", "audio@1920+960"]
    );
    for n in 0..3 {
        speak(&mut world, client, &opus(n));
    }
    let lost = world.clients[client].outgoing.remove(1);
    assert!(lost.is_some());
    world.run(PACKET * 2);
    assert_eq!(
        ear.take(),
        ["audio@2880+960"],
        "the rest waits for the one before it"
    );
    world.run(PACKET * 2);
    assert_eq!(ear.take(), ["lost@3840+960", "audio@4800+960"]);
    let session = world.clients[client].session;
    let repairs = world.shard.inspect(world.now, session).unwrap().repairs;
    assert_eq!((repairs.reordered, repairs.lost_samples), (1, 960));
}

#[test]
fn a_muted_microphone_is_silence_and_not_loss() {
    let (mut world, client, ear) = listening(Shape::default());
    speak(&mut world, client, &opus(1));
    world.run(Duration::from_secs(2));
    world.clients[client].stay_silent(99);
    speak(&mut world, client, &opus(2));
    world.run(TICK);
    assert_eq!(
        ear.take(),
        ["audio@0+960", "dtx@960+95040", "audio@96000+960"]
    );
}

#[test]
fn sequence_numbers_wrap_and_timestamps_wrap_without_a_trace() {
    let (mut world, client, ear) = listening(Shape::default());
    // Both are 10 packets before their ends.
    world.clients[client].jump(65_526 - 30_000, u32::MAX - 123_456 - 9_600);
    for n in 0..40 {
        speak(&mut world, client, &opus(n));
        world.run(PACKET);
    }
    let want: Vec<_> = (0..40).map(|n| format!("audio@{}+960", n * 960)).collect();
    assert_eq!(ear.take(), want);
}

#[test]
fn a_jump_of_all_numbers_goes_on_where_the_line_was() {
    let (mut world, client, ear) = listening(Shape::default());
    speak(&mut world, client, &opus(1));
    world.run(PACKET);
    world.clients[client].jump(20_000, 1_000_000_000);
    for n in 0..2 {
        speak(&mut world, client, &opus(n));
        world.run(PACKET);
    }
    assert_eq!(
        ear.take(),
        ["audio@0+960", "audio@960+960", "audio@1920+960"]
    );
}

#[test]
fn another_source_goes_on_where_the_line_was_whether_it_is_named_or_not() {
    for mid in [true, false] {
        let (mut world, client, ear) = listening(Shape {
            mid,
            ..Shape::default()
        });
        for n in 0..4 {
            speak(&mut world, client, &opus(n));
            world.run(PACKET);
        }
        for ssrc in [0xffff_fff0, 0x1234_5678, 7] {
            world.clients[client].change_source(ssrc);
            for n in 0..2 {
                speak(&mut world, client, &opus(n));
                world.run(PACKET);
            }
        }
        let want: Vec<_> = (0..10).map(|n| format!("audio@{}+960", n * 960)).collect();
        assert_eq!(ear.take(), want, "mid: {mid}");
        let session = world.clients[client].session;
        let summary = world.shard.inspect(world.now, session).unwrap();
        assert_eq!((summary.repairs.jumps, summary.reception.lost()), (3, 0));
    }
}

#[test]
fn how_loud_a_caller_says_he_is_is_told_with_each_packet() {
    let (mut world, client, ear) = listening(Shape::default());
    for level in [Some(-3), None, Some(-127), Some(0)] {
        world.clients[client].level_dbov = level;
        speak(&mut world, client, &opus(1));
        world.run(PACKET);
    }
    let want = [
        "audio@0+960 at -3",
        "audio@960+960",
        "audio@1920+960 at -127",
        "audio@2880+960 at 0",
    ];
    assert_eq!(ear.take(), want);
}

#[test]
fn every_length_of_frame_has_its_own_place() {
    let (mut world, client, ear) = listening(Shape::default());
    // 2.5, 5, 10, 20, 40, 60 and 120 ms, by their table-of-contents bytes.
    let frames = [
        (vec![16 << 3, 1], 120u32),
        (vec![17 << 3, 1], 240),
        (vec![18 << 3, 1], 480),
        (vec![19 << 3, 1], 960),
        (vec![2 << 3, 1], 1_920),
        (vec![3 << 3, 1], 2_880),
        (vec![(3 << 3) | 1, 1, 1], 5_760),
    ];
    let (mut at, mut want) = (0, Vec::new());
    for (frame, samples) in frames {
        let now = world.now;
        world.clients[client].send(now, OPUS, &frame, false);
        world.clients[client].jump(1, samples);
        world.run(Duration::from_micros(u64::from(samples) * 1_000 / 48));
        want.push(format!("audio@{at}+{samples}"));
        at += samples;
    }
    assert_eq!(ear.take(), want);
}

#[test]
fn a_key_is_told_once_though_its_packets_are_many() {
    let (mut world, client, ear) = listening(Shape::default());
    speak(&mut world, client, &opus(1));
    world.run(PACKET);
    // Key 5 for 100 ms: its packets share a timestamp, and the last comes three times.
    for n in 1..8u8 {
        let end = if n > 4 { 0x80 } else { 0 };
        let duration = u16::from(n.min(5)) * 160;
        let [high, low] = duration.to_be_bytes();
        let now = world.now;
        world.clients[client].send(now, KEYS, &[5, end | 10, high, low], n == 1);
        world.clients[client].jump(1, 0);
        world.run(PACKET);
    }
    world.clients[client].jump(0, 7 * PACKET_SAMPLES);
    speak(&mut world, client, &opus(2));
    world.run(PACKET);
    assert_eq!(
        ear.take(),
        ["audio@0+960", "key5@960", "dtx@960+6720", "audio@7680+960"]
    );
}

#[test]
fn a_client_without_opus_is_heard_and_played_to_in_g711() {
    let g711 = Shape {
        opus: false,
        ..Shape::default()
    };
    let (mut world, client, ear) = listening(g711);
    for _ in 0..3 {
        let now = world.now;
        world.clients[client].send(now, PCMU, &[0xff; 160], false);
        world.clients[client].jump(1, 160);
        world.run(PACKET);
    }
    assert_eq!(
        ear.take(),
        ["audio@0+960", "audio@960+960", "audio@1920+960"]
    );

    let mut world = World::new();
    let session = world.reference();
    let caller = Client::with(world.now, "192.0.2.10:5000", g711);
    let echo = Box::new(syrinx_transceiver::backend::echo::Echo::default());
    let client = world.call_with(session, caller, echo);
    world.connect();
    for n in 0..5u8 {
        let now = world.now;
        world.clients[client].send(now, PCMU, &[n; 160], false);
        world.clients[client].jump(1, 160);
        world.run(PACKET);
    }
    let heard = &world.clients[client].heard;
    assert_eq!(heard.len(), 5);
    for pair in heard.windows(2) {
        assert_eq!(pair[1].header.timestamp - pair[0].header.timestamp, 160);
        assert_eq!(*pair[1].header.payload_type, PCMU);
    }
}
