//! The page, the edge, and the example services of media.v1, each in its own process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use syrinx_bench::speech::Voice;

use crate::chromium::Chromium;
use crate::mock::{python, root};
use crate::realtime::{WELL_BEGUN_PACKETS, question};
use crate::talk::{Utterance, assert_exact, assert_heard, edge_before};
use crate::{alone, echoes_an_event, hang_up, start_call, start_silent_call};

/// Half a second: more than a jitter buffer holds.
const ON_ITS_WAY_PACKETS: u64 = 25;

/// One running example, ended when dropped.
struct Example {
    child: Child,
    url: String,
}

impl Example {
    fn start(name: &str) -> Self {
        let mut child = Command::new(python())
            .arg(root().join("transceiver/examples").join(name))
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let mut said = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped"));
        lines.read_line(&mut said).expect("the example speaks");
        // Read on, so that it never waits for a reader.
        std::thread::spawn(move || lines.lines().map_while(Result::ok).count());
        let url = said.trim().strip_prefix("listening on ");
        let url = url.unwrap_or_else(|| panic!("{name}: {said}")).to_owned();
        Self { child, url }
    }

    /// The entry of the transceiver's configuration that leads here.
    fn backend(&self) -> String {
        let url = &self.url;
        format!("[[backends]]\nname = \"example\"\ndialect = \"media.v1\"\nurls = [\"{url}\"]\n")
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_example_echo_returns_what_was_said() {
    let _turn = alone();
    let example = Example::start("echo.py");
    let mut edge = edge_before(&example.backend());
    let mut browser = Chromium::launch_with_probe(&edge.folder().join("browser"));
    start_call(&mut browser, &edge);
    let said = question(edge.folder());
    browser.start_recording();
    browser.say(&said);
    // What is still on its way.
    let before = browser.packets();
    browser.wait_for_packets(before, ON_ITS_WAY_PACKETS);
    let recording = browser.stop_recording("echo.wav");
    assert_heard(&said.sound, &recording, "the echo");
    echoes_an_event(&mut browser);
    hang_up(&mut browser, &mut edge);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    browser.close();
}

#[test]
fn the_example_agent_is_interrupted_exact_to_the_frame() {
    let _turn = alone();
    let example = Example::start("parrot.py");
    let mut edge = edge_before(&example.backend());
    let mut browser = Chromium::launch_with_probe(&edge.folder().join("browser"));
    // Nothing comes back before something was said.
    start_silent_call(&mut browser, &edge.page_url(""));
    let said = Utterance::new(
        edge.folder(),
        "long",
        Voice::Espeak("en-us+f3"),
        "Please call Stella. Ask her to bring these things with her from the store.",
    );
    let interruption = question(edge.folder());

    browser.start_recording();
    browser.say(&said);
    let finished = browser.wait_for_events("parrot.finished", 1);
    let whole = browser.packets_when_still();
    assert_exact(whole, finished["played_ms"].as_u64().expect("milliseconds"));
    let recording = browser.stop_recording("whole.wav");
    assert_heard(&said.sound, &recording, "what was said, said back");

    browser.say(&said);
    browser.wait_for_packets(whole, WELL_BEGUN_PACKETS);
    browser.say(&interruption);
    let cut = browser.wait_for_events("parrot.interrupted", 1);
    let again = browser.wait_for_events("parrot.finished", 2);
    let packets = browser.packets_when_still() - whole;
    let told = |event: &serde_json::Value| event["played_ms"].as_u64().expect("milliseconds");
    assert_exact(packets, told(&cut) + told(&again));
    assert!(told(&cut) < told(&finished), "it was interrupted");

    browser.say(&interruption);
    browser.wait_for_events("response.created", 4);
    let before = browser.packets();
    browser.wait_for_packets(before, WELL_BEGUN_PACKETS / 3);
    browser.send_event(&json!({ "type": "output_audio_buffer.clear" }));
    browser.wait_for_events("parrot.interrupted", 2);
    hang_up(&mut browser, &mut edge);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    browser.close();
}
