//! What a person would say of a call: the mean opinion score that ITU-T's E-model (G.107, 06/2015)
//! derives from delay and loss, everything else at its default.
//!
//! ITU-T has no values for Opus. Those of G.711 with loss concealment (G.113, appendix I) stand in:
//! no impairment without loss, and a robustness to it that Opus has at least.

/// The rating without delay and loss: R0 - Is at the defaults of G.107, table 2.
const RATING: f64 = 93.2;
/// Equipment impairment without loss, and robustness to loss: `Ie`, `Bpl`.
const IMPAIRMENT: f64 = 0.0;
const ROBUSTNESS: f64 = 25.1;

/// How a call went, as the model wants it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// From mouth to ear, one way, in milliseconds.
    pub delay_ms: f64,
    /// Lost packets, in per cent.
    pub loss_percent: f64,
    /// Mean length of loss bursts, divided by what random loss of that rate has; 1 for random.
    pub burst_ratio: f64,
}

/// The score, from 1 to 4.5.
pub fn mos(conditions: &Conditions) -> f64 {
    score(rating(conditions))
}

/// The transmission rating R (G.107, 7.1).
fn rating(conditions: &Conditions) -> f64 {
    let Conditions {
        delay_ms,
        loss_percent,
        burst_ratio,
    } = *conditions;
    // 7.4: absolute delay costs nothing up to 100 ms.
    let delay = if delay_ms <= 100.0 {
        0.0
    } else {
        let x = (delay_ms / 100.0).log2();
        let root = |value: f64| (1.0 + value.powi(6)).powf(1.0 / 6.0);
        25.0 * (root(x) - 3.0 * root(x / 3.0) + 2.0)
    };
    // 7.5: loss that comes in bursts counts more.
    let loss =
        IMPAIRMENT + (95.0 - IMPAIRMENT) * loss_percent / (loss_percent / burst_ratio + ROBUSTNESS);
    RATING - delay - loss
}

/// From rating to score (G.107, annex B).
fn score(rating: f64) -> f64 {
    let curve = |r: f64| 1.0 + 0.035 * r + r * (r - 60.0) * (100.0 - r) * 7e-6;
    match rating {
        r if r <= 0.0 => 1.0,
        r if r >= 100.0 => 4.5,
        // The curve dips below 1 for ratings under 6.5.
        r => curve(r).max(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(delay_ms: f64, loss_percent: f64) -> Conditions {
        Conditions {
            delay_ms,
            loss_percent,
            burst_ratio: 1.0,
        }
    }

    #[test]
    fn a_perfect_call_has_the_models_default_score() {
        // G.107, annex B, gives R = 93.2 and MOS = 4.41 for its defaults.
        let score = mos(&conditions(0.0, 0.0));
        assert!((score - 4.41).abs() < 0.005, "{score}");
    }

    #[test]
    fn delay_counts_from_100_ms_on() {
        assert_eq!(rating(&conditions(100.0, 0.0)), RATING);
        // G.107, 7.4, computed by hand for 200 ms: X = 1, 25 (2^(1/6) - 3 (730/729)^(1/6) + 2).
        let expected =
            25.0 * (2.0_f64.powf(1.0 / 6.0) - 3.0 * (730.0_f64 / 729.0).powf(1.0 / 6.0) + 2.0);
        assert!((rating(&conditions(200.0, 0.0)) - (RATING - expected)).abs() < 1e-9);
        assert!(mos(&conditions(400.0, 0.0)) < mos(&conditions(200.0, 0.0)));
    }

    #[test]
    fn loss_counts_and_bursts_count_more() {
        // 95 * 2 / (2 + 25.1) = 7.01.
        assert!((rating(&conditions(0.0, 2.0)) - (RATING - 190.0 / 27.1)).abs() < 1e-9);
        let bursts = Conditions {
            burst_ratio: 4.0,
            ..conditions(0.0, 2.0)
        };
        assert!(mos(&bursts) < mos(&conditions(0.0, 2.0)));
    }

    #[test]
    fn the_score_never_leaves_its_scale() {
        for loss in 0..=100 {
            for delay in 0..40 {
                let score = mos(&conditions(f64::from(delay) * 100.0, f64::from(loss)));
                assert!((1.0..=4.5).contains(&score), "{score}");
            }
        }
    }
}
