//! Real daemons for tests and measurements: started on free ports, watched, stopped, killed.
//!
//! A [`Daemon`] is one child process with a configuration file. It is ready when its `/healthz`
//! says so, it is read through its `/metrics`, and it is gone when the value is dropped, whatever
//! happened before: every end is by the child's own process id. What it wrote to standard error
//! is kept, and printed when the test that owns it fails.
//!
//! [`Edge`](edge::Edge) puts a relay and a transceiver together; tests usually want that.

pub mod edge;
pub mod exposition;
pub mod pinned;
pub mod puppet;
pub mod settings;
mod sockets;

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use thiserror::Error;

pub use exposition::Exposition;

/// Time for a daemon to become healthy or to leave: generous, because test machines share their
/// cores with builds and browsers.
const LIFE_WAIT: Duration = Duration::from_secs(60);
/// Pause between two looks at something that is awaited.
const POLL_PAUSE: Duration = Duration::from_millis(50);
/// `RestartSec=` of the daemons' units.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
/// Starts that systemd tries before it gives up (`DefaultStartLimitBurst=`, systemd-system.conf).
const RESTARTS_MAX: usize = 5;
/// One admin request, answered by a control thread that may not have a core for a while.
const HTTP_WAIT: Duration = Duration::from_secs(10);
/// Lines of standard error that are kept, the latest ones.
const LOG_LINES_MAX: usize = 2_000;
/// Lines of standard error that an error or a failed test shows.
const LOG_LINES_SHOWN: usize = 200;

/// Test ports come from below the range that Linux hands out by itself (from 32768, see
/// ip_local_port_range in ip-sysctl): a browser's socket never takes one before the daemon does.
const PORT_FIRST: u16 = 10_000;
/// End of the test ports, exclusive.
const PORT_END: u16 = 32_000;

/// Why a daemon is not as the test needs it.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The program is not where the build puts it.
    #[error("{} is missing: build it first (cargo build --workspace)", .0.display())]
    Missing(PathBuf),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// The step that was refused.
        what: String,
        /// The refusal.
        source: io::Error,
    },
    /// The daemon ended by itself.
    #[error("{name} ended by itself ({status}); it wrote:\n{log}")]
    Ended {
        /// The daemon's program.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its standard error.
        log: String,
    },
    /// Something awaited did not come.
    #[error("{name}: {what} did not come within {waited:?}; it wrote:\n{log}")]
    Late {
        /// The daemon's program.
        name: String,
        /// What was awaited.
        what: String,
        /// For how long.
        waited: Duration,
        /// The end of its standard error.
        log: String,
    },
    /// A setting of a daemon's configuration is none.
    #[error(transparent)]
    Setting(#[from] settings::SettingError),
    /// A helper program said no.
    #[error("{command} failed ({status}): {output}")]
    Refused {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Its standard error.
        output: String,
    },
}

impl ProcessError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// One running daemon, gone when dropped.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    config: PathBuf,
    admin: SocketAddr,
    /// Whether signals of the terminal, ^C above all, are kept from it.
    apart: bool,
    child: Option<Child>,
    reader: Option<JoinHandle<()>>,
    log: Arc<Mutex<VecDeque<String>>>,
}

impl Daemon {
    /// Starts `program --config CONFIG` and waits until `/healthz` on `admin` answers 200.
    ///
    /// # Errors
    /// It cannot be started, ends by itself, or does not become healthy in time.
    pub fn start(program: &Path, config: &Path, admin: SocketAddr) -> Result<Self, ProcessError> {
        let mut daemon = Self::prepare(program, config, admin, false);
        daemon.start_again()?;
        Ok(daemon)
    }

