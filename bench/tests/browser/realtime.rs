//! The page, the edge and a server of the Realtime protocol: a whole conversation, its answers
//! heard to their ends or interrupted, and what the server is told of that.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use syrinx_bench::hearing::{Recording, likeness};
use syrinx_bench::process::edge::Edge;
use syrinx_bench::speech::Voice;

use crate::chromium::Chromium;
use crate::mock::RealtimeServer;
use crate::talk::{Utterance, assert_exact, assert_heard, edge_before};
use crate::{alone, hang_up, start_silent_call};

/// What the protocol's audio has (audio/pcm).
const SERVER_RATE_HZ: u32 = 24_000;
/// A second and a half of an answer: well begun, far from its end.
pub(crate) const WELL_BEGUN_PACKETS: u64 = 75;

/// What the server answers, in turn. The second is long, to be interrupted.
pub(crate) fn answers(folder: &Path) -> Vec<Utterance> {
    let said = [
        (
            "first",
            Voice::Espeak("en-gb"),
            "The north wind and the sun were disputing which of them was the stronger.",
        ),
        (
            "second",
            Voice::Espeak("en-us+f3"),
            "Then a traveller came along, wrapped in a warm cloak. They agreed that the one who \
             first made him take his cloak off should be considered stronger than the other. Then \
             the north wind blew as hard as he could, but the more he blew, the more closely did \
             the traveller fold his cloak around him, and at last he gave up the attempt.",
        ),
        (
            "third",
            Voice::Espeak("en-us"),
            "Six spoons of fresh snow peas, five thick slabs of blue cheese, and maybe a snack.",
        ),
    ];
    said.into_iter()
        .map(|(name, voice, words)| Utterance::at_rate(folder, name, voice, words, SERVER_RATE_HZ))
        .collect()
}

/// A question of a few seconds.
pub(crate) fn question(folder: &Path) -> Utterance {
    Utterance::new(
        folder,
        "question",
        Voice::Espeak("en-gb-x-rp"),
        "Would you tell me the fable of the wind and the sun, please?",
    )
}

pub(crate) fn server(folder: &Path, answers: &[Utterance], options: &[&str]) -> RealtimeServer {
    let answers: Vec<(PathBuf, String)> = answers
        .iter()
        .map(|answer| (answer.file.clone(), answer.words.clone()))
        .collect();
    RealtimeServer::start(folder, &answers, options)
}

#[test]
fn a_conversation_with_a_realtime_server_is_exact_to_the_frame() {
    let _turn = alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let answers = answers(folder.path());
    let question = question(folder.path());
    let server = server(folder.path(), &answers, &[]);
    let mut edge = edge_before(&server.backend());
    let mut browser = Chromium::launch_with_probe(&edge.folder().join("browser"));
    start_silent_call(&mut browser, &edge.page_url(""));

    is_configured(&mut browser, &server);
    is_answered_whole(&mut browser, &server, &question, &answers[0]);
    is_interrupted_by_speech(&mut browser, &server, &question, &answers[1]);
    hears_the_next_answer_whole(&mut browser, &server, &answers[2]);
    is_interrupted_by_the_button(&mut browser, &server);
    ends(browser, &mut edge, &server, &question);
}

#[test]
fn a_server_of_the_beta_names_is_heard_whole() {
    let _turn = alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let answers = answers(folder.path());
    let question = question(folder.path());
    let server = server(folder.path(), &answers, &["--names", "beta"]);
    let mut edge = edge_before(&server.backend());
    let mut browser = Chromium::launch_with_probe(&edge.folder().join("browser"));
    start_silent_call(&mut browser, &edge.page_url(""));
    is_configured(&mut browser, &server);
    is_answered_whole(&mut browser, &server, &question, &answers[0]);
    ends(browser, &mut edge, &server, &question);
}

#[test]
fn a_call_goes_on_when_its_server_restarts_and_ends_when_there_is_none() {
    let _turn = alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let answers = answers(folder.path());
    let mut server = server(folder.path(), &answers, &[]);
    let edge = edge_before(&server.backend());
    let mut browser = Chromium::launch_with_probe(&edge.folder().join("browser"));
    start_silent_call(&mut browser, &edge.page_url(""));
    server.order(&json!({ "do": "close", "code": 1012, "reason": "restarted by the test" }));
    server.wait("out", "session.created", 2);
    browser.write("Are you still there?");
    browser.wait_for_events("output_audio_buffer.stopped", 1);
    assert_exact(browser.packets_when_still(), milliseconds(&answers[0]));
    let told = browser.wait_for_events("error", 1);
    assert_eq!(told["error"]["code"], "backend_restarted");

    drop(server);
    browser.wait("['ended', 'failed'].includes(window.syrinx.state)");
    let errors = browser.received("error");
    let codes: Vec<_> = errors.iter().map(|e| &e["error"]["code"]).collect();
    assert_eq!(codes, ["backend_restarted", "backend_unavailable"]);
    browser.close();
}

/// The server's own `session.created` reaches the client, and the client's update the server.
fn is_configured(browser: &mut Chromium, server: &RealtimeServer) {
    assert_eq!(browser.received("session.created").len(), 1);
    // Only what the test triggers is answered; speech interrupts all the same.
    let turns = json!({ "type": "server_vad", "create_response": false });
    let session = match server.events("out", "session.created")[0]["session"]["type"].as_str() {
        Some(kind) => json!({ "type": kind, "audio": { "input": { "turn_detection": turns } } }),
        None => json!({ "turn_detection": turns }),
    };
    browser.send_event(&json!({ "type": "session.update", "session": session }));
    browser.wait_for_events("session.updated", 1);
}

