//! A relay that is killed in the middle of calls and started again knows nothing. The sessions'
//! own packets, which carry proof of their flows, bring the flows back before any client checks.

use crate::caller::Caller;
use crate::ground::{Ground, Options, drops, flows, total};
use crate::transceiver::Arrival;

const CALLS: u32 = 8;

#[test]
fn a_killed_relay_heals_every_call_from_the_transceivers_next_packet() {
    let mut ground = Ground::start(&Options {
        workers: 2,
        ..Options::default()
    });
    let callers: Vec<Caller> = (0..CALLS).map(|slot| ground.caller(slot)).collect();
    let paths: Vec<Arrival> = callers
        .iter()
        .map(|caller| {
            caller.connect(&mut ground.transceivers[0]);
            caller.converse(&mut ground.transceivers[0], 1)
        })
        .collect();

    ground.relay.kill();
    // Both sides go on speaking into the void.
    for (caller, path) in callers.iter().zip(&paths) {
        caller.speak(b"\x80 unheard");
        ground.transceivers[0].send(path, b"unheard");
    }
    ground.relay.restart().unwrap();

    for (caller, path) in callers.iter().zip(&paths) {
        ground.transceivers[0].send(path, b"still here");
        assert_eq!(caller.hear(), b"still here");
    }
    for number in 2..20 {
        for caller in &callers {
            caller.converse(&mut ground.transceivers[0], number);
        }
    }
    let exposition = ground.settle_clients(CALLS * 18);
    assert_eq!(total(&exposition, "flows_healed"), f64::from(CALLS));
    assert_eq!(flows(&exposition), f64::from(CALLS));
    assert_eq!(drops(&exposition, "no_flow"), 0.0);
    assert!(ground.relay.stop().unwrap().success());
}
