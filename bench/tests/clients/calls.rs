//! Browsers' calls: heard, muted, several at once, long.

#[cfg(feature = "every-client")]
use std::time::Duration;

use serde_json::{Value, json};
use syrinx_bench::namespace::with_namespaces;

use crate::browser::{Browser, Kind};
use crate::ground::{Ending, Ground, Report, on_ground};
use crate::manual;
use crate::program::sources;

/// Recordings made before a call counts as one that does not carry what was said: a machine whose
/// cores are busy may starve a browser's audio threads and tear holes into one.
const RECORDINGS_MAX: usize = 3;
/// Longest way of a sound through page, codec, network and jitter buffer, and back.
#[cfg(feature = "every-client")]
const ON_THE_WAY_S: f64 = 1.0;
/// How long a muted caller listens.
#[cfg(feature = "every-client")]
const MUTED_S: f64 = 2.0;
/// Loudest sample of silence that went through a codec; full scale is 1.
#[cfg(feature = "every-client")]
const SILENCE_MAX: f32 = 0.01;
/// The version of a DTLS 1.3 record layer, as browsers tell it.
const DTLS_1_3: &str = "FEFC";
/// A call that outlasts every deadline of its set-up and of consent (RFC 7675: 30 s).
#[cfg(feature = "every-client")]
const STAY: Duration = Duration::from_secs(180);
/// The least that a browser says of what is due, on a machine whose cores are busy.
#[cfg(feature = "every-client")]
const SPOKEN_MIN: f64 = 0.5;
/// Packets that are on their way when one of two counts is taken: half a second of them.
#[cfg(feature = "every-client")]
const ON_THE_WAY_PACKETS: f64 = 25.0;
/// Voice packets of 20 ms.
#[cfg(feature = "every-client")]
const PACKETS_PER_SECOND: f64 = 50.0;

/// Launches a browser with our caller in its page.
pub(crate) fn browser_with_caller(ground: &Ground<'_>, kind: Kind, settings: &Value) -> Browser {
    let mut browser = Browser::launch(ground, kind, settings);
    let scripts = ["browsers/ear.js", "browsers/caller.js"];
    browser.open(ground, &scripts.map(|script| sources().join(script)));
    browser
}

/// Records until what comes back on a call is the sentence.
pub(crate) fn hear(browser: &mut Browser, ground: &Ground<'_>, call: usize) {
    let seconds = ground.recording_s();
    let mut returned = browser.record(call, seconds);
    for _ in 1..RECORDINGS_MAX {
        if ground.is_sentence(&returned) {
            break;
        }
        returned = browser.record(call, seconds);
    }
    ground.judge_recording(&returned);
}

/// Opens a call whose ClientHello is so large, with its post-quantum key share, that it came in
/// two datagrams: what both browsers do by themselves.
fn calls_post_quantum(browser: &mut Browser, ground: &Ground<'_>) -> Report {
    ground.watch_client_hellos();
    let report = browser.call(ground, 0);
    let stats = browser.stats(0);
    assert_eq!(stats["dtls"], DTLS_1_3, "{stats}");
    let [first, further] = ground.client_hello_pieces();
    assert!(first > 0 && further > 0, "{first} first, {further} further");
    report
}

#[test]
fn firefox_hears_itself() {
    with_namespaces("calls::firefox_hears_itself", || {
        on_ground(|ground| {
            let mut browser = browser_with_caller(ground, Kind::Firefox, &json!({}));
            let report = calls_post_quantum(&mut browser, ground);
            hear(&mut browser, ground, 0);
            browser.step(0, "close", &json!({}));
            ground.expect_end(Ending::Closed);
            manual::confirm(&report, Ending::Closed);
            browser.close();
        });
    });
}