/// A spoken turn is heard by the server; the answer to it is heard by the caller, to its end.
fn is_answered_whole(
    browser: &mut Chromium,
    server: &RealtimeServer,
    question: &Utterance,
    answer: &Utterance,
) {
    browser.say(question);
    server.wait("out", "input_audio_buffer.committed", 1);
    let before = browser.packets_when_still();
    browser.start_recording();
    browser.send_event(&json!({ "type": "response.create" }));
    let stopped = browser.wait_for_events("output_audio_buffer.stopped", 1);
    let created = server.wait("out", "response.created", 1);
    assert_eq!(stopped["response_id"], created["response"]["id"]);
    let packets = browser.packets_when_still() - before;
    assert_exact(packets, milliseconds(answer));
    let recording = browser.stop_recording("first-answer.wav");
    assert_heard(&answer.sound, &recording, "the first answer");
    let turns = browser.evaluate("window.syrinx.turns");
    let last = turns.as_array().expect("a list").last().expect("a turn");
    assert_eq!(
        (&last["who"], &last["text"]),
        (&json!("agent"), &json!(answer.words))
    );
}

/// The caller speaks into the answer: what he heard of it is what the server is told.
fn is_interrupted_by_speech(
    browser: &mut Chromium,
    server: &RealtimeServer,
    interruption: &Utterance,
    answer: &Utterance,
) {
    let before = browser.packets_when_still();
    browser.start_recording();
    browser.write("And what happened then?");
    browser.wait_for_packets(before, WELL_BEGUN_PACKETS);
    browser.say(interruption);
    let truncate = server.wait("in", "conversation.item.truncate", 1);
    let packets = browser.packets_when_still() - before;
    let heard_ms = truncate["audio_end_ms"].as_u64().expect("milliseconds");
    assert_exact(packets, heard_ms);
    assert!(heard_ms < milliseconds(answer), "it was interrupted");
    let item = server.wait("out", "response.output_item.added", 2);
    assert_eq!(truncate["item_id"], item["item"]["id"]);

    let recording = browser.stop_recording("second-answer.wav");
    let (heard, unheard) = answer.cut(heard_ms);
    assert_heard(&heard, &recording, "the beginning of the second answer");
    assert_not_heard(&unheard, &recording);
    browser.wait_for_events("conversation.item.truncated", 1);
    browser.wait_for_events("output_audio_buffer.cleared", 1);
    assert_note(browser, "interrupted after");
}

fn hears_the_next_answer_whole(
    browser: &mut Chromium,
    server: &RealtimeServer,
    answer: &Utterance,
) {
    let before = browser.packets_when_still();
    browser.start_recording();
    browser.write("Something else, please.");
    browser.wait_for_events("output_audio_buffer.stopped", 2);
    assert_exact(browser.packets_when_still() - before, milliseconds(answer));
    let recording = browser.stop_recording("third-answer.wav");
    assert_heard(&answer.sound, &recording, "the third answer");
    assert_eq!(server.events("in", "conversation.item.create").len(), 2);
}

/// The button on the page does what speech does.
fn is_interrupted_by_the_button(browser: &mut Chromium, server: &RealtimeServer) {
    let before = browser.packets_when_still();
    browser.write("Once more.");
    browser.wait_for_packets(before, WELL_BEGUN_PACKETS);
    browser.click("#interrupt");
    let truncate = server.wait("in", "conversation.item.truncate", 2);
    let packets = browser.packets_when_still() - before;
    assert_exact(
        packets,
        truncate["audio_end_ms"].as_u64().expect("milliseconds"),
    );
    browser.wait_for_events("output_audio_buffer.cleared", 2);
    assert_note(browser, "interrupted after");
}

fn ends(browser: Chromium, edge: &mut Edge, server: &RealtimeServer, question: &Utterance) {
    let mut browser = browser;
    let refused = server.events("out", "error");
    assert_eq!(refused, Vec::<Value>::new(), "the server refused nothing");
    let unknown = server.events("in", "output_audio_buffer.clear");
    assert_eq!(unknown, Vec::<Value>::new(), "that one is the edge's");
    hang_up(&mut browser, edge);
    let (heard, code) = server.heard();
    assert_eq!(code, 1000);
    assert_heard(&question.sound, &heard, "the question, at the server");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    browser.close();
}

pub(crate) fn milliseconds(answer: &Utterance) -> u64 {
    (answer.sound.seconds() * 1_000.0) as u64
}

pub(crate) fn assert_not_heard(sound: &Recording, recording: &Path) {
    let returned = Recording::read_wav(recording).expect("a recording");
    if sound.seconds() < returned.seconds() {
        let found = likeness(sound, &returned);
        assert!(
            found.score <= crate::OTHER_SPEECH_MAX,
            "heard after all: {found:?}"
        );
    }
}

fn assert_note(browser: &mut Chromium, text: &str) {
    browser.wait(&format!(
        "window.syrinx.turns.findLast((turn) => turn.who === 'agent').note.includes('{text}')"
    ));
}
