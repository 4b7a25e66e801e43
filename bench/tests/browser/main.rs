//! A real browser speaks to a real relay and a real transceiver, and hears itself.
//!
//! Chromium plays a spoken sentence as its microphone into the demo page, records what comes
//! back, and the recording is compared with the sentence by its waveform. Counters of both
//! daemons show the way that the sound took, and the kernel says which ports were open.
//!
//! Other scenarios put a backend of another language behind the edge and hold a conversation with
//! it: the answers are heard to their ends or interrupted, packets are counted, and what the
//! backend was told is held against the count.
//!
//! Needs chromium, node, npm, python3, espeak-ng, flite and sox, and the two daemons built beside
//! this test.

mod chromium;
mod demo_agent;
mod media_v1;
mod mock;
mod realtime;
mod sdk;
mod talk;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use syrinx_bench::hearing::{Likeness, Recording, likeness};
use syrinx_bench::process::edge::{Edge, EdgeOptions};
use syrinx_bench::speech::{Speaker, speak};

use serde_json::json;

use chromium::Chromium;

/// What a true echo reaches at least: through a codec and a jitter buffer it scores about 0.95.
const SAME_SPEECH_MIN: f64 = 0.8;
/// What anything else stays below: other words in another voice score about 0.1.
const OTHER_SPEECH_MAX: f64 = 0.3;
/// Recordings made before a call counts as one that does not carry what was said.
const RECORDINGS_MAX: usize = 3;

/// A browser takes a whole core: on a small machine two scenarios at once would only wait for
/// each other.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_browser_hears_itself_through_two_workers_on_ipv4() {
    let _turn = alone();
    hears_itself(EdgeOptions {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        workers: 2,
    });
}

#[test]
fn a_browser_hears_itself_through_one_worker_on_ipv6() {
    let _turn = alone();
    hears_itself(EdgeOptions {
        address: IpAddr::V6(Ipv6Addr::LOCALHOST),
        workers: 1,
    });
}

fn hears_itself(options: EdgeOptions) {
    let mut edge = Edge::start(options).expect("an edge");
    let (file, sentence) = speak(edge.folder(), Speaker::First);
    let mut browser = Chromium::launch(&edge.folder().join("browser"), &file);
    start_call(&mut browser, &edge);

    let returned = hear(&mut browser, &sentence);
    let (_, other) = speak(edge.folder(), Speaker::Second);
    assert_other(&other, &returned);

    assert_one_port_through_the_relay(&mut browser, &edge);
    echoes_an_event(&mut browser);
    hang_up(&mut browser, &mut edge);
    assert_eq!(
        browser.complaints(),
        Vec::<String>::new(),
        "the console is clean"
    );

    edge.transceiver
        .stop()
        .expect("the transceiver ends when asked to");
    browser.click("#talk");
    browser.wait("window.syrinx.state === 'failed'");
    let error = browser.evaluate("window.syrinx.error");
    assert!(
        error
            .as_str()
            .is_some_and(|text| text.contains("cannot be reached")),
        "{error}"
    );
    browser.close();
}

#[test]
fn two_browsers_at_once_land_on_different_shards_and_hear_only_themselves() {
    let _turn = alone();
    let options = EdgeOptions {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        workers: 2,
    };
    let mut edge = Edge::start(options).expect("an edge");
    let (file, sentence) = speak(edge.folder(), Speaker::First);
    let mut first = Chromium::launch(&edge.folder().join("first"), &file);
    let (other_file, other_sentence) = speak(edge.folder(), Speaker::Second);
    let mut second = Chromium::launch(&edge.folder().join("second"), &other_file);
    start_call(&mut first, &edge);
    start_call(&mut second, &edge);

    edge.wait_for_sessions(&[1.0, 1.0])
        .expect("one session on each of the two shards");
    let returned = hear(&mut first, &sentence);
    let other_returned = hear(&mut second, &other_sentence);
    assert_other(&other_sentence, &returned);
    assert_other(&sentence, &other_returned);

    // Leaving the page is hanging up too, and of this one call only.
    assert_eq!(second.open(&edge.page_url("")), 200);
    wait_for_hang_ups(&mut edge, 1.0);
    edge.wait_for_sessions_in_all(1.0)
        .expect("the other call goes on");
    assert_eq!(first.evaluate("window.syrinx.state"), "live");
    first.close();
    second.close();
}

#[test]
fn a_call_outlives_a_relay_that_is_killed_and_started_again() {
    let _turn = alone();
    let options = EdgeOptions {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        workers: 2,
    };
    let mut edge = Edge::start(options).expect("an edge");
    let (file, sentence) = speak(edge.folder(), Speaker::First);
    let mut browser = Chromium::launch(&edge.folder().join("browser"), &file);
    start_call(&mut browser, &edge);
    browser.wait("window.syrinx.stats.packetsBack > 50");

    edge.relay.kill();
    edge.relay.restart().expect("the relay starts again");
    let before = browser.evaluate("window.syrinx.stats.packetsBack");
    browser.wait(&format!("window.syrinx.stats.packetsBack > {before} + 50"));
    browser.wait("window.syrinx.state === 'live'");

    hear(&mut browser, &sentence);
    let states = browser.evaluate("window.syrinx.connectionStates.join(' ')");
    let states = states.as_str().expect("a text").to_owned();
    assert!(
        !states.contains("failed") && !states.contains("closed"),
        "{states}"
    );
    let after = edge.forwarded().expect("the relay's counters");
    assert!(
        after.to_transceiver > 0.0 && after.to_client > 0.0,
        "{after:?}"
    );
    let opened = edge
        .transceiver
        .metrics()
        .expect("the transceiver's counters");
    let opened = opened.sum("syrinx_transceiver_sessions_opened_total", &[]);
    assert_eq!(opened, 1.0, "it is the same session all along");
    hang_up(&mut browser, &mut edge);
    browser.close();
}

