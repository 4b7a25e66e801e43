//! The part of the page about calls: targets side by side, then how each run went.

use super::{Page, named};
use crate::calls::capacity::{self, Of};
use crate::calls::figures;
use crate::calls::latency::Quantiles;
use crate::calls::report::{Incident, Load, Point, Report, Run};
use crate::calls::stand::Kind;
use crate::calls::tally::Phase;
use crate::calls::text;
use crate::chart::{self, Across, Bar, Bars, Labels, Line};
use crate::figure::{Figure, digits};
use crate::stats::Spread;

/// Adds the part.
///
/// # Errors
/// When a chart cannot be drawn.
pub fn add(page: &mut Page, file: &str, report: &Report) -> anyhow::Result<()> {
    page.part(
        &heading(&report.origin.verb),
        (file, &report.origin),
        named(&report.versions, |kind| kind.name()),
    );
    page.paragraph(&load(&report.load));
    if let Some(network) = &report.network {
        page.paragraph(&format!("Between clients and relay: {network}."));
    }
    warnings(page, report);
    super::figures::objectives(page, &report.slo);
    side_by_side(page, report);
    incidents(page, report);
    trends(page, report);
    capacities(page, report);
    // A search has probes of many loads: their middle is of none.
    if report.capacity.is_empty() {
        page.chart(phases(report)?);
        page.chart(costs(report)?);
    }
    page.chart(curve(
        report,
        "Set-up: intended start to first audio back",
        |run| Some(&run.phase(Phase::Audio)?.total),
    )?);
    page.chart(curve(
        report,
        "Round trip of the echo, from the intended send",
        |run| run.media.round_trip.as_ref(),
    )?);
    over_time(page, report)
}

fn heading(verb: &str) -> String {
    match verb {
        "calls" => "Calls that stay: sound and cost".to_owned(),
        "setup" => "Calls that come and go: what a start takes".to_owned(),
        "capacity" => "Capacity: how much one core carries".to_owned(),
        "recovery" => "Recovery: something is done in the middle of calls".to_owned(),
        "storm" => "Storm: all calls are made again at once".to_owned(),
        "roam" => "Roam: clients change their address".to_owned(),
        "soak" => "Soak: many calls over a long time".to_owned(),
        other => other.to_owned(),
    }
}

fn load(load: &Load) -> String {
    let hold = load
        .hold_s
        .map_or(String::new(), |hold| format!(", each for {hold} s"));
    let window = load
        .window_s
        .map_or(String::new(), |window| format!(", measured for {window} s"));
    format!(
        "{} calls, {} starts a second ({:?}){hold}{window}; {:?} speech at 50 packets a second.",
        load.calls, load.rate, load.arrivals, load.speech
    )
}

/// What keeps figures from being taken at their word.
fn warnings(page: &mut Page, report: &Report) {
    for run in &report.runs {
        let name = format!("{}, round {}", run.target.name(), run.round + 1);
        for reason in &run.generator.bottleneck {
            page.warning(&format!(
                "{name}: the generator was the bottleneck: {reason}"
            ));
        }
        for (cause, occurrences) in &run.failures.0 {
            page.warning(&format!(
                "{name}: {} calls failed: {} ({})",
                occurrences.count,
                cause.name(),
                occurrences.first
            ));
        }
    }
}

fn side_by_side(page: &mut Page, report: &Report) {
    let targets = figures::targets(report).into_iter();
    let columns = targets.map(|target| (target.name().to_owned(), figures::of(report, target)));
    let columns: Vec<(String, Vec<Figure>)> = columns.collect();
    super::figures::side_by_side(page, &report.origin.verb, &columns);
    let mut silent = figures::targets(report);
    silent.retain(|target| {
        let mut runs = figures::runs(report, *target);
        !target.marks() && runs.any(|run| run.media.round_trip.is_some())
    });
    if !silent.is_empty() && report.capacity.is_empty() {
        page.paragraph(&text::one_way_note(&silent));
    }
}

fn incidents(page: &mut Page, report: &Report) {
    let met = report.runs.iter();
    let met = met.filter_map(|run| Some((run, run.incident.as_ref()?)));
    let rows: Vec<Vec<String>> = met.map(|(run, incident)| row(run, incident)).collect();
    if rows.is_empty() {
        return;
    }
    page.heading("What was done, and what came of it");
    page.table(
        &[
            "what",
            "at s",
            "took ms",
            "packets lost",
            "calls lost",
            "blackout ms",
            "median ms",
            "settled ms",
        ],
        &rows,
    );
}

