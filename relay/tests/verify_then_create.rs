//! A flow is made by a Binding request that verifies, and by nothing else.

mod support;

use std::sync::Arc;
use support::*;
use syrinx_relay::forwarder::{ClientVerdict, Counters, DropReason, ForwarderOptions, Verify};
use syrinx_shared::keys::{KeyRing, edge_key_file};
use syrinx_shared::route::{ClusterId, SessionRef, ShardIndex, TransceiverId, UnixMinutes};
use syrinx_shared::wire::encap::{Direction, Marks};
use syrinx_shared::wire::stun::{Integrity, RequestWriter};

#[test]
fn a_verified_check_makes_the_flow_that_later_packets_follow() {
    let mut bench = Bench::new();
    let (caller, session) = (client("192.0.2.1:5000"), bench.session(5, 1));
    let cookie = bench.cookie(caller, &session);
    let marks = Marks::from_traffic_class(0xb9);

    let delta = bench.delta(|bench| {
        let header = forwarded(bench.from_client_marked(caller, &check(&session), marks));
        assert_eq!(header.direction, Direction::ToTransceiver);
        assert_eq!(header.client, caller);
        assert_eq!(header.session, session.name);
        assert_eq!(header.cookie, cookie);
        assert_eq!(header.marks, marks);
    });
    assert_eq!(
        delta,
        Counters {
            flows_created: 1,
            ..one_forward()
        }
    );

    let delta = bench.delta(|bench| {
        assert_eq!(
            forwarded(bench.from_client(caller, RTP)).session,
            session.name
        );
    });
    assert_eq!(delta, one_forward());
    assert_eq!(bench.forwarder.flow_count(), 1);
}

#[test]
fn both_kinds_of_integrity_are_accepted() {
    for integrity in [Integrity::Sha1, Integrity::Sha256] {
        let mut bench = Bench::new();
        let session = bench.session(5, 1);
        let request = RequestWriter {
            server_ufrag: session.minted.ufrag.as_bytes(),
            client_ufrag: b"abcd",
            password: &session.minted.password,
            transaction_id: [1; 12],
            nominate: false,
            integrity,
        };
        forwarded(bench.from_client(client("192.0.2.1:5000"), &request.to_bytes()));
    }
}

/// One datagram, dropped for one reason: no flow, no answer, one counter.
fn is_dropped(bench: &mut Bench, payload: &[u8], reason: DropReason) {
    let delta = bench.delta(|bench| {
        let verdict = bench.from_client(client("192.0.2.66:6"), payload);
        assert_eq!(verdict, ClientVerdict::Drop(reason));
    });
    assert_eq!(delta, one_client_drop(reason));
    assert_eq!(bench.forwarder.flow_count(), 0);
    assert_eq!(bench.forwarder.poll_timeout(), None);
}

#[test]
fn strangers_datagrams_are_dropped_by_their_own_reason() {
    let mut bench = Bench::new();
    is_dropped(&mut bench, &[], DropReason::Empty);
    is_dropped(&mut bench, &[4, 1, 2], DropReason::NotWebrtc);
    is_dropped(
        &mut bench,
        &[0x0c, 0x10, 0, 0, 0, 0, 0, 0],
        DropReason::NotWebrtc,
    );
    is_dropped(&mut bench, RTP, DropReason::NoFlow);
    is_dropped(&mut bench, &[22, 0xfe, 0xfd, 0, 0], DropReason::NoFlow);
    is_dropped(&mut bench, &[0, 1, 0, 0], DropReason::StunMalformed);
    let mut indication = check(&bench.session(1, 1));
    indication[1] = 0x11;
    is_dropped(&mut bench, &indication, DropReason::NoFlow);
    let no_name = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[9; 12]].concat();
    is_dropped(&mut bench, &no_name, DropReason::StunUsername);
    // USERHASH in the place of USERNAME, the first attribute (RFC 8489, 14.4).
    let mut hashed = check(&bench.session(1, 1));
    hashed[20..22].copy_from_slice(&[0x00, 0x1e]);
    is_dropped(&mut bench, &hashed, DropReason::StunUsername);
}