    /// Starts it as [`Daemon::start`] does, in a process group of its own: ^C is for the program
    /// that measures it, which ends it in its own time.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_apart(
        program: &Path,
        config: &Path,
        admin: SocketAddr,
    ) -> Result<Self, ProcessError> {
        let mut daemon = Self::prepare(program, config, admin, true);
        daemon.start_again()?;
        Ok(daemon)
    }

    fn prepare(program: &Path, config: &Path, admin: SocketAddr, apart: bool) -> Self {
        Self {
            program: program.to_owned(),
            config: config.to_owned(),
            admin,
            apart,
            child: None,
            reader: None,
            log: Arc::default(),
        }
    }

    /// Starts it again after [`Daemon::kill`] or [`Daemon::stop`], and waits until it is healthy.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    ///
    /// # Panics
    /// If it is running.
    pub fn start_again(&mut self) -> Result<(), ProcessError> {
        assert!(self.child.is_none(), "{} is running already", self.name());
        let mut command = Command::new(&self.program);
        if self.apart {
            command.process_group(0);
        }
        let mut child = command
            .arg("--config")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(ProcessError::io(self.program.display().to_string()))?;
        let stderr = child
            .stderr
            .take()
            .expect("invariant: standard error is piped");
        let log = Arc::clone(&self.log);
        self.reader = Some(std::thread::spawn(move || keep_lines(stderr, &log)));
        self.child = Some(child);
        self.wait("health", |daemon| daemon.healthy())
    }

    /// Starts it again as its systemd unit does after a crash: a moment later, and once more when
    /// that fails. The kernel closes the sockets of a killed process that had an io_uring a moment
    /// after the process is gone (29 to 39 ms, measured), and until then their port is in use.
    ///
    /// # Errors
    /// As [`Daemon::start`], of the last of five attempts.
    ///
    /// # Panics
    /// If it is running.
    pub fn restart(&mut self) -> Result<(), ProcessError> {
        for _ in 1..RESTARTS_MAX {
            std::thread::sleep(RESTART_PAUSE);
            match self.start_again() {
                Err(ProcessError::Ended { .. }) => {}
                outcome => return outcome,
            }
        }
        self.start_again()
    }

    /// Waits until `test` says yes, looking at it again and again.
    ///
    /// # Errors
    /// It ended by itself, or `test` said no for too long.
    pub fn wait(
        &mut self,
        what: &str,
        mut test: impl FnMut(&Self) -> bool,
    ) -> Result<(), ProcessError> {
        let start = Instant::now();
        while !test(self) {
            if let Some(status) = self.ended()? {
                self.forget();
                return Err(ProcessError::Ended {
                    name: self.name(),
                    status,
                    log: self.last_lines(),
                });
            }
            if start.elapsed() > LIFE_WAIT {
                return Err(ProcessError::Late {
                    name: self.name(),
                    what: what.to_owned(),
                    waited: LIFE_WAIT,
                    log: self.last_lines(),
                });
            }
            std::thread::sleep(POLL_PAUSE);
        }
        Ok(())
    }

    /// Its process id.
    ///
    /// # Panics
    /// If it is not running.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the daemon is running").id()
    }

    /// Its counters and gauges, read from `/metrics`.
    ///
    /// # Errors
    /// The admin address does not answer with 200.
    pub fn metrics(&self) -> Result<Exposition, ProcessError> {
        let name = self.name();
        let (status, body) = http_get(self.admin, "/metrics").map_err(ProcessError::io(
            format!("{name}: http://{}/metrics", self.admin),
        ))?;
        if status != 200 {
            let source = io::Error::other(format!("answered {status}"));
            return Err(ProcessError::io(format!("{name}: /metrics"))(source));
        }
        Ok(Exposition::parse(&body))
    }

    /// Local ports of its UDP sockets.
    ///
    /// # Errors
    /// The process's descriptors cannot be read.
    pub fn udp_ports(&self) -> Result<BTreeSet<u16>, ProcessError> {
        sockets::udp_ports(self.pid())
            .map_err(ProcessError::io(format!("{}: sockets", self.name())))
    }

    /// What it wrote to standard error, the latest lines, over all its lives.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect()
    }

    /// Ends it as an operator does, by SIGTERM, and gives its exit status.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn stop(&mut self) -> Result<ExitStatus, ProcessError> {
        let pid = self.pid();
        let raw = i32::try_from(pid).expect("invariant: process ids are positive pid_t values");
        kill(Pid::from_raw(raw), Signal::SIGTERM)
            .map_err(|error| ProcessError::io(format!("signal to {pid}"))(error.into()))?;
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                self.forget();
                return Ok(status);
            }
            if start.elapsed() > LIFE_WAIT {
                return Err(ProcessError::Late {
                    name: self.name(),
                    what: "its end after SIGTERM".to_owned(),
                    waited: LIFE_WAIT,
                    log: self.last_lines(),
                });
            }
            std::thread::sleep(POLL_PAUSE);
        }
    }

    /// Ends it as a crash does, by SIGKILL; does nothing when it is not running.
    pub fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            // Both fail only for a child that is gone already, which is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.forget();
    }

    fn name(&self) -> String {
        self.program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    fn healthy(&self) -> bool {
        http_get(self.admin, "/healthz").is_ok_and(|(status, _)| status == 200)
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        child
            .try_wait()
            .map_err(ProcessError::io("wait for the child"))
    }

    fn forget(&mut self) {
        self.child = None;
        if let Some(reader) = self.reader.take() {
            // The pipe is closed with the process; a panic of the reader loses log lines only.
            let _ = reader.join();
        }
    }

    fn last_lines(&self) -> String {
        let log = self.log();
        log[log.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- {} wrote:\n{}", self.name(), self.last_lines());
        }
    }
}

