//! A rival's process on a core of its own: started, charged, held, ended.
//!
//! Unlike a [`Daemon`](super::Daemon) it is any program, with any arguments, and what it writes
//! goes into a file. It is gone when the value is dropped.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cpu::ProcessClock;

/// How long a process gets to end before it is killed.
const END_AFTER: Duration = Duration::from_secs(2);
/// How much of a failed process' log an error shows, in bytes.
const LOG_TAIL_BYTES: usize = 800;

/// A child process that was pinned to one core before it began.
#[derive(Debug)]
pub struct Pinned {
    child: Child,
    clock: ProcessClock,
    log: PathBuf,
}

impl Pinned {
    /// Starts `program` on `core`; what it writes goes to the file `log`.
    ///
    /// # Errors
    /// When there is no such program or the log cannot be written.
    pub fn start(
        program: &Path,
        arguments: &[String],
        core: usize,
        log: PathBuf,
    ) -> io::Result<Self> {
        // What taskset says about a program that is not there would be all that is left of it.
        if program.components().count() > 1 && !program.exists() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let output = File::create(&log)?;
        // A rival that crashes leaves no core file where the bench was started.
        let child = Command::new("prlimit")
            .args(["--core=0", "taskset", "-c", &core.to_string()])
            .arg(program)
            .args(arguments)
            // ^C is for the bench, which ends its targets itself.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let clock = ProcessClock::of(child.id())?;
        Ok(Self { child, clock, log })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time it has used.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu(&self) -> io::Result<Duration> {
        self.clock.read()
    }

    /// Resident memory in KiB; `None` when it is gone.
    #[must_use]
    pub fn resident_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill(self.raw_pid(), signal)?)
    }

    /// How it ended, if it did.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// The end of what it wrote.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned()
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A stopped process takes no signal but SIGKILL until it goes on. One that is gone already
        // makes these calls fail, which is as good.
        let _ = kill(self.raw_pid(), Signal::SIGCONT);
        let _ = kill(self.raw_pid(), Signal::SIGTERM);
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
