//! What is measured: a relay process on a core of its own, or nothing at all between the clients
//! and the sink.
//!
//! A target can be held (SIGSTOP) and released (SIGCONT); kernel threads, which take no signals,
//! are held by a process of higher priority on their core. That is how the generator, which costs
//! more a datagram than the better relays, saturates them all the same: it lays a backlog in the
//! held relay's socket and releases it; until the backlog is gone the relay finds work whenever it
//! looks, as it would under a generator of infinite speed.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::passage::Passage;
use crate::cpu::ProcessClock;
use crate::process::pinned::Pinned;

/// What fits 208 KiB, the system's default for a receive buffer.
const COTURN_BACKLOG_MAX: u64 = 96;
/// `VETH_RING_SIZE` of drivers/net/veth.c is 256; some room is left for what is under way.
const DNAT_BACKLOG_MAX: u64 = 200;

/// Keeps kernel threads off their core while it runs; ends by itself after a minute of CPU time, so
/// that it cannot outlive a bench that was killed.
const BLOCKER: &str = "ulimit -t 60; while :; do :; done";
/// Above the bench itself, should that run with real-time priority.
const BLOCKER_PRIORITY: &str = "50";

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
    /// Kernel DNAT between network namespaces; takes root.
    Dnat,
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
        !matches!(self, Self::Direct | Self::Coturn | Self::Dnat)
    }

    /// The name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Syrinx => "syrinx",
            Self::SyrinxMmsg => "syrinx-mmsg",
            Self::Baseline => "baseline",
            Self::Go => "go",
            Self::GoRaw => "go-raw",
            Self::Dnat => "dnat",
            Self::Coturn => "coturn",
            Self::Direct => "direct",
        }
    }

    /// How many datagrams may lie in the target's sockets at once without loss, when the run asks
    /// for `wanted`. coturn leaves its sockets' buffers at the system's default, a veth device has
    /// a short ring; the others ask for megabytes.
    pub fn backlog(self, wanted: u64) -> u64 {
        match self {
            Self::Coturn => wanted.min(COTURN_BACKLOG_MAX),
            Self::Dnat => wanted.min(DNAT_BACKLOG_MAX),
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
    /// The core the process is pinned to.
    pub core: usize,
}

/// A running target.
#[derive(Debug)]
pub struct Target {
    kind: Kind,
    work: Work,
}

/// Who does the target's work.
#[derive(Debug)]
enum Work {
    Nobody,
    Process(Pinned),
    /// Threads of the kernel, in namespaces that go with the target.
    Kernel {
        clocks: Vec<ProcessClock>,
        blocker: Pinned,
        _passage: Passage,
    },
}

impl Target {
    /// Starts the process of `recipe`, pinned, its output in `folder`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(recipe: &Recipe, folder: &Path) -> Result<Self, TargetError> {
        let work = match &recipe.command {
            None => Work::Nobody,
            Some((program, arguments)) => {
                let log = folder.join(format!("{}.log", recipe.kind.name()));
                Work::Process(start(program, arguments, recipe.core, log)?)
            }
        };
        Ok(Self {
            kind: recipe.kind,
            work,
        })
    }

    /// Takes kernel threads for the target: those of `passage`, which work on `core`.
    ///
    /// # Errors
    /// When real-time priority is not permitted.
    pub fn kernel(passage: Passage, core: usize, folder: &Path) -> Result<Self, TargetError> {
        let clocks = passage
            .thread_pids()
            .iter()
            .map(|pid| ProcessClock::of(*pid));
        let clocks = clocks.collect::<Result<_, _>>()?;
        let arguments = ["-f", BLOCKER_PRIORITY, "sh", "-c", BLOCKER].map(str::to_owned);
        let log = folder.join("blocker.log");
        let blocker = start(Path::new("chrt"), &arguments, core, log)?;
        blocker.signal(Signal::SIGSTOP)?;
        Ok(Self {
            kind: Kind::Dnat,
            work: Work::Kernel {
                clocks,
                blocker,
                _passage: passage,
            },
        })
    }

    /// Which target it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether there is somebody to hold and to charge.
    pub fn works(&self) -> bool {
        !matches!(self.work, Work::Nobody)
    }

    /// CPU time it has used.
    ///
    /// # Errors
    /// [`TargetError::Ended`] when it is gone.
    pub fn cpu(&mut self) -> Result<Duration, TargetError> {
        self.check()?;
        Ok(match &self.work {
            Work::Nobody => Duration::ZERO,
            Work::Process(process) => process.cpu()?,
            Work::Kernel { clocks, .. } => clocks
                .iter()
                .map(ProcessClock::read)
                .sum::<Result<_, _>>()?,
        })
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> Option<u64> {
        let Work::Process(process) = &self.work else {
            return None;
        };
        process.resident_kib()
    }

    /// Stops it where it is; the kernel goes on queueing for it.
    ///
    /// # Errors
    /// When it is gone.
    pub fn hold(&self) -> io::Result<()> {
        match &self.work {
            Work::Nobody => Ok(()),
            Work::Process(process) => process.signal(Signal::SIGSTOP),
            Work::Kernel { blocker, .. } => blocker.signal(Signal::SIGCONT),
        }
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it is gone.
    pub fn release(&self) -> io::Result<()> {
        match &self.work {
            Work::Nobody => Ok(()),
            Work::Process(process) => process.signal(Signal::SIGCONT),
            Work::Kernel { blocker, .. } => blocker.signal(Signal::SIGSTOP),
        }
    }

    /// Says when the process has ended.
    ///
    /// # Errors
    /// [`TargetError::Ended`], with the end of its log.
    pub fn check(&mut self) -> Result<(), TargetError> {
        let (Work::Process(process)
        | Work::Kernel {
            blocker: process, ..
        }) = &mut self.work
        else {
            return Ok(());
        };
        let Some(status) = process.ended()? else {
            return Ok(());
        };
        let (name, log) = (self.kind.name(), process.log_tail());
        Err(TargetError::Ended {
            name,
            status: status.to_string(),
            log,
        })
    }
}

fn start(
    program: &Path,
    arguments: &[String],
    core: usize,
    log: PathBuf,
) -> Result<Pinned, TargetError> {
    Pinned::start(program, arguments, core, log).map_err(|source| TargetError::Start {
        program: program.display().to_string(),
        source,
    })
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
    use std::time::Instant;

    use super::*;

    fn sleeper(arguments: &[&str]) -> Recipe {
        Recipe {
            kind: Kind::Go,
            command: Some((
                PathBuf::from("sh"),
                arguments.iter().map(|text| (*text).to_owned()).collect(),
            )),
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
        let Work::Process(process) = &target.work else {
            panic!("a process")
        };
        let pid = process.pid();
        drop(target);
        let gone = std::fs::metadata(format!("/proc/{pid}")).is_err();
        assert!(gone, "the process is gone");
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
