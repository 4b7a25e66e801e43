//! A client's program: one run, one call, one report.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::ground::{Ground, Report, event};

/// Longest run of a program on a machine whose cores are busy.
const RUN_MAX: Duration = Duration::from_secs(120);

/// Has `prepare` make this client ready, and gives the folder of what is built.
pub(crate) fn prepare(client: &str) -> PathBuf {
    let output = Command::new(sources().join("prepare")).arg(client).output();
    let output = output.expect("bash starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "prepare {client}: {said}");
    sources().join("../../../target/clients")
}

/// The folder of this test.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

impl Ground<'_> {
    /// Runs a program behind the NAT to its end, and gives its report.
    pub(crate) fn run(&self, command: &mut Command) -> Report {
        let path = |name| self.folder().join(name);
        let file = |name| Stdio::from(File::create(path(name)).expect("a file for its output"));
        command
            .args(["--calls", &self.calls_url(), "--event", &event()])
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        let child = self.network.home.enter(|| command.spawn());
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let start = Instant::now();
        let status = loop {
            match child.try_wait().expect("a child can be waited for") {
                Some(status) => break status.to_string(),
                None if start.elapsed() < RUN_MAX => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                None => {
                    child.kill().expect("it runs");
                    child.wait().expect("it is ending");
                    break format!("not over after {RUN_MAX:?}");
                }
            }
        };
        let text = |name| std::fs::read_to_string(path(name)).unwrap_or_default();
        let (said, complained) = (text("stdout"), text("stderr"));
        let report = serde_json::from_str(&said);
        report.unwrap_or_else(|error| {
            let log = self.edge.transceiver.log().join("\n");
            panic!("{command:?}: {status}, {error}\n{said}\n{complained}\n{log}")
        })
    }
}
