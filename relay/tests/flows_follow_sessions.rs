//! A flow leads where its client's latest verified check says, and does not flap.

mod support;

use std::time::Duration;
use support::*;
use syrinx_relay::forwarder::{ClientVerdict, Counters, DropReason};

#[test]
fn a_valid_different_ufrag_from_the_same_address_repoints_the_flow_at_once() {
    let mut bench = Bench::new();
    let caller = client("192.0.2.1:5000");
    let (first, second) = (bench.session(5, 1), bench.session(6, 1));
    forwarded(bench.check(caller, &first));
    let delta = bench.delta(|bench| {
        assert_eq!(forwarded(bench.check(caller, &second)).session, second.name);
    });
    assert_eq!(
        delta,
        Counters {
            flows_repointed: 1,
            ..one_forward()
        }
    );
    assert_eq!(
        forwarded(bench.from_client(caller, RTP)).session,
        second.name
    );
    assert_eq!(bench.forwarder.flow_count(), 1);
}

#[test]
fn a_late_duplicate_of_the_session_that_was_left_does_not_flap_the_flow_back() {
    let mut bench = Bench::new();
    let caller = client("192.0.2.1:5000");
    let (first, second) = (bench.session(5, 1), bench.session(6, 1));
    forwarded(bench.check(caller, &first));
    forwarded(bench.check(caller, &second));
    let delta = bench.delta(|bench| {
        let verdict = bench.check(caller, &first);
        assert_eq!(verdict, ClientVerdict::Drop(DropReason::SupersededUfrag));
    });
    assert_eq!(delta, one_client_drop(DropReason::SupersededUfrag));
    assert_eq!(
        forwarded(bench.from_client(caller, RTP)).session,
        second.name
    );
}

#[test]
fn the_session_that_was_left_may_return_once_the_window_has_passed() {
    let mut bench = Bench::new();
    let caller = client("192.0.2.1:5000");
    let (first, second) = (bench.session(5, 1), bench.session(6, 1));
    forwarded(bench.check(caller, &first));
    forwarded(bench.check(caller, &second));
    bench.wait(IDLE - Duration::from_secs(1));
    forwarded(bench.check(caller, &second));
    bench.wait(Duration::from_secs(1));
    assert_eq!(forwarded(bench.check(caller, &first)).session, first.name);
}

#[test]
fn a_check_that_does_not_verify_moves_nothing() {
    let mut bench = Bench::new();
    let caller = client("192.0.2.1:5000");
    let (first, second) = (bench.session(5, 1), bench.session(6, 1));
    forwarded(bench.check(caller, &first));
    let delta = bench.delta(|bench| {
        bench.from_client(caller, &check_with(&second, b"wrong"));
    });
    assert_eq!(delta, one_client_drop(DropReason::Integrity));
    assert_eq!(
        forwarded(bench.from_client(caller, RTP)).session,
        first.name
    );
}

#[test]
fn a_client_that_moves_is_followed_at_its_first_verified_check() {
    let mut bench = Bench::new();
    let session = bench.session(5, 1);
    forwarded(bench.check(client("192.0.2.1:5000"), &session));
    let moved = client("[2001:db8::7]:6000");
    let early = bench.from_client(moved, RTP);
    assert_eq!(early, ClientVerdict::Drop(DropReason::NoFlow));
    assert_eq!(forwarded(bench.check(moved, &session)).client, moved);
    assert_eq!(
        forwarded(bench.from_client(moved, RTP)).session,
        session.name
    );
}

#[test]
fn indications_and_responses_follow_the_flow_unread() {
    let mut bench = Bench::new();
    let (caller, session) = (client("192.0.2.1:5000"), bench.session(5, 1));
    forwarded(bench.check(caller, &session));
    for kind in [[0x00, 0x11], [0x01, 0x01]] {
        let mut message = check(&session);
        message[..2].copy_from_slice(&kind);
        assert_eq!(
            forwarded(bench.from_client(caller, &message)).session,
            session.name
        );
    }
}

#[test]
fn a_flow_expires_when_its_client_has_been_silent_and_not_before() {
    let mut bench = Bench::new();
    let (caller, session) = (client("192.0.2.1:5000"), bench.session(5, 1));
    forwarded(bench.check(caller, &session));
    bench.wait(IDLE - Duration::from_millis(200));
    forwarded(bench.check(caller, &session));
    bench.wait(IDLE - Duration::from_millis(200));
    // Media does not keep a flow: anyone could send it from a spoofed address.
    forwarded(bench.from_client(caller, RTP));
    let delta = bench.delta(|bench| bench.wait(Duration::from_millis(400)));
    assert_eq!(
        delta,
        Counters {
            flows_expired: 1,
            ..Counters::default()
        }
    );
    assert_eq!(bench.forwarder.flow_count(), 0);
    assert_eq!(bench.forwarder.poll_timeout(), None);
    assert_eq!(
        bench.from_client(caller, RTP),
        ClientVerdict::Drop(DropReason::NoFlow)
    );
}

#[test]
fn a_mass_expiry_is_spread_over_several_wakes() {
    let mut bench = Bench::with(syrinx_relay::forwarder::ForwarderOptions {
        flow_count_max: 5_000,
        ..options()
    });
    let session = bench.session(5, 1);
    for index in 0..5_000 {
        forwarded(bench.check(nth_client(index), &session));
    }
    bench.wait(IDLE);
    let left = bench.forwarder.flow_count();
    assert!(left > 3_000 && left < 5_000, "{left} left");
    assert!(bench.forwarder.poll_timeout().unwrap() <= bench.now.mono);
    for _ in 0..5 {
        bench.wait(Duration::ZERO);
    }
    assert_eq!(bench.forwarder.flow_count(), 0);
}
