//! The result as a picture: CPU time a datagram, a group of bars for each situation.

use std::path::Path;

use anyhow::Context;

use super::report::{Line, Report};
use super::scenario::Scenario;
use super::target::Kind;
use crate::chart::{self, Bar, Bars, Labels};
use crate::result_file;
use crate::stats::Spread;

/// Draws `report` into the SVG file `path`.
///
/// # Errors
/// When there is nothing to draw or the file cannot be written.
pub fn write(path: &Path, report: &Report) -> anyhow::Result<()> {
    let svg = costs(report)?;
    let svg = svg.context("nothing to draw: no window without loss had a process to charge")?;
    result_file::write(path, &svg)
}

/// What a datagram cost; `None` when no window has a cost.
///
/// # Errors
/// When it cannot be drawn.
pub fn costs(report: &Report) -> anyhow::Result<Option<String>> {
    let labels = Labels {
        title: format!(
            "CPU time of the relay a delivered, verified datagram ({} clients, one core)",
            report.client_count
        ),
        across: String::new(),
        up: "ns a datagram, median of rounds".to_owned(),
    };
    grouped(report, &labels, |line| line.cpu_ns_each)
}

/// How much less than the Go relay a datagram cost; `None` when that did not take part.
///
/// # Errors
/// When it cannot be drawn.
pub fn ratios(report: &Report) -> anyhow::Result<Option<String>> {
    let labels = Labels {
        title: "CPU time of the Go relay divided by this one's (more is better)".to_owned(),
        across: String::new(),
        up: "ratio, median of rounds".to_owned(),
    };
    // Its ratio to itself is no news.
    grouped(report, &labels, |line| {
        line.go_over_this.filter(|_| line.kind != Kind::Go)
    })
}

/// The delay of lone and of paced datagrams, at the median; `None` when none was measured.
///
/// # Errors
/// When it cannot be drawn.
pub fn delays(report: &Report) -> anyhow::Result<Option<String>> {
    let labels = Labels {
        title: "Delay from the intended send to the verified arrival, median".to_owned(),
        across: String::new(),
        up: "µs, median of rounds".to_owned(),
    };
    grouped(report, &labels, |line| line.delay_p50_us)
}

/// A group of bars for each situation that has any, a colour for each target.
fn grouped(
    report: &Report,
    labels: &Labels,
    value: impl Fn(&Line) -> Option<Spread>,
) -> anyhow::Result<Option<String>> {
    let lines: Vec<(&Line, Spread)> = report
        .summary
        .iter()
        .filter_map(|line| Some((line, value(line)?)))
        .collect();
    let has = |scenario: &Scenario| lines.iter().any(|(line, _)| line.scenario == *scenario);
    let scenarios: Vec<Scenario> = Scenario::ALL.into_iter().filter(has).collect();
    let mut kinds: Vec<Kind> = lines.iter().map(|(line, _)| line.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let series = kinds.iter().map(|kind| {
        let bar = |scenario: &Scenario| {
            let is_it = |line: &Line| line.kind == *kind && line.scenario == *scenario;
            let (_, spread) = lines.iter().find(|(line, _)| is_it(line))?;
            Some(Bar {
                value: spread.median,
                quartiles: (spread.count > 1).then_some((spread.low, spread.high)),
            })
        };
        Bars {
            name: kind.name().to_owned(),
            bars: scenarios.iter().map(bar).collect(),
        }
    });
    let groups: Vec<String> = scenarios
        .iter()
        .map(|scenario| scenario.name().replace('_', " "))
        .collect();
    chart::bars(labels, &groups, &series.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;
    use crate::relay::ledger::Fates;
    use crate::stats::Spread;

    fn report(summary: Vec<Line>) -> Report {
        Report {
            origin: Origin::default(),
            client_count: 2_000,
            rate_pps: 100_000,
            backlog: 1,
            versions: std::collections::BTreeMap::new(),
            windows: Vec::new(),
            flow_memory: Vec::new(),
            summary,
            slo: Vec::new(),
        }
    }

    fn line(scenario: Scenario, kind: Kind, cost: f64) -> Line {
        Line {
            scenario,
            kind,
            cpu_ns_each: Spread::of([cost]),
            delivered_kpps: None,
            go_over_this: None,
            delay_p50_us: None,
            delay_p99_us: None,
            fates: Fates::default(),
            unclean_count: 0,
            late_count: 0,
            noisy_count: 0,
            window_count: 1,
        }
    }

    #[test]
    fn draws_a_bar_and_a_label_for_each_line() {
        let svg = costs(&report(vec![
            line(Scenario::ToTransceiverSaturated, Kind::Syrinx, 871.0),
            line(Scenario::ToTransceiverSaturated, Kind::Go, 3_412.0),
            line(Scenario::Idle, Kind::Go, 20_123.0),
        ]))
        .expect("drawn")
        .expect("there are costs");
        for part in [
            "871",
            "3412",
            "20123",
            "to transceiver saturated",
            "idle",
            "syrinx",
        ] {
            assert!(svg.contains(part), "{part} is missing");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn says_when_there_is_nothing_to_draw() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("plot.svg");
        assert!(write(&path, &report(Vec::new())).is_err() && !path.exists());
    }
}
