//! The part of the page about a run of the relay yardstick.

use super::figures::objectives;
use super::{Page, named};
use crate::chart::{self, Across, Labels};
use crate::figure::digits;
use crate::relay::plot;
use crate::relay::report::{Line, Report, Window};
use crate::relay::text;
use crate::stats::Spread;

/// Adds the part.
///
/// # Errors
/// When a chart cannot be drawn.
pub fn add(page: &mut Page, file: &str, report: &Report) -> anyhow::Result<()> {
    page.part(
        "Relay: packet by packet",
        (file, &report.origin),
        named(&report.versions, |kind| kind.name()),
    );
    objectives(page, &report.slo);
    page.heading("What a datagram costs");
    page.table(
        &[
            "situation, target",
            "CPU ns each",
            "spread",
            "Go / this",
            "spread",
            "kpps",
            "p50 µs",
            "p99 µs",
            "lost",
            "to mind",
        ],
        &rows(report),
    );
    for note in text::notes(report) {
        page.paragraph(&note);
    }
    page.chart(plot::costs(report)?);
    page.chart(plot::ratios(report)?);
    page.chart(plot::delays(report)?);
    page.heading("How steady the windows were");
    page.paragraph(
        "A line for each target: CPU time a datagram of its windows, as they were played. What \
         rises for all at once is the machine.",
    );
    page.chart(steadiness(report)?);
    Ok(())
}

fn rows(report: &Report) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut situation = None;
    for line in &report.summary {
        if situation != Some(line.scenario) {
            situation = Some(line.scenario);
            rows.push(vec![line.scenario.name().replace('_', " ")]);
        }
        rows.push(row(line));
    }
    rows
}

fn row(line: &Line) -> Vec<String> {
    let middle =
        |spread: Option<Spread>| spread.map_or("–".to_owned(), |spread| digits(spread.median));
    let noise = |spread: Option<Spread>| {
        spread.map_or(String::new(), |spread| {
            format!("±{:.0} %", spread.noise() * 50.0)
        })
    };
    vec![
        line.kind.name().to_owned(),
        middle(line.cpu_ns_each),
        noise(line.cpu_ns_each),
        middle(line.go_over_this),
        noise(line.go_over_this),
        middle(line.delivered_kpps),
        middle(line.delay_p50_us),
        middle(line.delay_p99_us),
        line.fates.lost().to_string(),
        text::remarks(line),
    ]
}

/// Every window's cost relative to the median of its target and situation, in the order played.
fn steadiness(report: &Report) -> anyhow::Result<Option<String>> {
    let mut kinds: Vec<_> = report.summary.iter().map(|line| line.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let relative = |place: usize, window: &Window| {
        let same = |line: &&Line| line.kind == window.kind && line.scenario == window.scenario;
        let median = report.summary.iter().find(same)?.cpu_ns_each?.median;
        Some((place as f64, window.cpu_ns_each()? / median))
    };
    let lines = kinds.iter().map(|kind| chart::Line {
        name: kind.name().to_owned(),
        points: report
            .windows
            .iter()
            .enumerate()
            .filter(|(_, window)| window.kind == *kind)
            .filter_map(|(place, window)| relative(place, window))
            .collect(),
    });
    let labels = Labels {
        title: "CPU time a datagram, relative to the median of its situation".to_owned(),
        across: "window, in the order played".to_owned(),
        up: "relative cost".to_owned(),
    };
    let lines: Vec<chart::Line> = lines.filter(|line| !line.points.is_empty()).collect();
    chart::lines(&labels, Across::Evenly, &lines)
}
