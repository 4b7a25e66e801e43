//! One relay on the wildcards of both families, on a host with several addresses: every caller is
//! answered from the address it called, or its NAT and its ICE agent would not let the answer in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::caller::Caller;
use crate::ground::{Ground, Options, flows};
use syrinx_bench::namespace::{Network, with_namespaces};

#[test]
fn a_wildcard_relay_answers_both_families_from_the_address_that_was_called() {
    with_namespaces(
        "families::a_wildcard_relay_answers_both_families_from_the_address_that_was_called",
        || {
            let network = Network::new();
            network.edge.enter(|| answers_from_each_address(&network));
        },
    );
}

#[test]
fn a_caller_that_moves_from_ipv4_to_ipv6_keeps_its_session() {
    with_namespaces(
        "families::a_caller_that_moves_from_ipv4_to_ipv6_keeps_its_session",
        || {
            let network = Network::new();
            network.edge.enter(|| moves_between_families(&network));
        },
    );
}

fn moves_between_families(network: &Network) {
    let listen: [IpAddr; 2] = ["203.0.113.10", "fd77:2::10"].map(|ip| ip.parse().unwrap());
    let mut ground = Ground::start(&Options {
        listen: listen.to_vec(),
        workers: 2,
        ..Options::default()
    });
    let named = ground.session(1, 1);
    let [four, six] = listen.map(|ip| {
        let to = SocketAddr::new(ip, ground.port);
        network.home.enter(|| Caller::new(anywhere(ip), to, named))
    });
    let transceiver = &mut ground.transceivers[0];
    four.connect(transceiver);
    four.converse(transceiver, 1);
    let moved = six.connect(transceiver).header;
    assert!(moved.client.addr().is_ipv6());
    for number in 2..50 {
        six.converse(transceiver, number);
    }
    // The old way is there until it expires, and does not mix with the other.
    four.converse(transceiver, 50);
    assert_eq!((four.drain(), six.drain()), (0, 0));
    assert!(ground.relay.stop().unwrap().success());
}

/// Any local address of the family of `ip`.
fn anywhere(ip: IpAddr) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        IpAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

fn answers_from_each_address(network: &Network) {
    let mut ground = Ground::start(&Options {
        listen: vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        workers: 2,
        ..Options::default()
    });
    let called: [IpAddr; 4] = ["203.0.113.10", "203.0.113.11", "fd77:2::10", "fd77:2::11"]
        .map(|address| address.parse().unwrap());
    let callers: Vec<Caller> = (1..)
        .zip(called)
        .map(|(slot, ip)| {
            let to = SocketAddr::new(ip, ground.port);
            let named = ground.session(1, slot);
            // Connected: the kernel lets in what comes from the called address, and nothing else.
            network.home.enter(|| Caller::new(anywhere(ip), to, named))
        })
        .collect();
    let transceiver = &mut ground.transceivers[0];
    for (caller, ip) in callers.iter().zip(called) {
        let seen = caller.connect(transceiver).header.client.addr();
        assert_eq!(seen.is_ipv4(), ip.is_ipv4());
        let outside: [IpAddr; 2] = ["203.0.113.1", "fd77:2::1"].map(|ip| ip.parse().unwrap());
        assert!(outside.contains(&seen.ip()), "{seen} was not translated");
    }
    for number in 0..50 {
        for caller in &callers {
            caller.converse(transceiver, number);
        }
    }
    let exposition = ground.settle_clients(4 + 4 * 50);
    assert_eq!(flows(&exposition), 4.0);
    assert_eq!(exposition.sum("syrinx_relay_drops_total", &[]), 0.0);
    assert!(ground.relay.stop().unwrap().success());
}
