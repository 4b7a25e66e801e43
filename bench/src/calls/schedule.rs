//! When calls start and end: drawn before the run from a seed, and never from how the server does.
//!
//! That is what makes the generator open-loop: a server that is slow to answer the first call does
//! not delay the second, and every delay is counted from the moment planned here. The same seed and
//! the same wishes give the same schedule.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How starts follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Independent callers: exponentially distributed distances.
    Poisson,
    /// Equal distances.
    Fixed,
}

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client says goodbye, by DTLS `close_notify`.
    Goodbye,
    /// The client is gone without a word, as after a crash or in a tunnel.
    Vanishing,
}

/// A change of a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// When, counted from the run's epoch.
    pub at: Duration,
    /// Whether the client knows, as when Wi-Fi gives way to a mobile network; it does not when a
    /// NAT on the way forgets it.
    pub known: bool,
}

/// One call, as it should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its number in the run, from 0.
    pub id: u32,
    /// When it starts, counted from the run's epoch.
    pub start: Duration,
    /// When it ends, counted likewise.
    pub end: Duration,
    /// How it ends.
    pub ending: Ending,
    /// Whether its set-up is among what is measured.
    pub counts: bool,
    /// When its client changes address, if it does.
    pub moves: Option<Move>,
    /// What its voice is drawn from.
    pub seed: u64,
}

/// When a stretch of calls starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Starts {
    /// How many.
    pub count: u32,
    /// How many a second, once the ramp is over; above 0.
    pub rate: f64,
    /// Time over which the rate grows from 0 to `rate`, in proportion.
    pub ramp: Duration,
    /// How they follow each other.
    pub arrivals: Arrivals,
}

impl Starts {
    /// The moments, ascending, counted from the first possible one.
    ///
    /// With Λ(t) the number expected until t, starts are where Λ takes a step of a unit-rate
    /// process: of 1 for equal distances, exponentially distributed for Poisson.
    pub fn draw(&self, random: &mut fastrand::Rng) -> Vec<Duration> {
        let mut expected = 0.0;
        let mut moments = Vec::with_capacity(self.count as usize);
        for index in 0..self.count {
            expected = match self.arrivals {
                Arrivals::Fixed => f64::from(index),
                Arrivals::Poisson => expected - (1.0 - random.f64()).ln(),
            };
            moments.push(Duration::from_secs_f64(self.when(expected)));
        }
        moments
    }

    /// The inverse of Λ: `rate t² / 2 ramp` within the ramp, `rate (t - ramp / 2)` after it.
    fn when(&self, expected: f64) -> f64 {
        let ramp_s = self.ramp.as_secs_f64();
        if expected <= self.rate * ramp_s / 2.0 {
            (2.0 * ramp_s * expected / self.rate).sqrt()
        } else {
            expected / self.rate + ramp_s / 2.0
        }
    }
}

/// How long calls last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hold {
    /// All until the same moment, this long after the last start.
    Until(Duration),
    /// Each this long.
    Each(Duration),
}

/// A seed for one call of a run: neighbours draw differently.
pub fn call_seed(seed: u64, id: u32) -> u64 {
    fastrand::Rng::with_seed(seed ^ u64::from(id).rotate_left(32)).u64(..)
}

/// Draws a schedule: all calls in the order of their starts.
pub fn plan(starts: &Starts, hold: Hold, seed: u64) -> Vec<Planned> {
    let mut random = fastrand::Rng::with_seed(seed);
    let moments = starts.draw(&mut random);
    let last = moments.last().copied().unwrap_or_default();
    let calls = (0_u32..).zip(moments).map(|(id, start)| Planned {
        id,
        start,
        end: match hold {
            Hold::Until(after) => last + after,
            Hold::Each(length) => start + length,
        },
        ending: Ending::Goodbye,
        counts: true,
        moves: None,
        seed: random.u64(..),
    });
    calls.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(arrivals: Arrivals, ramp_s: u64) -> Starts {
        Starts {
            count: 20_000,
            rate: 100.0,
            ramp: Duration::from_secs(ramp_s),
            arrivals,
        }
    }

    fn draw(starts: &Starts) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(11);
        let moments = starts.draw(&mut random);
        moments.iter().map(Duration::as_secs_f64).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule() {
        let draw = |seed| {
            plan(
                &starts(Arrivals::Poisson, 5),
                Hold::Each(Duration::from_secs(9)),
                seed,
            )
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn fixed_starts_lie_at_equal_distances() {
        let moments = draw(&starts(Arrivals::Fixed, 0));
        let equal = |pair: &[f64]| (pair[1] - pair[0] - 0.01).abs() < 1e-6;
        assert!(moments[0] == 0.0 && moments.windows(2).all(equal));
    }

    #[test]
    fn poisson_starts_have_exponential_distances() {
        let moments = draw(&starts(Arrivals::Poisson, 0));
        let mut distances: Vec<f64> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
        distances.sort_by(f64::total_cmp);
        // Kolmogorov and Smirnov: the largest distance between the drawn and the exponential
        // distribution; 1.63 / sqrt(n) is passed by chance once in a hundred seeds.
        let count = distances.len() as f64;
        let worst = distances.iter().enumerate().map(|(index, distance)| {
            let exponential = 1.0 - (-distance * 100.0).exp();
            (exponential - index as f64 / count).abs()
        });
        let worst = worst.fold(0.0, f64::max);
        assert!(worst < 1.63 / count.sqrt(), "{worst}");
    }

    #[test]
    fn a_ramp_reaches_its_rate_in_its_time_with_half_the_starts() {
        let moments = draw(&starts(Arrivals::Fixed, 10));
        let before = moments.iter().filter(|moment| **moment < 10.0).count();
        assert!((499..=501).contains(&before), "{before} starts in the ramp");
        let middle = moments.iter().filter(|moment| **moment < 5.0).count();
        assert!((124..=126).contains(&middle), "{middle} in its first half");
        let after = moments
            .iter()
            .filter(|moment| (10.0..20.0).contains(*moment));
        assert_eq!(after.count(), 1_000);
    }

    #[test]
    fn calls_end_together_or_after_the_same_time() {
        let starts = Starts {
            count: 3,
            ..starts(Arrivals::Fixed, 0)
        };
        let length = Duration::from_secs(4);
        let together = plan(&starts, Hold::Until(length), 1);
        let last = together[2].start + length;
        assert!(together.iter().all(|call| call.end == last));
        let each = plan(&starts, Hold::Each(length), 1);
        assert!(each.iter().all(|call| call.end - call.start == length));
    }
}
