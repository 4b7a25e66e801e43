//! A browser whose network changes under it: the call goes on.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use serde_json::json;
use syrinx_bench::namespace::{Network, with_namespaces};

use crate::browser::Kind;
use crate::calls::{browser_with_caller, hear};
use crate::ground::{Ending, Ground, on_ground};

/// The home's uplinks, with its address on each.
const UPLINKS: [(&str, Ipv4Addr); 2] = [
    ("wan", Ipv4Addr::new(10, 77, 1, 2)),
    ("mobile", Ipv4Addr::new(10, 78, 1, 2)),
];
/// How long packets are counted to see which uplink carries the call.
const WATCH: Duration = Duration::from_secs(2);
/// Of a call's 50 packets a second each way, what says that an uplink carries it.
const CARRIES_MIN: u64 = 40;
/// Time for a browser to notice that its network is gone: it has lost some checks by then.
const MOVE_WAIT: Duration = Duration::from_secs(40);

#[test]
fn chromium_is_heard_after_its_nat_forgot_it_and_after_its_network_is_gone() {
    let name = "moving::chromium_is_heard_after_its_nat_forgot_it_and_after_its_network_is_gone";
    with_namespaces(name, || on_ground(goes_on));
}

fn goes_on(ground: &mut Ground<'_>) {
    ground.network.add_mobile_uplink();
    let mut browser = browser_with_caller(ground, Kind::Chromium, &json!({}));
    browser.call(ground, 0);
    hear(&mut browser, ground, 0);

    let before = flows_created(ground);
    let ports = [42_000, 43_000];
    let fixed = UPLINKS.map(|(_, home)| IpAddr::V4(home));
    let fixed: Vec<(IpAddr, u16)> = fixed.into_iter().zip(ports).collect();
    ground.network.masquerade(&fixed);
    ground.network.forget_mappings();
    hear(&mut browser, ground, 0);
    assert!(
        flows_created(ground) > before,
        "the call came by another port"
    );

    let used = carrier(ground.network).expect("one uplink carries the call");
    ground
        .network
        .home
        .run("ip", &["link", "set", used, "down"], "");
    let start = Instant::now();
    let other = loop {
        match carrier(ground.network) {
            Some(other) if other != used => break other,
            _ => {}
        }
        let states = browser.stats(0)["states"].clone();
        assert!(start.elapsed() < MOVE_WAIT, "it stays away: {states}");
    };
    println!("moved from {used} to {other} in {:?}", start.elapsed());
    hear(&mut browser, ground, 0);
    assert_eq!(browser.stats(0)["state"], "connected");

    browser.step(0, "close", &json!({}));
    ground.expect_end(Ending::Closed);
    browser.close();
}

fn flows_created(ground: &Ground<'_>) -> f64 {
    let metrics = ground.edge.relay.metrics().expect("the relay's counters");
    metrics.sum("syrinx_relay_flows_created_total", &[])
}

/// The uplink that carries a call both ways.
fn carrier(network: &Network) -> Option<&'static str> {
    let before = UPLINKS.map(|(name, _)| packets(network, name));
    std::thread::sleep(WATCH);
    let carries = |at: usize| {
        let after = packets(network, UPLINKS[at].0);
        let least = CARRIES_MIN * WATCH.as_secs();
        (0..2).all(|way| after[way] >= before[at][way] + least)
    };
    let found = (0..UPLINKS.len()).find(|&at| carries(at));
    found.map(|at| UPLINKS[at].0)
}

/// Packets that an interface of the home has received and sent (proc_net(5)).
fn packets(network: &Network, name: &str) -> [u64; 2] {
    let table = "/proc/thread-self/net/dev";
    let text = network.home.enter(|| std::fs::read_to_string(table));
    let text = text.expect("proc is mounted");
    let line = text.lines().find_map(|line| {
        let (interface, counters) = line.split_once(':')?;
        (interface.trim() == name).then_some(counters)
    });
    let counters: Vec<&str> = line.expect("the interface").split_whitespace().collect();
    [1, 9].map(|at| counters[at].parse().expect("a count"))
}
