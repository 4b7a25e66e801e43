//! What is drawn for a packet: whether it is lost, how much later it comes, whether it comes twice
//! or is overtaken.
//!
//! Every packet takes the same number of draws whatever the conditions are. So the fate of packet
//! *n* of a path depends on the seed, the path, the way and *n* alone, and a run with more loss has
//! the same jitter.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::Way;
use super::conditions::Impairment;

/// The longest jitter in means: an exponential draw beyond it happens once in 22,000 packets, and
/// a bound on it bounds what is under way.
const JITTER_MEANS_MAX: f64 = 10.0;

/// Why a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Drawn on its own.
    Random,
    /// Fell into a burst.
    Burst,
    /// The bottleneck's queue was full.
    Queue,
    /// Longer than the MTU.
    Size,
}

/// What was drawn for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// Whether it is lost, [`Loss::Random`] or [`Loss::Burst`].
    pub lost: Option<Loss>,
    /// What is added to its delay.
    pub jitter: Duration,
    /// Whether it arrives twice.
    pub duplicated: bool,
    /// Whether it is overtaken.
    pub reordered: bool,
}

/// The fates of one path's packets on one way, in their order.
#[derive(Clone, Debug)]
pub struct Fates {
    draws: fastrand::Rng,
    in_burst: bool,
}

impl Fates {
    /// The fates under `seed` of the path numbered `nth` (from 0) of a client's address. The
    /// client's port is the kernel's choice and so must not matter.
    #[must_use]
    pub fn new(seed: u64, client: SocketAddr, nth: u64, way: Way) -> Self {
        let address = match client.ip() {
            IpAddr::V4(four) => u128::from(four.to_bits()),
            IpAddr::V6(six) => six.to_bits(),
        };
        let words = [
            (address >> 64) as u64,
            address as u64,
            nth,
            u64::from(way == Way::Down),
        ];
        let mixed = words.into_iter().fold(seed, |state, word| {
            fastrand::Rng::with_seed(state ^ word).u64(..)
        });
        Self {
            draws: fastrand::Rng::with_seed(mixed),
            in_burst: false,
        }
    }

