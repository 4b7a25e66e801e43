//! The engine against servers whose behaviour is known: a reflector with a delay, a stalled one, a
//! refusing one, a dead one, one that is deaf on UDP.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use super::super::reflector::Reflector;
use super::super::schedule::{Arrivals, Hold, Starts, plan};
use super::super::signalling::{Expected, Opened, Realtime, RealtimeOptions};
use super::super::tally::Phase;
use super::*;

const CALLS: u32 = 4;
/// From the first start to the window: machines that run tests are busy.
const SETTLE: Duration = Duration::from_millis(800);

struct Nobody;

impl Watch for Nobody {
    fn tick(&mut self, _: Tick) {}
}

fn kit() -> &'static Kit {
    static KIT: std::sync::OnceLock<Kit> = std::sync::OnceLock::new();
    KIT.get_or_init(|| Kit::new(false).expect("the crypto library can do DTLS"))
}

fn realtime(url: &str) -> Realtime {
    Realtime::new(&RealtimeOptions {
        url,
        key: None,
        expected: Expected {
            channel: false,
            session: false,
        },
        trusted: None,
        timeout: Duration::from_secs(2),
        diallers: 4,
    })
    .expect("an address")
}

/// Calls that start within 100 ms and are measured for `window`.
fn planned(count: u32, window: Duration) -> Vec<Planned> {
    let starts = Starts {
        count,
        rate: f64::from(count) * 10.0,
        ramp: Duration::ZERO,
        arrivals: Arrivals::Fixed,
    };
    plan(&starts, Hold::Until(SETTLE + window), 1)
}

fn drive(
    signalling: &dyn Signalling,
    plan: &[Planned],
    window: Duration,
    incident: Option<Incident<'_>>,
    stop: &AtomicBool,
) -> Driven {
    let start = plan[plan.len() - 1].start + SETTLE;
    let drive = Drive {
        plan,
        signalling,
        kit: kit(),
        speech: Speech::Continuous,
        sound: Sound::Stamped,
        sources: Sources::LOOPBACK,
        window: start..start + window,
        set_up_timeout: Duration::from_secs(2),
        cores: &[],
        threads: 2,
        diallers: 4,
    };
    run(&drive, incident, stop, &mut Nobody).expect("the engine runs")
}

/// The fastest round trip that the generator saw, without what the reflector says it kept the
/// fastest packet for, in µs: what two machines' worth of system calls and wake-ups take.
fn overhead_us(reflector: &Reflector, delay: Duration) -> f64 {
    reflector.delay(delay);
    let window = Duration::from_millis(600);
    let plan = planned(CALLS, window);
    let signalling = realtime(&reflector.url());
    reflector.take_held();
    let driven = drive(&signalling, &plan, window, None, &AtomicBool::new(false));
    assert_eq!(driven.tally.calls.completed, u64::from(CALLS));
    let held_us = reflector
        .take_held()
        .quantile_us(0.02)
        .expect("it kept audio");
    assert!(held_us > delay.as_micros() as f64 * 0.999);
    driven.tally.round_trip.quantile_us(0.02).expect("measured") - held_us
}

#[test]
fn round_trips_are_right_to_within_50_us_of_a_known_delay() {
    let reflector = Reflector::start().expect("a reflector");
    // What comes on top of the delay is the same with any delay; the fastest fiftieth, because the
    // others waited for a core, which is true, and not the clock's doing. On a machine that rarely
    // has one the test tries again.
    let mut off_us = f64::MAX;
    for _ in 0..5 {
        let short_us = overhead_us(&reflector, Duration::from_millis(3));
        let long_us = overhead_us(&reflector, Duration::from_millis(33));
        assert!(short_us > 0.0 && long_us > 0.0, "{short_us} {long_us}");
        off_us = off_us.min((long_us - short_us).abs());
        if off_us < 50.0 {
            break;
        }
    }
    assert!(off_us < 50.0, "off by {off_us} us");
}

#[test]
fn a_stalled_server_shows_in_the_tail_with_every_packet_it_kept_waiting() {
    let reflector = Reflector::start().expect("a reflector");
    let signalling = realtime(&reflector.url());
    let window = Duration::from_millis(1_500);
    let plan = planned(CALLS, window);
    let incident = Incident {
        at: SETTLE + Duration::from_millis(400),
        what: "the server stood still".to_owned(),
        act: Box::new(|| {
            reflector.stall(Duration::from_millis(600));
            Ok(())
        }),
    };
    let driven = drive(
        &signalling,
        &plan,
        window,
        Some(incident),
        &AtomicBool::new(false),
    );
    let tally = &driven.tally;
    assert_eq!((tally.calls.completed, tally.packets.lost()), (4, 0));
    // Of 75 packets a call, 30 should have been sent during the stall, and a third of those waited
    // for longer than 400 ms. A generator that waits for the echo before it sends sees one.
    let late_us = tally.round_trip.quantile_us(0.88).expect("measured");
    assert!(late_us > 350_000.0, "{late_us}");
    let worst_us = tally.round_trip.quantile_us(1.0).expect("measured");
    assert!(worst_us > 560_000.0, "{worst_us}");
    let gap_us = tally.longest_gap.quantile_us(0.0).expect("measured");
    assert!(gap_us > 500_000.0, "{gap_us}");
    assert_eq!(
        driven.incident.expect("it was done").what,
        "the server stood still"
    );
}

