//! Whether an address is worth trying: what its last connections came to.
//!
//! Passive: every attempt of a link reports here. An address that failed [`FAILURES_MIN`] times
//! running rests, longer each time, and is then tried again by the next call; one success makes
//! it sound. Shared by all workers without a lock: a judgement that is a moment old does no harm.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Failures running before an address rests: one may be a hiccup of a single connection.
const FAILURES_MIN: u32 = 2;
/// The first rest.
const REST: Duration = Duration::from_secs(1);
/// The longest rest: what comes back is used within this time.
const REST_MAX: Duration = Duration::from_secs(30);

/// The health of one address; see the module.
#[derive(Debug)]
pub(super) struct Health {
    start: Instant,
    failures: AtomicU32,
    /// In ms since `start`.
    rests_until: AtomicU64,
}

impl Health {
    /// Sound. `now` is any moment before those given later.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            start: now,
            failures: AtomicU32::new(0),
            rests_until: AtomicU64::new(0),
        }
    }

    /// A connection came about.
    pub(super) fn note_success(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.rests_until.store(0, Ordering::Relaxed);
    }

    /// A connection did not come about. Says whether that puts the address to rest. While it rests,
    /// further failures say nothing: they belong to attempts that began before.
    pub(super) fn note_failure(&self, now: Instant) -> bool {
        if self.is_resting(now) {
            return false;
        }
        let failures = self
            .failures
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let Some(further) = failures.checked_sub(FAILURES_MIN) else {
            return false;
        };
        let rest = REST.saturating_mul(1 << further.min(16)).min(REST_MAX);
        self.rests_until
            .fetch_max(self.ms(now + rest), Ordering::Relaxed);
        true
    }

    /// Whether the address should be left alone.
    pub(super) fn is_resting(&self, now: Instant) -> bool {
        self.rests_until.load(Ordering::Relaxed) > self.ms(now)
    }

    /// Whether its last connection failed.
    pub(super) fn is_suspect(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0
    }

    /// Orders resting addresses by which may be tried first.
    pub(super) fn rests_until(&self) -> u64 {
        self.rests_until.load(Ordering::Relaxed)
    }

    fn ms(&self, at: Instant) -> u64 {
        let since_start = at.saturating_duration_since(self.start).as_millis();
        u64::try_from(since_start).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_is_forgiven_and_more_make_it_rest_ever_longer() {
        let start = Instant::now();
        let health = Health::new(start);
        assert!(!health.note_failure(start));
        assert!(!health.is_resting(start));
        assert!(health.note_failure(start));
        let mut at = start;
        for rest_s in [1, 2, 4, 8, 16, 30, 30] {
            let until = at + Duration::from_secs(rest_s);
            assert!(health.is_resting(until - Duration::from_millis(1)));
            assert!(!health.is_resting(until), "{rest_s} s");
            at = until;
            assert!(health.note_failure(at), "it rests anew");
        }
        assert!(!health.note_failure(at), "it rests already");
    }

    #[test]
    fn one_success_makes_it_sound() {
        let now = Instant::now();
        let health = Health::new(now);
        for _ in 0..9 {
            health.note_failure(now);
        }
        assert!(health.is_resting(now) && health.is_suspect());
        health.note_success();
        assert!(!health.is_resting(now) && !health.is_suspect());
        health.note_failure(now);
        assert!(!health.is_resting(now), "counted from the start again");
    }
}
