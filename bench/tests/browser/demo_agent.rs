//! `make demo-agent` as a visitor meets it: a spoken question is answered by voice with the right
//! words, and an answer that is interrupted goes on from where it was heard.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use syrinx_bench::process::{binary, free_port, http_get};
use syrinx_bench::speech::Voice;

use crate::chromium::Chromium;
use crate::mock::{backends, python, root};
use crate::realtime::WELL_BEGUN_PACKETS;
use crate::talk::{Utterance, assert_exact};
use crate::{alone, start_silent_call};

/// For the agent to load its model and both daemons to be up, on a machine whose cores are busy.
const START_WAIT: Duration = Duration::from_secs(60);
const END_WAIT: Duration = Duration::from_secs(30);
const COUNT: &str = "One. Two. Three. Four. Five. Six. Seven. Eight. Nine. Ten.";
/// A voice that the recogniser hears well, and another than the agent's.
const VISITOR: Voice = Voice::Flite("rms");

/// The script, with everything that it starts.
struct Demo {
    script: Child,
    signalling: SocketAddr,
}

impl Demo {
    fn start(state: &Path) -> Self {
        let relay = binary("syrinx-relay").expect("the relay is built");
        let free = || SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let (signalling, public, inner) = (free(), free(), free());
        let route = format!("[{{transceiver = 1, address = '{inner}'}}]");
        let script = Command::new(root().join("transceiver/examples/demo-agent"))
            .arg(relay.parent().expect("a binary lies in a folder"))
            .arg(python())
            .env("SYRINX_RUN", state)
            .env("SYRINX_AGENT_PORT", free_port().to_string())
            .env("SYRINX_RELAY__PUBLIC__LISTEN", public.to_string())
            .env("SYRINX_RELAY__INNER__LISTEN", free().to_string())
            .env("SYRINX_RELAY__ROUTES", route)
            .env("SYRINX_RELAY__ADMIN__LISTEN", free().to_string())
            .env("SYRINX_TRANSCEIVER__MEDIA__INNER_LISTEN", inner.to_string())
            .env("SYRINX_TRANSCEIVER__MEDIA__ADVERTISE", public.to_string())
            .env(
                "SYRINX_TRANSCEIVER__SIGNALLING__LISTEN",
                signalling.to_string(),
            )
            .env("SYRINX_TRANSCEIVER__ADMIN__LISTEN", free().to_string())
            .spawn()
            .expect("the script runs");
        let start = Instant::now();
        while http_get(signalling, "/").is_err() {
            assert!(start.elapsed() < START_WAIT, "the page is not up");
            std::thread::sleep(Duration::from_millis(100));
        }
        Self { script, signalling }
    }

    fn signal(&self) {
        let script = Pid::from_raw(i32::try_from(self.script.id()).expect("a process id"));
        // Fails only for a script that is gone already.
        let _ = kill(script, Signal::SIGTERM);
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.signal();
        let start = Instant::now();
        while matches!(self.script.try_wait(), Ok(None)) && start.elapsed() < END_WAIT {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn the_voice_agent_answers_a_spoken_question_with_the_right_words() {
    let _turn = alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let demo = Demo::start(folder.path());
    let mut browser = Chromium::launch_with_probe(&folder.path().join("browser"));
    start_silent_call(&mut browser, &format!("http://{}/", demo.signalling));
    browser.wait_for_events("response.done", 1);
    browser.packets_when_still();
    let say = |name, words| Utterance::new(folder.path(), name, VISITOR, words);

    browser.start_recording();
    browser.say(&say("count", "count to ten"));
    browser.wait_for_events("response.done", 2);
    browser.packets_when_still();
    let recording = browser.stop_recording("counting.wav");
    let turns = "window.syrinx.turns.slice(1).map(({ who, text }) => [who, text.trim()])";
    let turns = browser.evaluate(turns);
    assert_eq!(turns, json!([["user", "count to ten"], ["agent", COUNT]]));
    recognises_the_count(folder.path(), &recording);

    let before = browser.packets_when_still();
    browser.say(&say("story", "tell me a story"));
    browser.wait_for_packets(before, 4 * WELL_BEGUN_PACKETS);
    browser.say(&say("stop", "stop"));
    let cut = browser.wait_for_events("conversation.item.truncated", 1);
    let packets = browser.packets_when_still() - before;
    assert_exact(packets, cut["audio_end_ms"].as_u64().expect("milliseconds"));
    browser.say(&say("on", "go on"));
    let said = "window.syrinx.turns.at(-1).text.startsWith('As I was saying. ')";
    browser.wait(said);

    browser.click("#hangup");
    browser.wait("window.syrinx.state === 'ended'");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    browser.close();
    ends_all(demo);
}

/// The recogniser, given only what the browser heard, finds the numbers in their order.
fn recognises_the_count(folder: &Path, recording: &Path) {
    let narrow = folder.join("narrow.wav");
    let sox = Command::new("sox")
        .arg(recording)
        .args(["-r", "16000"])
        .arg(&narrow)
        .status();
    assert!(sox.expect("sox starts").success());
    let right = COUNT.to_lowercase().replace('.', "");
    let mut wrong: Vec<&str> = right.split(' ').collect();
    wrong.reverse();
    let output = Command::new(python())
        .arg(backends().join("recognise.py"))
        .arg(&narrow)
        .args([&right, &wrong.join(" "), "tell me a story"])
        .output()
        .expect("python starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), right);
}

/// Ending the script ends what it started: the page is gone, and so is the agent.
fn ends_all(demo: Demo) {
    let signalling = demo.signalling;
    drop(demo);
    assert!(
        http_get(signalling, "/").is_err(),
        "the transceiver is still there"
    );
}
