//! The part of the page about interrupted answers.

use super::{Page, figures};
use crate::calls::barge_in::report::{Report, figures as figures_of, remark, words};
use crate::chart::{self, Across, Labels, Line};

/// Adds the part.
///
/// # Errors
/// When a chart cannot be drawn.
pub fn add(page: &mut Page, file: &str, report: &Report) -> anyhow::Result<()> {
    page.part(
        &format!(
            "Barge-in: answers are interrupted ({})",
            report.dialect.name()
        ),
        (file, &report.origin),
        vec![("syrinx".to_owned(), report.version.clone())],
    );
    page.paragraph(&format!(
        "{} answers a round, {} callers at once; the link speaks {}. Times count from the \
         interruption to the last packet of the answer that the caller heard; 0 is that none came.",
        report.calls,
        report.at_once,
        report.dialect.name()
    ));
    for run in &report.runs {
        for (cause, failed) in &run.failures.0 {
            let (count, name) = (failed.count, cause.name());
            page.warning(&format!("{count} calls failed: {name} ({})", failed.first));
        }
    }
    figures::objectives(page, &report.slo);
    let column = ("syrinx".to_owned(), figures_of(report));
    figures::side_by_side(page, &report.origin.verb, &[column]);
    page.heading("Silent after, in ms");
    page.table(&["", "p50", "p90", "p99", "max", "answers"], &rows(report));
    for run in &report.runs {
        page.paragraph(&remark(report, run));
    }
    page.chart(curve(report)?);
    Ok(())
}

fn rows(report: &Report) -> Vec<Vec<String>> {
    let ms = |us: f64| format!("{:.1}", us / 1e3);
    let all = report.runs.iter().flat_map(|run| &run.by);
    let rows = all.map(|(trigger, stops)| {
        vec![
            words(*trigger).to_owned(),
            ms(stops.p50),
            ms(stops.p90),
            ms(stops.p99),
            ms(stops.max),
            stops.count.to_string(),
        ]
    });
    rows.collect()
}

/// The distribution of the times, a line for each way to interrupt and each round.
fn curve(report: &Report) -> anyhow::Result<Option<String>> {
    let rounds = report.runs.len();
    let lines = report.runs.iter().enumerate().flat_map(|(round, run)| {
        run.by.iter().map(move |(trigger, stops)| {
            let points = stops.curve.iter().map(|(part, us)| (*part, us / 1e3));
            let name = words(*trigger);
            Line {
                name: if rounds > 1 {
                    format!("{name}, round {}", round + 1)
                } else {
                    name.to_owned()
                },
                points: points.collect(),
            }
        })
    });
    let labels = Labels {
        title: "Interruption to the last packet of the answer".to_owned(),
        across: "part of all that took at most so long".to_owned(),
        up: "ms".to_owned(),
    };
    chart::lines(&labels, Across::Quantiles, &lines.collect::<Vec<_>>())
}
