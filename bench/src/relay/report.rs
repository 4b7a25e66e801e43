//! What a run leaves behind: every window as it was, and the summary that is drawn from them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::Fates;
use super::memory::FlowMemory;
use super::rig::Delays;
use super::scenario::Scenario;
use super::target::Kind;
use crate::origin::Origin;
use crate::slo::Verdict;
use crate::stats::Spread;

/// A generator that sent its 99th percentile this late was itself the bottleneck.
const LATE_US_MAX: f64 = 200.0;
/// Other processes with more than this part of the machine make a window noisy.
const FOREIGN_SHARE_MAX: f64 = 0.10;

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Where it comes from; the verb is `relay`.
    #[serde(flatten)]
    pub origin: Origin,
    /// How many clients.
    pub client_count: u32,
    /// Datagrams a second of the paced scenarios.
    pub rate_pps: u32,
    /// Datagrams laid before a held relay is released.
    pub backlog: u64,
    /// What each target says of its version.
    pub versions: BTreeMap<Kind, String>,
    /// Every window, in the order played.
    pub windows: Vec<Window>,
    /// What a flow costs in memory, for the targets it was measured for.
    pub flow_memory: Vec<FlowMemory>,
    /// What the windows come to.
    pub summary: Vec<Line>,
    /// What became of the objectives that were set.
    #[serde(default)]
    pub slo: Vec<Verdict>,
}

/// Percentiles of a delay, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DelayUs {
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
}

impl DelayUs {
    /// The percentiles of `delays`, or `None` when nothing was recorded.
    pub fn of(delays: &Delays) -> Option<Self> {
        let at = |quantile| delays.value_at_quantile(quantile) as f64 / 1e3;
        (!delays.is_empty()).then(|| Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: delays.max() as f64 / 1e3,
        })
    }
}

/// One measured window.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Window {
    /// The target.
    pub kind: Kind,
    /// The situation.
    pub scenario: Scenario,
    /// The round.
    pub round: u32,
    /// What became of the datagrams to the transceiver.
    pub up: Fates,
    /// What became of the datagrams to the clients.
    pub down: Fates,
    /// From the first send to the last arrival, in milliseconds.
    pub wall_ms: f64,
    /// CPU time of the target, in milliseconds.
    pub cpu_ms: f64,
    /// From the intended send to the verified arrival; paced windows only.
    pub delay: Option<DelayUs>,
    /// From the intended to the actual send; paced windows only.
    pub lateness: Option<DelayUs>,
    /// Part of the machine that neither the target nor the generator used, but somebody did.
    pub foreign_share: f64,
    /// Part of the machine that the hypervisor took away.
    pub stolen_share: f64,
    /// How often the target was held to lay a backlog.
    pub hold_count: u64,
    /// Resident memory of the target afterwards, in KiB.
    pub resident_kib: Option<u64>,
}

impl Window {
    /// Both directions' fates together.
    pub fn fates(&self) -> Fates {
        self.up.plus(&self.down)
    }

    /// The target's CPU time a delivered, verified datagram, in nanoseconds; `None` when nothing
    /// arrived or there was no process.
    pub fn cpu_ns_each(&self) -> Option<f64> {
        let delivered = self.fates().delivered;
        (delivered > 0 && self.cpu_ms > 0.0).then(|| self.cpu_ms * 1e6 / delivered as f64)
    }

    /// Delivered datagrams a second of wall time, in thousands.
    pub fn delivered_kpps(&self) -> f64 {
        if self.wall_ms == 0.0 {
            0.0
        } else {
            self.fates().delivered as f64 / self.wall_ms
        }
    }

    /// Whether the generator, not the target, set the pace.
    pub fn generator_was_late(&self) -> bool {
        self.lateness
            .is_some_and(|lateness| lateness.p99 > LATE_US_MAX)
    }

    /// Whether others used so much of the machine that the window says little.
    pub fn is_noisy(&self) -> bool {
        self.foreign_share > FOREIGN_SHARE_MAX
    }
}

/// One target in one situation over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The situation.
    pub scenario: Scenario,
    /// The target.
    pub kind: Kind,
    /// CPU nanoseconds a delivered datagram, over windows without loss.
    pub cpu_ns_each: Option<Spread>,
    /// Delivered thousands a second, over all windows.
    pub delivered_kpps: Option<Spread>,
    /// The Go relay's CPU time a datagram divided by this target's, round by round.
    pub go_over_this: Option<Spread>,
    /// Median delay, in microseconds, over windows.
    pub delay_p50_us: Option<Spread>,
    /// 99th percentile of delay, in microseconds, over windows.
    pub delay_p99_us: Option<Spread>,
    /// All fates over all windows.
    pub fates: Fates,
    /// Windows with loss or wrong arrivals: no cost is drawn from them.
    pub unclean_count: usize,
    /// Windows in which the generator was late.
    pub late_count: usize,
    /// Windows in which others used much of the machine.
    pub noisy_count: usize,
    /// Windows in all.
    pub window_count: usize,
}

