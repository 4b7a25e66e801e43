//! Thirty thousand strangers who connect to the signalling address and say nothing: the calls that
//! are open lose no packet, and others are set up meanwhile.
//!
//! The strangers live in a network namespace of the test's own, as addresses beyond loopback: there
//! a client has no more than its share.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use syrinx_bench::namespace::{Network, with_namespaces};
use syrinx_bench::process::edge::{Edge, EdgeOptions, Tuning};
use syrinx_bench::process::settings;

use crate::ground::resident_bytes;
use crate::softphone::Softphone;

const EDGE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 10));
/// A second of speech.
const SECOND: usize = 50;
const CROWD: usize = 30_000;
/// Descriptors that a process of this test needs beside those of the crowd.
const SPARE: usize = 1_024;
/// Connections of one stranger: less than his share (`connections_per_client_count_max`).
const EACH: usize = 100;
/// Connections between two pauses: well within the kernel's backlog, beyond which each would have
/// to ask again after a second.
const BREATH: usize = 500;
/// Where strangers live, 10.66.0.1 and up.
const STRANGERS: u32 = u32::from_be_bytes([10, 66, 0, 1]);
const STRANGERS_ROUTE: &str = "route add local 10.66.0.0/16 dev lo\n";
/// Memory that a connection without a request may cost the transceiver.
const IDLE_BYTES_MAX: u64 = 8 << 10;

/// The limit is the process's, so the tests here take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Lets processes of this test open as many files as a crowd needs, or else as many as they may,
/// and gives the crowd's size.
fn raise_limit() -> usize {
    let wanted = (CROWD + SPARE) as u64;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Beyond the hard limit only root may go.
    let limit = match setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted.max(hard)) {
        Ok(()) => wanted,
        Err(_) => {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
            hard
        }
    };
    let crowd = (usize::try_from(limit).unwrap() - SPARE).min(CROWD);
    eprintln!("{crowd} connections of {CROWD} at once: RLIMIT_NOFILE is {limit}");
    assert!(crowd > 2_000, "RLIMIT_NOFILE is {hard}: a crowd needs more");
    crowd
}

/// An edge on the public side of the network, and the strangers' addresses beside it.
fn start(network: &Network, transceiver: &[&str]) -> Edge {
    network.edge.run("ip", &["-batch", "-"], STRANGERS_ROUTE);
    let options = EdgeOptions {
        address: EDGE,
        workers: 1,
    };
    let tuning = Tuning {
        transceiver: transceiver
            .iter()
            .map(|text| settings::parse(text).unwrap())
            .collect(),
        ..Tuning::default()
    };
    Edge::start_tuned(options, &tuning).unwrap()
}

fn signalling(edge: &Edge) -> SocketAddrV4 {
    let IpAddr::V4(address) = EDGE else {
        unreachable!("it is of IPv4");
    };
    SocketAddrV4::new(address, edge.ports.signalling)
}

/// The address of the stranger who makes the `index`-th connection.
fn stranger(index: usize) -> Ipv4Addr {
    Ipv4Addr::from(STRANGERS + u32::try_from(index / EACH).unwrap())
}

fn connect_from(from: Ipv4Addr, to: SocketAddrV4) -> nix::Result<TcpStream> {
    let stream = AddressFamily::Inet;
    let socket = socket(stream, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(
        socket.as_raw_fd(),
        &SockaddrIn::from(SocketAddrV4::new(from, 0)),
    )?;
    connect(socket.as_raw_fd(), &SockaddrIn::from(to))?;
    Ok(TcpStream::from(socket))
}

/// The stranger's connection with this number.
fn connect_once(number: usize, edge: &Edge) -> TcpStream {
    if number.is_multiple_of(BREATH) {
        thread::sleep(Duration::from_millis(20));
    }
    connect_from(stranger(number), signalling(edge)).unwrap()
}

/// A person calls from the edge's own host.
fn call(edge: &Edge, port: u16) -> Softphone {
    let local = SocketAddr::new(EDGE, port);
    Softphone::call(local, signalling(edge).into())
}

/// Speaks until `count` more packets were heard, none of which was preceded by a lost one.
fn converse(phone: &mut Softphone, count: usize) {
    phone.hear_itself(count);
    let lost = phone.heard.windows(2).filter(|pair| pair[1] != pair[0] + 1);
    assert_eq!(lost.count(), 0, "{:?}", phone.heard);
}

fn metric(edge: &Edge, name: &str, labels: &[(&str, &str)]) -> f64 {
    let name = format!("syrinx_transceiver_http_{name}");
    edge.transceiver.metrics().unwrap().sum(&name, labels)
}

fn closed(edge: &Edge, reason: &str) -> f64 {
    metric(edge, "connections_closed_total", &[("reason", reason)])
}

#[test]
fn thirty_thousand_idle_connections_are_held_while_calls_are_set_up_and_spoken() {
    with_namespaces(
        "crowd::thirty_thousand_idle_connections_are_held_while_calls_are_set_up_and_spoken",
        || {
            let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            let network = Network::new();
            network.edge.enter(|| holds_a_crowd(&network));
        },
    );
}

fn holds_a_crowd(network: &Network) {
    let crowd = raise_limit();
    // As many places as there may be, and the longest time in them.
    let places = format!("signalling.connections_count_max={}", crowd + SPARE / 2);
    let edge = start(network, &[&places, "signalling.header_timeout_ms=60_000"]);
    let mut phone = call(&edge, 5_004);
    converse(&mut phone, SECOND);
    let pid = edge.transceiver.pid();
    let before = resident_bytes(pid);

    let (connected, may_go) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let strangers = scope.spawn(|| {
            let mut held = Vec::with_capacity(crowd);
            while held.len() < crowd && !may_go.load(Ordering::Relaxed) {
                held.push(connect_once(held.len(), &edge));
                connected.store(held.len(), Ordering::Relaxed);
            }
            while !may_go.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
            }
        });
        // Whatever fails, the strangers go.
        let _let_go = LetGo(&may_go);
        while connected.load(Ordering::Relaxed) < crowd {
            assert!(!strangers.is_finished(), "the strangers have failed");
            converse(&mut phone, SECOND / 5);
        }
        // Those that the kernel has, the process has as soon as it gets to them.
        let deadline = Instant::now() + Duration::from_secs(30);
        while metric(&edge, "connections", &[]) < crowd as f64 {
            assert!(
                Instant::now() < deadline,
                "{}",
                metric(&edge, "connections", &[])
            );
            converse(&mut phone, SECOND / 5);
        }
        let each = resident_bytes(pid).saturating_sub(before) / crowd as u64;
        eprintln!("{each} bytes of the transceiver for each idle connection");
        assert!(each <= IDLE_BYTES_MAX, "{each} bytes for each connection");

        let mut another = call(&edge, 5_006);
        converse(&mut another, SECOND);
        converse(&mut phone, SECOND);
        let open = metric(&edge, "connections", &[]);
        assert!(open >= crowd as f64, "they were held all the while: {open}");
    });
    assert_eq!(
        (closed(&edge, "gave_way"), closed(&edge, "full")),
        (0.0, 0.0)
    );
    converse(&mut phone, SECOND);
}