/// Where a server's figures go with every thousand calls it has served.
fn trends(page: &mut Page, report: &Report) {
    let grown = report.runs.iter();
    let grown = grown.filter_map(|run| Some((run, run.trend.as_ref()?)));
    let rows = grown.flat_map(|(run, trend)| {
        trend.resident_kib.iter().map(move |(process, kib)| {
            let descriptors = trend.descriptors.get(process);
            let descriptors = descriptors.map_or("–".to_owned(), |slope| format!("{slope:+.2}"));
            let p99_us = trend.round_trip_p99_us;
            vec![
                format!("{}: {process}", run_name(report, run)),
                trend.calls.to_string(),
                format!("{kib:+.1}"),
                descriptors,
                p99_us.map_or("–".to_owned(), |slope| format!("{slope:+.1}")),
            ]
        })
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return;
    }
    page.heading("What grows with every 1,000 calls served");
    page.table(
        &[
            "process",
            "over calls",
            "KiB",
            "descriptors",
            "round trip p99 µs",
        ],
        &rows,
    );
}

/// What a search found, by target.
fn capacities(page: &mut Page, report: &Report) {
    if report.capacity.is_empty() {
        return;
    }
    page.heading("What one core carries");
    let known = |value: Option<f64>| value.map_or("–".to_owned(), digits);
    let searches = report.capacity.iter();
    let searches = searches.flat_map(|(target, all)| all.iter().map(move |found| (target, found)));
    let rows = searches.map(|(target, found)| {
        let of = match found.of {
            Of::Starts => "starts a second",
            Of::Calls => "calls at once",
        };
        vec![
            format!("{}: {of}", target.name()),
            known(found.passed),
            known(found.failed),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    page.table(&["what", "passed", "failed"], &rows);
    for (target, found) in &report.capacity {
        for found in found {
            page.paragraph(&format!("{}.", capacity::describe(target.name(), found)));
        }
    }
}

fn row(run: &Run, incident: &Incident) -> Vec<String> {
    let known = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.0}"));
    vec![
        format!("{}: {}", run.target.name(), incident.what),
        format!("{:.1}", incident.at_s),
        known(incident.took_ms),
        incident.packets_lost.to_string(),
        incident.calls_lost.to_string(),
        known(incident.blackout_ms),
        known(incident.blackout_p50_ms),
        known(incident.settled_ms),
    ]
}

/// How long until each milestone, at the median of the calls.
fn phases(report: &Report) -> anyhow::Result<Option<String>> {
    let series = figures::targets(report).into_iter().map(|target| Bars {
        name: target.name().to_owned(),
        bars: Phase::ALL
            .into_iter()
            .map(|phase| {
                bar(report, target, |run| {
                    Some(run.phase(phase)?.total.p50 / 1e3)
                })
            })
            .collect(),
    });
    let labels = Labels {
        title: "Set-up: intended start to each milestone, median call".to_owned(),
        across: String::new(),
        up: "ms".to_owned(),
    };
    let groups = Phase::ALL.map(|phase| phase.name().to_owned());
    chart::bars(&labels, &groups, &series.collect::<Vec<_>>())
}

/// What the servers cost, where calls stayed.
fn costs(report: &Report) -> anyhow::Result<Option<String>> {
    let series = figures::targets(report).into_iter().map(|target| Bars {
        name: target.name().to_owned(),
        bars: vec![bar(report, target, Run::cpu_ms_per_call_second)],
    });
    let labels = Labels {
        title: "CPU time of the servers a call-second".to_owned(),
        across: String::new(),
        up: "ms".to_owned(),
    };
    let calls = format!("{} calls", report.load.calls);
    chart::bars(&labels, &[calls], &series.collect::<Vec<_>>())
}

fn bar(report: &Report, target: Kind, value: impl Fn(&Run) -> Option<f64>) -> Option<Bar> {
    let spread = Spread::of(figures::runs(report, target).filter_map(value))?;
    Some(Bar {
        value: spread.median,
        quartiles: (spread.count > 1).then_some((spread.low, spread.high)),
    })
}

/// The distribution of a latency, a line for each run.
fn curve(
    report: &Report,
    title: &str,
    of: impl Fn(&Run) -> Option<&Quantiles>,
) -> anyhow::Result<Option<String>> {
    let lines = report.runs.iter().filter_map(|run| {
        let points = of(run)?.curve.iter().map(|(part, us)| (*part, us / 1e3));
        Some(Line {
            name: run_name(report, run),
            points: points.collect(),
        })
    });
    let labels = Labels {
        title: title.to_owned(),
        across: "part of all that took at most so long".to_owned(),
        up: "ms".to_owned(),
    };
    chart::lines(&labels, Across::Quantiles, &lines.collect::<Vec<_>>())
}

fn run_name(report: &Report, run: &Run) -> String {
    if !report.capacity.is_empty() {
        return format!("{}, {} calls", run.target.name(), run.calls.planned);
    }
    let rounds = figures::runs(report, run.target).count();
    if rounds > 1 {
        format!("{} {}", run.target.name(), run.round + 1)
    } else {
        run.target.name().to_owned()
    }
}

/// What a chart shows of one look at a run.
type Look = fn(&Point) -> Option<f64>;

fn over_time(page: &mut Page, report: &Report) -> anyhow::Result<()> {
    let charts: [(&str, &str, Look); 4] = [
        ("Calls that are up", "calls", |point| {
            Some(point.active as f64)
        }),
        ("Round trip, 99th percentile of each look", "ms", |point| {
            Some(point.round_trip_p99_us? / 1e3)
        }),
        (
            "Packets said and not yet heard, by look",
            "packets",
            |point| Some(point.said.saturating_sub(point.heard) as f64),
        ),
        ("Resident memory of the servers", "MiB", |point| {
            let all = point.processes.iter().map(|process| process.resident_kib);
            (!point.processes.is_empty()).then(|| all.sum::<u64>() as f64 / 1024.0)
        }),
    ];
    page.heading("Over time");
    for (title, up, value) in charts {
        let lines = report.runs.iter().map(|run| Line {
            name: run_name(report, run),
            points: run
                .series
                .iter()
                .filter_map(|point| Some((point.at_s, value(point)?)))
                .collect(),
        });
        let lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
        let labels = Labels {
            title: title.to_owned(),
            across: "s since the first possible start".to_owned(),
            up: up.to_owned(),
        };
        page.chart(chart::lines(&labels, Across::Evenly, &lines)?);
    }
    Ok(())
}
