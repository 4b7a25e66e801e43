//! What the two sides tell each other of how the audio arrives.

use super::support::*;
use std::time::Duration;

#[test]
fn round_trip_jitter_and_loss_of_both_directions_are_known() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    let session = world.clients[client].session;
    let before = world.shard.inspect(world.now, session).unwrap().delivery;
    assert!(!before.is_reported);
    for n in 0..800u16 {
        match n {
            100 => world.clients[client].misses = 7,
            300 => world.clients[client].skip_packets(3),
            _ => {}
        }
        let now = world.now;
        world.clients[client].speak(now, &opus(n as u8));
        world.run(PACKET);
    }
    let summary = world.shard.inspect(world.now, session).unwrap();
    assert_eq!(summary.reception.lost(), 3);
    assert_eq!(summary.repairs.lost_samples, 3 * u64::from(PACKET_SAMPLES));
    let delivery = summary.delivery;
    assert!(delivery.is_reported);
    // The three that were lost on the way in are missing in the echo too.
    assert_eq!(delivery.lost_packets, 7 + 3);
    let round_trip = delivery.round_trip.expect("measured");
    assert!(round_trip <= Duration::from_millis(30), "{round_trip:?}");
    assert!(delivery.round_trip_min <= delivery.round_trip);
    let jitter_ms = delivery.jitter_ms.expect("reported");
    assert!((0.0..30.0).contains(&jitter_ms), "{jitter_ms}");
}