#[test]
fn a_crowd_that_is_larger_than_the_house_keeps_nobody_out() {
    with_namespaces(
        "crowd::a_crowd_that_is_larger_than_the_house_keeps_nobody_out",
        || {
            let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            let network = Network::new();
            network.edge.enter(|| outlives_a_crowd(&network));
        },
    );
}

fn outlives_a_crowd(network: &Network) {
    let crowd = raise_limit();
    // As shipped, but for the clock: whoever is closed must have given way.
    let edge = start(network, &["signalling.header_timeout_ms=60_000"]);
    let mut phone = call(&edge, 5_004);
    converse(&mut phone, SECOND);

    let (is_over, may_go) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut calls = 0;
    thread::scope(|scope| {
        let strangers = scope.spawn(|| {
            let mut held = VecDeque::new();
            for made in 0..CROWD {
                if may_go.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = connect_once(made, &edge);
                // Some say a little.
                if made.is_multiple_of(3) {
                    let _ = stream.write_all(b"POST /v1/realtime/calls HT");
                }
                held.push_back(stream);
                // These had to give way long ago.
                held.drain(..held.len().saturating_sub(crowd));
            }
            is_over.store(true, Ordering::Relaxed);
            while !may_go.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let _let_go = LetGo(&may_go);
        loop {
            let is_last = is_over.load(Ordering::Relaxed);
            assert!(
                is_last || !strangers.is_finished(),
                "the strangers have failed"
            );
            let mut another = call(&edge, 5_006 + 2 * calls);
            converse(&mut another, SECOND / 5);
            converse(&mut phone, SECOND / 5);
            calls += 1;
            if is_last {
                break;
            }
        }
        let house = 1_024.0;
        let open = metric(&edge, "connections", &[]);
        assert!(open <= house, "{open} connections have a place");
        let gave_way = closed(&edge, "gave_way");
        assert!(gave_way >= CROWD as f64 - house, "{gave_way} gave way");
    });
    assert!(calls > 1, "calls came in the middle of it");
    eprintln!("{calls} calls were set up while the crowd came");
    assert_eq!(closed(&edge, "full"), 0.0);

    a_stranger_has_his_share(&edge);
    converse(&mut call(&edge, 6_000), SECOND / 5);
    converse(&mut phone, SECOND / 5);
}

/// One who wants more than his share is told so, and nobody else has less.
fn a_stranger_has_his_share(edge: &Edge) {
    let (share, wanted) = (256, 300);
    let greedy = Ipv4Addr::new(10, 66, 255, 1);
    let before = closed(edge, "over_share");
    let held: Vec<_> = (0..wanted)
        .map(|_| connect_from(greedy, signalling(edge)).unwrap())
        .collect();
    // Those that are refused keep others from hearing it for a second.
    thread::sleep(Duration::from_secs(2));
    let mut last = connect_from(greedy, signalling(edge)).unwrap();
    let request = format!("GET /app.js HTTP/1.1\r\nhost: {EDGE}\r\nconnection: close\r\n\r\n");
    last.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    assert!(answer.contains("too_many_connections"), "{answer}");
    let refused = closed(edge, "over_share") - before;
    assert_eq!(refused, f64::from(wanted + 1 - share));
    drop(held);
}

/// Tells the strangers to go, when it goes itself.
struct LetGo<'a>(&'a AtomicBool);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
