//! What a run of the relay yardstick is judged by, by name.

use std::sync::LazyLock;

use super::report::{Report, Window, clean_cost, go_over};
use super::scenario::Scenario;
use super::target::Kind;
use crate::figure::{Definition, Figure, Unit, less, more, time};

/// What a figure of one situation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    OverGo,
    Cost,
    Loss,
    DelayP50,
    DelayP99,
}

impl What {
    const ALL: [Self; 5] = [
        Self::OverGo,
        Self::Cost,
        Self::Loss,
        Self::DelayP50,
        Self::DelayP99,
    ];

    /// What the figure is named and said to be behind the name of its situation.
    fn define(self, situation: &str) -> Definition {
        // Names and meanings live as long as the program, which makes them once.
        let name = |end: &str| -> &'static str { format!("{situation}_{end}").leak() };
        let of = |words: &str| -> &'static str { format!("{words}, {situation}").leak() };
        match self {
            Self::OverGo => more(
                name("vs_go"),
                Unit::Number,
                of("the Go relay's CPU time by this one's"),
            ),
            Self::Cost => less(
                name("cpu_ns"),
                Unit::Number,
                of("CPU time a delivered datagram in ns"),
            ),
            Self::Loss => less(name("loss"), Unit::Share, of("datagrams lost")),
            Self::DelayP50 => time(name("delay_p50"), of("delay, median")),
            Self::DelayP99 => time(name("delay_p99"), of("delay, 99th percentile")),
        }
    }

    /// Whether this situation has it: where a relay is held, a delay says nothing.
    fn is_of(self, scenario: Scenario) -> bool {
        let paced = scenario.rate_pps(1).is_some();
        paced || !matches!(self, Self::DelayP50 | Self::DelayP99)
    }

    /// Its values, one a window that measured it.
    fn values(self, windows: &[Window], scenario: Scenario, kind: Kind) -> Vec<f64> {
        if self == Self::OverGo {
            return go_over(windows, scenario, kind);
        }
        let own = windows.iter();
        let own = own.filter(|window| (window.scenario, window.kind) == (scenario, kind));
        let value = |window: &Window| match self {
            Self::OverGo => None,
            Self::Cost => clean_cost(window),
            Self::Loss => share(window.fates().lost(), window.fates().sent),
            Self::DelayP50 => Some(window.delay?.p50),
            Self::DelayP99 => Some(window.delay?.p99),
        };
        own.filter_map(value).collect()
    }
}

const LOSS: Definition = less(
    "loss",
    Unit::Share,
    "datagrams lost, over all situations of a round",
);
const BYTES_PER_FLOW: Definition = less(
    "bytes_per_flow",
    Unit::Number,
    "resident memory a flow (with --flow-memory)",
);

/// The figures of situations.
static FIGURES: LazyLock<Vec<(Definition, Scenario, What)>> = LazyLock::new(|| {
    let each = |scenario: Scenario| {
        let its = What::ALL
            .into_iter()
            .filter(move |what| what.is_of(scenario));
        its.map(move |what| (what.define(scenario.name()), scenario, what))
    };
    Scenario::ALL.into_iter().flat_map(each).collect()
});

/// All figures that a run of the yardstick can have.
#[must_use]
pub fn definitions() -> Vec<Definition> {
    let situations = FIGURES.iter().map(|(definition, ..)| *definition);
    [LOSS, BYTES_PER_FLOW]
        .into_iter()
        .chain(situations)
        .collect()
}

/// All figures of one target, a value for each of its rounds that measured it.
#[must_use]
pub fn of(report: &Report, kind: Kind) -> Vec<Figure> {
    let memory = report.flow_memory.iter();
    let memory = memory.filter(|memory| memory.kind == kind);
    let whole = [
        Figure {
            definition: LOSS,
            values: losses(&report.windows, kind),
        },
        Figure {
            definition: BYTES_PER_FLOW,
            values: memory.map(|memory| memory.bytes_each).collect(),
        },
    ];
    let situations = FIGURES.iter().map(|(definition, scenario, what)| Figure {
        definition: *definition,
        values: what.values(&report.windows, *scenario, kind),
    });
    whole.into_iter().chain(situations).collect()
}

