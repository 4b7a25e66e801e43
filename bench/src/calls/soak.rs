//! `soak`: calls come and go by the thousand; what must not grow is watched.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::value_parser;

use super::load::AFTERWARDS;
use super::measure::{self, Measurement, Round, most_at_once, rate, seconds};
use super::report::{Point, Report, Run, Trend};
use super::schedule::{Hold, Starts, plan};
use crate::stats::slope;

/// The part of a run in which a server still grows to its working size.
const WARM_UP: f64 = 0.25;
/// Points of a series that a slope is drawn from: their pairs are as many squared.
const SLOPE_POINTS_MAX: usize = 300;

/// Watches whether memory, descriptors and round trips grow with the calls a server has served.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// How many calls.
    #[arg(long, default_value_t = 5_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub calls: u32,
    /// How many start a second.
    #[arg(long, default_value_t = 50.0, value_parser = rate)]
    pub rate: f64,
    /// Seconds that each call lasts.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub hold_s: f64,
    /// The generator.
    #[command(flatten)]
    pub generator: measure::Generator,
}

/// `soak`.
///
/// # Errors
/// When a server cannot be set up, this machine has no room, or no call comes about.
pub fn run(options: &Options, stop: &AtomicBool) -> anyhow::Result<Report> {
    let generator = &options.generator;
    let hold = Duration::from_secs_f64(options.hold_s);
    let starts = Starts {
        count: options.calls,
        rate: options.rate,
        ramp: hold,
        arrivals: generator.arrivals,
    };
    let plan = plan(&starts, Hold::Each(hold), generator.seed);
    let last = plan.last().map_or(Duration::ZERO, |call| call.start);
    let load = measure::load(generator, &starts, Some(options.hold_s), None);
    let measurement = Measurement::new("soak", generator, load, stop)?;
    measurement.play_turns(|measurement, turn, progress| {
        let stand = measurement.stand(turn.1, most_at_once(&plan, AFTERWARDS))?;
        let round = Round {
            plan: &plan,
            window: (hold * 2).min(last)..last,
            incident: None,
        };
        let mut run = measurement.play(turn, &stand, round, progress)?;
        run.trend = Some(trend(&run, last.as_secs_f64()));
        let (name, calls) = (turn.1.name(), &run.calls);
        let words = format!(
            "{name}: {} calls, {} failed, {} lost",
            calls.established, calls.failed, calls.lost
        );
        Ok((run, words))
    })
}

/// Draws the slopes from the steady part of the series, which ends with the last start.
fn trend(run: &Run, last_s: f64) -> Trend {
    let steady = |point: &&Point| (last_s * WARM_UP..last_s).contains(&point.at_s);
    let points: Vec<&Point> = run.series.iter().filter(steady).collect();
    let calls = match (points.first(), points.last()) {
        (Some(first), Some(last)) => last.established - first.established,
        _ => 0,
    };
    let stride = points.len().div_ceil(SLOPE_POINTS_MAX).max(1);
    let per_thousand = |value: &dyn Fn(&Point) -> Option<f64>| {
        let values = points.iter().step_by(stride);
        let pairs = values.filter_map(|point| Some((point.established as f64, value(point)?)));
        slope(&pairs.collect::<Vec<_>>()).map(|slope| slope * 1e3)
    };
    let mut resident_kib = BTreeMap::new();
    let mut descriptors = BTreeMap::new();
    for (index, process) in run.processes.iter().enumerate() {
        let name = &process.name;
        let resident = |point: &Point| Some(point.processes.get(index)?.resident_kib as f64);
        let open = |point: &Point| Some(point.processes.get(index)?.descriptors? as f64);
        resident_kib.extend(per_thousand(&resident).map(|slope| (name.clone(), slope)));
        descriptors.extend(per_thousand(&open).map(|slope| (name.clone(), slope)));
    }
    Trend {
        calls,
        resident_kib,
        descriptors,
        round_trip_p99_us: per_thousand(&|point: &Point| point.round_trip_p99_us),
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::Driven;
    use super::super::report::{ProcessCost, ProcessPoint};
    use super::super::stand::Kind;
    use super::super::tally::Tally;
    use super::*;

    #[test]
    fn a_leak_shows_as_growth_with_every_thousand_calls_and_warming_up_does_not() {
        let driven = Driven {
            tally: Tally::default(),
            complete: true,
            incident: None,
        };
        let mut run = Run::of(Kind::Syrinx, 0, &driven, 1, Duration::from_secs(100));
        run.processes.push(ProcessCost {
            name: "transceiver".to_owned(),
            cpu_ms_per_call_second: None,
            cpu_ms_per_start: None,
            busy_share: None,
            resident_before_kib: 0,
            resident_kib: None,
            resident_per_call_kib: None,
            descriptors_before: None,
            descriptors: None,
        });
        run.series = (0..100)
            .map(|second: u64| Point {
                at_s: second as f64,
                active: 100,
                established: second * 50,
                failed: 0,
                lost: 0,
                said: 0,
                heard: 0,
                round_trip_p50_us: None,
                round_trip_p99_us: Some(150.0),
                processes: vec![ProcessPoint {
                    cpu_ms: 0.0,
                    // Grows fast until it is warm, then by 2 KiB a call.
                    resident_kib: 10_000 * second.min(20) + 100 * second,
                    descriptors: Some(16),
                }],
            })
            .collect();
        let trend = trend(&run, 100.0);
        assert_eq!(trend.calls, 74 * 50);
        assert!((trend.resident_kib["transceiver"] - 2_000.0).abs() < 1e-6);
        assert_eq!(trend.descriptors["transceiver"], 0.0);
        assert_eq!(trend.round_trip_p99_us, Some(0.0));
    }
}
