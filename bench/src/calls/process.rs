//! The processes under test, read from outside: CPU time, resident memory, open descriptors.

use std::io;
use std::time::Duration;

use crate::cpu::ProcessClock;

/// One process under test.
#[derive(Clone, Debug)]
pub struct Process {
    /// What it is in tables.
    pub name: String,
    pid: u32,
    clock: ProcessClock,
}

/// What a process has used and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// CPU time since it began.
    pub cpu: Duration,
    /// Resident memory, in KiB.
    pub resident_kib: u64,
    /// Open descriptors; `None` where they may not be looked at.
    pub descriptors: Option<u64>,
}

impl Process {
    /// Process `pid`, which must be there.
    ///
    /// # Errors
    /// When it is not.
    pub fn new(name: impl Into<String>, pid: u32) -> io::Result<Self> {
        Ok(Self {
            name: name.into(),
            pid,
            clock: ProcessClock::of(pid)?,
        })
    }

    /// A process of another's making, named as the kernel names it.
    ///
    /// # Errors
    /// When there is no such process; the error says so.
    pub fn of_pid(pid: u32) -> anyhow::Result<Self> {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let name = name.map_err(|error| anyhow::anyhow!("no process {pid}: {error}"))?;
        Ok(Self::new(format!("{} ({pid})", name.trim()), pid)?)
    }

    /// Reads it; `None` when it is gone.
    pub fn read(&self) -> Option<Reading> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.pid));
        Some(Reading {
            cpu: self.clock.read().ok()?,
            resident_kib: resident.split_whitespace().next()?.parse().ok()?,
            descriptors: descriptors.ok().map(|entries| entries.count() as u64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_process() {
        let process = Process::of_pid(std::process::id()).expect("this one");
        let reading = process.read().expect("it is there");
        assert!(reading.resident_kib > 1_000 && reading.descriptors >= Some(3));
    }

    #[test]
    fn says_when_a_process_is_not_there() {
        let error = Process::of_pid(u32::MAX / 2).expect_err("no such process");
        assert!(error.to_string().contains("no process"), "{error}");
    }
}
