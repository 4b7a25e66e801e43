//! Sockets on a network that is slow or narrow, which loopback as it comes is not, and in a process
//! without privileges.
//!
//! Each scenario runs this test again in namespaces of its own (`unshare`, of util-linux): in a
//! network namespace it may shape the loopback device as it likes and touches nothing else; in a
//! user namespace alone it has no power over the network it is in.

#![cfg(feature = "driver")]

use std::env;
use std::fs;
use std::net::{SocketAddr, UdpSocket as Peer};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};
use syrinx_shared::uring::{
    PathMtu, Segmentation, Send, SendQueue, UdpOptions, WorkerSocket, open_udp,
};

/// Set in the namespace's run of a test.
const INSIDE: &str = "SYRINX_TEST_NAMESPACE";

const OWN_NETWORK: &[&str] = &["--map-root-user", "--net"];
const NO_POWER_OVER_THE_NETWORK: &[&str] = &["--map-root-user"];

/// Runs `body`, of the test of this name, in namespaces of its own, after the `setup` commands.
fn in_namespaces(unshare: &[&str], test: &str, setup: &[&str], body: fn()) {
    if env::var_os(INSIDE).is_some() {
        for command in setup {
            let mut words = command.split(' ');
            let program = words.next().expect("a command has a name");
            let status = Command::new(program).args(words).status();
            assert!(status.is_ok_and(|status| status.success()), "{command}");
        }
        return body();
    }
    let output = Command::new("unshare")
        .args(unshare)
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare, of util-linux, is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    assert!(said.contains("1 passed"), "the test ran inside: {said}");
}

fn sockets(options: &UdpOptions) -> Rc<[WorkerSocket]> {
    let socket = open_udp(options).unwrap();
    vec![WorkerSocket {
        socket,
        large: false,
    }]
    .into()
}

fn loopback() -> UdpOptions {
    UdpOptions::new("127.0.0.1:0".parse().unwrap())
}

fn peer() -> (Peer, SocketAddr) {
    let peer = Peer::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let address = peer.local_addr().unwrap();
    (peer, address)
}

fn send(to: SocketAddr, payload: &[u8], item_count: u32, segment_bytes: Option<u16>) -> Send<'_> {
    Send {
        socket: 0,
        to,
        from_ip: None,
        traffic_class: 0,
        segment_bytes,
        item_count,
        payload,
    }
}

#[test]
fn a_full_send_buffer_is_waited_for_briefly_then_the_rest_is_dropped_and_counted() {
    let setup = [
        "ip link set lo up",
        "tc qdisc add dev lo root tbf rate 8kbit burst 2000 limit 10000000",
    ];
    in_namespaces(
        OWN_NETWORK,
        "a_full_send_buffer_is_waited_for_briefly_then_the_rest_is_dropped_and_counted",
        &setup,
        || {
            let mut options = loopback();
            options.send_buffer_bytes = 4_096;
            let mut queue = SendQueue::new(&sockets(&options));
            let (_peer, to) = peer();
            let payload = [0; 1_000];
            let start = Instant::now();
            let mut sends = queue.begin();
            for _ in 0..100 {
                sends.push(send(to, &payload, 3, None));
            }
            drop(sends);
            let elapsed = start.elapsed();
            let stats = queue.stats(0);
            assert!(elapsed >= Duration::from_millis(1), "{elapsed:?}");
            assert!(elapsed < Duration::from_millis(200), "{elapsed:?}");
            assert!(stats.sent_datagrams >= 1, "{stats:?}");
            assert!(stats.dropped_would_block > 80, "{stats:?}");
            assert_eq!(stats.sent_datagrams + stats.dropped_would_block, 100);
            assert_eq!(stats.items_blocked, 3 * stats.dropped_would_block);
            assert_eq!(stats.items_failed, 0);
        },
    );
}

#[test]
fn a_datagram_longer_than_the_network_carries_arrives_whole_all_the_same() {
    let setup = ["ip link set lo up mtu 1500"];
    in_namespaces(
        OWN_NETWORK,
        "a_datagram_longer_than_the_network_carries_arrives_whole_all_the_same",
        &setup,
        || {
            for (path_mtu, fragmented) in [(PathMtu::Fragment, 0), (PathMtu::Discover, 2)] {
                let mut options = loopback();
                options.path_mtu = path_mtu;
                let mut queue = SendQueue::new(&sockets(&options));
                let (peer, to) = peer();
                let payload: Vec<u8> = (0..9_000).map(|index| (index % 251) as u8).collect();
                let lengths = [200, 9_000, 1_472, 1_473, 0, 1_200];
                let mut sends = queue.begin();
                for length in lengths {
                    sends.push(send(to, &payload[..length], 1, None));
                }
                drop(sends);
                let mut buffer = vec![0; 20_000];
                for length in lengths {
                    assert_eq!(peer.recv(&mut buffer).unwrap(), length);
                    assert_eq!(buffer[..length], payload[..length]);
                }
                let stats = queue.stats(0);
                assert_eq!((stats.sent_datagrams, stats.dropped()), (6, 0));
                assert_eq!(stats.fragmented, fragmented, "{path_mtu:?}");
            }
        },
    );
}

#[test]
fn a_train_wider_than_the_network_arrives_without_giving_up_on_segmentation() {
    let setup = ["ip link set lo up mtu 1500"];
    in_namespaces(
        OWN_NETWORK,
        "a_train_wider_than_the_network_arrives_without_giving_up_on_segmentation",
        &setup,
        || {
            let mut queue = SendQueue::new(&sockets(&loopback()));
            let (peer, to) = peer();
            for stride in [2_000u16, 1_400] {
                let stride_bytes = usize::from(stride);
                let payload: Vec<u8> = (0..5).flat_map(|i| vec![i; stride_bytes]).collect();
                queue.begin().push(send(to, &payload, 5, Some(stride)));
                let mut buffer = vec![0; 20_000];
                for expected in payload.chunks(stride_bytes) {
                    let length = peer.recv(&mut buffer).unwrap();
                    assert_eq!(buffer[..length], *expected);
                }
            }
            let stats = queue.stats(0);
            assert_eq!((stats.sent_datagrams, stats.segmentation_refused), (10, 1));
            assert_eq!((stats.fragmented, stats.dropped()), (5, 0));
            assert_eq!(queue.segmentation(), Segmentation::Kernel);
        },
    );
}

#[test]
fn without_privileges_the_buffers_are_what_the_systems_limit_leaves() {
    in_namespaces(
        NO_POWER_OVER_THE_NETWORK,
        "without_privileges_the_buffers_are_what_the_systems_limit_leaves",
        &[],
        || {
            let limit = |name: &str| {
                let text = fs::read_to_string(format!("/proc/sys/net/core/{name}")).unwrap();
                text.trim().parse::<usize>().unwrap()
            };
            let mut options = loopback();
            options.receive_buffer_bytes = limit("rmem_max") + 1;
            options.send_buffer_bytes = limit("wmem_max") + 1;
            let socket = open_udp(&options).unwrap();
            assert_eq!(socket.granted_receive_buffer_bytes(), limit("rmem_max"));
            assert_eq!(socket.granted_send_buffer_bytes(), limit("wmem_max"));
        },
    );
}
