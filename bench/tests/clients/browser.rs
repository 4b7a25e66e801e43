//! A browser behind the NAT, with one page in it that makes calls.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use syrinx_bench::hearing::Recording;
use syrinx_bench::process::puppet::Puppet;

use crate::ground::{Ground, Report, event};
use crate::program::{prepare, sources};
use crate::sound::Sound;

/// A step on a machine whose cores are busy; the driver gives up before.
const STEP_WAIT: Duration = Duration::from_secs(90);

/// Which browser.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Chromium,
    Firefox,
}

/// One running browser.
pub(crate) struct Browser {
    kind: Kind,
    version: String,
    driver: Puppet,
    folder: PathBuf,
    // Behind the driver, so that the sound goes after the browser has.
    sound: Option<Sound>,
}

impl Kind {
    /// As in the manual.
    fn name(self) -> &'static str {
        match self {
            Self::Chromium => "Chromium",
            Self::Firefox => "Firefox ESR",
        }
    }

    /// As `prepare` calls it.
    pub(crate) fn prepared(self) -> &'static str {
        match self {
            Self::Chromium => "chromium",
            Self::Firefox => "firefox",
        }
    }

    fn executable(self) -> &'static str {
        match self {
            Self::Chromium => "/usr/bin/chromium",
            Self::Firefox => "/usr/bin/firefox-esr",
        }
    }
}

impl Browser {
    /// Starts one and loads the edge's page with our caller in it. `settings` are flags of
    /// Chromium, or preferences of Firefox.
    pub(crate) fn launch(ground: &Ground<'_>, kind: Kind, settings: &Value) -> Self {
        let _ = prepare(kind.prepared());
        let folder = ground.folder().join(kind.prepared());
        std::fs::create_dir_all(&folder).expect("a folder for the browser");
        let profile = folder.join("profile");
        let mut command = Command::new("node");
        command.arg(sources().join("browsers/driver.mjs"));
        let sound = (kind == Kind::Firefox).then(|| Sound::start(&folder, &ground.speech));
        if let Some(sound) = &sound {
            command.env("PULSE_SERVER", sound.server());
        }
        let driver = ground
            .network
            .home
            .enter(|| Puppet::start(&mut command, &profile, STEP_WAIT));
        let mut browser = Self {
            kind,
            version: String::new(),
            driver,
            folder,
            sound,
        };
        let version = browser.command(json!({
            "do": "launch", "kind": kind.prepared(), "executable": kind.executable(),
            "profile": profile, "wav": ground.speech, "origin": ground.edge.page_url(""),
            "flags": settings["flags"].as_array().cloned().unwrap_or_default(),
            "prefs": settings["prefs"].as_object().cloned().unwrap_or_default(),
        }));
        let version = version.as_str().expect("a version");
        version.clone_into(&mut browser.version);
        browser
    }

    /// Loads the edge's page and puts these scripts of ours into it.
    pub(crate) fn open(&mut self, ground: &Ground<'_>, scripts: &[PathBuf]) {
        let url = ground.edge.page_url("");
        let status = self.command(json!({ "do": "open", "url": url, "scripts": scripts }));
        assert_eq!(status, 200);
    }

    /// Opens a call, exchanges an event on it, and judges both.
    pub(crate) fn call(&mut self, ground: &Ground<'_>, call: usize) -> Report {
        let url = ground.calls_url();
        let tap = self.sound.is_none();
        let mut told = self.step(call, "open", &json!({ "url": url, "tap": tap }));
        told["echo"] = self.step(call, "echo", &json!({ "text": event() }));
        told["client"] = self.kind.name().into();
        told["version"] = self.version.split('/').next_back().into();
        let report: Report = serde_json::from_value(told).expect("a report");
        ground.judge_report(&report);
        report
    }

    /// Has the page's caller do one step of a call.
    pub(crate) fn step(&mut self, call: usize, name: &str, given: &Value) -> Value {
        self.command(json!({ "do": "step", "call": call, "name": name, "given": given }))
    }

    /// Records what comes back on a call, or all that the browser plays.
    pub(crate) fn record(&mut self, call: usize, seconds: f64) -> Recording {
        if let Some(sound) = &self.sound {
            return sound.record(seconds);
        }
        let file = self.folder.join(format!("returned-{call}.wav"));
        self.command(json!({ "do": "record", "call": call, "seconds": seconds, "file": file }));
        Recording::read_wav(&file).expect("the browser's recording")
    }

    /// What the browser counted of a call.
    pub(crate) fn stats(&mut self, call: usize) -> Value {
        self.step(call, "stats", &json!({}))
    }

    /// Closes the browser without ado, which found nothing to complain of.
    pub(crate) fn close(mut self) {
        let complaints = self.command(json!({ "do": "complaints" }));
        assert_eq!(complaints, json!([]), "the console is clean");
        self.command(json!({ "do": "close" }));
        self.driver.expect_alone();
    }

    fn command(&mut self, command: Value) -> Value {
        self.driver.command(&command)
    }
}
