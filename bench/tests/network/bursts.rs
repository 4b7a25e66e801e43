//! Ten thousand datagrams at once: receive buffers overflow, the ring runs out of buffers, and
//! afterwards both directions carry packets as before. What was lost meanwhile is lost in the
//! kernel's count, not in the dark.
//!
//! The relay is stopped while a burst is sent: no sender is fast enough to be sure of being faster
//! than it, and a relay whose core is taken from it for a while meets the same.

use std::thread;

use nix::sys::signal::Signal;
use syrinx_bench::process::Exposition;

use crate::caller::{Caller, speech};
use crate::ground::{Ground, Options, total};
use crate::transceiver::Arrival;

const BURST: u32 = 10_000;
/// A receive buffer that no burst fits.
const TINY_BYTES: usize = 64 << 10;

#[test]
fn no_direction_falls_silent_after_bursts_on_the_ring() {
    let exposition = survives_bursts("ring", Options::default().receive_buffer_bytes);
    // Otherwise the bursts did not reach what this test is about.
    let exhausted = total(&exposition, "buffers_exhausted");
    assert!(exhausted > 0.0, "the ring never ran out of buffers");
}

#[test]
fn no_direction_falls_silent_after_bursts_on_recvmmsg() {
    survives_bursts("mmsg", Options::default().receive_buffer_bytes);
}

#[test]
fn bursts_that_overflow_a_tiny_receive_buffer_are_counted_to_the_last_datagram_on_the_ring() {
    assert_overflowed(&survives_bursts("ring", TINY_BYTES));
}

#[test]
fn bursts_that_overflow_a_tiny_receive_buffer_are_counted_to_the_last_datagram_on_recvmmsg() {
    assert_overflowed(&survives_bursts("mmsg", TINY_BYTES));
}

fn assert_overflowed(exposition: &Exposition) {
    assert!(kernel_drops(exposition, false) > f64::from(BURST));
    assert!(kernel_drops(exposition, true) > f64::from(BURST));
}

/// Bursts up, down, and both at once; the counters after them.
fn survives_bursts(io_model: &'static str, receive_buffer_bytes: usize) -> Exposition {
    let mut ground = Ground::start(&Options {
        io_model,
        receive_buffer_bytes,
        ..Options::default()
    });
    let caller = ground.caller(1);
    let path = caller.connect(&mut ground.transceivers[0]);
    let mut sent = Sent {
        uplink: 1,
        downlink: 0,
    };
    for (uplink, downlink) in [(BURST, 0), (0, BURST), (BURST, BURST)] {
        ground.signal(Signal::SIGSTOP);
        burst(&ground, &caller, &path, (uplink, downlink));
        ground.signal(Signal::SIGCONT);
        sent.uplink += uplink;
        sent.downlink += downlink;
        still_carries_both_ways(&mut ground, &caller, &mut sent);
    }
    let exposition = settle(&mut ground, &sent);
    assert!(ground.relay.stop().unwrap().success());
    exposition
}

fn burst(ground: &Ground, caller: &Caller, path: &Arrival, (uplink, downlink): (u32, u32)) {
    let transceiver = &ground.transceivers[0];
    thread::scope(|scope| {
        scope.spawn(|| (0..uplink).for_each(|number| caller.speak(&speech(number))));
        (0..downlink).for_each(|number| transceiver.send(path, &speech(number)));
    });
}

/// Datagrams sent to the relay so far.
struct Sent {
    uplink: u32,
    downlink: u32,
}

fn still_carries_both_ways(ground: &mut Ground, caller: &Caller, sent: &mut Sent) {
    settle(ground, sent);
    // What was published was sent before: it is here, as far as the sockets had room for it.
    ground.transceivers[0].drain();
    caller.drain();
    for number in 0..100 {
        caller.converse(&mut ground.transceivers[0], BURST + number);
    }
    sent.uplink += 100;
    sent.downlink += 100;
}

/// Waits until every datagram has come out of the relay or is in the kernel's count of those that
/// never came in.
fn settle(ground: &mut Ground, sent: &Sent) -> Exposition {
    let (uplink, downlink) = (f64::from(sent.uplink), f64::from(sent.downlink));
    let exposition = ground.settle("the burst's end", |exposition| {
        let client_drops = kernel_drops(exposition, false);
        let inner_drops = kernel_drops(exposition, true);
        total(exposition, "client_datagrams") + client_drops == uplink
            && total(exposition, "inner_datagrams") + inner_drops == downlink
    });
    assert_eq!(exposition.sum("syrinx_relay_drops_total", &[]), 0.0);
    exposition
}

/// Datagrams that the kernel dropped before the relay saw them, of the inner or the public socket.
fn kernel_drops(exposition: &Exposition, inner: bool) -> f64 {
    exposition
        .by("syrinx_relay_socket_kernel_dropped_total", "socket")
        .iter()
        .filter(|(socket, _)| (*socket == "inner") == inner)
        .map(|(_, count)| count)
        .sum()
}
