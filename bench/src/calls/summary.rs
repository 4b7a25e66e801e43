//! The calls' figures in the summary: medians over the rounds against the project's own edge.

use std::path::Path;

use serde_json::{Map, Value};

use super::capacity::Of;
use super::figures as named;
use super::report::{Report, Run};
use super::stand::Kind;
use super::tally::Phase;
use crate::stats::{Spread, paired_ratio};
use crate::summary;

/// The process that ends WebRTC: its memory is what a call costs.
const TRANSCEIVER: &str = "transceiver";

/// Puts what `report` has into the summary file `path`.
///
/// # Errors
/// When the file is there but is no summary, or cannot be written.
pub fn write(path: &Path, report: &Report) -> anyhow::Result<()> {
    for (section, figures) in sections(report) {
        summary::merge(path, section, figures)?;
    }
    Ok(())
}

fn sections(report: &Report) -> Vec<(&'static str, Map<String, Value>)> {
    let ours = report.runs.iter().filter(|run| run.target == Kind::Syrinx);
    let ours: Vec<&Run> = ours.collect();
    let median = |value: &dyn Fn(&Run) -> Option<f64>| {
        Spread::of(ours.iter().filter_map(|run| value(run))).map(|spread| spread.median)
    };
    let first_audio_ms = |part: fn(&super::latency::Quantiles) -> f64| {
        median(&|run| Some(part(&run.phase(Phase::Audio)?.total) / 1e3))
    };
    let lost = || {
        let all = ours.iter().map(|run| run.calls.failed + run.calls.lost);
        (!ours.is_empty()).then(|| all.sum::<u64>() as f64)
    };
    let incident = |value: fn(&super::report::Incident) -> Option<f64>| {
        median(&|run| value(run.incident.as_ref()?))
    };
    match report.origin.verb.as_str() {
        "calls" => {
            let memory = |run: &Run| {
                let process = run
                    .processes
                    .iter()
                    .find(|process| process.name == TRANSCEIVER)?;
                process.resident_per_call_kib
            };
            vec![(
                "calls",
                figures([
                    ("rss_per_call_kb", median(&memory)),
                    ("cpu_vs_pion", cpu_ratio(report, Kind::Pion)),
                    ("cpu_vs_janus", cpu_ratio(report, Kind::Janus)),
                    ("lost_calls", lost()),
                ]),
            )]
        }
        "setup" => vec![(
            "calls",
            figures([
                ("setup_p50_ms", first_audio_ms(|all| all.p50)),
                ("setup_p99_ms", first_audio_ms(|all| all.p99)),
            ]),
        )],
        "capacity" => {
            let found = report.capacity.get(&Kind::Syrinx).into_iter().flatten();
            let starts = found.filter(|found| found.of == Of::Starts);
            let starts = Spread::of(starts.filter_map(|found| found.passed));
            let starts = starts.map(|starts| starts.median);
            vec![("calls", figures([("starts_per_core_second", starts)]))]
        }
        "recovery" => vec![(
            "recovery",
            figures([
                (
                    "supervised_restart_packets_lost",
                    incident(|incident| Some(incident.packets_lost as f64)),
                ),
                (
                    "supervised_restart_blackout_ms",
                    incident(|incident| incident.blackout_ms),
                ),
            ]),
        )],
        _ => Vec::new(),
    }
}

/// Their CPU time a call-second divided by ours, round by round, at equal calls: rounds in which
/// one side had fewer calls than the other compare nothing.
fn cpu_ratio(report: &Report, rival: Kind) -> Option<f64> {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for run in named::runs(report, Kind::Syrinx) {
        let same = |other: &&Run| {
            other.round == run.round && other.calls.established == run.calls.established
        };
        let other = named::runs(report, rival).find(same);
        let cost = other.and_then(Run::cpu_ms_per_call_second);
        if let Some((their, our)) = cost.zip(run.cpu_ms_per_call_second()) {
            theirs.push(their);
            ours.push(our);
        }
    }
    Some(paired_ratio(&theirs, &ours)?.median)
}

fn figures<const N: usize>(known: [(&str, Option<f64>); N]) -> Map<String, Value> {
    let known = known.into_iter();
    let known = known.filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
    known.collect()
}
