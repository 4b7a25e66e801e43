//! A headless Chromium with a recording for a microphone, driven from the test.
//!
//! The browser is driven by `driver.mjs` under Node, which closes it when its standard input ends.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use syrinx_bench::process::puppet::Puppet;

/// A step on a machine whose cores are busy; nothing is measured by it.
const STEP_WAIT: Duration = Duration::from_secs(90);
/// Longest wait for something in the page, shorter than a step so that the driver tells of it.
const PAGE_WAIT: Duration = Duration::from_secs(60);

/// One running browser with the page in it.
pub(crate) struct Chromium {
    driver: Puppet,
    folder: PathBuf,
}

impl Chromium {
    /// Starts a browser whose microphone hears `speech` round and round; `folder` is made, and
    /// takes the profile and recordings.
    pub(crate) fn launch(folder: &Path, speech: &Path) -> Self {
        Self::launch_with(folder, json!({ "wav": speech }))
    }

    /// Starts a browser whose microphone says what it is told to ([`Chromium::say`]).
    pub(crate) fn launch_with_probe(folder: &Path) -> Self {
        Self::launch_with(folder, json!({ "probe": sources().join("probe.js") }))
    }

    /// The same, for an application's scripts in the place of ours: they need not run under the
    /// policy of our page.
    pub(crate) fn launch_without_policy(folder: &Path) -> Self {
        let probe = sources().join("probe.js");
        Self::launch_with(folder, json!({ "probe": probe, "policy": false }))
    }

    fn launch_with(folder: &Path, microphone: Value) -> Self {
        install_driver();
        std::fs::create_dir_all(folder).expect("a folder for the browser");
        let profile = folder.join("profile");
        let mut command = Command::new("node");
        command.arg(sources().join("driver.mjs"));
        let mut browser = Self {
            driver: Puppet::start(&mut command, &profile, STEP_WAIT),
            folder: folder.to_owned(),
        };
        let executable = std::env::var("CHROMIUM").unwrap_or("/usr/bin/chromium".to_owned());
        let mut launch = microphone;
        launch["do"] = "launch".into();
        launch["executable"] = executable.into();
        launch["profile"] = profile.to_string_lossy().into();
        browser.command(launch);
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

    /// Puts a script of ours into the page.
    pub(crate) fn inject(&mut self, script: &Path) {
        self.command(json!({ "do": "inject", "script": script }));
    }

    /// Begins to record what comes back.
    pub(crate) fn start_recording(&mut self) {
        self.command(json!({ "do": "record_start" }));
    }

    /// Ends the recording, into a file of this name.
    pub(crate) fn stop_recording(&mut self, name: &str) -> PathBuf {
        let file = self.folder.join(name);
        self.command(json!({ "do": "record_stop", "file": file }));
        file
    }

    /// Records what comes back for so long as it takes to have `seconds` of it.
    pub(crate) fn record(&mut self, name: &str, seconds: f64) -> PathBuf {
        self.start_recording();
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
        self.stop_recording(name)
    }

    /// Errors on the page's console so far.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        let complaints = self.command(json!({ "do": "complaints" }));
        serde_json::from_value(complaints).expect("a list of texts")
    }

    /// Closes the browser, and shows that none of its processes is left.
    pub(crate) fn close(mut self) {
        self.command(json!({ "do": "close" }));
        self.driver.expect_alone();
    }

    /// Gives the driver one of its commands.
    pub(crate) fn command(&mut self, command: Value) -> Value {
        self.driver.command(&command)
    }
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