/// Opens the page, presses Talk, and waits for every step up to the first sound that is back.
fn start_call(browser: &mut Chromium, edge: &Edge) {
    start_silent_call(browser, &edge.page_url(""));
    browser.wait("window.syrinx.phases.audio > 0");
}

/// Opens this page, presses Talk, and waits until the session is up, of which nothing may be heard
/// yet: not everything behind an edge speaks first.
fn start_silent_call(browser: &mut Chromium, page: &str) {
    // raw: an echo canceller would remove the very signal that is looked for.
    assert_eq!(browser.open(&format!("{page}?raw=1")), 200);
    browser.click("#talk");
    for phase in ["offer", "answer", "ice", "dtls", "channel", "session"] {
        browser.wait(&format!("window.syrinx.phases.{phase} > 0"));
    }
    browser.wait("window.syrinx.state === 'live'");
}

/// Records what comes back until it is the sentence by its waveform, and gives that recording.
///
/// A machine whose cores are busy may starve the browser's audio threads, which tears holes into
/// one recording; sound that is not the sentence scores a tenth of what is asked for, every time.
fn hear(browser: &mut Chromium, sentence: &Recording) -> Recording {
    let mut tries: Vec<Likeness> = Vec::new();
    while tries.len() < RECORDINGS_MAX {
        // Long enough for one whole sentence to be inside, wherever the recording begins.
        let file = browser.record("returned.wav", 2.0 * sentence.seconds() + 1.0);
        let returned = Recording::read_wav(&file).expect("the browser's recording");
        let found = likeness(sentence, &returned);
        assert!(
            found.windows >= 5,
            "too little speech to judge by: {found:?}"
        );
        if found.score >= SAME_SPEECH_MIN {
            return returned;
        }
        tries.push(found);
    }
    panic!("what came back is not what was said: {tries:?}");
}

fn assert_other(sentence: &Recording, returned: &Recording) {
    let found = likeness(sentence, returned);
    assert!(
        found.score <= OTHER_SPEECH_MAX,
        "this should not be in there: {found:?}"
    );
}

/// The browser sent to the relay's public port only, no other port was open, and the relay
/// carried at least what the browser counted.
fn assert_one_port_through_the_relay(browser: &mut Chromium, edge: &Edge) {
    let used = browser.evaluate("window.syrinx.stats.relayPort");
    assert_eq!(used.as_u64(), Some(u64::from(edge.ports.public)));
    let known = browser.evaluate("window.syrinx.stats.remotePorts");
    assert_eq!(
        known,
        json!([edge.ports.public]),
        "the answer names one port"
    );
    let relay = edge.relay.udp_ports().expect("the relay's sockets");
    assert_eq!(relay, [edge.ports.public, edge.ports.relay_inner].into());
    let transceiver = edge
        .transceiver
        .udp_ports()
        .expect("the transceiver's sockets");
    assert_eq!(transceiver, [edge.ports.transceiver_inner].into());
    let back = browser
        .evaluate("window.syrinx.stats.packetsBack")
        .as_f64()
        .expect("a count");
    assert!(back > 100.0, "{back} packets");
    // Counters are published once a second: a moment may be missing.
    let carried = edge.forwarded().expect("the relay's counters");
    assert!(
        carried.to_client >= back - 100.0,
        "{carried:?}, and {back} packets came back"
    );
    assert!(
        carried.to_transceiver >= back - 100.0,
        "{carried:?}, and {back} packets came back"
    );
}

fn echoes_an_event(browser: &mut Chromium) {
    let event = r#"{"type":"test.greeting","text":"Grüße \" \\ 語"}"#;
    browser.fill("#event", event);
    browser.click("#send button");
    let sent = serde_json::to_string(event).expect("a text is JSON");
    browser.wait(&format!(
        "window.syrinx.events.some((e) => e.way === 'received' && e.text === {sent})"
    ));
    let first = browser.evaluate("JSON.parse(window.syrinx.events[0].text).type");
    assert_eq!(first, "session.created");
}

/// Hangs up in the page, and waits until the transceiver has freed the one session.
fn hang_up(browser: &mut Chromium, edge: &mut Edge) {
    browser.click("#hangup");
    browser.wait("window.syrinx.state === 'ended'");
    wait_for_hang_ups(edge, 1.0);
    edge.wait_for_sessions_in_all(0.0)
        .expect("hanging up frees the session");
}

/// Waits until so many sessions have ended because the client said so: by the API, or by closing
/// its connection.
fn wait_for_hang_ups(edge: &mut Edge, count: f64) {
    let ended = edge.transceiver.wait("the session's end", |transceiver| {
        let metrics = transceiver.metrics().unwrap_or_default();
        let by = |reason| {
            metrics.sum(
                "syrinx_transceiver_sessions_ended_total",
                &[("reason", reason)],
            )
        };
        by("hung_up") + by("client_closed") == count
    });
    ended.expect("a session that its client ends");
}
