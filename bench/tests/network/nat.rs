//! Callers behind a real NAT: its mappings change in the middle of a call, its ports are given to
//! others, its one address holds many homes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::caller::{Caller, speech};
use crate::ground::{Ground, Options, drops, total};
use syrinx_bench::namespace::{Network, with_namespaces};

const EDGE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const CALLER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 1, 2));
const NEIGHBOUR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 1, 3));
/// What both homes are behind, as the relay sees them.
const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// Both homes use one and the same port.
const HOME_PORT: u16 = 5_004;

fn on_the_edge() -> Options {
    Options {
        listen: vec![EDGE.into()],
        ..Options::default()
    }
}

fn home_caller(network: &Network, ground: &Ground, home: IpAddr, slot: u32) -> Caller {
    let from = SocketAddr::new(home, HOME_PORT);
    let to = SocketAddr::new(EDGE.into(), ground.port);
    let named = ground.session(1, slot);
    network.home.enter(|| Caller::new(from, to, named))
}

fn seen_at(port: u16) -> SocketAddr {
    SocketAddr::from((PUBLIC, port))
}

#[test]
fn a_call_follows_its_nat_at_the_first_check_and_its_old_port_is_the_neighbours() {
    with_namespaces(
        "nat::a_call_follows_its_nat_at_the_first_check_and_its_old_port_is_the_neighbours",
        || {
            let network = Network::new();
            network.masquerade(&[(CALLER, 41_000)]);
            network.edge.enter(|| {
                let mut ground = Ground::start(&on_the_edge());
                rebinds_in_the_middle_of_a_call(&network, &mut ground);
                hands_the_old_port_to_the_neighbour(&network, &mut ground);
                assert!(ground.relay.stop().unwrap().success());
            });
        },
    );
}

fn rebinds_in_the_middle_of_a_call(network: &Network, ground: &mut Ground) {
    let caller = home_caller(network, ground, CALLER, 1);
    let transceiver = &mut ground.transceivers[0];
    let before = caller.connect(transceiver);
    assert_eq!(before.header.client.addr(), seen_at(41_000));
    caller.converse(transceiver, 1);

    network.masquerade(&[(CALLER, 42_000)]);
    network.forget_mappings();
    // Media from the new port proves nothing and moves nothing; the old port reaches nobody, and
    // the ICMP error for it hurts nobody.
    caller.speak(&speech(2));
    transceiver.send(&before, b"to the old port");
    let check = caller.check();
    let after = transceiver.receive();
    assert_eq!(after.payload, check, "the check comes first");
    assert_eq!(after.header.client.addr(), seen_at(42_000));
    assert_eq!(after.header.session, before.header.session);
    for number in 3..50 {
        let arrival = caller.converse(transceiver, number);
        assert_eq!(arrival.header.client.addr(), seen_at(42_000));
    }
    let exposition = ground.settle_clients(51);
    assert_eq!(drops(&exposition, "no_flow"), 1.0);
    assert_eq!(total(&exposition, "flows_created"), 2.0);
}

fn hands_the_old_port_to_the_neighbour(network: &Network, ground: &mut Ground) {
    // The caller of the scenario before: its home, its port, its session.
    let before = {
        network.masquerade(&[(CALLER, 41_000)]);
        network.forget_mappings();
        let caller = home_caller(network, ground, CALLER, 1);
        caller.connect(&mut ground.transceivers[0])
    };
    network.masquerade(&[(CALLER, 42_000), (NEIGHBOUR, 41_000)]);
    network.forget_mappings();
    let caller = home_caller(network, ground, CALLER, 1);
    let neighbour = home_caller(network, ground, NEIGHBOUR, 2);
    let transceiver = &mut ground.transceivers[0];
    caller.connect(transceiver);
    let inherited = neighbour.connect(transceiver);
    assert_eq!(inherited.header.client, before.header.client);
    // What is late for the caller's old port is not the neighbour's to hear.
    transceiver.send(&before, b"late, for the caller");
    for number in 100..150 {
        caller.converse(transceiver, number);
        neighbour.converse(transceiver, number);
    }
    let exposition = ground.settle("the late record's end", |exposition| {
        drops(exposition, "bad_cookie") == 1.0
    });
    assert_eq!(total(&exposition, "flows_repointed"), 1.0);
    assert_eq!(total(&exposition, "flows_created"), 2.0);
}

#[test]
fn two_homes_behind_one_address_are_not_mixed() {
    with_namespaces("nat::two_homes_behind_one_address_are_not_mixed", || {
        let network = Network::new();
        network.edge.enter(|| {
            let mut ground = Ground::start(&Options {
                workers: 2,
                ..on_the_edge()
            });
            let callers = [CALLER, NEIGHBOUR];
            let callers: Vec<Caller> = (1..)
                .zip(callers)
                .map(|(slot, home)| home_caller(&network, &ground, home, slot))
                .collect();
            let transceiver = &mut ground.transceivers[0];
            let seen: Vec<SocketAddr> = callers
                .iter()
                .map(|caller| caller.connect(transceiver).header.client.addr())
                .collect();
            assert!(seen.iter().all(|seen| seen.ip() == PUBLIC), "{seen:?}");
            assert_ne!(seen[0].port(), seen[1].port());
            for number in 0..100 {
                for (caller, seen) in callers.iter().zip(&seen) {
                    let arrival = caller.converse(transceiver, number);
                    assert_eq!(arrival.header.client.addr(), *seen);
                }
            }
            assert!(callers.iter().all(|caller| caller.drain() == 0));
            assert!(ground.relay.stop().unwrap().success());
        });
    });
}
