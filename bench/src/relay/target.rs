//! What is measured: a relay process on a core of its own, or nothing at all between the clients
//! and the sink.
//!
//! A target can be held (SIGSTOP) and released (SIGCONT). That is how the generator, which costs
//! more a datagram than the better relays, saturates them all the same: it lays a backlog in the
//! held relay's socket and releases it; until the backlog is gone the relay finds work whenever it
//! looks, as it would under a generator of infinite speed.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cpu::ProcessClock;

/// How long a target gets to end before it is killed.
const END_AFTER: Duration = Duration::from_secs(2);
/// How much of a failed target's log the error shows, in bytes.
const LOG_TAIL_BYTES: usize = 800;

/// What fits 208 KiB, the system's default for a receive buffer.
const COTURN_BACKLOG_MAX: u64 = 96;

/// Which program stands between clients and sink.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The project's relay.
    Syrinx,
    /// The project's relay with plain recvmmsg, as where io_uring is not permitted.
    SyrinxMmsg,
    /// Another build of the project's relay, for before and after.
    Baseline,
    /// The Go relay of `peers/go-relay`, on Go's package net.
    Go,
    /// The same relay past package net and the scheduler.
    GoRaw,
    /// coturn, as a TURN relay with one channel a client.
    Coturn,
    /// Nothing: clients and sink talk to each other. The generator's own ceiling.
    Direct,
}

impl Kind {
    /// What is measured unless asked otherwise.
    pub const USUAL: [Self; 4] = [Self::Syrinx, Self::Go, Self::Coturn, Self::Direct];

    /// Whether it keeps an entry a flow and no socket: coturn runs out of ports long before its
    /// memory tells anything.
    pub fn has_flow_table(self) -> bool {
        !matches!(self, Self::Direct | Self::Coturn)
    }

    /// The name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Syrinx => "syrinx",
            Self::SyrinxMmsg => "syrinx-mmsg",
            Self::Baseline => "baseline",
            Self::Go => "go",
            Self::GoRaw => "go-raw",
            Self::Coturn => "coturn",
            Self::Direct => "direct",
        }
    }

    /// How many datagrams may lie in the target's sockets at once without loss, when the run asks
    /// for `wanted`. coturn leaves its sockets' buffers at the system's default; the others ask
    /// for megabytes.
    pub fn backlog(self, wanted: u64) -> u64 {
        match self {
            Self::Coturn => wanted.min(COTURN_BACKLOG_MAX),
            _ => wanted,
        }
    }
}

