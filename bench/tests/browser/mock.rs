//! The mock Realtime server as a test holds it: orders to it, and the record of what passed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use syrinx_bench::process::puppet::Puppet;

/// For an order, and for something to show up in the record, on a machine whose cores are busy.
const STEP_WAIT: Duration = Duration::from_secs(60);
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// One running server, ended when dropped.
pub(crate) struct RealtimeServer {
    puppet: Puppet,
    record: PathBuf,
    heard: PathBuf,
    port: u64,
}

impl RealtimeServer {
    /// Starts one that answers with these recordings and their words, in turn; `folder` takes its
    /// files.
    pub(crate) fn start(folder: &Path, answers: &[(PathBuf, String)], options: &[&str]) -> Self {
        let record = folder.join("realtime.jsonl");
        let heard = folder.join("heard");
        std::fs::create_dir_all(&heard).expect("a folder for what it hears");
        let mut command = Command::new(python());
        command.arg(backends().join("realtime_server.py"));
        command.arg("--record").arg(&record);
        command.arg("--heard").arg(&heard);
        for (file, words) in answers {
            command.args(["--answer", &format!("{}={words}", file.display())]);
        }
        command.args(options);
        let mut puppet = Puppet::start(&mut command, &record, STEP_WAIT);
        let port = puppet.command(&json!({ "do": "listening" }));
        Self {
            puppet,
            record,
            heard,
            port: port.as_u64().expect("a port"),
        }
    }

    /// The entry of the transceiver's configuration that leads here.
    pub(crate) fn backend(&self) -> String {
        let url = format!("ws://127.0.0.1:{}/v1/realtime?model={{model}}", self.port);
        format!("[[backends]]\nname = \"mock\"\ndialect = \"realtime\"\nurls = [\"{url}\"]\n")
    }

    /// Gives it an order, for all of its sessions.
    pub(crate) fn order(&mut self, order: &Value) {
        self.puppet.command(order);
    }

    /// All that has passed so far.
    pub(crate) fn record(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.record).unwrap_or_default();
        // A line may be half written.
        let lines = text.lines().map(serde_json::from_str);
        lines.map_while(Result::ok).collect()
    }

    /// Events of this type that went this way, `in` or `out`.
    pub(crate) fn events(&self, way: &str, kind: &str) -> Vec<Value> {
        let mut entries = self.record();
        entries.retain(|entry| entry["way"] == way && entry["event"]["type"] == kind);
        entries.iter_mut().map(|e| e["event"].take()).collect()
    }

    /// Waits until `count` events of this type went this way, and gives the last.
    pub(crate) fn wait(&self, way: &str, kind: &str, count: usize) -> Value {
        let what = format!("{count} of {kind} {way}");
        self.wait_until(&what, |server| {
            let mut events = server.events(way, kind);
            (events.len() >= count).then(|| events.swap_remove(count - 1))
        })
    }

    /// What its first session heard, once that has ended, and the code that it was closed with.
    pub(crate) fn heard(&self) -> (PathBuf, Value) {
        let code = self.wait_until("the end of the session", |server| {
            let end = |entry: &&Value| entry["way"] == "close";
            server.record().iter().find(end).map(|e| e["code"].clone())
        });
        (self.heard.join("s0.wav"), code)
    }

    fn wait_until<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let passed = || self.record().iter().map(Self::brief).collect::<Vec<_>>();
            assert!(start.elapsed() < STEP_WAIT, "no {what}: {:#?}", passed());
            std::thread::sleep(POLL_PERIOD);
        }
    }

    fn brief(entry: &Value) -> String {
        let text = entry.to_string();
        text.chars().take(200).collect()
    }
}

/// The interpreter with the packages of the examples, made as `make` makes it.
pub(crate) fn python() -> PathBuf {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let output = Command::new("make")
            .args(["--silent", "python"])
            .current_dir(root())
            .output();
        let output = output.expect("make starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "make python: {said}");
    });
    root().join("target/python/bin/python")
}

/// The folder of the test's own backends.
pub(crate) fn backends() -> PathBuf {
    root().join("bench/tests/backends")
}

/// The workspace.
pub(crate) fn root() -> PathBuf {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().expect("the workspace").to_owned()
}
