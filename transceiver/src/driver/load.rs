//! How busy a thread is: a worker by its CPU time, as the scheduler counts it, a codec thread by
//! the time in which it had work.
//!
//! Measured by the thread once a second, read by the control thread before a call is opened. For a
//! worker the kernel's own account is used rather than the loop's, because it leaves out what
//! others do on its core. A codec thread has no core of its own: what counts is whether it keeps
//! up.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// First number of it: nanoseconds on the CPU (Documentation/scheduler/sched-stats.rst).
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";
/// Weight of the newest second: one busy second alone shuts nobody out, three do.
const GAIN: f64 = 0.5;

/// A thread's load, as others see it.
#[derive(Debug, Clone, Default)]
pub struct Load(Arc<AtomicU32>);

impl Load {
    /// Share of one core, in percent; 0 until it is known.
    pub fn percent(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Measures the load of the thread that it lives on.
#[derive(Debug)]
pub struct LoadMeter {
    load: Load,
    last: Option<(Instant, u64)>,
    smoothed: f64,
}

impl LoadMeter {
    /// A meter that tells `load`.
    pub fn new(load: Load) -> Self {
        Self {
            load,
            last: None,
            smoothed: 0.0,
        }
    }

    /// A second has passed on the thread to be measured. Gives its share of a core, 0 to 1.
    ///
    /// Where the kernel keeps no account, the load stays nought and nobody is refused for it.
    pub fn measure(&mut self, now: Instant) -> f64 {
        let account = fs::read_to_string(SCHEDSTAT).unwrap_or_default();
        if let Some(cpu_ns) = account.split(' ').next().and_then(|ns| ns.parse().ok()) {
            self.note(now, cpu_ns);
        }
        self.smoothed
    }

    /// Another second or so has passed; the thread has been busy for `busy_ns` since some moment
    /// that is always the same.
    pub fn note(&mut self, now: Instant, busy_ns: u64) {
        let Some((then, busy_ns_then)) = self.last.replace((now, busy_ns)) else {
            return;
        };
        let elapsed_ns = now.saturating_duration_since(then).as_nanos() as f64;
        if elapsed_ns < 1.0 {
            return;
        }
        let busy = busy_ns.saturating_sub(busy_ns_then) as f64 / elapsed_ns;
        self.smoothed += (busy.min(1.0) - self.smoothed) * GAIN;
        // Between 0 and 100.
        let percent = (self.smoothed * 100.0).round() as u32;
        self.load.0.store(percent, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_busy_second_counts_half_and_three_of_them_show() {
        let load = Load::default();
        let mut meter = LoadMeter::new(load.clone());
        let start = Instant::now();
        let mut seen = Vec::new();
        for (second, busy_ms) in [
            (0, 0),
            (1, 0),
            (2, 1_000),
            (3, 2_000),
            (4, 3_000),
            (5, 3_000),
        ] {
            meter.note(start + Duration::from_secs(second), busy_ms * 1_000_000);
            seen.push(load.percent());
        }
        assert_eq!(seen, [0, 0, 50, 75, 88, 44]);
    }

    #[test]
    fn the_kernel_tells_of_this_thread() {
        let load = Load::default();
        let mut meter = LoadMeter::new(load.clone());
        let start = Instant::now();
        meter.measure(start);
        let mut spent = 0u64;
        while start.elapsed() < Duration::from_millis(50) {
            spent = spent.wrapping_mul(31).wrapping_add(1);
        }
        std::hint::black_box(spent);
        let share = meter.measure(Instant::now());
        assert!(share > 0.0 && share <= 0.5, "{share}");
    }
}
