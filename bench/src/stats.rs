//! The few statistics that a comparison needs: median, spread, and the ratio of paired runs.
//!
//! Runs on a shared machine are not normally distributed: a neighbour only ever makes them slower.
//! So the middle of a set of runs is its median and the width is the distance between quartiles;
//! a mean or a standard deviation would follow the neighbour.

use serde::{Deserialize, Serialize};

/// The middle of a set of runs and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many runs.
    pub count: usize,
    /// The smallest.
    pub min: f64,
    /// The first quartile.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The third quartile.
    pub high: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Summarises `values`; `None` when there are none or one is not a number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        if sorted.is_empty() || sorted.iter().any(|value| value.is_nan()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            count: sorted.len(),
            min: sorted[0],
            low: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            high: quantile(&sorted, 0.75),
            max: sorted[sorted.len() - 1],
        })
    }

    /// The distance between the quartiles as a part of the median: 0.1 reads "±5 %".
    pub fn noise(&self) -> f64 {
        if self.median == 0.0 {
            0.0
        } else {
            (self.high - self.low) / self.median
        }
    }
}

/// The value below which a part `at` (0 to 1) of `sorted` lies, interpolated between neighbours
/// (Hyndman and Fan's definition 7, the default of R and NumPy).
///
/// # Panics
/// When `sorted` is empty.
pub fn quantile(sorted: &[f64], at: f64) -> f64 {
    let place = at.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (place - place.floor())
}

/// The spread of `theirs / ours` over rounds. Each pair ran next to each other in time, so what
/// slowed the machine down for a while slowed both, and most of it cancels.
pub fn paired_ratio(theirs: &[f64], ours: &[f64]) -> Option<Spread> {
    let pairs = theirs.iter().zip(ours).filter(|(_, ours)| **ours > 0.0);
    Spread::of(pairs.map(|(theirs, ours)| theirs / ours))
}

/// The slope of a line through `points`, by Theil and Sen: the median of the slopes between all
/// pairs, which a quarter of outliers does not move. `None` with fewer than two different
/// abscissae.
pub fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let mut slopes = Vec::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let later = points[index + 1..].iter().filter(|(later, _)| later != x);
        slopes.extend(later.map(|(later_x, later_y)| (later_y - y) / (later_x - x)));
    }
    slopes.sort_by(f64::total_cmp);
    (!slopes.is_empty()).then(|| quantile(&slopes, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summarises_a_known_set() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0, 5.0]).expect("five numbers");
        assert_eq!((spread.min, spread.low, spread.median), (1.0, 2.0, 3.0));
        assert_eq!((spread.high, spread.max, spread.count), (4.0, 5.0, 5));
        assert!((spread.noise() - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn interpolates_between_neighbours() {
        assert_eq!(quantile(&[10.0, 20.0], 0.5), 15.0);
        assert_eq!(quantile(&[10.0, 20.0, 30.0], 0.75), 25.0);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
    }

    #[test]
    fn refuses_nothing_and_not_a_number() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([1.0, f64::NAN]), None);
    }

    #[test]
    fn a_slope_is_not_moved_by_outliers() {
        let mut points: Vec<(f64, f64)> = (0..100)
            .map(|x| (f64::from(x), 3.0 + 0.5 * f64::from(x)))
            .collect();
        for point in points.iter_mut().step_by(5) {
            point.1 += 1e6;
        }
        let slope = slope(&points).expect("a line");
        assert!((slope - 0.5).abs() < 1e-9, "{slope}");
    }

    #[test]
    fn a_point_has_no_slope() {
        assert_eq!(slope(&[(1.0, 2.0)]), None);
        assert_eq!(slope(&[(1.0, 2.0), (1.0, 5.0)]), None);
    }

    #[test]
    fn pairs_cancel_what_slows_both() {
        let theirs = [4.0, 8.0, 4.4];
        let ours = [1.0, 2.0, 1.1];
        let ratio = paired_ratio(&theirs, &ours).expect("three pairs");
        assert!((ratio.min - 4.0).abs() < 1e-12 && (ratio.max - 4.0).abs() < 1e-12);
    }
}
