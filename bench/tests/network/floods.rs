//! Floods of well-formed STUN from 200,000 addresses, while one call goes on. The relay answers no
//! stranger, keeps the memory that its configuration gives it, and loses nothing of the call.
//!
//! The call paces the flood: after each part of it, one packet goes each way and is waited for.
//! Every datagram of a flood is thus received, and the counters must say what became of it.

use syrinx_bench::process::Exposition;

use crate::caller::{Caller, check};
use crate::ground::{Ground, Options, drops, flows, total};
use crate::strangers::Strangers;

const STRANGERS: u32 = 200_000;
/// Datagrams of the flood between two packets of the call: they fit the smallest receive buffer
/// that a system without privileges grants.
const PART: u32 = 100;
/// Rounds before memory is first measured: every buffer that is used in turn was used by then.
const WARM_UP: u32 = 200;

const FLOW_COUNT_MAX: u32 = 4_096;
const PREFIX_COUNT_MAX: u32 = 8_192;
const FLOWS: &str = "idle_timeout_ms = 600_000\ncount_max_per_worker = 4_096\n\
                     prefix_count_max = 8_192\nnew_total_burst = 10_000\n\
                     new_total_per_second = 1_000";
/// A flow and its index entry, as the configuration's documentation has it.
const FLOW_BYTES: u64 = 80;
/// A prefix's bucket in two generations of a table that is at most half empty.
const PREFIX_BYTES: u64 = 2 * 2 * 48;
/// What the relay may otherwise touch for the first time: its allocator's arenas, the answers of
/// its admin server. Less than 200,000 flows (13.6 MB) or prefixes (8 MB) would take.
const OTHER_BYTES: u64 = 4 << 20;
const GROWTH_MAX: u64 =
    FLOW_COUNT_MAX as u64 * FLOW_BYTES + PREFIX_COUNT_MAX as u64 * PREFIX_BYTES + OTHER_BYTES;
const _: () = assert!(GROWTH_MAX < STRANGERS as u64 * 40);

/// A relay with an established call, warm.
fn established() -> (Ground, Caller) {
    let mut ground = Ground::start(&Options {
        flows: FLOWS,
        ..Options::default()
    });
    let caller = ground.caller(1);
    caller.connect(&mut ground.transceivers[0]);
    let strangers = Strangers::new(ground.public());
    for round in 0..WARM_UP {
        for _ in 0..10 {
            strangers.send(0, b"not even STUN");
        }
        caller.converse(&mut ground.transceivers[0], round);
    }
    (ground, caller)
}

/// Sends what `datagram` makes from 200,000 addresses, and gives the counters when all is judged.
fn flood(
    ground: &mut Ground,
    caller: &Caller,
    mut datagram: impl FnMut(u32) -> Vec<u8>,
) -> Exposition {
    let strangers = Strangers::new(ground.public());
    let before = ground.resident_bytes();
    for part in 0..STRANGERS / PART {
        for index in part * PART..(part + 1) * PART {
            strangers.send(index, &datagram(index));
        }
        caller.converse(&mut ground.transceivers[0], part);
        if part % 500 == 499 {
            let flows = flows(&ground.relay.metrics().unwrap());
            assert!(flows <= f64::from(FLOW_COUNT_MAX), "{flows} flows");
        }
    }
    let all = 1 + WARM_UP * 11 + STRANGERS + STRANGERS / PART;
    let exposition = ground.settle_clients(all);
    let grown = ground.resident_bytes().saturating_sub(before);
    assert!(
        grown <= GROWTH_MAX,
        "{grown} bytes more, at most {GROWTH_MAX}"
    );
    assert_eq!(strangers.answers(), 0, "a stranger was answered");
    assert_eq!(caller.drain(), 0, "the caller heard more than its own");
    let spoken = WARM_UP + STRANGERS / PART;
    assert_eq!(total(&exposition, "records"), f64::from(spoken));
    let to_client = [("direction", "to_client")];
    let forwarded = exposition.sum("syrinx_relay_forwarded_total", &to_client);
    assert_eq!(
        forwarded,
        f64::from(spoken),
        "all answers, to the caller alone"
    );
    exposition
}

#[test]
fn a_flood_of_unknown_ufrags_leaves_no_trace() {
    let (mut ground, caller) = established();
    let (_, minted) = ground.session(1, 2);
    let ufrag = *minted.ufrag.as_bytes();
    let template = check(&minted, &minted.password);
    let at = template.windows(32).position(|window| window == ufrag);
    let at = at.expect("a check names its ufrag");
    let exposition = flood(&mut ground, &caller, |index| {
        // Ufrags of this cluster and a live epoch, each with a tag that nobody made: characters 4
        // to 9 are six of its seven, and differ from every other's.
        let mut request = template.clone();
        for (place, byte) in request[at + 4..at + 10].iter_mut().enumerate() {
            *byte = b'a' + (index >> (4 * place) & 15) as u8;
        }
        request
    });
    assert_eq!(drops(&exposition, "ufrag_tag"), f64::from(STRANGERS));
    assert_eq!(flows(&exposition), 1.0);
    assert_eq!(total(&exposition, "flows_created"), 1.0);
    assert!(ground.relay.stop().unwrap().success());
}

#[test]
fn a_flood_of_a_live_ufrag_with_wrong_integrity_leaves_no_trace() {
    let (mut ground, caller) = established();
    // The very ufrag of the call, as one may see it on the wire.
    let (_, minted) = ground.session(1, 1);
    let exposition = flood(&mut ground, &caller, |_| {
        check(&minted, b"not the password")
    });
    assert_eq!(drops(&exposition, "integrity"), f64::from(STRANGERS));
    assert_eq!(flows(&exposition), 1.0);
    assert_eq!(total(&exposition, "flows_created"), 1.0);
    assert!(ground.relay.stop().unwrap().success());
}

#[test]
fn a_flood_of_one_valid_check_replayed_is_bounded_and_spares_the_call() {
    let (mut ground, caller) = established();
    let (_, minted) = ground.session(1, 2);
    let captured = check(&minted, &minted.password);
    let exposition = flood(&mut ground, &caller, |_| captured.clone());
    let made = total(&exposition, "flows_created");
    let evicted = total(&exposition, "flows_evicted");
    let refused = drops(&exposition, "admission_prefix") + drops(&exposition, "admission_total");
    assert_eq!(made - 1.0 + refused, f64::from(STRANGERS));
    assert_eq!(made - evicted, f64::from(FLOW_COUNT_MAX));
    assert_eq!(flows(&exposition), f64::from(FLOW_COUNT_MAX));
    assert!(refused > f64::from(STRANGERS / 2), "{refused} refused");
    assert!(ground.relay.stop().unwrap().success());
}
