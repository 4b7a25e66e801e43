//! Charts as SVG text: groups of bars for figures side by side, lines for what happens over time,
//! and curves of percentiles.
//!
//! Colours are told apart by the colour-blind (Okabe and Ito's palette), and lines also by their
//! order in the legend; backgrounds are white, so that a printed page looks like the screen.

use anyhow::{Context, anyhow};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged};
use plotters::prelude::*;

/// Width and height of every chart; a page scales it.
const SIZE: (u32, u32) = (1_120, 440);
const FONT: &str = "sans-serif";
/// Room above the highest bar for its label and the legend.
const HEADROOM: f64 = 1.3;
/// The part of a group's width that its bars fill.
const GROUP_FILL: f64 = 0.8;
/// Groups whose names fit beside each other.
const LABELS_MAX: usize = 12;
/// Points of a line beyond these are thinned out: no screen shows more.
const POINTS_MAX: usize = 2_000;

/// Okabe and Ito, "Color Universal Design" (2008), without black and yellow.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];

/// What a chart says of itself.
#[derive(Clone, Debug)]
pub struct Labels {
    /// Above it.
    pub title: String,
    /// Below the horizontal axis; empty for bars.
    pub across: String,
    /// Beside the vertical axis.
    pub up: String,
}

/// The height of a bar, and the quartiles that its whisker spans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Its height.
    pub value: f64,
    /// From the first to the third quartile, where there are several rounds.
    pub quartiles: Option<(f64, f64)>,
}

impl Bar {
    /// Where its label stands.
    fn top(&self) -> f64 {
        self.quartiles
            .map_or(self.value, |(_, high)| high.max(self.value))
    }
}

/// One colour of bars, a bar a group; `None` where a group has none.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Its name in the legend.
    pub name: String,
    /// As many as there are groups.
    pub bars: Vec<Option<Bar>>,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// How the horizontal axis of lines is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// Evenly.
    Evenly,
    /// By how many lie beyond: 0, 90, 99, 99.9 %, where a point's x is a quantile from 0 to 1.
    Quantiles,
}

type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// Groups of bars; `None` when there is no bar at all.
///
/// # Errors
/// When it cannot be drawn.
pub fn bars(labels: &Labels, groups: &[String], series: &[Bars]) -> anyhow::Result<Option<String>> {
    let all = series.iter().flat_map(|one| one.bars.iter().flatten());
    let tops = all.map(Bar::top);
    let highest = tops.fold(0.0, f64::max);
    if highest == 0.0 {
        return Ok(None);
    }
    drawn(labels, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(&labels.title, (FONT, 19))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(76)
            .build_cartesian_2d(Groups(groups.len()), 0.0..highest * HEADROOM)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .y_desc(&labels.up)
            .y_label_formatter(&|value: &f64| crate::figure::digits(*value))
            .x_label_formatter(&|at: &f64| group_name(groups, *at))
            .x_labels(groups.len().min(LABELS_MAX))
            .draw()?;
        let width = GROUP_FILL / series.len() as f64;
        for (place, one) in series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let left = |group: usize| group as f64 - GROUP_FILL / 2.0 + place as f64 * width;
            let present = || {
                let bars = one.bars.iter().enumerate();
                bars.filter_map(move |(group, bar)| Some((left(group), (*bar)?)))
            };
            let rectangles = present().map(|(left, bar)| {
                let corners = [(left, 0.0), (left + width * 0.94, bar.value)];
                Rectangle::new(corners, colour.mix(0.85).filled())
            });
            chart
                .draw_series(rectangles)?
                .label(&one.name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
                });
            let whiskers = present().filter_map(|(left, bar)| {
                let (low, high) = bar.quartiles?;
                let middle = left + width * 0.47;
                Some(PathElement::new(
                    [(middle, low), (middle, high)],
                    BLACK.mix(0.7),
                ))
            });
            chart.draw_series(whiskers)?;
            chart.draw_series(present().map(|(left, bar)| {
                let text = crate::figure::digits(bar.value);
                Text::new(text, (left, bar.top() + highest * 0.05), (FONT, 12))
            }))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.3))
            .label_font((FONT, 13))
            .draw()?;
        Ok(())
    })
}

/// Lines from left to right; `None` when there is no point at all.
///
/// # Errors
/// When it cannot be drawn.
pub fn lines(labels: &Labels, across: Across, lines: &[Line]) -> anyhow::Result<Option<String>> {
    let placed: Vec<Line> = lines.iter().map(|line| placed(across, line)).collect();
    let points = || placed.iter().flat_map(|line| line.points.iter().copied());
    if points().next().is_none() {
        return Ok(None);
    }
    let right = points().map(|(x, _)| x).fold(f64::MIN, f64::max);
    let left = points().map(|(x, _)| x).fold(f64::MAX, f64::min);
    let highest = points().map(|(_, y)| y).fold(0.0, f64::max);
    // A single point, or a flat line of zeros, still needs an area.
    let right = if right > left { right } else { left + 1.0 };
    let highest = if highest > 0.0 { highest } else { 1.0 };
    drawn(labels, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(&labels.title, (FONT, 19))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(left..right, 0.0..highest * 1.1)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .x_desc(&labels.across)
            .y_desc(&labels.up)
            .x_label_formatter(&|x: &f64| match across {
                Across::Evenly => crate::figure::digits(*x),
                Across::Quantiles => quantile_name(*x),
            })
            .y_label_formatter(&|y: &f64| crate::figure::digits(*y))
            .draw()?;
        for (place, line) in placed.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            chart
                .draw_series(LineSeries::new(
                    line.points.iter().copied(),
                    colour.stroke_width(2),
                ))?
                .label(&line.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(3))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.3))
            .label_font((FONT, 13))
            .draw()?;
        Ok(())
    })
}