    /// The next packet's fate under `conditions`.
    pub fn draw(&mut self, conditions: &Impairment) -> Fate {
        let [state, loss, jitter, duplicate, reorder] = std::array::from_fn(|_| self.draws.f64());
        self.in_burst = match conditions.burst {
            None => false,
            Some(burst) if self.in_burst => state >= burst.leave(),
            Some(burst) => state < burst.enter(),
        };
        let lost = if self.in_burst {
            Some(Loss::Burst)
        } else {
            (loss < conditions.loss).then_some(Loss::Random)
        };
        let means = (-(1.0 - jitter).ln()).min(JITTER_MEANS_MAX);
        Fate {
            lost,
            jitter: conditions.jitter.mul_f64(means),
            duplicated: duplicate < conditions.duplicate,
            reordered: reorder < conditions.reorder,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::conditions::Burst;
    use super::*;

    const PACKETS: usize = 200_000;

    fn client(host: u8) -> SocketAddr {
        SocketAddr::from(([127, 16, 0, host], 40_000))
    }

    fn drawn(seed: u64, conditions: &Impairment, count: usize) -> Vec<Fate> {
        let mut fates = Fates::new(seed, client(1), 0, Way::Up);
        (0..count).map(|_| fates.draw(conditions)).collect()
    }

    /// Whether `part` of `PACKETS` draws is `expected` within five standard deviations, which
    /// chance misses once in two million.
    fn agrees(part: f64, expected: f64) -> bool {
        let deviation = (expected * (1.0 - expected) / PACKETS as f64).sqrt();
        (part - expected).abs() < 5.0 * deviation
    }

    fn part(fates: &[Fate], holds: impl Fn(&Fate) -> bool) -> f64 {
        fates.iter().filter(|fate| holds(fate)).count() as f64 / fates.len() as f64
    }

    fn everything() -> Impairment {
        Impairment {
            jitter: Duration::from_millis(8),
            loss: 0.02,
            duplicate: 0.01,
            reorder: 0.03,
            ..Impairment::default()
        }
    }

    #[test]
    fn losses_duplicates_and_overtaken_packets_are_as_many_as_the_conditions_say() {
        let fates = drawn(7, &everything(), PACKETS);
        assert!(agrees(
            part(&fates, |fate| fate.lost == Some(Loss::Random)),
            0.02
        ));
        assert!(agrees(part(&fates, |fate| fate.duplicated), 0.01));
        assert!(agrees(part(&fates, |fate| fate.reordered), 0.03));
        let twice = part(&fates, |fate| fate.duplicated && fate.reordered);
        assert!(agrees(twice, 0.01 * 0.03), "they are independent: {twice}");
    }

    #[test]
    fn jitter_is_exponential_and_what_rfc_3550_would_estimate() {
        let fates = drawn(7, &everything(), PACKETS);
        let jitters: Vec<f64> = fates.iter().map(|fate| fate.jitter.as_secs_f64()).collect();
        let mean = jitters.iter().sum::<f64>() / jitters.len() as f64;
        assert!((mean / 8e-3 - 1.0).abs() < 0.015, "mean {mean}");
        let median = part(&fates, |fate| fate.jitter.as_secs_f64() < 8e-3 * 2_f64.ln());
        assert!(agrees(median, 0.5), "below the median {median}");
        let differences = jitters.windows(2).map(|pair| (pair[1] - pair[0]).abs());
        let estimate = differences.sum::<f64>() / (jitters.len() - 1) as f64;
        assert!((estimate / 8e-3 - 1.0).abs() < 0.02, "RFC 3550: {estimate}");
        assert!(jitters.iter().all(|jitter| *jitter <= 80e-3));
    }

    #[test]
    fn bursts_have_the_share_and_the_mean_length_of_the_model() {
        let conditions = Impairment {
            burst: Some(Burst {
                share: 0.05,
                length: 4.0,
            }),
            ..Impairment::default()
        };
        let fates = drawn(11, &conditions, PACKETS);
        let lost: Vec<bool> = fates.iter().map(|fate| fate.lost.is_some()).collect();
        let lost_count = lost.iter().filter(|lost| **lost).count();
        let begun = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let share = lost_count as f64 / PACKETS as f64;
        // Bursts lie together, so the share scatters by the model's variance, not the binomial's.
        assert!((share - 0.05).abs() < 0.005, "share {share}");
        let length = lost_count as f64 / begun as f64;
        assert!((length - 4.0).abs() < 0.25, "length {length}");
        let long = lost
            .windows(9)
            .filter(|run| run.iter().all(|lost| *lost))
            .count();
        let expected = 0.05 * 0.75_f64.powi(8) * PACKETS as f64;
        assert!(
            (long as f64 / expected - 1.0).abs() < 0.25,
            "{long} of {expected}"
        );
    }

    #[test]
    fn the_same_seed_gives_every_packet_the_same_fate() {
        assert_eq!(
            drawn(7, &everything(), 1_000),
            drawn(7, &everything(), 1_000)
        );
        assert_ne!(
            drawn(7, &everything(), 1_000),
            drawn(8, &everything(), 1_000)
        );
    }

    #[test]
    fn more_loss_leaves_the_other_draws_as_they_were() {
        let lossy = Impairment {
            loss: 0.5,
            ..everything()
        };
        let with = drawn(7, &lossy, 1_000);
        for (with, without) in with.iter().zip(drawn(7, &everything(), 1_000)) {
            assert_eq!(with.jitter, without.jitter);
            assert!(
                without.lost.is_none() || with.lost.is_some(),
                "loss only grows"
            );
        }
    }

    #[test]
    fn paths_and_ways_have_fates_of_their_own_whatever_the_port() {
        let first = |client: SocketAddr, nth, way| {
            let mut fates = Fates::new(7, client, nth, way);
            (0..50)
                .map(|_| fates.draw(&everything()))
                .collect::<Vec<_>>()
        };
        let one = first(client(1), 0, Way::Up);
        assert_ne!(one, first(client(2), 0, Way::Up));
        assert_ne!(one, first(client(1), 1, Way::Up));
        assert_ne!(one, first(client(1), 0, Way::Down));
        let mut elsewhere = client(1);
        elsewhere.set_port(1);
        assert_eq!(one, first(elsewhere, 0, Way::Up));
    }
}
