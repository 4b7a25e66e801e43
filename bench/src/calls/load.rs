//! `calls`: so many calls at once, held while their sound and their cost are measured; and `setup`:
//! calls that come and go, for what a start takes.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::value_parser;

use super::measure::{self, Measurement, Round, most_at_once, rate, seconds};
use super::report::Report;
use super::schedule::{Hold, Starts, plan};

/// What a call may outlast its end by: it waits for what is on its way.
pub(super) const AFTERWARDS: Duration = Duration::from_secs(1);

/// Measures calls that are up at the same time: sound, CPU and memory.
#[derive(Clone, Debug, clap::Args)]
pub struct CallsOptions {
    /// How many calls.
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub calls: u32,
    /// How many start a second.
    #[arg(long, default_value_t = 50.0, value_parser = rate)]
    pub rate: f64,
    /// Seconds in which the rate grows to that.
    #[arg(long, default_value_t = 0.0, value_parser = seconds)]
    pub ramp_s: f64,
    /// Seconds from the last start to the measured window.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub settle_s: f64,
    /// Seconds of the measured window.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub window_s: f64,
    /// The generator.
    #[command(flatten)]
    pub generator: measure::Generator,
}

/// Measures what a start takes, from the offer to the first echoed audio.
#[derive(Clone, Debug, clap::Args)]
pub struct SetUpOptions {
    /// How many calls.
    #[arg(long, default_value_t = 500, value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub calls: u32,
    /// How many start a second.
    #[arg(long, default_value_t = 50.0, value_parser = rate)]
    pub rate: f64,
    /// Seconds in which the rate grows to that.
    #[arg(long, default_value_t = 0.0, value_parser = seconds)]
    pub ramp_s: f64,
    /// Seconds that each call lasts.
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub hold_s: f64,
    /// The generator.
    #[command(flatten)]
    pub generator: measure::Generator,
}

/// `calls`.
///
/// # Errors
/// When a server cannot be set up, this machine has no room, or no call comes about.
pub fn calls(options: &CallsOptions, stop: &AtomicBool) -> anyhow::Result<Report> {
    let generator = &options.generator;
    let starts = Starts {
        count: options.calls,
        rate: options.rate,
        ramp: Duration::from_secs_f64(options.ramp_s),
        arrivals: generator.arrivals,
    };
    let settle = Duration::from_secs_f64(options.settle_s);
    let window = Duration::from_secs_f64(options.window_s);
    let plan = plan(&starts, Hold::Until(settle + window), generator.seed);
    let last = plan.last().map_or(Duration::ZERO, |call| call.start);
    let load = measure::load(generator, &starts, None, Some(options.window_s));
    let measurement = Measurement::new("calls", generator, load, stop)?;
    measurement.play_turns(|measurement, turn, progress| {
        let stand = measurement.stand(turn.1, options.calls)?;
        let round = Round {
            plan: &plan,
            window: last + settle..last + settle + window,
            incident: None,
        };
        let run = measurement.play(turn, &stand, round, progress)?;
        let cost = run.cpu_ms_per_call_second();
        let cost = cost.map_or("-".to_owned(), |cost| format!("{cost:.3}"));
        let words = format!(
            "{}: {} calls, {cost} ms CPU a call-second, {} packets lost",
            turn.1.name(),
            run.calls.established,
            run.media.lost
        );
        Ok((run, words))
    })
}

/// `setup`.
///
/// # Errors
/// As [`calls`].
pub fn set_up(options: &SetUpOptions, stop: &AtomicBool) -> anyhow::Result<Report> {
    let generator = &options.generator;
    let starts = Starts {
        count: options.calls,
        rate: options.rate,
        ramp: Duration::from_secs_f64(options.ramp_s),
        arrivals: generator.arrivals,
    };
    let plan = plan(
        &starts,
        Hold::Each(Duration::from_secs_f64(options.hold_s)),
        generator.seed,
    );
    let end = plan.last().map_or(Duration::ZERO, |call| call.end);
    let load = measure::load(generator, &starts, Some(options.hold_s), None);
    let measurement = Measurement::new("setup", generator, load, stop)?;
    measurement.play_turns(|measurement, turn, progress| {
        let stand = measurement.stand(turn.1, most_at_once(&plan, AFTERWARDS))?;
        let round = Round {
            plan: &plan,
            window: Duration::ZERO..end,
            incident: None,
        };
        let run = measurement.play(turn, &stand, round, progress)?;
        let (name, established) = (turn.1.name(), run.calls.established);
        let words = format!("{name}: {established} calls established");
        Ok((run, words))
    })
}
