//! Whole calls, with nothing played by the test but the person: a WebRTC client behind a real NAT,
//! the relay and the transceiver as they are shipped.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use syrinx_bench::process::edge::{Edge, EdgeOptions};

use crate::softphone::Softphone;
use syrinx_bench::namespace::{Network, with_namespaces};

const EDGE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 10));
const CALLER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 1, 2));
/// A second of speech.
const SECOND: usize = 50;

fn start() -> Edge {
    Edge::start(EdgeOptions {
        address: EDGE,
        workers: 2,
    })
    .unwrap()
}

fn call(network: &Network, edge: &Edge, port: u16) -> Softphone {
    let signalling = SocketAddr::new(EDGE, edge.ports.signalling);
    let local = SocketAddr::new(CALLER, port);
    network.home.enter(|| Softphone::call(local, signalling))
}

/// Nothing is heard twice: a way that moved left no second one behind.
fn assert_heard_once(phone: &Softphone) {
    let different: BTreeSet<u32> = phone.heard.iter().copied().collect();
    assert_eq!(different.len(), phone.heard.len(), "{:?}", phone.heard);
}

#[test]
fn a_person_hears_himself_through_a_nat_that_rebinds_and_a_relay_that_is_killed() {
    with_namespaces(
        "calls::a_person_hears_himself_through_a_nat_that_rebinds_and_a_relay_that_is_killed",
        || {
            let network = Network::new();
            network.masquerade(&[(CALLER, 41_000)]);
            network
                .edge
                .enter(|| survives_rebinding_and_a_crash(&network));
        },
    );
}

fn survives_rebinding_and_a_crash(network: &Network) {
    let mut edge = start();
    let mut phone = call(network, &edge, 5_004);
    phone.hear_itself(SECOND);

    network.masquerade(&[(CALLER, 42_000)]);
    network.forget_mappings();
    phone.hear_itself(2 * SECOND);
    let created = edge.relay.metrics().unwrap();
    let created = created.sum("syrinx_relay_flows_created_total", &[]);
    assert_eq!(created, 2.0, "the call came from two ports");

    edge.relay.kill();
    edge.relay.restart().unwrap();
    phone.hear_itself(2 * SECOND);
    edge.wait_for_sessions_in_all(1.0).unwrap();
    assert_heard_once(&phone);
    assert!(edge.relay.stop().unwrap().success());
    assert!(edge.transceiver.stop().unwrap().success());
}

#[test]
fn a_transceiver_killed_in_the_middle_of_a_call_is_back_for_the_next_one() {
    with_namespaces(
        "calls::a_transceiver_killed_in_the_middle_of_a_call_is_back_for_the_next_one",
        || {
            let network = Network::new();
            network.edge.enter(|| outlives_its_transceiver(&network));
        },
    );
}

fn outlives_its_transceiver(network: &Network) {
    let mut edge = start();
    let relay = edge.relay.pid();
    let mut lost = call(network, &edge, 5_004);
    lost.hear_itself(SECOND);

    edge.transceiver.kill();
    lost.speak_for(SECOND);
    edge.transceiver.restart().unwrap();
    // The session died with its process: what still comes for it reaches nobody, and harms nobody.
    let heard = lost.heard.len();
    lost.speak_for(SECOND);
    assert_eq!(lost.heard.len(), heard, "the session is gone");

    let mut next = call(network, &edge, 5_006);
    next.hear_itself(2 * SECOND);
    assert_heard_once(&next);
    assert_eq!(edge.relay.pid(), relay, "the relay is the one it was");
    assert!(edge.relay.stop().unwrap().success());
    assert!(edge.transceiver.stop().unwrap().success());
}
