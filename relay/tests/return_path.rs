//! The way back to the client: by cookie, from the address that the client used, and healing.

mod support;

use support::*;
use syrinx_relay::forwarder::{
    ClientVerdict, Counters, DropReason, LEARNED_ENDPOINTS_FROM, ToClient,
};
use syrinx_shared::keys::Cookie;
use syrinx_shared::route::{LocalEndpoint, SessionRef, TransceiverId, Transport};
use syrinx_shared::wire::encap::{Control, Direction, Marks, RecordHeader};

#[test]
fn records_with_the_flows_cookie_go_to_its_client_in_order() {
    let mut bench = Bench::new();
    let (caller, session) = (client("192.0.2.1:5000"), bench.session(5, 1));
    forwarded(bench.check(caller, &session));
    let marks = Marks::from_traffic_class(0xb8);
    let header = RecordHeader {
        marks,
        ..bench.header_to(caller, &session)
    }
    .to_raw();
    let bytes = bundle(&[(header, b"one"), (header, b""), (header, b"three")]);
    let delta = bench.delta(|bench| {
        let sent = bench.from_transceiver(&bytes);
        let want = |payload| ToClient {
            client: caller,
            endpoint: LocalEndpoint(0),
            transport: Transport::Udp,
            marks,
            payload,
        };
        assert_eq!(sent, [want(&b"one"[..]), want(b""), want(b"three")]);
    });
    let want = Counters {
        inner_datagrams: 1,
        bundles: 1,
        records: 3,
        forwarded_to_client: 3,
        ..Counters::default()
    };
    assert_eq!(delta, want);
}

/// One record, dropped for one reason: nothing is sent.
fn is_dropped(bench: &mut Bench, header: RecordHeader, payload: &[u8], reason: DropReason) {
    let flows = bench.forwarder.flow_count();
    let bytes = bundle(&[(header.to_raw(), payload)]);
    let delta = bench.delta(|bench| assert!(bench.from_transceiver(&bytes).is_empty()));
    assert_eq!(delta, one_record_drop(reason));
    assert_eq!(bench.forwarder.flow_count(), flows);
}

#[test]
fn records_that_prove_nothing_are_dropped_by_their_own_reason() {
    let mut bench = Bench::new();
    let (caller, session) = (client("192.0.2.1:5000"), bench.session(5, 1));
    forwarded(bench.check(caller, &session));
    let good = bench.header_to(caller, &session);
    let wrong = RecordHeader {
        cookie: Cookie([1; 8]),
        ..good
    };
    is_dropped(&mut bench, wrong, b"x", DropReason::BadCookie);
    let uplink = RecordHeader {
        direction: Direction::ToTransceiver,
        ..good
    };
    is_dropped(&mut bench, uplink, b"x", DropReason::WrongDirection);
    let stranger = RecordHeader {
        client: client("198.51.100.1:1"),
        ..good
    };
    is_dropped(&mut bench, stranger, b"x", DropReason::UnknownFlow);
    let control = RecordHeader {
        direction: Direction::Control,
        ..good
    };
    is_dropped(&mut bench, control, b"?", DropReason::UnknownControl);
}

#[test]
fn datagrams_that_are_no_bundles_are_dropped_and_one_bad_record_costs_no_other() {
    let mut bench = Bench::new();
    let (caller, session) = (client("192.0.2.1:5000"), bench.session(5, 1));
    forwarded(bench.check(caller, &session));
    let header = bench.header_to(caller, &session).to_raw();
    let mut reserved = header;
    reserved[5] = 1;
    let bytes = bundle(&[(reserved, b"bad"), (header, b"good")]);
    let delta = bench.delta(|bench| assert_eq!(bench.from_transceiver(&bytes).len(), 1));
    assert_eq!(delta.drops.count(DropReason::RecordReserved), 1);
    assert_eq!(delta.forwarded_to_client, 1);

    for (bytes, reason) in [
        (&b""[..], DropReason::NotBundle),
        (RTP, DropReason::NotBundle),
        (&bytes[..bytes.len() - 1], DropReason::BundleTruncated),
    ] {
        let delta = bench.delta(|bench| assert!(bench.from_transceiver(bytes).is_empty()));
        let mut want = Counters {
            inner_datagrams: 1,
            ..Counters::default()
        };
        want.drops.add(reason, 1);
        assert_eq!(delta, want);
    }
}

