//! The `[workers]` section, the same in every daemon: how many threads own the data plane, where
//! they run, and how they talk to the kernel.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;

use super::Invalid;
use crate::cores::{CoreId, CoreRequest};
use crate::uring::{IoModel, WorkerSocket};
use crate::worker::WorkerOptions;

/// Most workers of a process. A shard index has 8 bits; a machine with more data cores than this
/// runs several processes.
pub const WORKERS_COUNT_MAX: u16 = 128;

/// Longest wait for company before a batch is taken: beyond it the wait shows in the latency of
/// audio more than in the cost of wake-ups.
const COALESCE_US_MAX: u64 = 100;

/// The `[workers]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct WorkersConfig {
    /// Worker threads; 0 takes one for each data core. Default 0.
    pub count: u16,
    /// CPU numbers to pin the workers to, in order; empty plans them, and keeps a core for the
    /// control thread where there are enough. Default empty.
    pub cores: Vec<usize>,
    /// How workers talk to the kernel: `auto` probes, `ring` is io_uring or nothing, `mmsg` is
    /// recvmmsg. Default `auto`.
    pub io_model: IoModel,
    /// Longest wait for further datagrams while traffic is light, in µs, at most 100; 0 switches
    /// it off. Default 50: wake-ups are what a lightly loaded worker spends most of its time on.
    pub coalesce_us: u64,
    /// Poll without sleeping: saves the wake-up's latency, costs each worker a whole core. Default
    /// false.
    pub spin: bool,
}

impl Default for WorkersConfig {
    fn default() -> Self {
        Self {
            count: 0,
            cores: Vec::new(),
            io_model: IoModel::Auto,
            coalesce_us: 50,
            spin: false,
        }
    }
}

impl WorkersConfig {
    /// [`WorkersConfig::coalesce_us`].
    pub fn coalesce(&self) -> Duration {
        Duration::from_micros(self.coalesce_us)
    }

    /// Which cores the workers ask for.
    pub fn core_request(&self) -> CoreRequest {
        match (self.count, self.cores.as_slice()) {
            (0, []) => CoreRequest::Auto,
            (count, []) => CoreRequest::Workers(usize::from(count)),
            (_, cores) => CoreRequest::Cores(cores.iter().copied().map(CoreId).collect()),
        }
    }

    /// The options of one worker of this configuration, pinned to `core`.
    pub fn worker_options(
        &self,
        name: String,
        core: CoreId,
        sockets: Vec<WorkerSocket>,
    ) -> WorkerOptions {
        let mut options = WorkerOptions::new(name, sockets);
        options.core = Some(core);
        options.io_model = self.io_model;
        options.coalesce = self.coalesce();
        options.spin = self.spin;
        options
    }

    /// Checks the ranges, and that the cores are named once each and fit the count.
    ///
    /// # Errors
    /// The first key that cannot be used.
    pub fn validate(&self) -> Result<(), Invalid> {
        within("workers.count", self.count, 0..=WORKERS_COUNT_MAX)?;
        within("workers.coalesce_us", self.coalesce_us, 0..=COALESCE_US_MAX)?;
        let named = self.cores.len();
        if named > 0 && self.count > 0 && named != usize::from(self.count) {
            return Err(Invalid::new(
                "workers.cores",
                format!("{:?}", self.cores),
                format!("{named} cores for workers.count = {}", self.count),
                "name one core a worker, or leave one of the two keys out",
            ));
        }
        let mut cores = self.cores.clone();
        cores.sort_unstable();
        let twice = cores.windows(2).any(|pair| pair[0] == pair[1]);
        if named > usize::from(WORKERS_COUNT_MAX) || twice {
            return Err(Invalid::new(
                "workers.cores",
                format!("{:?}", self.cores),
                "a core stands here twice, or there are too many",
                format!("name each core once, at most {WORKERS_COUNT_MAX}"),
            ));
        }
        Ok(())
    }
}

/// Checks that the value of `key` lies in `range`.
///
/// # Errors
/// Names the key, the value and the range.
pub fn within<T>(key: &str, value: T, range: RangeInclusive<T>) -> Result<(), Invalid>
where
    T: PartialOrd + Display,
{
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    Err(Invalid::new(
        key,
        value,
        "out of range",
        format!("use {least} to {most}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(config: WorkersConfig) -> String {
        format!("{:?}", config.validate().unwrap_err())
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(WorkersConfig::default().validate(), Ok(()));
    }

    #[test]
    fn refuses_cores_that_do_not_fit_the_count_or_stand_twice() {
        let two_for_one = WorkersConfig {
            count: 1,
            cores: vec![0, 1],
            ..Default::default()
        };
        assert!(refusal(two_for_one).contains("workers.cores"));
        let twice = WorkersConfig {
            cores: vec![1, 1],
            ..Default::default()
        };
        assert!(refusal(twice).contains("twice"));
    }

    #[test]
    fn refuses_a_wait_that_would_be_heard() {
        let slow = WorkersConfig {
            coalesce_us: 101,
            ..Default::default()
        };
        assert!(refusal(slow).contains("use 0 to 100"));
    }
}