#[cfg(feature = "every-client")]
#[test]
fn chromium_hears_itself_is_muted_and_hears_itself_again() {
    let name = "calls::chromium_hears_itself_is_muted_and_hears_itself_again";
    with_namespaces(name, || {
        on_ground(|ground| {
            let mut browser = browser_with_caller(ground, Kind::Chromium, &json!({}));
            let report = calls_post_quantum(&mut browser, ground);
            hear(&mut browser, ground, 0);

            browser.step(0, "mute", &json!({ "on": true }));
            // What was said before the button was pressed is still on its way.
            browser.record(0, ON_THE_WAY_S);
            let loudest = browser.record(0, MUTED_S).peak();
            assert!(loudest < SILENCE_MAX, "a muted caller hears {loudest}");
            browser.step(0, "mute", &json!({ "on": false }));
            hear(&mut browser, ground, 0);

            browser.step(0, "close", &json!({}));
            ground.expect_end(Ending::Closed);
            manual::confirm(&report, Ending::Closed);
            browser.close();
        });
    });
}

#[cfg(feature = "every-client")]
#[test]
fn three_calls_of_one_chromium_page_are_all_heard_and_end_one_by_one() {
    let name = "calls::three_calls_of_one_chromium_page_are_all_heard_and_end_one_by_one";
    with_namespaces(name, || {
        on_ground(|ground| {
            let mut browser = browser_with_caller(ground, Kind::Chromium, &json!({}));
            for call in 0..3 {
                browser.call(ground, call);
            }
            for call in 0..3 {
                hear(&mut browser, ground, call);
            }
            for left in (0..3u8).rev() {
                browser.step(usize::from(left), "close", &json!({}));
                let sessions = ground.edge.wait_for_sessions_in_all(f64::from(left));
                sessions.expect("the other calls go on");
            }
            browser.close();
        });
    });
}

#[cfg(feature = "every-client")]
#[test]
fn chromium_stays_for_three_minutes_and_loses_nothing() {
    with_namespaces(
        "calls::chromium_stays_for_three_minutes_and_loses_nothing",
        || stays(Kind::Chromium),
    );
}

#[cfg(feature = "every-client")]
#[test]
fn firefox_stays_for_three_minutes_and_loses_nothing() {
    with_namespaces(
        "calls::firefox_stays_for_three_minutes_and_loses_nothing",
        || stays(Kind::Firefox),
    );
}

#[cfg(feature = "every-client")]
fn stays(kind: Kind) {
    match kind {
        Kind::Chromium => on_ground(|ground| stays_on(ground, Kind::Chromium)),
        Kind::Firefox => on_ground(|ground| stays_on(ground, Kind::Firefox)),
    }
}

#[cfg(feature = "every-client")]
fn stays_on(ground: &mut Ground<'_>, kind: Kind) {
    let mut browser = browser_with_caller(ground, kind, &json!({}));
    browser.call(ground, 0);
    let before = browser.stats(0);
    std::thread::sleep(STAY);
    let after = browser.stats(0);
    assert_eq!(after["state"], "connected", "{after}");
    assert_eq!(after["states"], json!(["connecting", "connected"]));
    assert_eq!(after["channel"], "open", "{after}");
    assert_eq!(after["packetsLost"], 0, "{after}");
    let grown = |name: &str| {
        let count = |stats: &Value| stats[name].as_f64().expect("a count");
        count(&after) - count(&before)
    };
    let (sent, received) = (grown("packetsSent"), grown("packetsReceived"));
    let due = STAY.as_secs_f64() * PACKETS_PER_SECOND;
    // A starved browser speaks less; what it says comes back.
    assert!(sent > due * SPOKEN_MIN, "{sent} packets sent of {due}");
    let lost = (sent - received).abs();
    assert!(
        lost < ON_THE_WAY_PACKETS,
        "{sent} sent, {received} received"
    );
    hear(&mut browser, ground, 0);
    browser.step(0, "close", &json!({}));
    ground.expect_end(Ending::Closed);
    browser.close();
}
