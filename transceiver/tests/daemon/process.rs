//! A transceiver process for one test.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use syrinx_shared::keys::{MasterSecret, cluster_key_file};
use syrinx_shared::route::Epoch;
use tempfile::TempDir;

use crate::client::{Answer, ask};

/// How long anything may take that should be a matter of milliseconds, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A folder with keys and a configuration, and an address nobody else has.
pub(crate) struct Ground {
    pub(crate) folder: TempDir,
    pub(crate) address: IpAddr,
}

impl Ground {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [high, low, ..] = (std::process::id() as u16).to_be_bytes();
        let host = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = tempfile::tempdir().unwrap();
        let epoch = Epoch::new(0).unwrap();
        let keys = cluster_key_file(epoch, &MasterSecret::new([7; 32]));
        std::fs::write(folder.path().join("cluster.keys"), keys).unwrap();
        // 127.0.x.x is where everybody else is.
        let address = Ipv4Addr::new(127, high % 127 + 64, low, host).into();
        Self { folder, address }
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }

    pub(crate) fn keys(&self) -> PathBuf {
        self.folder.path().join("cluster.keys")
    }

    /// The configuration every test starts from; `more` is TOML that goes behind it.
    pub(crate) fn write_config(&self, more: &str) -> PathBuf {
        let path = self.folder.path().join("transceiver.toml");
        let text = format!(
            "[signalling]\nlisten = \"{}\"\n[admin]\nlisten = \"{}\"\n[keys]\nfile = {:?}\n\
             [media]\ninner_listen = \"{}\"\n{more}\n",
            self.at(8080),
            self.at(9465),
            self.keys(),
            self.at(3490),
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn command(&self, more: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_syrinx-transceiver"));
        command.arg("--config").arg(self.write_config(more));
        command
    }

    /// Starts a transceiver and waits until it is healthy.
    pub(crate) fn start(self, more: &str) -> Transceiver {
        self.start_with(more, &[])
    }

    /// [`Ground::start`] with environment variables.
    pub(crate) fn start_with(self, more: &str, variables: &[(&str, &str)]) -> Transceiver {
        let mut command = self.command(more);
        command.envs(variables.iter().copied());
        self.run(command)
    }

    fn run(self, mut command: Command) -> Transceiver {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let log = collect(stderr);
        let mut transceiver = Transceiver {
            ground: self,
            command,
            child,
            log: Some(log),
        };
        transceiver.wait_until_healthy();
        transceiver
    }
}

/// Everything a process says, once it has ended.
fn collect(stderr: ChildStderr) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map_while(Result::ok);
        lines.collect::<Vec<_>>().join("\n")
    })
}

/// Runs a command that should end by itself.
pub(crate) fn output_of(command: &mut Command) -> Output {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!(
                "the process should have ended: {:?}",
                child.wait_with_output().unwrap()
            );
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// A running transceiver, killed when dropped.
pub(crate) struct Transceiver {
    pub(crate) ground: Ground,
    command: Command,
    child: Child,
    log: Option<thread::JoinHandle<String>>,
}

impl Transceiver {
    /// A request to the signalling address.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        ask(self.ground.at(8080), method, path, headers, body).unwrap()
    }

    /// A request to the admin address.
    pub(crate) fn admin(&self, method: &str, path: &str) -> Answer {
        ask(self.ground.at(9465), method, path, &[], b"").unwrap()
    }

    /// Waits until `/metrics` has a line.
    pub(crate) fn wait_for_metric(&mut self, line: &str) {
        self.wait_for(line, |transceiver| {
            transceiver
                .admin("GET", "/metrics")
                .body
                .lines()
                .any(|found| found == line)
        });
    }

    /// Waits until `/healthz` says something.
    pub(crate) fn wait_for_health(&mut self, text: &str) {
        self.wait_for(text, |transceiver| {
            transceiver.admin("GET", "/healthz").body.contains(text)
        });
    }

    pub(crate) fn wait_for(&mut self, what: &str, is_there: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_there(self) {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("waiting for {what}: ended with {status}: {}", self.log());
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Descriptors the process has open.
    pub(crate) fn descriptor_count(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder).unwrap().count()
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &id])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Waits for the end: exit code, and everything it logged.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), self.log());
            }
            assert!(Instant::now() < deadline, "the process should have ended");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the process and starts it again as it was.
    pub(crate) fn restart(mut self) -> Self {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.log();
        let child = self.command.spawn().unwrap();
        drop(std::mem::replace(&mut self.child, child));
        let stderr = self.child.stderr.take().unwrap();
        self.log = Some(collect(stderr));
        self.wait_until_healthy();
        self
    }

    fn wait_until_healthy(&mut self) {
        self.wait_for("health", |transceiver| {
            let answer = ask(transceiver.ground.at(9465), "GET", "/healthz", &[], b"");
            answer.is_ok_and(|answer| answer.status == 200)
        });
    }

    fn log(&mut self) -> String {
        self.log
            .take()
            .map_or_else(String::new, |log| log.join().unwrap())
    }
}

impl Drop for Transceiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything a stream holds.
pub(crate) fn read_all(mut stream: impl Read) -> String {
    let mut text = Vec::new();
    // A reset after the answer is the peer's way to close on unread input.
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}