/// Where the build put a binary of the workspace: beside the test executable's folder, or beside
/// the running binary itself.
///
/// # Errors
/// It was not built.
pub fn binary(name: &str) -> Result<PathBuf, ProcessError> {
    let own = std::env::current_exe().map_err(ProcessError::io("path of this executable"))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    // Cargo puts test executables into deps/, one folder below the binaries.
    let folder = match folder.file_name() {
        Some(last) if last == "deps" => folder.parent().unwrap_or(folder),
        _ => folder,
    };
    let path = folder.join(name);
    if path.is_file() {
        Ok(path)
    } else {
        Err(ProcessError::Missing(path))
    }
}

/// A port that nothing is bound to, for TCP and UDP, IPv4 and IPv6, and that this process has not
/// given out before.
///
/// # Panics
/// If no port of the range is free.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORT_END - PORT_FIRST;
    // Test processes that run at the same time start at different places of the range.
    let home = (std::process::id().wrapping_mul(97) % u32::from(span)) as u16;
    for _ in 0..span {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % span;
        let port = PORT_FIRST + (home + step) % span;
        let four = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let six = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        if [four, six].iter().all(|at| {
            // Linux binds [::] for IPv4 too unless told otherwise, so one after the other.
            UdpSocket::bind(at).is_ok() && TcpListener::bind(at).is_ok()
        }) {
            return port;
        }
    }
    panic!("no free port between {PORT_FIRST} and {PORT_END}");
}

/// One GET by HTTP/1.0, whose answer ends with the connection: status and body.
///
/// # Errors
/// Nothing answers, or not with HTTP.
pub fn http_get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, HTTP_WAIT)?;
    stream.set_read_timeout(Some(HTTP_WAIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let parsed = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.split_whitespace().nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    });
    parsed.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer"))
}

fn keep_lines(stderr: impl Read, log: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { return };
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == LOG_LINES_MAX {
            log.pop_front();
        }
        log.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_gives_a_port_twice_or_one_that_is_taken() {
        let first = free_port();
        let _held = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)).expect("a free port");
        let more: BTreeSet<u16> = (0..20).map(|_| free_port()).collect();
        assert_eq!(more.len(), 20);
        assert!(!more.contains(&first));
    }

    #[test]
    fn names_the_remedy_for_a_binary_that_was_not_built() {
        let error = binary("syrinx-nothing").expect_err("no such binary");
        assert!(
            error.to_string().contains("cargo build --workspace"),
            "{error}"
        );
    }

    #[test]
    fn tells_the_end_and_the_words_of_a_daemon_that_dies_at_once() {
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let shell = tempfile::tempdir().expect("a temporary folder");
        let script = shell.path().join("daemon.sh");
        std::fs::write(&script, "#!/bin/sh\necho cannot read \"$2\" >&2\nexit 7\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        let error = Daemon::start(&script, Path::new("x.toml"), admin).expect_err("it died");
        let text = error.to_string();
        assert!(text.contains("exit status: 7"), "{text}");
        assert!(text.contains("cannot read x.toml"), "{text}");
    }
}
