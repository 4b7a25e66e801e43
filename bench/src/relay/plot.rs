//! The result as a picture: CPU time a datagram, a group of bars for each situation.

use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged};
use plotters::prelude::*;

use super::report::{Line, Report};
use super::scenario::Scenario;
use super::target::Kind;
use crate::result_file;

const SIZE: (u32, u32) = (1_280, 560);
/// Room above the highest bar for its label and the legend.
const HEADROOM: f64 = 1.3;
/// The part of a group's width that its bars fill.
const GROUP_FILL: f64 = 0.8;

/// Draws `report` into the SVG file `path`.
///
/// # Errors
/// When there is nothing to draw or the file cannot be written.
pub fn write(path: &Path, report: &Report) -> anyhow::Result<()> {
    result_file::write(path, &svg(report)?)
}

/// The picture's text.
///
/// # Errors
/// When no window of the report has a cost.
pub fn svg(report: &Report) -> anyhow::Result<String> {
    let lines: Vec<(&Line, f64)> = report
        .summary
        .iter()
        .filter_map(|line| Some((line, line.cpu_ns_each?.median)))
        .collect();
    let highest = lines.iter().map(|(_, cost)| *cost).fold(0.0, f64::max);
    if highest == 0.0 {
        return Err(anyhow!(
            "nothing to draw: no window without loss had a process to charge"
        ));
    }
    let mut text = String::new();
    draw(&mut text, report, &lines, highest)
        .map_err(|error| anyhow!("{error}"))
        .context("cannot draw the result")?;
    Ok(text)
}

type DrawResult = Result<(), Box<dyn std::error::Error>>;

fn draw(text: &mut String, report: &Report, lines: &[(&Line, f64)], highest: f64) -> DrawResult {
    let scenarios: Vec<Scenario> = Scenario::ALL
        .into_iter()
        .filter(|scenario| lines.iter().any(|(line, _)| line.scenario == *scenario))
        .collect();
    let mut kinds: Vec<Kind> = lines.iter().map(|(line, _)| line.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();

    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let caption = format!(
        "CPU time of the relay a delivered, verified datagram ({} clients, one core)",
        report.client_count
    );
    let mut chart = ChartBuilder::on(&area)
        .caption(caption, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(Groups(scenarios.len()), 0.0..highest * HEADROOM)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .y_label_formatter(&|cost: &f64| format!("{cost:.0}"))
        .y_desc("ns a datagram, median of rounds")
        .x_label_formatter(&|at: &f64| label(&scenarios, *at))
        .x_labels(scenarios.len())
        .draw()?;
    let width = GROUP_FILL / kinds.len() as f64;
    for (place, kind) in kinds.iter().enumerate() {
        let colour = Palette99::pick(place).mix(0.85);
        let bars = lines
            .iter()
            .filter(|(line, _)| line.kind == *kind)
            .map(|(line, cost)| {
                let group = scenarios
                    .iter()
                    .position(|scenario| *scenario == line.scenario);
                let left = group.unwrap_or(0) as f64 - GROUP_FILL / 2.0 + place as f64 * width;
                (left, *cost)
            });
        let bars: Vec<(f64, f64)> = bars.collect();
        let rectangles = bars.iter().map(|(left, cost)| {
            Rectangle::new(
                [(*left, 0.0), (left + width * 0.95, *cost)],
                colour.filled(),
            )
        });
        chart
            .draw_series(rectangles)?
            .label(kind.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        chart.draw_series(bars.iter().map(|(left, cost)| {
            let text = format!("{cost:.0}");
            Text::new(text, (*left, cost + highest * 0.04), ("sans-serif", 12))
        }))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}

fn label(scenarios: &[Scenario], at: f64) -> String {
    let name = scenarios
        .get(at.round() as usize)
        .map_or("", |scenario| scenario.name());
    name.replace('_', " ")
}

/// The horizontal axis: group *n* stands at *n*, and has a label there and nowhere else.
struct Groups(usize);

impl Ranged for Groups {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = (value + 0.5) / self.0 as f64;
        limit.0 + (part * f64::from(limit.1 - limit.0)) as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        (0..self.0).map(|group| group as f64).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        -0.5..self.0 as f64 - 0.5
    }
}

impl plotters::coord::ranged1d::ValueFormatter<f64> for Groups {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::relay::ledger::Fates;
    use crate::stats::Spread;

    fn report(summary: Vec<Line>) -> Report {
        Report {
            verb: "relay".to_owned(),
            complete: true,
            machine: Machine::default(),
            begun_unix_s: 0,
            arguments: Vec::new(),
            seed: 1,
            client_count: 2_000,
            rate_pps: 100_000,
            backlog: 1,
            versions: std::collections::BTreeMap::new(),
            windows: Vec::new(),
            flow_memory: Vec::new(),
            summary,
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
        let svg = svg(&report(vec![
            line(Scenario::ToTransceiverSaturated, Kind::Syrinx, 871.0),
            line(Scenario::ToTransceiverSaturated, Kind::Go, 3_412.0),
            line(Scenario::Idle, Kind::Go, 20_123.0),
        ]))
        .expect("drawn");
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
        assert!(svg(&report(Vec::new())).is_err());
    }
}
