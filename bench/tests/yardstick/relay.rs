//! The relay yardstick judged by what it must hold itself: it loses nothing where there is nothing
//! to lose it, its delays are those that were there, a stall shows in the tail, and what goes wrong
//! ends in a message that says what to do.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use syrinx_bench::relay::clients::{Clients, Framing, Invitation};
use syrinx_bench::relay::drive::{self, Direction};
use syrinx_bench::relay::port::Port;
use syrinx_bench::relay::report::{DelayUs, Report};
use syrinx_bench::relay::rig::{Delays, Rig};
use syrinx_bench::relay::scenario::Scenario;
use syrinx_bench::relay::sink::{Encapsulation, Sink};
use syrinx_bench::relay::target::{Kind, Recipe, Target};

const CLIENTS: u32 = 50;
const SETTLE_WITHIN: Duration = Duration::from_secs(10);

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_syrinx-bench"))
        .arg("relay")
        .args(arguments)
        .output()
        .expect("the bench runs")
}

fn invitations() -> Vec<Invitation> {
    let one = Invitation {
        server_ufrag: b"serverufrag".to_vec(),
        password: b"a password of the server's".to_vec(),
        session: None,
    };
    vec![one; CLIENTS as usize]
}

/// A rig whose clients send to `relay` where there is one, else to the sink itself; and the sink's
/// address.
fn rig(relay: impl FnOnce(SocketAddr) -> SocketAddr) -> Rig {
    let port = Port::bind(([127, 0, 0, 1], 0).into()).expect("the sink's socket");
    let relay = relay(port.local_addr().expect("the sink's address"));
    let clients = Clients::open(relay, Framing::Bare, invitations()).expect("clients");
    Rig::new(clients, Sink::new(port, Encapsulation::Bare, CLIENTS))
}

fn nothing() -> Target {
    let recipe = Recipe {
        kind: Kind::Direct,
        command: None,
        core: 0,
    };
    Target::start(&recipe, std::path::Path::new("/")).expect("nothing to start")
}

/// A forwarder of one way that holds every datagram for `delay`, and all of them during one stall.
struct Delayer {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Delayer {
    /// Forwards from a client's address to `sink` by a socket of its own for each client, so that
    /// the sink tells clients apart, and answers back.
    fn start(sink: SocketAddr, delay: Duration, stall: Duration) -> Self {
        let mut front = Port::bind(([127, 0, 0, 1], 0).into()).expect("front");
        let addr = front.local_addr().expect("front");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || forward(&mut front, sink, delay, stall, &stopped));
        Self {
            addr,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Delayer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the delayer ends");
        }
    }
}

fn forward(
    front: &mut Port,
    sink: SocketAddr,
    delay: Duration,
    stall: Duration,
    stop: &AtomicBool,
) {
    let mut backs: Vec<(SocketAddr, UdpSocket)> = Vec::new();
    let mut waiting = std::collections::VecDeque::new();
    let (mut buffer, mut forwarded) = ([0; 2_048], 0);
    while !stop.load(Ordering::Relaxed) {
        let taken = front.receive(|arrival| {
            let index = backs.iter().position(|(client, _)| *client == arrival.from);
            let index = index.unwrap_or_else(|| {
                backs.push((arrival.from, back_socket(sink)));
                backs.len() - 1
            });
            waiting.push_back((Instant::now() + delay, index, arrival.payload.to_vec()));
        });
        taken.expect("received");
        while waiting
            .front()
            .is_some_and(|(due, ..)| *due <= Instant::now())
        {
            let (_, index, datagram) = waiting.pop_front().expect("just seen");
            // The answers to checks come first; the stall falls in the middle of the window.
            forwarded += 1;
            if forwarded == 1_000 {
                std::thread::sleep(stall);
            }
            backs[index].1.send(&datagram).expect("forwarded");
        }
        for (client, back) in &backs {
            while let Ok(length) = back.recv(&mut buffer) {
                front
                    .send(*client, None, &buffer[..length], None)
                    .expect("answered");
            }
        }
    }
}

fn back_socket(sink: SocketAddr) -> UdpSocket {
    let back = UdpSocket::bind("127.0.0.1:0").expect("back");
    back.connect(sink).expect("back");
    back.set_nonblocking(true).expect("back");
    back
}