/// Why a target does not run.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Its program could not be started.
    #[error(
        "cannot start {program}: {source} (built by `make bench-peers`, or installed from Debian?)"
    )]
    Start {
        /// The program.
        program: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// It ended by itself.
    #[error("{name} ended by itself ({status}); its last words:\n{log}")]
    Ended {
        /// The target.
        name: &'static str,
        /// How it ended.
        status: String,
        /// The end of its log.
        log: String,
    },
    /// Something around it failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// How to start a target's process.
#[derive(Debug)]
pub struct Recipe {
    /// Which target it is.
    pub kind: Kind,
    /// The program and its arguments; `None` for [`Kind::Direct`].
    pub command: Option<(PathBuf, Vec<String>)>,
    /// Where clients send.
    pub addr: SocketAddr,
    /// The core the process is pinned to.
    pub core: usize,
}

/// A running target.
#[derive(Debug)]
pub struct Target {
    kind: Kind,
    addr: SocketAddr,
    process: Option<Process>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    clock: ProcessClock,
    log: PathBuf,
}

impl Target {
    /// Starts the process of `recipe`, pinned, its output in `folder`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(recipe: &Recipe, folder: &Path) -> Result<Self, TargetError> {
        let process = match &recipe.command {
            None => None,
            Some((program, arguments)) => {
                let log = folder.join(format!("{}.log", recipe.kind.name()));
                Some(Process::start(program, arguments, recipe.core, log)?)
            }
        };
        Ok(Self {
            kind: recipe.kind,
            addr: recipe.addr,
            process,
        })
    }

    /// Which target it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where clients send.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Whether there is a process to hold and to charge.
    pub fn has_process(&self) -> bool {
        self.process.is_some()
    }

    /// CPU time it has used.
    ///
    /// # Errors
    /// [`TargetError::Ended`] when it is gone.
    pub fn cpu(&mut self) -> Result<Duration, TargetError> {
        self.check()?;
        let read = self.process.as_ref().map(|process| process.clock.read());
        Ok(read.transpose()?.unwrap_or_default())
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> Option<u64> {
        let pid = self.process.as_ref()?.child.id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// Stops it where it is; the kernel goes on queueing for it.
    ///
    /// # Errors
    /// When it is gone.
    pub fn hold(&self) -> io::Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it is gone.
    pub fn release(&self) -> io::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Says when the process has ended.
    ///
    /// # Errors
    /// [`TargetError::Ended`], with the end of its log.
    pub fn check(&mut self) -> Result<(), TargetError> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let Some(status) = process.child.try_wait()? else {
            return Ok(());
        };
        let (name, log) = (self.kind.name(), process.log_tail());
        Err(TargetError::Ended {
            name,
            status: status.to_string(),
            log,
        })
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.process {
            Some(process) => Ok(kill(process.pid(), signal)?),
            None => Ok(()),
        }
    }
}

impl Process {
    fn start(
        program: &Path,
        arguments: &[String],
        core: usize,
        log: PathBuf,
    ) -> Result<Self, TargetError> {
        let start = |source| TargetError::Start {
            program: program.display().to_string(),
            source,
        };
        if program.components().count() > 1 && !program.exists() {
            return Err(start(io::ErrorKind::NotFound.into()));
        }
        let output = File::create(&log)?;
        let child = Command::new("taskset")
            .args(["-c", &core.to_string()])
            .arg(program)
            .args(arguments)
            // ^C is for the bench, which ends its targets itself.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(start)?;
        let clock = ProcessClock::of(child.id())?;
        Ok(Self { child, clock, log })
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process takes no signal but SIGKILL until it goes on. One that is gone already
        // makes these calls fail, which is as good.
        let _ = kill(self.pid(), Signal::SIGCONT);
        let _ = kill(self.pid(), Signal::SIGTERM);
        let begun = Instant::now();
        while begun.elapsed() < END_AFTER {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A UDP address on loopback that nothing uses.
///
/// # Errors
/// When loopback has no port left.
pub fn free_addr() -> io::Result<SocketAddr> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(arguments: &[&str]) -> Recipe {
        Recipe {
            kind: Kind::Go,
            command: Some((
                PathBuf::from("sh"),
                arguments.iter().map(|text| (*text).to_owned()).collect(),
            )),
            addr: ([127, 0, 0, 1], 9).into(),
            core: 0,
        }
    }

    #[test]
    fn ends_a_held_process_when_dropped() {
        let folder = tempfile::tempdir().expect("folder");
        let mut target =
            Target::start(&sleeper(&["-c", "exec sleep 60"]), folder.path()).expect("start");
        target.hold().expect("hold");
        assert!(target.cpu().is_ok() && target.resident_kib().is_some());
        let pid = target.process.as_ref().expect("a process").pid();
        drop(target);
        assert!(kill(pid, None).is_err(), "the process is gone");
    }

    #[test]
    fn tells_how_a_target_ended_and_its_last_words() {
        let folder = tempfile::tempdir().expect("folder");
        let recipe = sleeper(&["-c", "echo no such option; exit 3"]);
        let mut target = Target::start(&recipe, folder.path()).expect("start");
        let begun = Instant::now();
        let error = loop {
            match target.check() {
                Err(error) => break error.to_string(),
                Ok(()) if begun.elapsed() > Duration::from_secs(5) => panic!("still running"),
                Ok(()) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        assert!(
            error.contains("exit status: 3") && error.contains("no such option"),
            "{error}"
        );
    }

    #[test]
    fn names_a_program_that_is_not_there_and_the_remedy() {
        let folder = tempfile::tempdir().expect("folder");
        let recipe = Recipe {
            command: Some((PathBuf::from("/nonexistent/relay"), Vec::new())),
            ..sleeper(&[])
        };
        let error = Target::start(&recipe, folder.path()).expect_err("no such program");
        assert!(error.to_string().contains("/nonexistent/relay"), "{error}");
        assert!(error.to_string().contains("make bench-peers"), "{error}");
    }
}
