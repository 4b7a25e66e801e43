//! A program of another language that a test drives: one JSON command a line goes in, each is
//! answered with one line, `{"ok": value}` or `{"error": text}`.
//!
//! Nothing outlives a [`Puppet`]: the program is to leave, with all it started, when its standard
//! input ends; what is left after a grace period is ended by process id, found by a folder that
//! only its processes name on their command lines.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Time for a program to leave by itself before it is ended.
const LEAVE_WAIT: Duration = Duration::from_secs(10);

/// One running program. Called by tests only: what fails here panics.
#[derive(Debug)]
pub struct Puppet {
    child: Child,
    commands: Option<ChildStdin>,
    replies: Receiver<String>,
    folder: PathBuf,
    step_wait: Duration,
}

impl Puppet {
    /// Starts it. `folder` is what its processes name on their command lines; a step may take
    /// `step_wait`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command, folder: &Path, step_wait: Duration) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = child.stdout.take();
        let stdout = stdout.expect("invariant: standard output is piped");
        let (lines, replies) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            commands: child.stdin.take(),
            child,
            replies,
            folder: folder.to_owned(),
            step_wait,
        }
    }

    /// Has it do one thing, and gives what it says to that.
    ///
    /// # Panics
    /// If it cannot, or does not answer in time.
    pub fn command(&mut self, command: &Value) -> Value {
        let pipe = self.commands.as_mut();
        let pipe = pipe.expect("invariant: open until dropped");
        writeln!(pipe, "{command}").expect("the program takes commands");
        let told = command.to_string();
        let told = told.get(..1_000).unwrap_or(&told);
        let line = self.replies.recv_timeout(self.step_wait);
        let line = line.unwrap_or_else(|_| panic!("no answer to {told}"));
        let mut reply: Value = serde_json::from_str(&line).expect("the program answers in JSON");
        match reply.get("error") {
            Some(error) => panic!("it cannot {told}: {error}"),
            None => reply["ok"].take(),
        }
    }

    /// Shows that none of its processes is left but itself.
    ///
    /// # Panics
    /// If some are.
    pub fn expect_alone(&self) {
        let start = Instant::now();
        while !processes_of(&self.folder).is_empty() {
            let waited = start.elapsed();
            assert!(waited < LEAVE_WAIT, "its processes are still there");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // The end of its standard input is the program's order to leave.
        self.commands = None;
        let start = Instant::now();
        while start.elapsed() < LEAVE_WAIT && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
        // Fails only for a program that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in processes_of(&self.folder) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Processes that name this folder on their command line.
fn processes_of(folder: &Path) -> Vec<i32> {
    let needle = folder.display().to_string();
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&needle)
    })
    .collect()
}