#[test]
fn every_milestone_is_reached_once_by_every_call() {
    let reflector = Reflector::start().expect("a reflector");
    let signalling = realtime(&reflector.url());
    let window = Duration::from_millis(500);
    let plan = planned(CALLS, window);
    let driven = drive(&signalling, &plan, window, None, &AtomicBool::new(false));
    let tally = &driven.tally;
    assert!(driven.complete);
    for phase in [
        Phase::Http,
        Phase::Check,
        Phase::Ice,
        Phase::Dtls,
        Phase::Audio,
    ] {
        let count = tally.set_up[phase as usize].total.count();
        assert_eq!(count, u64::from(CALLS), "{}", phase.name());
    }
    assert_eq!(tally.set_up[Phase::Channel as usize].total.count(), 0);
    // 25 packets a call, up to one more or less for its phase.
    let expected = u64::from(CALLS) * 24..=u64::from(CALLS) * 26;
    assert!(
        expected.contains(&tally.packets.said),
        "{:?}",
        tally.packets
    );
    assert_eq!((tally.packets.lost(), tally.foreign), (0, 0));
    let off = tally.call_time.abs_diff(window * CALLS);
    assert!(off < Duration::from_millis(5), "{:?}", tally.call_time);
}

#[test]
fn a_refusing_server_ends_the_run_early_with_its_words() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/calls", listener.local_addr().expect("bound"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                if over.load(Ordering::Relaxed) {
                    return;
                }
                // The refusal does not wait for the offer, and ends the connection.
                let _ = stream.write_all(
                    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\
                      Connection: close\r\nContent-Length: 4\r\n\r\nfull",
                );
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        let window = Duration::from_secs(60);
        let plan = planned(400, window);
        let driven = drive(
            &realtime(&url),
            &plan,
            window,
            None,
            &AtomicBool::new(false),
        );
        let tally = &driven.tally;
        assert!(
            !driven.complete && tally.calls.started < 400,
            "{:?}",
            tally.calls
        );
        let refused = &tally.failures.0[&Cause::Refused];
        assert!(
            refused.count >= HOPELESS && refused.first.contains("full"),
            "{refused:?}"
        );
        over.store(true, Ordering::Relaxed);
        drop(std::net::TcpStream::connect(
            listener.local_addr().expect("bound"),
        ));
    });
}

#[test]
fn a_dead_server_ends_the_run_early() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/calls", free.local_addr().expect("bound"));
    drop(free);
    let window = Duration::from_secs(60);
    let plan = planned(400, window);
    let driven = drive(
        &realtime(&url),
        &plan,
        window,
        None,
        &AtomicBool::new(false),
    );
    assert!(!driven.complete && driven.tally.calls.established == 0);
    assert!(driven.tally.failures.0[&Cause::NoServer].count >= HOPELESS);
}

/// A server whose answers name a port at which nobody answers.
struct Deaf {
    inner: Realtime,
    socket: UdpSocket,
}

impl Signalling for Deaf {
    fn open(&self, offer: &str) -> Result<Opened, Failure> {
        let mut opened = self.inner.open(offer)?;
        let port = self.socket.local_addr().expect("bound").port().to_string();
        let lines = opened.answer.lines().map(|line| {
            let mut words: Vec<&str> = line.split(' ').collect();
            if line.starts_with("a=candidate:") {
                words[5] = &port;
            }
            words.join(" ") + "\r\n"
        });
        opened.answer = lines.collect();
        Ok(opened)
    }

    fn hang_up(&self, _: &str) {}

    fn expected(&self) -> Expected {
        self.inner.expected()
    }
}

#[test]
fn a_server_that_is_deaf_on_udp_fails_calls_at_their_first_check() {
    let reflector = Reflector::start().expect("a reflector");
    let deaf = Deaf {
        inner: realtime(&reflector.url()),
        socket: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"),
    };
    let window = Duration::from_secs(4);
    let plan = planned(CALLS, window);
    let driven = drive(&deaf, &plan, window, None, &AtomicBool::new(false));
    assert_eq!(driven.tally.calls.failed, u64::from(CALLS));
    let failures = &driven.tally.failures.0;
    assert_eq!(
        failures[&Cause::NoCheckAnswered].count,
        u64::from(CALLS),
        "{failures:?}"
    );
}

#[test]
fn a_stopped_run_ends_soon_and_keeps_what_it_measured() {
    let reflector = Reflector::start().expect("a reflector");
    let signalling = realtime(&reflector.url());
    let window = Duration::from_secs(60);
    let plan = planned(CALLS, window);
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let driven = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(SETTLE + Duration::from_millis(700));
            stop.store(true, Ordering::Relaxed);
        });
        drive(&signalling, &plan, window, None, &stop)
    });
    assert!(begun.elapsed() < window / 2, "it ended early");
    assert!(!driven.complete);
    assert_eq!(driven.tally.calls.cut_short, u64::from(CALLS));
    assert_eq!(
        (driven.tally.calls.lost, driven.tally.failures.total()),
        (0, 0)
    );
    assert!(driven.tally.round_trip.count() > 0);
}
