//! Datagrams of every size, over a path of 1,500 bytes and a NAT: each arrives whole, in fragments
//! where it must, or is a drop with a counter. None is ever cut.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::caller::{Caller, speech};
use crate::ground::{Ground, Options, drops};
use crate::transceiver::Transceiver;
use syrinx_bench::namespace::{Network, with_namespaces};

const EDGE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 10));
/// Around what RTP, Ethernet, buffers of 2 KiB, jumbo frames, the inner leg and UDP over IPv4 hold.
const SIZES: [usize; 18] = [
    0, 1, 12, 1_200, 1_423, 1_424, 1_425, 1_472, 1_473, 2_000, 2_048, 2_049, 4_096, 8_972, 9_000,
    65_000, 65_459, 65_507,
];
/// What clients send: all that a packet of Ethernet holds, and a little more.
const CLIENTS: std::ops::RangeInclusive<usize> = 1..=1_473;
/// The longest payload of a record.
const RECORD_PAYLOAD_MAX: usize = 65_459;

/// Whether the datagram of this size came, and came whole; once is enough.
fn came(size: usize, arrived: &[Vec<u8>]) -> bool {
    match arrived {
        [] => false,
        [only] if *only == sized(size) => true,
        [only] => panic!("{size} bytes came as {}, or changed", only.len()),
        more => panic!("{size} bytes came {} times", more.len()),
    }
}

/// RTP to those who look at the first byte, and nothing that could be cut unnoticed.
fn sized(size: usize) -> Vec<u8> {
    let pattern = (0..size).map(|at| (at * 7 + at / 251) as u8);
    let mut payload: Vec<u8> = pattern.collect();
    if let Some(first) = payload.first_mut() {
        *first = 0x80;
    }
    payload
}

fn keeps_datagrams_whole(io_model: &'static str) {
    let network = Network::new();
    network.edge.enter(|| {
        let mut ground = Ground::start(&Options {
            listen: vec![EDGE],
            io_model,
            ..Options::default()
        });
        let to = SocketAddr::new(EDGE, ground.port);
        let from = SocketAddr::from((Ipv4Addr::new(10, 77, 1, 2), 5_004));
        let named = ground.session(1, 1);
        let caller = network.home.enter(|| Caller::new(from, to, named));
        let transceiver = &mut ground.transceivers[0];
        caller.connect(transceiver);
        let uplink = lost_upwards(&caller, transceiver);
        let downlink = lost_downwards(&caller, transceiver);
        let lost = uplink.iter().find(|size| CLIENTS.contains(size));
        assert_eq!(lost, None, "dropped: {:?}", uplink);
        assert_eq!(downlink, [0_usize; 0], "what a session sends arrives");

        let dropped = uplink.len() as f64;
        let exposition = ground.settle("a count of every drop", |exposition| {
            exposition.sum("syrinx_relay_drops_total", &[]) >= dropped
        });
        assert_eq!(exposition.sum("syrinx_relay_drops_total", &[]), dropped);
        assert_eq!(drops(&exposition, "empty"), 1.0);
        assert_eq!(drops(&exposition, "truncated"), dropped - 1.0);
        assert!(ground.relay.stop().unwrap().success());
    });
}

/// The sizes that do not arrive. A packet behind each says that it is not to be waited for any
/// longer.
fn lost_upwards(caller: &Caller, transceiver: &mut Transceiver) -> Vec<usize> {
    let mut lost = Vec::new();
    for (number, size) in (0..).zip(SIZES) {
        caller.speak(&sized(size));
        let fence = speech(number);
        caller.speak(&fence);
        let arrivals = std::iter::repeat_with(|| transceiver.receive().payload);
        let arrived: Vec<_> = arrivals.take_while(|payload| *payload != fence).collect();
        if !came(size, &arrived) {
            lost.push(size);
        }
    }
    lost
}

fn lost_downwards(caller: &Caller, transceiver: &mut Transceiver) -> Vec<usize> {
    let mut lost = Vec::new();
    let path = caller.converse(transceiver, 1_000);
    for (number, size) in (0..).zip(SIZES) {
        if size > RECORD_PAYLOAD_MAX {
            continue;
        }
        transceiver.send(&path, &sized(size));
        let fence = speech(number);
        transceiver.send(&path, &fence);
        let heard = std::iter::repeat_with(|| caller.hear());
        let arrived: Vec<_> = heard.take_while(|payload| *payload != fence).collect();
        if !came(size, &arrived) {
            lost.push(size);
        }
    }
    lost
}

#[test]
fn datagrams_of_every_size_arrive_whole_or_are_counted_on_the_ring() {
    with_namespaces(
        "sizes::datagrams_of_every_size_arrive_whole_or_are_counted_on_the_ring",
        || keeps_datagrams_whole("ring"),
    );
}

#[test]
fn datagrams_of_every_size_arrive_whole_or_are_counted_on_recvmmsg() {
    with_namespaces(
        "sizes::datagrams_of_every_size_arrive_whole_or_are_counted_on_recvmmsg",
        || keeps_datagrams_whole("mmsg"),
    );
}