#[test]
fn the_relay_sends_to_nobody_whom_no_transceiver_answers() {
    let mut bench = Bench::new();
    let session = bench.session(5, 1);
    // The verdicts on a client's datagram have no way to name an address to send to other than a
    // transceiver's; what comes out for clients comes from bundles alone.
    for index in 0..1_000 {
        match bench.check(nth_client(index), &session) {
            ClientVerdict::Forward { to, .. } => assert_eq!(to.addr.port(), 3490),
            ClientVerdict::Drop(reason) => panic!("{reason:?}"),
        }
    }
    assert_eq!(bench.forwarder.counters().forwarded_to_client, 0);
}

#[test]
fn a_closed_session_frees_its_flow_at_once() {
    let mut bench = Bench::new();
    let (caller, session) = (client("192.0.2.1:5000"), bench.session(5, 1));
    forwarded(bench.check(caller, &session));
    let header = RecordHeader {
        direction: Direction::Control,
        ..bench.header_to(caller, &session)
    };
    let forged = RecordHeader {
        cookie: Cookie([1; 8]),
        ..header
    };
    is_dropped(
        &mut bench,
        forged,
        &Control::FlowClosed.to_bytes(),
        DropReason::BadCookie,
    );
    let bytes = bundle(&[(header.to_raw(), &Control::FlowClosed.to_bytes())]);
    let delta = bench.delta(|bench| assert!(bench.from_transceiver(&bytes).is_empty()));
    assert_eq!(
        delta,
        Counters {
            flows_closed: 1,
            control_records: 1,
            ..one_record()
        }
    );
    assert_eq!(bench.forwarder.flow_count(), 0);
    is_dropped(
        &mut bench,
        header,
        &Control::FlowClosed.to_bytes(),
        DropReason::UnknownFlow,
    );
}

#[test]
fn a_restarted_relay_heals_from_the_transceivers_traffic() {
    let mut bench = Bench::new();
    let (caller, session) = (client("192.0.2.1:5000"), bench.session(5, 1));
    assert_eq!(
        bench.from_client(caller, RTP),
        ClientVerdict::Drop(DropReason::NoFlow)
    );
    let bytes = bundle(&[(bench.header_to(caller, &session).to_raw(), b"audio")]);
    let delta = bench.delta(|bench| {
        let sent = bench.from_transceiver(&bytes);
        assert_eq!(sent[0].client, caller);
    });
    let want = Counters {
        flows_created: 1,
        flows_healed: 1,
        forwarded_to_client: 1,
        ..one_record()
    };
    assert_eq!(delta, want);
    let header = forwarded(bench.from_client(caller, RTP));
    assert_eq!(
        (header.session, header.cookie),
        (session.name, bench.cookie(caller, &session))
    );
    // The client's next check finds its flow.
    let delta = bench.delta(|bench| {
        forwarded(bench.check(caller, &session));
    });
    assert_eq!(delta, one_forward());
}

#[test]
fn a_flow_is_not_made_again_on_less_than_proof() {
    let mut bench = Bench::new();
    let (caller, session) = (client("192.0.2.1:5000"), bench.session(5, 1));
    let good = bench.header_to(caller, &session);
    let keys = bench.keys.epoch(epoch(0)).unwrap().cluster().unwrap();

    let absent = SessionRef {
        transceiver: TransceiverId(4),
        ..session.name
    };
    let cookie = keys.cookie(caller, LocalEndpoint(0), Transport::Udp, absent);
    let unrouted = RecordHeader {
        session: absent,
        cookie,
        ..good
    };
    let learned = LocalEndpoint(LEARNED_ENDPOINTS_FROM);
    let cookie = keys.cookie(caller, learned, Transport::Udp, session.name);
    let elsewhere = RecordHeader {
        endpoint: learned,
        cookie,
        ..good
    };

    is_dropped(&mut bench, unrouted, b"x", DropReason::UnknownReturnRoute);
    is_dropped(&mut bench, elsewhere, b"x", DropReason::UnknownFlow);
    let wrong = RecordHeader {
        cookie: Cookie([0; 8]),
        ..good
    };
    is_dropped(&mut bench, wrong, b"x", DropReason::UnknownFlow);
}

#[test]
fn the_records_of_a_session_that_the_client_has_left_do_not_reach_it() {
    let mut bench = Bench::new();
    let caller = client("192.0.2.1:5000");
    let (first, second) = (bench.session(5, 1), bench.session(6, 1));
    forwarded(bench.check(caller, &first));
    forwarded(bench.check(caller, &second));
    let stale = bench.header_to(caller, &first);
    is_dropped(&mut bench, stale, b"old audio", DropReason::BadCookie);
}