/// Draws the summary: a line for each target in each situation that was played.
pub fn summarise(windows: &[Window]) -> Vec<Line> {
    let mut groups: BTreeMap<(Scenario, Kind), Vec<&Window>> = BTreeMap::new();
    for window in windows {
        groups
            .entry((window.scenario, window.kind))
            .or_default()
            .push(window);
    }
    groups
        .iter()
        .map(|((scenario, kind), own)| Line {
            go_over_this: Spread::of(go_over(windows, *scenario, *kind)),
            ..line(*scenario, *kind, own)
        })
        .collect()
}

/// What a target's own windows say.
fn line(scenario: Scenario, kind: Kind, own: &[&Window]) -> Line {
    let over = |value: fn(&Window) -> Option<f64>| {
        Spread::of(own.iter().filter_map(|window| value(window)))
    };
    let count = |holds: fn(&Window) -> bool| own.iter().filter(|window| holds(window)).count();
    Line {
        scenario,
        kind,
        cpu_ns_each: over(clean_cost),
        delivered_kpps: over(|window| Some(window.delivered_kpps())),
        go_over_this: None,
        delay_p50_us: over(|window| window.delay.map(|delay| delay.p50)),
        delay_p99_us: over(|window| window.delay.map(|delay| delay.p99)),
        fates: own
            .iter()
            .fold(Fates::default(), |sum, window| sum.plus(&window.fates())),
        unclean_count: count(|window| !window.fates().clean()),
        late_count: count(Window::generator_was_late),
        noisy_count: count(Window::is_noisy),
        window_count: own.len(),
    }
}

/// What a delivered datagram cost the target, in nanoseconds; `None` in a window that lost any.
pub(super) fn clean_cost(window: &Window) -> Option<f64> {
    window.cpu_ns_each().filter(|_| window.fates().clean())
}

/// The Go relay's cost divided by this target's in one situation, a value for each round in which
/// both windows were clean.
pub(super) fn go_over(windows: &[Window], scenario: Scenario, kind: Kind) -> Vec<f64> {
    let of = |kind: Kind| {
        let played = windows.iter();
        played.filter(move |window| (window.scenario, window.kind) == (scenario, kind))
    };
    let ratios = of(kind).filter_map(|our| {
        let their = of(Kind::Go).find(|their| their.round == our.round)?;
        let (their, our) = (clean_cost(their)?, clean_cost(our)?);
        (our > 0.0).then(|| their / our)
    });
    ratios.collect()
}

/// A duration in milliseconds.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(kind: Kind, round: u32, cpu_ms: f64, lost: u64) -> Window {
        Window {
            kind,
            scenario: Scenario::ToClientsSaturated,
            round,
            up: Fates::default(),
            down: Fates {
                sent: 1_000_000,
                delivered: 1_000_000 - lost,
                ..Fates::default()
            },
            wall_ms: 2_000.0,
            cpu_ms,
            delay: None,
            lateness: None,
            foreign_share: 0.0,
            stolen_share: 0.0,
            hold_count: 250,
            resident_kib: None,
        }
    }

    #[test]
    fn divides_the_rivals_cost_by_ours_round_by_round() {
        let windows = [
            window(Kind::Go, 0, 4_000.0, 0),
            window(Kind::Coturn, 0, 8_000.0, 0),
            window(Kind::Coturn, 1, 10_000.0, 0),
            window(Kind::Go, 1, 5_000.0, 0),
        ];
        let lines = summarise(&windows);
        assert_eq!(lines.len(), 2);
        let coturn = lines
            .iter()
            .find(|line| line.kind == Kind::Coturn)
            .expect("a line");
        assert_eq!(coturn.go_over_this.expect("pairs").median, 0.5);
        assert_eq!(coturn.cpu_ns_each.expect("cost").median, 9_000.0);
        assert_eq!(coturn.delivered_kpps.expect("rate").median, 500.0);
    }

    #[test]
    fn draws_no_cost_from_a_window_that_lost_anything() {
        let windows = [
            window(Kind::Go, 0, 4_000.0, 0),
            window(Kind::Coturn, 0, 8_000.0, 1),
        ];
        let lines = summarise(&windows);
        let coturn = lines
            .iter()
            .find(|line| line.kind == Kind::Coturn)
            .expect("a line");
        assert_eq!((coturn.cpu_ns_each, coturn.go_over_this), (None, None));
        assert_eq!((coturn.unclean_count, coturn.fates.lost()), (1, 1));
    }

    #[test]
    fn says_when_the_generator_was_late() {
        let mut late = window(Kind::Go, 0, 1.0, 0);
        assert!(!late.generator_was_late());
        let mut lateness = super::super::rig::delays();
        lateness.record_n(900_000, 100).expect("within bounds");
        late.lateness = DelayUs::of(&lateness);
        assert!(late.generator_was_late());
    }
}
