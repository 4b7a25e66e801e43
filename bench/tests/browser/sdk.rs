//! The stock Realtime SDK in a browser, as an application uses it, through the edge to a server of
//! the Realtime protocol: connected, configured, answered, interrupted by speech and by its own
//! word, and what the server is told each time.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::alone;
use crate::chromium::Chromium;
use crate::mock::{RealtimeServer, root};
use crate::realtime::{
    WELL_BEGUN_PACKETS, answers, assert_not_heard, milliseconds, question, server,
};
use crate::talk::{Utterance, assert_exact, assert_heard, edge_before};

#[test]
fn the_stock_sdk_talks_and_is_interrupted_exact_to_the_frame() {
    let _turn = alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let answers = answers(folder.path());
    let question = question(folder.path());
    let server = server(folder.path(), &answers, &[]);
    let edge = edge_before(&server.backend());
    let mut browser = Chromium::launch_without_policy(&edge.folder().join("browser"));
    assert_eq!(browser.open(&edge.page_url("")), 200);
    browser.inject(&bundle());
    browser.inject(&root().join("bench/tests/browser/sdk.js"));
    let url = edge.page_url("v1/realtime/calls");
    browser.evaluate(&format!("window.agent.connect({{ url: '{url}' }})"));
    is_configured(&mut browser, &server);

    browser.start_recording();
    browser.say(&question);
    stopped(&mut browser, 1);
    assert_exact(browser.packets_when_still(), milliseconds(&answers[0]));
    let recording = browser.stop_recording("sdk-first.wav");
    assert_heard(&answers[0].sound, &recording, "the first answer");

    is_interrupted_by_speech(&mut browser, &server, &question, &answers);
    is_interrupted_by_its_own_word(&mut browser, &server);

    assert_eq!(browser.evaluate("window.told.errors"), json!([]));
    assert_eq!(server.events("out", "error"), Vec::<Value>::new());
    browser.evaluate("window.agent.close()");
    let (_, code) = server.heard();
    assert_eq!(code, 1000);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    browser.close();
}

/// Connecting waits for `session.updated`, and what was asked for has reached the server.
fn is_configured(browser: &mut Chromium, server: &RealtimeServer) {
    let types = browser.evaluate("window.told.events.map((event) => event.type)");
    let types = types.as_array().expect("a list");
    assert!(types.contains(&json!("session.updated")), "{types:?}");
    let update = server.wait("in", "session.update", 1);
    assert_eq!(update["session"]["instructions"], "Tell fables.");
}

/// The caller speaks into the second answer, which that ends, and what he says is answered by
/// the third, heard whole.
fn is_interrupted_by_speech(
    browser: &mut Chromium,
    server: &RealtimeServer,
    interruption: &Utterance,
    answers: &[Utterance],
) {
    let before = browser.packets_when_still();
    browser.start_recording();
    browser.evaluate("window.agent.say({ text: 'And what happened then?' })");
    browser.wait_for_packets(before, WELL_BEGUN_PACKETS);
    browser.say(interruption);
    let truncate = server.wait("in", "conversation.item.truncate", 1);
    let heard_ms = truncate["audio_end_ms"].as_u64().expect("milliseconds");
    let item = server.wait("out", "response.output_item.added", 2);
    assert_eq!(truncate["item_id"], item["item"]["id"]);

    // The first answer's end was the first; an answer that is cleared does not stop.
    stopped(browser, 2);
    let packets = browser.packets_when_still() - before;
    assert_exact(packets, heard_ms + milliseconds(&answers[2]));
    let recording = browser.stop_recording("sdk-second.wav");
    let (heard, unheard) = answers[1].cut(heard_ms);
    assert_heard(&heard, &recording, "the beginning of the second answer");
    assert_not_heard(&unheard, &recording);
    assert_heard(&answers[2].sound, &recording, "the third answer");
    browser.wait("window.told.events.some(({ type }) => type === 'conversation.item.truncated')");
}

fn is_interrupted_by_its_own_word(browser: &mut Chromium, server: &RealtimeServer) {
    let before = browser.packets_when_still();
    browser.evaluate("window.agent.say({ text: 'Once more.' })");
    browser.wait_for_packets(before, WELL_BEGUN_PACKETS);
    browser.evaluate("window.agent.interrupt()");
    let truncate = server.wait("in", "conversation.item.truncate", 2);
    let packets = browser.packets_when_still() - before;
    assert_exact(
        packets,
        truncate["audio_end_ms"].as_u64().expect("milliseconds"),
    );
}

fn stopped(browser: &mut Chromium, count: usize) {
    browser.wait(&format!(
        "window.told.events.filter(({{ type }}) => type === 'output_audio_buffer.stopped').length \
         >= {count}"
    ));
}

/// The SDK as its package brings it for pages, installed from the lock file of the clients' tests.
fn bundle() -> PathBuf {
    let clients = root().join("bench/tests/clients");
    let output = Command::new(clients.join("prepare")).arg("node").output();
    let output = output.expect("the preparation starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    clients.join("node_modules/@openai/agents-realtime/dist/bundle/openai-realtime-agents.umd.js")
}
