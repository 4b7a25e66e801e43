//! A headless Chromium with a recording for a microphone, driven from the test.
//!
//! The browser is driven by `driver.mjs` under Node, one JSON line a command. Nothing outlives a
//! [`Chromium`]: the driver closes the browser when its standard input ends, and what is left
//! after a grace period is ended by process id, found by the profile folder that only this
//! browser was given.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Once;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// A step on a machine whose cores are busy; nothing is measured by it.
const STEP_WAIT: Duration = Duration::from_secs(90);
/// Longest wait for something in the page, shorter than a step so that the driver tells of it.
const PAGE_WAIT: Duration = Duration::from_secs(60);
/// Time for the browser to close by itself before it is ended.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// One running browser with the page in it.
pub(crate) struct Chromium {
    driver: Child,
    commands: Option<ChildStdin>,
    replies: Receiver<String>,
    folder: PathBuf,
}

impl Chromium {
    /// Starts a browser whose microphone hears `speech` round and round; `folder` is made, and
    /// takes the profile and recordings.
    pub(crate) fn launch(folder: &Path, speech: &Path) -> Self {
        install_driver();
        std::fs::create_dir_all(folder).expect("a folder for the browser");
        let mut driver = Command::new("node")
            .arg(sources().join("driver.mjs"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node starts (Debian: apt-get install nodejs npm)");
        let stdout = driver
            .stdout
            .take()
            .expect("invariant: standard output is piped");
        let (lines, replies) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let commands = driver.stdin.take();
        let mut browser = Self {
            driver,
            commands,
            replies,
            folder: folder.to_owned(),
        };
        let executable = std::env::var("CHROMIUM").unwrap_or("/usr/bin/chromium".to_owned());
        browser.command(json!({
            "do": "launch", "executable": executable, "profile": folder.join("profile"),
            "wav": speech,
        }));
        browser
    }

    /// Loads a page and gives the HTTP status.
    pub(crate) fn open(&mut self, url: &str) -> u64 {
        self.command(json!({ "do": "open", "url": url }))
            .as_u64()
            .expect("a status")
    }

    /// Clicks like a person does, once the element can be clicked.
    pub(crate) fn click(&mut self, selector: &str) {
        self.command(json!({ "do": "click", "selector": selector }));
    }

    /// Replaces the text of an input.
    pub(crate) fn fill(&mut self, selector: &str, text: &str) {
        self.command(json!({ "do": "fill", "selector": selector, "text": text }));
    }

    /// The value of an expression in the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        self.command(json!({ "do": "evaluate", "expression": expression }))
    }

    /// Waits until an expression is true in the page, and gives its value.
    pub(crate) fn wait(&mut self, expression: &str) -> Value {
        let timeout_ms = PAGE_WAIT.as_secs() * 1000;
        self.command(json!({ "do": "wait", "expression": expression, "timeout_ms": timeout_ms }))
    }

    /// Records what comes back for so long as it takes to have `seconds` of it.
    pub(crate) fn record(&mut self, name: &str, seconds: f64) -> PathBuf {
        self.command(json!({ "do": "record_start" }));
        let (mut have, mut since) = (0.0, Instant::now());
        while have < seconds {
            std::thread::sleep(Duration::from_millis(250));
            let reply = self.command(json!({ "do": "recorded_seconds" }));
            let seen = reply.as_f64().expect("a number of seconds");
            if seen > have {
                (have, since) = (seen, Instant::now());
            }
            if since.elapsed() > STEP_WAIT {
                let page = self.evaluate("[window.syrinx.state, window.syrinx.stats]");
                panic!("no sound for {STEP_WAIT:?} after {have} s; the page says {page}");
            }
        }
        let file = self.folder.join(name);
        self.command(json!({ "do": "record_stop", "file": file }));
        file
    }

    /// Errors on the page's console so far.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        let complaints = self.command(json!({ "do": "complaints" }));
        serde_json::from_value(complaints).expect("a list of texts")
    }

    /// Closes the browser, and shows that none of its processes is left.
    pub(crate) fn close(mut self) {
        self.command(json!({ "do": "close" }));
        let start = Instant::now();
        while !processes_of(&self.folder).is_empty() {
            assert!(
                start.elapsed() < CLOSE_WAIT,
                "the browser is still there after closing"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn command(&mut self, command: Value) -> Value {
        let pipe = self
            .commands
            .as_mut()
            .expect("invariant: open until dropped");
        writeln!(pipe, "{command}").expect("the driver takes commands");
        let line = self.replies.recv_timeout(STEP_WAIT);
        let line = line.unwrap_or_else(|_| panic!("no answer from the browser to {command}"));
        let mut reply: Value = serde_json::from_str(&line).expect("the driver answers in JSON");
        match reply.get("error") {
            Some(error) => panic!("the browser cannot {command}: {error}"),
            None => reply["ok"].take(),
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // The end of its standard input is the driver's order to close the browser.
        self.commands = None;
        let start = Instant::now();
        while start.elapsed() < CLOSE_WAIT && matches!(self.driver.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
        // Fails only for a driver that is gone already.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        for pid in processes_of(&self.folder) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Processes that name this folder on their command line: only this browser's do.
fn processes_of(folder: &Path) -> Vec<i32> {
    let needle = folder.join("profile").display().to_string();
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&needle)
    })
    .collect()
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser")
}

/// Installs the driver's one package as the lock file has it, if that has not been done.
fn install_driver() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let age = |name: &str| std::fs::metadata(sources().join(name))?.modified();
        let wanted = age("package-lock.json").expect("the lock file is part of the sources");
        if age("node_modules/.package-lock.json").is_ok_and(|installed| installed >= wanted) {
            return;
        }
        let output = Command::new("npm")
            .arg("ci")
            .current_dir(sources())
            .output();
        let output = output.expect("npm starts (Debian: apt-get install nodejs npm)");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "npm ci in {}: {said}",
            sources().display()
        );
    });
}
