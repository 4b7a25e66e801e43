//! The situations a relay is measured in, and the order in which they are played.

use serde::{Deserialize, Serialize};

use super::drive::Direction;
use super::target::Kind;

/// One situation.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "kebab-case")]
pub enum Scenario {
    /// Clients to transceiver, the relay always busy.
    ToTransceiverSaturated,
    /// Transceiver to clients, the relay always busy.
    ToClientsSaturated,
    /// Both ways in turn, the relay always busy.
    DuplexSaturated,
    /// Clients to transceiver at a fixed rate.
    ToTransceiverPaced,
    /// Transceiver to clients at a fixed rate.
    ToClientsPaced,
    /// Both ways in turn at a fixed rate, as voice calls do.
    DuplexPaced,
    /// Both ways at a fiftieth of the rate: the added delay of an idle relay.
    Idle,
}

/// By how much [`Scenario::Idle`] is slower than the paced scenarios.
const IDLE_DIVISOR: u32 = 50;

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::ToTransceiverSaturated,
        Self::ToClientsSaturated,
        Self::DuplexSaturated,
        Self::ToTransceiverPaced,
        Self::ToClientsPaced,
        Self::DuplexPaced,
        Self::Idle,
    ];

    /// The name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::ToTransceiverSaturated => "to_transceiver_saturated",
            Self::ToClientsSaturated => "to_clients_saturated",
            Self::DuplexSaturated => "duplex_saturated",
            Self::ToTransceiverPaced => "to_transceiver_paced",
            Self::ToClientsPaced => "to_clients_paced",
            Self::DuplexPaced => "duplex_paced",
            Self::Idle => "idle",
        }
    }

    /// Which ways its datagrams go.
    pub fn direction(self) -> Direction {
        match self {
            Self::ToTransceiverSaturated | Self::ToTransceiverPaced => Direction::Up,
            Self::ToClientsSaturated | Self::ToClientsPaced => Direction::Down,
            Self::DuplexSaturated | Self::DuplexPaced | Self::Idle => Direction::Duplex,
        }
    }

    /// Datagrams a second when the paced scenarios send `rate_pps`; `None` when saturated.
    pub fn rate_pps(self, rate_pps: u32) -> Option<u32> {
        match self {
            Self::ToTransceiverSaturated | Self::ToClientsSaturated | Self::DuplexSaturated => None,
            Self::ToTransceiverPaced | Self::ToClientsPaced | Self::DuplexPaced => Some(rate_pps),
            Self::Idle => Some((rate_pps / IDLE_DIVISOR).max(1)),
        }
    }
}

/// One turn: a target in a situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Which round it belongs to, from 0.
    pub round: u32,
    /// The target.
    pub kind: Kind,
    /// The situation.
    pub scenario: Scenario,
}

/// Every target in every situation once a round. Within a round the situations come in an order
/// drawn from `seed`, and the targets of one situation next to each other in an order drawn
/// anew: what a ratio compares ran seconds apart, and none always went first.
pub fn turns(kinds: &[Kind], scenarios: &[Scenario], rounds: u32, seed: u64) -> Vec<Turn> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut turns = Vec::new();
    for round in 0..rounds {
        let mut situations = scenarios.to_vec();
        random.shuffle(&mut situations);
        for scenario in situations {
            let mut order = kinds.to_vec();
            random.shuffle(&mut order);
            turns.extend(order.into_iter().map(|kind| Turn {
                round,
                kind,
                scenario,
            }));
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 2] = [Kind::Go, Kind::Direct];

    #[test]
    fn every_target_meets_every_situation_once_a_round() {
        let turns = turns(&KINDS, &Scenario::ALL, 3, 1);
        assert_eq!(turns.len(), 3 * KINDS.len() * Scenario::ALL.len());
        for round in 0..3 {
            for kind in KINDS {
                for scenario in Scenario::ALL {
                    let wanted = Turn {
                        round,
                        kind,
                        scenario,
                    };
                    assert_eq!(turns.iter().filter(|turn| **turn == wanted).count(), 1);
                }
            }
        }
    }

    #[test]
    fn what_is_compared_runs_next_to_each_other() {
        for pair in turns(&KINDS, &Scenario::ALL, 5, 2).chunks(2) {
            assert_eq!(pair[0].scenario, pair[1].scenario);
            assert_ne!(pair[0].kind, pair[1].kind);
        }
    }

    #[test]
    fn the_seed_decides_the_order_and_neither_target_always_goes_first() {
        assert_eq!(
            turns(&KINDS, &Scenario::ALL, 4, 9),
            turns(&KINDS, &Scenario::ALL, 4, 9)
        );
        let turns = turns(&KINDS, &Scenario::ALL, 8, 9);
        let go_first = turns
            .chunks(2)
            .filter(|pair| pair[0].kind == Kind::Go)
            .count();
        assert!((10..46).contains(&go_first), "{go_first} of 56");
    }

    #[test]
    fn idle_is_slow_and_saturation_has_no_rate() {
        assert_eq!(Scenario::Idle.rate_pps(100_000), Some(2_000));
        assert_eq!(
            Scenario::ToTransceiverPaced.rate_pps(100_000),
            Some(100_000)
        );
        assert_eq!(Scenario::DuplexSaturated.rate_pps(100_000), None);
    }
}
