//! The worker's clock: read once a batch, so that a whole batch is judged at one moment.
//!
//! Pure cores never read time; they are given a [`Now`]. Wall-clock time only dates ufrags, in
//! minutes, so it is read again no more than once a second.

use crate::route::{Now, UnixMinutes};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a reading of the wall clock serves.
const WALL_PERIOD: Duration = Duration::from_secs(1);

/// Reads both clocks. One a worker.
#[derive(Debug)]
pub struct Clock {
    wall: UnixMinutes,
    wall_read_at: Instant,
}

impl Clock {
    /// Reads the wall clock for the first time.
    pub fn new() -> Clock {
        Clock {
            wall: wall(),
            wall_read_at: Instant::now(),
        }
    }

    /// The present moment.
    #[inline]
    pub fn now(&mut self) -> Now {
        let mono = Instant::now();
        if mono.duration_since(self.wall_read_at) >= WALL_PERIOD {
            self.wall = wall();
            self.wall_read_at = mono;
        }
        Now {
            mono,
            wall: self.wall,
        }
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

/// Minutes since the epoch; a clock set before it counts as the epoch itself.
fn wall() -> UnixMinutes {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    UnixMinutes(u32::try_from(since_epoch.as_secs() / 60).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_monotonic_and_dated_by_the_system_clock() {
        let mut clock = Clock::new();
        let before = wall();
        let (first, second) = (clock.now(), clock.now());
        let after = wall();
        assert!(second.mono >= first.mono);
        assert!((before.0..=after.0).contains(&second.wall.0));
    }

    #[test]
    fn the_wall_clock_is_read_again_after_its_period() {
        let mut clock = Clock::new();
        clock.wall = UnixMinutes(1);
        assert_eq!(clock.now().wall, UnixMinutes(1), "still fresh");
        clock.wall_read_at = Instant::now() - WALL_PERIOD;
        assert!(clock.now().wall.0 > 1);
    }
}
