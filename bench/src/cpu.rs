//! What a process and a core spent: the cost side of every figure.
//!
//! A process' CPU clock ([`clock_getcpuclockid(3)`]) counts nanoseconds of all its threads, those
//! that ended included. On kernels without `CONFIG_IRQ_TIME_ACCOUNTING` it also holds the softirq
//! work done in the process' context: on loopback that is the receiver's half of each send. The
//! machine facts say which kind of kernel it was.
//!
//! [`clock_getcpuclockid(3)`]: https://man7.org/linux/man-pages/man3/clock_getcpuclockid.3.html

use std::io;
use std::time::Duration;

use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// The CPU clock of one process, its own or another's.
#[derive(Clone, Copy, Debug)]
pub struct ProcessClock(ClockId);

impl ProcessClock {
    /// The clock of process `pid`.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Self(clock_getcpuclockid(Pid::from_raw(pid))?))
    }

    /// CPU time since the process began.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn read(&self) -> io::Result<Duration> {
        Ok(clock_gettime(self.0)?.into())
    }
}

/// Jiffies of all cores since boot, from the `cpu` line of `/proc/stat`, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineTicks {
    /// Not idle, whoever used it.
    pub busy: u64,
    /// Idle or waiting for a disk.
    pub idle: u64,
    /// Taken by the hypervisor for others.
    pub stolen: u64,
}

impl MachineTicks {
    /// Reads the counters of all cores, or of one.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read or has no such line.
    pub fn read(core: Option<usize>) -> io::Result<Self> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let label = core.map_or("cpu".to_owned(), |core| format!("cpu{core}"));
        Self::parse(&text, &label).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The line is `cpuN user nice system idle iowait irq softirq steal guest guest_nice`
    /// (proc_stat(5)); guest time is already within user time.
    fn parse(text: &str, label: &str) -> Option<Self> {
        let line = text
            .lines()
            .find(|line| line.split_whitespace().next() == Some(label))?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let [user, nice, system, idle, wait, irq, softirq, stolen, ..] = ticks[..] else {
            return None;
        };
        Some(Self {
            busy: user + nice + system + irq + softirq,
            idle: idle + wait,
            stolen,
        })
    }

    /// What was spent since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(earlier.busy),
            idle: self.idle.saturating_sub(earlier.idle),
            stolen: self.stolen.saturating_sub(earlier.stolen),
        }
    }

    /// The busy part, 0 to 1.
    pub fn busy_share(&self) -> f64 {
        let total = self.busy + self.idle + self.stolen;
        if total == 0 {
            0.0
        } else {
            self.busy as f64 / total as f64
        }
    }
}

/// The kernel's tick in `/proc`, `USER_HZ`: 100 on every Linux architecture but Alpha.
pub const TICKS_PER_SECOND: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const STAT: &str = "cpu  10 1 20 300 4 5 6 7 0 0\ncpu0 1 0 2 30 0 0 0 0 0 0\nintr 5\n";

    #[test]
    fn reads_the_line_of_all_cores_and_of_one() {
        let all = MachineTicks::parse(STAT, "cpu").expect("all cores");
        assert_eq!(
            all,
            MachineTicks {
                busy: 42,
                idle: 304,
                stolen: 7
            }
        );
        let one = MachineTicks::parse(STAT, "cpu0").expect("one core");
        assert_eq!(
            one,
            MachineTicks {
                busy: 3,
                idle: 30,
                stolen: 0
            }
        );
        assert_eq!(MachineTicks::parse(STAT, "cpu9"), None);
    }

    #[test]
    fn counts_the_cpu_time_of_its_own_work() {
        let clock = ProcessClock::of(std::process::id()).expect("own clock");
        let (before, begun) = (clock.read().expect("read"), Instant::now());
        let mut sum = 0_u64;
        while begun.elapsed() < Duration::from_millis(30) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let spent = clock.read().expect("read") - before;
        assert!(spent >= Duration::from_millis(2), "spent {spent:?}");
    }

    #[test]
    fn says_when_there_is_no_such_process() {
        assert!(ProcessClock::of(u32::MAX - 1).is_err());
    }
}