fn drawn(
    labels: &Labels,
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> DrawResult,
) -> anyhow::Result<Option<String>> {
    let mut text = String::new();
    let outcome = (|| {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        area.present()?;
        Ok(())
    })();
    outcome
        .map_err(|error: Box<dyn std::error::Error>| anyhow!("{error}"))
        .with_context(|| format!("cannot draw {}", labels.title))?;
    Ok(Some(text))
}

/// The line where its axis puts it, thinned out.
fn placed(across: Across, line: &Line) -> Line {
    let step = line.points.len().div_ceil(POINTS_MAX).max(1);
    let points = line
        .points
        .iter()
        .step_by(step)
        .map(|&(x, y)| match across {
            Across::Evenly => (x, y),
            // 0 % at 0, 90 % at 1, 99 % at 2; the largest of all stands at the end of what a double
            // tells from 1.
            Across::Quantiles => (-(1.0 - x).max(1e-6).log10(), y),
        });
    Line {
        name: line.name.clone(),
        points: points.collect(),
    }
}

/// The quantile at a place of the axis, in percent.
fn quantile_name(at: f64) -> String {
    let percent = 100.0 * (1.0 - 10_f64.powf(-at));
    let decimals = (at.ceil() as usize).saturating_sub(2);
    format!("{percent:.decimals$} %")
}

fn group_name(groups: &[String], at: f64) -> String {
    let name = groups.get(at.round() as usize);
    name.cloned().unwrap_or_default()
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

    fn labels() -> Labels {
        Labels {
            title: "a title".to_owned(),
            across: "seconds".to_owned(),
            up: "ns each".to_owned(),
        }
    }

    #[test]
    fn draws_a_bar_a_label_and_a_whisker_for_each_value() {
        let series = [
            Bars {
                name: "ours".to_owned(),
                bars: vec![
                    Some(Bar {
                        value: 871.0,
                        quartiles: Some((860.0, 880.0)),
                    }),
                    None,
                ],
            },
            Bars {
                name: "theirs".to_owned(),
                bars: vec![
                    None,
                    Some(Bar {
                        value: 20_123.0,
                        quartiles: None,
                    }),
                ],
            },
        ];
        let groups = ["to clients".to_owned(), "idle".to_owned()];
        let svg = bars(&labels(), &groups, &series).expect("drawn");
        let svg = svg.expect("there are values");
        for part in [
            "871",
            "20123",
            "to clients",
            "idle",
            "ours",
            "theirs",
            "ns each",
        ] {
            assert!(svg.contains(part), "{part} is missing");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn draws_lines_even_of_one_point_or_of_zeros() {
        for points in [vec![(3.0, 7.0)], vec![(0.0, 0.0), (1.0, 0.0)]] {
            let line = Line {
                name: "calls".to_owned(),
                points,
            };
            let svg = lines(&labels(), Across::Evenly, &[line]).expect("drawn");
            let svg = svg.expect("there are values");
            assert!(svg.contains("calls") && svg.contains("seconds"));
        }
    }

    #[test]
    fn thins_long_lines_out() {
        let long = Line {
            name: "long".to_owned(),
            points: (0..100_000).map(|at| (f64::from(at), 1.0)).collect(),
        };
        assert_eq!(placed(Across::Evenly, &long).points.len(), POINTS_MAX);
    }

    #[test]
    fn quantiles_stand_by_their_nines() {
        let line = Line {
            name: "delay".to_owned(),
            points: vec![(0.0, 1.0), (0.9, 2.0), (0.99, 3.0), (1.0, 4.0)],
        };
        let places: Vec<f64> = placed(Across::Quantiles, &line)
            .points
            .iter()
            .map(|(x, _)| (x * 1e9).round() / 1e9)
            .collect();
        assert_eq!(places, [0.0, 1.0, 2.0, 6.0]);
        let names = [0.0, 1.0, 2.0, 3.0, 4.0].map(quantile_name);
        assert_eq!(names, ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
    }

    #[test]
    fn draws_nothing_where_there_are_no_values() {
        assert_eq!(bars(&labels(), &[], &[]).expect("no error"), None);
        assert_eq!(
            lines(&labels(), Across::Evenly, &[]).expect("no error"),
            None
        );
    }
}
