//! The caller hears himself: payloads untouched, numbers that run on, nobody else's voice.

use super::support::*;

fn payloads(client: &Client) -> Vec<Vec<u8>> {
    client
        .heard
        .iter()
        .map(|packet| packet.payload.to_vec())
        .collect()
}

#[test]
fn the_echo_plays_every_packet_back_in_its_own_numbers() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    for n in 0..50 {
        let now = world.now;
        world.clients[client].speak(now, &opus(n));
        world.run(PACKET);
    }
    let client = &world.clients[client];
    assert_eq!(payloads(client), (0..50).map(opus).collect::<Vec<_>>());
    for pair in client.heard.windows(2) {
        assert_eq!(*pair[1].seq_no - *pair[0].seq_no, 1);
        assert_eq!(
            pair[1].header.timestamp - pair[0].header.timestamp,
            PACKET_SAMPLES
        );
        assert_eq!(pair[1].header.ssrc, pair[0].header.ssrc);
    }
    let markers: Vec<_> = client
        .heard
        .iter()
        .map(|packet| packet.header.marker)
        .collect();
    assert_eq!(markers.iter().filter(|&&marker| marker).count(), 1);
    assert!(markers[0]);
    let summary = world.shard.inspect(world.now, client.session).unwrap();
    assert_eq!(
        (summary.reception.packets, summary.reception.lost()),
        (50, 0)
    );
    assert_eq!(summary.counts.audio_out_packets, 50);
    assert!(
        summary.reception.jitter_ms < 5.1,
        "{}",
        summary.reception.jitter_ms
    );
}

#[test]
fn a_lost_packet_is_a_gap_and_silence_is_not() {
    let mut world = World::new();
    let client = world.call("192.0.2.10:5000");
    world.connect();
    let say = |world: &mut World, n: u8| {
        let now = world.now;
        world.clients[client].speak(now, &opus(n));
        world.run(PACKET);
    };
    say(&mut world, 1);
    world.clients[client].skip_packets(2);
    say(&mut world, 2);
    world.run(PACKET * 100);
    world.clients[client].stay_silent(100);
    say(&mut world, 3);
    let heard = &world.clients[client].heard;
    let steps: Vec<_> = heard
        .windows(2)
        .map(|pair| {
            let samples = pair[1].header.timestamp - pair[0].header.timestamp;
            (
                *pair[1].seq_no - *pair[0].seq_no,
                samples / PACKET_SAMPLES,
                pair[1].header.marker,
            )
        })
        .collect();
    assert_eq!(steps, [(3, 3, false), (1, 101, true)]);
    let summary = world
        .shard
        .inspect(world.now, world.clients[client].session)
        .unwrap();
    assert_eq!(summary.reception.lost(), 2);
}

#[test]
fn sessions_do_not_hear_each_other() {
    let mut world = World::new();
    for port in 5000..5008 {
        world.call(&format!("192.0.2.10:{port}"));
    }
    world.connect();
    for n in 0..10 {
        for at in 0..world.clients.len() {
            let now = world.now;
            world.clients[at].speak(now, &[31 << 3, n, at as u8]);
        }
        world.run(PACKET);
    }
    for (at, client) in world.clients.iter().enumerate() {
        let own: Vec<_> = (0..10).map(|n| vec![31 << 3, n, at as u8]).collect();
        assert_eq!(payloads(client), own, "client {at}");
        assert_eq!(client.messages.len(), 1, "client {at}");
    }
    assert!(world.strays.is_empty());
}