#[test]
fn ufrags_that_name_nothing_here_are_dropped_by_their_own_reason() {
    let mut bench = Bench::new();
    let named = |bench: &Bench, name: SessionRef| bench.session_named(name, CLUSTER, WALL);
    let good = session_name(5, 1);

    let foreign = bench.session_named(good, ClusterId(10), WALL);
    is_dropped(&mut bench, &check(&foreign), DropReason::ForeignCluster);
    let absent = named(
        &bench,
        SessionRef {
            transceiver: TransceiverId(4),
            ..good
        },
    );
    is_dropped(&mut bench, &check(&absent), DropReason::UnknownTransceiver);
    let no_shard = named(
        &bench,
        SessionRef {
            shard: ShardIndex(2),
            ..good
        },
    );
    is_dropped(&mut bench, &check(&no_shard), DropReason::UnknownShard);
    let old = UnixMinutes(WALL.0 - u32::from(LIFETIME_MINUTES) - 1);
    let expired = bench.session_named(good, CLUSTER, old);
    is_dropped(&mut bench, &check(&expired), DropReason::UfragExpired);

    let session = bench.session(5, 1);
    is_dropped(
        &mut bench,
        &check_with(&session, b"wrong"),
        DropReason::Integrity,
    );
    let mut forged = check(&session);
    // USERNAME is the first attribute: bytes 24.. are the ufrag, and 4..7 of it are tag.
    forged[24 + 6] ^= 2;
    is_dropped(&mut bench, &forged, DropReason::UfragTag);
    let mut short = check(&session);
    short[24 + 31] = b':';
    is_dropped(&mut bench, &short, DropReason::UfragMalformed);
}

#[test]
fn a_retired_epoch_is_refused_and_a_new_one_accepted_without_touching_flows() {
    let mut bench = Bench::new();
    let (caller, old) = (client("192.0.2.1:5000"), bench.session(5, 1));
    forwarded(bench.check(caller, &old));

    bench.keys = Arc::new(KeyRing::single(epoch(1), &master(2)));
    bench.forwarder.set_keys(Arc::clone(&bench.keys));
    let verdict = bench.check(client("192.0.2.2:5000"), &old);
    assert_eq!(verdict, ClientVerdict::Drop(DropReason::UfragEpoch));
    let new = bench.session(6, 1);
    forwarded(bench.check(client("192.0.2.2:5000"), &new));
    assert_eq!(forwarded(bench.from_client(caller, RTP)).session, old.name);
}

#[test]
fn a_relay_with_edge_keys_only_routes_to_no_transceiver() {
    let mut bench = Bench::new();
    let session = bench.session(5, 1);
    let edge = KeyRing::parse(&edge_key_file(epoch(0), &master(1))).unwrap();
    bench.forwarder.set_keys(Arc::new(edge));
    is_dropped(&mut bench, &check(&session), DropReason::UfragEdgeOnly);
}

#[test]
fn integrity_is_left_to_the_transceiver_where_the_relay_is_told_so() {
    let mut bench = Bench::with(ForwarderOptions {
        verify: Verify::Ufrag,
        ..options()
    });
    let session = bench.session(5, 1);
    forwarded(bench.from_client(client("192.0.2.1:5000"), &check_with(&session, b"wrong")));
}

#[test]
fn floods_of_checks_that_do_not_verify_leave_no_state() {
    let mut bench = Bench::new();
    let session = bench.session(5, 1);
    let wrong = check_with(&session, b"wrong");
    let mut unknown = check(&session);
    unknown[24 + 6] ^= 2;
    let delta = bench.delta(|bench| {
        for index in 0..200_000 {
            let flood = if index % 2 == 0 { &wrong } else { &unknown };
            bench.from_client(nth_client(index), flood);
        }
    });
    let mut want = Counters {
        client_datagrams: 200_000,
        ..Counters::default()
    };
    want.drops.add(DropReason::Integrity, 100_000);
    want.drops.add(DropReason::UfragTag, 100_000);
    assert_eq!(delta, want);
    assert_eq!(bench.forwarder.flow_count(), 0);
}
