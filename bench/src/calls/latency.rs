//! Latencies as HDR histograms: every value is kept to three digits, so a percentile is a fact and
//! histograms of threads and rounds add up.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The shortest latency that is told from zero: a microsecond, in nanoseconds. With three digits,
/// 100 µs is known to 0.1 µs.
const LOWEST_NS: u64 = 1_000;
/// The longest that is told from longer ones: beyond the patience of any client.
const HIGHEST_NS: u64 = 120_000_000_000;
const DIGITS: u8 = 3;
/// Points of a curve between each quantile and the one that halves the rest.
const CURVE_TICKS: u32 = 4;

/// Recorded latencies.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

/// What a set of latencies comes to, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// The shortest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// The distribution: pairs of a part of all (0 to 1) and the latency that it does not exceed,
    /// denser towards 1.
    pub curve: Vec<(f64, f64)>,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS);
        Self(histogram.expect("invariant: the bounds are valid"))
    }
}

impl Latencies {
    /// Records one.
    pub fn record(&mut self, latency: Duration) {
        self.record_ns(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records one, in nanoseconds.
    pub fn record_ns(&mut self, latency_ns: u64) {
        self.0.saturating_record(latency_ns);
    }

    /// Adds all of `other`.
    pub fn add(&mut self, other: &Self) {
        let added = self.0.add(&other.0);
        added.expect("invariant: all histograms have the same bounds");
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that a part of all (0 to 1) does not exceed, in microseconds; `None` when
    /// nothing was recorded.
    pub fn quantile_us(&self, part: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| micros(self.0.value_at_quantile(part)))
    }

    /// What all come to; `None` when nothing was recorded.
    pub fn quantiles(&self) -> Option<Quantiles> {
        if self.0.is_empty() {
            return None;
        }
        let at = |part| micros(self.0.value_at_quantile(part));
        let curve = self.0.iter_quantiles(CURVE_TICKS);
        let curve = curve.map(|step| (step.quantile(), micros(step.value_iterated_to())));
        Some(Quantiles {
            count: self.0.len(),
            mean: self.0.mean() / 1e3,
            min: micros(self.0.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: micros(self.0.max()),
            curve: curve.collect(),
        })
    }
}

/// Nanoseconds of the histogram in microseconds; what it does not tell from zero is zero.
fn micros(ns: u64) -> f64 {
    if ns < LOWEST_NS {
        return 0.0;
    }
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_percentiles_of_a_uniform_distribution_to_a_thousandth() {
        let mut latencies = Latencies::default();
        for us in 1..=100_000 {
            latencies.record(Duration::from_micros(us));
        }
        let quantiles = latencies.quantiles().expect("recorded");
        let near = |is: f64, should: f64| (is / should - 1.0).abs() < 0.001;
        assert!(near(quantiles.p50, 50_000.0), "{quantiles:?}");
        assert!(near(quantiles.p90, 90_000.0) && near(quantiles.p99, 99_000.0));
        assert!(near(quantiles.p999, 99_900.0) && near(quantiles.max, 100_000.0));
        assert!(near(quantiles.mean, 50_000.5) && quantiles.count == 100_000);
        assert!(quantiles.curve.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn knows_the_percentiles_of_an_exponential_distribution() {
        let (mut latencies, mut random) = (Latencies::default(), fastrand::Rng::with_seed(4));
        for _ in 0..400_000 {
            latencies.record(Duration::from_secs_f64(-(1.0 - random.f64()).ln() / 1e3));
        }
        for (part, bound) in [(0.5, 0.01), (0.9, 0.01), (0.99, 0.02), (0.999, 0.05)] {
            let exact_us = -(1.0_f64 - part).ln() * 1e3;
            let known_us = latencies.quantile_us(part).expect("recorded");
            assert!(
                (known_us / exact_us - 1.0).abs() < bound,
                "{part}: {known_us} {exact_us}"
            );
        }
    }

    #[test]
    fn adds_up_over_threads() {
        let (mut all, mut one) = (Latencies::default(), Latencies::default());
        one.record(Duration::from_millis(3));
        all.record(Duration::from_millis(1));
        all.add(&one);
        assert_eq!(all.count(), 2);
        let longest = all.quantiles().expect("two").max;
        assert!((longest / 3_000.0 - 1.0).abs() < 0.001, "{longest}");
        all.clear();
        assert_eq!(all.quantiles(), None);
    }

    #[test]
    fn nothing_is_zero_and_not_the_least_that_is_told_from_it() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::ZERO);
        assert_eq!(latencies.quantile_us(0.5), Some(0.0));
        let quantiles = latencies.quantiles().expect("recorded");
        assert_eq!((quantiles.p50, quantiles.max), (0.0, 0.0));
        assert_eq!(quantiles.curve.last().map(|(_, us)| *us), Some(0.0));
    }

    #[test]
    fn keeps_what_is_longer_than_it_can_tell() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_secs(1_000));
        let quantiles = latencies.quantiles().expect("recorded");
        assert!(quantiles.max >= 120e6, "{quantiles:?}");
    }
}
