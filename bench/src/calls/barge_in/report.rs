//! What `barge-in` leaves behind, what it is judged by, and how a person reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::caller::Trigger;
use crate::calls::failure::Failures;
use crate::calls::latency::Quantiles;
use crate::figure::{Definition, Figure, Unit, less, more, time};
use crate::origin::Origin;
use crate::process::edge::Dialect;
use crate::slo::Verdict;
use crate::table::Table;

/// The verb, as the command line and the files have it.
pub const VERB: &str = "barge-in";

/// A whole measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Where it comes from; the verb is [`VERB`].
    #[serde(flatten)]
    pub origin: Origin,
    /// What the edge and the backend spoke.
    pub dialect: Dialect,
    /// What the server says of its version.
    pub version: String,
    /// How many answers were to be interrupted in each round.
    pub calls: u32,
    /// How many callers there were at once.
    pub at_once: u16,
    /// Every round, in the order played.
    pub runs: Vec<Run>,
    /// What became of the objectives that were set.
    pub slo: Vec<Verdict>,
}

/// One round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// From the interruption to the last packet of the answer, in µs; `None` when no answer was
    /// interrupted.
    pub stop: Option<Quantiles>,
    /// The same by how the caller interrupted.
    pub by: BTreeMap<Trigger, Quantiles>,
    /// The largest difference between what a caller heard and what the edge reported, in µs; `None`
    /// when it reported nothing.
    pub reported_error_us: Option<f64>,
    /// Answers that were interrupted and reported.
    pub answers: u64,
    /// Answers of which the edge reported nothing.
    pub unreported: u64,
    /// Calls that did not get so far.
    pub failures: Failures,
}

impl Run {
    /// Calls that came to an end of any kind.
    pub(super) fn calls(&self) -> u64 {
        self.answers + self.unreported + self.failures.total()
    }
}

/// How a figure is read off a round; `None` where the round did not measure it.
type Of = fn(&Run) -> Option<f64>;

/// Every figure.
const FIGURES: [(Definition, Of); 9] = [
    (
        time(
            "stop_p50",
            "interruption to the last packet of the answer, median",
        ),
        |run| Some(run.stop.as_ref()?.p50),
    ),
    (time("stop_p99", "the same, 99th percentile"), |run| {
        Some(run.stop.as_ref()?.p99)
    }),
    (time("stop_max", "the same, the longest"), |run| {
        Some(run.stop.as_ref()?.max)
    }),
    (
        time(
            "speech_stop_p99",
            "the same where the caller spoke, 99th percentile",
        ),
        |run| Some(run.by.get(&Trigger::Speech)?.p99),
    ),
    (
        time(
            "clear_stop_p99",
            "the same where his client cleared, 99th percentile",
        ),
        |run| Some(run.by.get(&Trigger::Clear)?.p99),
    ),
    (
        time(
            "reported_error",
            "what was heard against what the edge reported, at worst",
        ),
        |run| run.reported_error_us,
    ),
    (
        less(
            "unreported",
            Unit::Count,
            "answers of which the edge reported nothing",
        ),
        |run| Some(run.unreported as f64),
    ),
    (
        less(
            "failed",
            Unit::Count,
            "calls in which no answer was interrupted",
        ),
        |run| Some(run.failures.total() as f64),
    ),
    (
        more(
            "answers",
            Unit::Count,
            "answers that were interrupted and reported",
        ),
        |run| Some(run.answers as f64),
    ),
];

/// All figures that a run of `barge-in` can have.
#[must_use]
pub fn definitions() -> Vec<Definition> {
    FIGURES.iter().map(|(definition, _)| *definition).collect()
}

/// All figures, a value for each round that measured it.
#[must_use]
pub fn figures(report: &Report) -> Vec<Figure> {
    let figures = FIGURES.iter().map(|(definition, of)| Figure {
        definition: *definition,
        values: report.runs.iter().filter_map(of).collect(),
    });
    figures.collect()
}

/// How callers of this kind interrupt, in words.
#[must_use]
pub fn words(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Speech => "the caller's first word",
        Trigger::Clear => "the client's clear",
    }
}

/// What is to be said of a round beside its times.
#[must_use]
pub fn remark(report: &Report, run: &Run) -> String {
    let error = run
        .reported_error_us
        .map_or("an unknown time".to_owned(), |us| {
            format!("{:.1} ms", us / 1e3)
        });
    format!(
        "What was heard differs from what the edge reported by {error} at most; {} answers were \
         not reported. The link spoke {}.",
        run.unreported,
        report.dialect.name(),
    )
}

/// The result as a person reads it.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    for run in &report.runs {
        let mut table = Table::new(["silent after, ms", "p50", "p90", "p99", "max", "answers"]);
        for (trigger, stops) in &run.by {
            let ms = |us: f64| format!("{:.1}", us / 1e3);
            table.row([
                format!("  {}", words(*trigger)),
                ms(stops.p50),
                ms(stops.p90),
                ms(stops.p99),
                ms(stops.max),
                stops.count.to_string(),
            ]);
        }
        text.push_str(&table.render());
        for (cause, failed) in &run.failures.0 {
            let (count, name) = (failed.count, cause.name());
            text.push_str(&format!("{count} × {name}: {}\n", failed.first));
        }
        text.push_str(&remark(report, run));
        text.push('\n');
    }
    if !report.origin.complete {
        text.push_str("STOPPED EARLY.\n");
    }
    text
}
