//! The clock that processes of one machine share: what the generator and an echo of this program
//! tell the two ways of a packet apart by.

use std::time::Instant;

use nix::time::{ClockId, clock_gettime};

/// How often the two clocks are read to find a pair of readings that nothing came between.
const READINGS: usize = 16;

/// `CLOCK_MONOTONIC` for moments that are known as an [`Instant`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    at: Instant,
    ns: u64,
}

impl Clock {
    /// Reads both clocks; of several pairs the one that was read in the shortest time.
    pub(super) fn read() -> Self {
        let pairs = (0..READINGS).map(|_| {
            let at = Instant::now();
            let ns = monotonic_ns();
            (at.elapsed(), Self { at, ns })
        });
        let (_, clock) = pairs
            .min_by_key(|(took, _)| *took)
            .expect("invariant: there are readings");
        clock
    }

    /// What the clock shows at `moment`, in nanoseconds since the machine's start.
    pub(super) fn ns(&self, moment: Instant) -> u64 {
        let nanos = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
        };
        (self.ns + nanos(self.at, moment)).saturating_sub(nanos(moment, self.at))
    }
}

/// What the clock shows.
///
/// # Panics
/// Never on Linux, which has this clock.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("invariant: Linux has this clock");
    let (seconds, nanos) = (now.tv_sec().cast_unsigned(), now.tv_nsec().cast_unsigned());
    seconds * 1_000_000_000 + nanos
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_before_and_after_the_reading_are_told_by_the_clock_itself() {
        let clock = Clock::read();
        let second = Duration::from_secs(1);
        assert_eq!(clock.ns(clock.at + second), clock.ns + 1_000_000_000);
        assert_eq!(clock.ns(clock.at - second), clock.ns - 1_000_000_000);
        let before = monotonic_ns();
        let shown = clock.ns(Instant::now());
        let after = monotonic_ns();
        // A pair of readings lies a microsecond apart, unless nobody ever gets a core.
        let slack = 50_000;
        assert!(
            before <= shown + slack && shown <= after + slack,
            "{before} {shown} {after}"
        );
    }
}