/// The delays of one paced window through a delayer.
fn paced_delays(delay: Duration, stall: Duration) -> Delays {
    // Each delay is measured by two threads that never sleep; more at a time would measure those.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut delayer = None;
    let mut rig = rig(|sink| delayer.insert(Delayer::start(sink, delay, stall)).addr);
    assert_eq!(rig.settle(SETTLE_WITHIN).expect("checks"), 0);
    rig.open_window();
    let length = Duration::from_millis(1_000);
    let driven = drive::paced(&mut rig, &mut nothing(), Direction::Up, 2_000, length, 3);
    driven.expect("driven");
    let (up, down) = rig.fates();
    assert_eq!((up.sent, up.delivered, down.sent), (2_000, 2_000, 0));
    assert!(up.clean());
    rig.delays().0.clone()
}

#[test]
fn a_known_delay_is_what_it_reports() {
    // A machine that is busy with other tests lengthens delays and never shortens them, so the
    // shortest of all is the true one; a few windows are enough to meet it on any machine.
    let (mut direct, mut delayed) = (u64::MAX, u64::MAX);
    let mut added_us = f64::NAN;
    for _ in 0..8 {
        direct = direct.min(paced_delays(Duration::ZERO, Duration::ZERO).min());
        delayed = delayed.min(paced_delays(Duration::from_millis(4), Duration::ZERO).min());
        added_us = (delayed as f64 - direct as f64) / 1e3;
        if (3_950.0..=4_050.0).contains(&added_us) {
            return;
        }
    }
    panic!("{added_us} µs where 4,000 were added, {direct} ns without");
}

#[test]
fn a_stall_shows_in_the_tail_with_all_that_waited_behind_it() {
    let delays = paced_delays(Duration::ZERO, Duration::from_millis(100));
    let stalled = DelayUs::of(&delays).expect("delays");
    // A tenth of the datagrams fell due during the stall, and waited for its rest: the 99th
    // percentile is near its length, though only one datagram was held for all of it.
    assert!(
        stalled.p99 > 60_000.0 && stalled.max > 95_000.0,
        "{stalled:?}"
    );
}

#[test]
fn both_ways_arrive_whole_where_nothing_is_between() {
    let mut rig = rig(|sink| sink);
    assert_eq!(rig.settle(SETTLE_WITHIN).expect("checks"), 0);
    rig.open_window();
    let length = Duration::from_millis(100);
    drive::saturated(&mut rig, &mut nothing(), Direction::Duplex, 200, length).expect("driven");
    let (up, down) = rig.fates();
    assert!(
        up.sent > 100 && up.clean() && down.clean(),
        "{up:?} {down:?}"
    );
    assert!(up.sent.abs_diff(down.sent) <= 1, "{up:?} {down:?}");
}

#[test]
fn clients_without_an_answer_are_counted_not_waited_for() {
    let deaf = UdpSocket::bind("127.0.0.1:0").expect("a socket that nobody reads");
    let mut rig = rig(|_| deaf.local_addr().expect("address"));
    let missing = rig.settle(Duration::from_millis(300)).expect("checks");
    assert_eq!(missing, CLIENTS as usize);
}

#[test]
fn a_run_leaves_table_json_picture_free_of_loss() {
    let folder = tempfile::tempdir().expect("folder");
    let json = folder.path().join("result.json");
    let output = bench(&[
        "--targets=direct",
        "--scenarios=to-transceiver-saturated,to-clients-paced",
        "--rounds=2",
        "--window-ms=50",
        "--clients=20",
        "--rate=1000",
        "--seed=9",
        "--json",
        json.to_str().expect("a path"),
    ]);
    let (text, log) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{log}");
    assert!(
        text.contains("to_clients_paced") && text.contains("seed 9"),
        "{text}"
    );
    assert!(log.contains("[4/4"), "{log}");
    let report: Report = syrinx_bench::result_file::read_json(&json).expect("a result");
    assert!(report.origin.complete && report.windows.len() == 4);
    assert!(report.windows.iter().all(|window| window.fates().clean()));
    let paced = report
        .windows
        .iter()
        .find(|window| window.scenario == Scenario::ToClientsPaced);
    assert!(paced.expect("played").delay.is_some());
}

#[test]
fn a_relay_that_is_not_built_ends_in_a_remedy() {
    let output = bench(&[
        "--targets=go",
        "--go-relay=/nonexistent/go-relay",
        "--rounds=1",
    ]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(
        log.contains("/nonexistent/go-relay") && log.contains("make bench-peers"),
        "{log}"
    );
}

#[test]
fn one_core_for_both_is_refused() {
    let output = bench(&["--targets=direct", "--relay-core=0", "--generator-core=0"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && log.contains("one each"),
        "{log}"
    );
}

#[test]
fn a_file_that_is_no_result_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("empty.json");
    std::fs::write(&path, "{}").expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_syrinx-bench"))
        .arg("compare")
        .args([&path, &path])
        .output()
        .expect("the bench runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && log.contains("empty.json"),
        "{log}"
    );
}
