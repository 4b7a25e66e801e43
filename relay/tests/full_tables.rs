//! Full is a verdict: admission by prefix and in total, eviction that spares answered flows.

mod support;

use support::*;
use syrinx_relay::forwarder::admission::{AdmissionOptions, Rate};
use syrinx_relay::forwarder::{ClientVerdict, Counters, DropReason, ForwarderOptions};
use syrinx_shared::route::ClientSocket;

fn small(flow_count_max: u32) -> ForwarderOptions {
    ForwarderOptions {
        flow_count_max,
        ..options()
    }
}

fn answer(bench: &mut Bench, client: ClientSocket, session: &Session) {
    let bytes = bundle(&[(bench.header_to(client, session).to_raw(), b"answer")]);
    assert_eq!(bench.from_transceiver(&bytes).len(), 1);
}

#[test]
fn answered_flows_survive_any_number_of_valid_replays_from_other_addresses() {
    let mut bench = Bench::with(small(100));
    let session = bench.session(5, 1);
    for index in 0..50 {
        forwarded(bench.check(nth_client(index), &session));
        answer(&mut bench, nth_client(index), &session);
    }
    let delta = bench.delta(|bench| {
        for index in 1_000..201_000 {
            forwarded(bench.check(nth_client(index), &session));
        }
    });
    assert_eq!(delta.flows_created, 200_000);
    assert_eq!(delta.flows_evicted, 200_000 - 50);
    assert_eq!(bench.forwarder.flow_count(), 100);
    for index in 0..50 {
        forwarded(bench.from_client(nth_client(index), RTP));
    }
}

#[test]
fn a_table_full_of_answered_flows_refuses_the_next() {
    let mut bench = Bench::with(small(2));
    let session = bench.session(5, 1);
    for index in 0..2 {
        forwarded(bench.check(nth_client(index), &session));
        answer(&mut bench, nth_client(index), &session);
    }
    let delta = bench.delta(|bench| {
        let verdict = bench.check(nth_client(9), &session);
        assert_eq!(verdict, ClientVerdict::Drop(DropReason::TableFull));
    });
    assert_eq!(delta, one_client_drop(DropReason::TableFull));

    let bytes = bundle(&[(bench.header_to(nth_client(9), &session).to_raw(), b"x")]);
    let delta = bench.delta(|bench| assert!(bench.from_transceiver(&bytes).is_empty()));
    assert_eq!(delta, one_record_drop(DropReason::ReturnTableFull));
}

#[test]
fn the_heaviest_prefix_pays_for_the_room() {
    let mut bench = Bench::with(small(8));
    let session = bench.session(5, 1);
    let quiet = client("198.51.100.1:1");
    forwarded(bench.check(quiet, &session));
    let greedy = |port: u16| ClientSocket::new(([192, 0, 2, 1], port).into());
    for port in 1..=20 {
        forwarded(bench.check(greedy(port), &session));
    }
    forwarded(bench.from_client(quiet, RTP));
    let oldest = bench.from_client(greedy(1), RTP);
    assert_eq!(oldest, ClientVerdict::Drop(DropReason::NoFlow));
}

#[test]
fn new_flows_beyond_the_rate_are_refused_and_known_ones_are_not() {
    let admission = AdmissionOptions {
        per_prefix: Rate {
            per_second: 1,
            burst: 2,
        },
        total: Rate {
            per_second: 1,
            burst: 3,
        },
        prefix_count_max: 16,
    };
    let mut bench = Bench::with(ForwarderOptions {
        admission,
        ..options()
    });
    let session = bench.session(5, 1);
    let port = |port: u16| ClientSocket::new(([192, 0, 2, 1], port).into());
    for at in 1..=2 {
        forwarded(bench.check(port(at), &session));
    }
    let delta = bench.delta(|bench| {
        let verdict = bench.check(port(3), &session);
        assert_eq!(verdict, ClientVerdict::Drop(DropReason::AdmissionPrefix));
    });
    assert_eq!(delta, one_client_drop(DropReason::AdmissionPrefix));
    forwarded(bench.check(client("192.0.2.2:1"), &session));
    let verdict = bench.check(client("192.0.2.3:1"), &session);
    assert_eq!(verdict, ClientVerdict::Drop(DropReason::AdmissionTotal));
    let delta = bench.delta(|bench| {
        forwarded(bench.check(port(1), &session));
    });
    assert_eq!(delta, one_forward());
}

#[test]
fn checks_that_do_not_verify_spend_nobodys_tokens() {
    let admission = AdmissionOptions {
        per_prefix: Rate {
            per_second: 1,
            burst: 1,
        },
        total: Rate {
            per_second: 1,
            burst: 1,
        },
        prefix_count_max: 16,
    };
    let mut bench = Bench::with(ForwarderOptions {
        admission,
        ..options()
    });
    let (caller, session) = (client("192.0.2.1:5000"), bench.session(5, 1));
    for _ in 0..100 {
        bench.from_client(caller, &check_with(&session, b"wrong"));
    }
    let delta = bench.delta(|bench| {
        forwarded(bench.check(caller, &session));
    });
    assert_eq!(
        delta,
        Counters {
            flows_created: 1,
            ..one_forward()
        }
    );
}