/// Lost by sent of each round.
fn losses(windows: &[Window], kind: Kind) -> Vec<f64> {
    let own = || windows.iter().filter(|window| window.kind == kind);
    let rounds = own().map(|window| window.round + 1).max().unwrap_or(0);
    let loss = |round| {
        let fates = own().filter(|window| window.round == round);
        let fates = fates
            .map(Window::fates)
            .reduce(|sum, fates| sum.plus(&fates))?;
        share(fates.lost(), fates.sent)
    };
    (0..rounds).filter_map(loss).collect()
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Fates;
    use super::super::memory::FlowMemory;
    use super::super::report::{DelayUs, summarise};
    use super::*;
    use crate::origin::Origin;
    use crate::slo::Objectives;

    fn window(kind: Kind, scenario: Scenario, round: u32, cpu_ms: f64, lost: u64) -> Window {
        let delay = DelayUs {
            p50: 30.0,
            p90: 40.0,
            p99: 900.0,
            p999: 1_000.0,
            max: 1_100.0,
        };
        Window {
            kind,
            scenario,
            round,
            up: Fates {
                sent: 1_000,
                delivered: 1_000 - lost,
                ..Fates::default()
            },
            down: Fates::default(),
            wall_ms: 100.0,
            cpu_ms,
            delay: scenario.rate_pps(1).map(|_| delay),
            lateness: None,
            foreign_share: 0.0,
            stolen_share: 0.0,
            hold_count: 0,
            resident_kib: None,
        }
    }

    fn report() -> Report {
        let (paced, held) = (
            Scenario::ToTransceiverPaced,
            Scenario::ToTransceiverSaturated,
        );
        let windows = vec![
            window(Kind::Syrinx, held, 0, 1.0, 0),
            window(Kind::Go, held, 0, 4.0, 0),
            window(Kind::Syrinx, paced, 0, 2.0, 0),
            window(Kind::Go, held, 1, 6.0, 0),
            window(Kind::Syrinx, held, 1, 2.0, 0),
            window(Kind::Syrinx, paced, 1, 2.0, 10),
        ];
        Report {
            origin: Origin::default(),
            client_count: 1,
            rate_pps: 1,
            backlog: 1,
            versions: std::collections::BTreeMap::new(),
            flow_memory: vec![FlowMemory {
                kind: Kind::Syrinx,
                flow_count: 10_000,
                bytes_each: 82.0,
            }],
            summary: summarise(&windows),
            windows,
            slo: Vec::new(),
        }
    }

    fn values(name: &str) -> Vec<f64> {
        let figures = of(&report(), Kind::Syrinx);
        let figure = figures.iter().find(|one| one.definition.name == name);
        figure.unwrap_or_else(|| panic!("no {name}")).values.clone()
    }

    #[test]
    fn figures_are_read_off_the_windows_of_their_situation_round_by_round() {
        assert_eq!(values("to_transceiver_saturated_vs_go"), [4.0, 3.0]);
        assert_eq!(values("to_transceiver_saturated_cpu_ns"), [1e3, 2e3]);
        // A window that lost anything has no cost; its loss and its delay are there.
        assert_eq!(values("to_transceiver_paced_cpu_ns"), [2e3]);
        assert_eq!(values("to_transceiver_paced_loss"), [0.0, 0.01]);
        assert_eq!(values("to_transceiver_paced_delay_p99"), [900.0, 900.0]);
        assert_eq!(values("loss"), [0.0, 0.005]);
        assert_eq!(values("bytes_per_flow"), [82.0]);
        assert!(values("duplex_paced_delay_p50").is_empty());
        let known = definitions();
        let mut names: Vec<&str> = known.iter().map(|one| one.name).collect();
        assert!(!names.contains(&"duplex_saturated_delay_p50"), "{names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), known.len(), "a name stands for one figure");
    }

    #[test]
    fn objectives_are_judged_by_the_worst_round() {
        let judged = |text: &str| {
            let objectives: Objectives = text.parse().expect("objectives");
            objectives.check(&definitions()).expect("known");
            let verdicts = objectives.judge(&of(&report(), Kind::Syrinx));
            let verdicts = verdicts.expect("known figures");
            verdicts
                .iter()
                .map(|verdict| verdict.met)
                .collect::<Vec<_>>()
        };
        let met = "to_transceiver_saturated_vs_go>=3,loss<1%,bytes_per_flow<100,\
                   to_transceiver_paced_delay_p99<1ms";
        assert_eq!(judged(met), [true; 4]);
        let missed = "to_transceiver_saturated_vs_go>3,loss<0.1%,idle_delay_p50<1s";
        assert_eq!(judged(missed), [false; 3]);
    }
}
