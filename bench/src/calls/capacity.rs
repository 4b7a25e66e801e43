//! `capacity`: how much one core of the server carries, found by asking for more until it no longer
//! does.
//!
//! The load doubles until a probe fails, then the gap between the largest that passed and the
//! smallest that failed is halved until they are within a tenth of each other. A probe that passed
//! did so however late the generator was, for all times count from the plan. One that failed while
//! the generator could not keep up says nothing of the server: where the last that failed is such
//! a one, the figure is a lower bound.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::value_parser;
use serde::{Deserialize, Serialize};

use super::load::AFTERWARDS;
use super::measure::{self, Measurement, Round, most_at_once, rate, seconds};
use super::report::{Report, Run};
use super::schedule::{Hold, Planned, Starts, plan};
use super::stand::Kind;
use super::tally::Phase;
use crate::progress::Progress;

/// Where a search ends: the smallest load that failed is within this part of the largest that
/// passed.
const NEAR: f64 = 1.1;
/// Most probes of a search: a range of a thousand takes ten to double and four to halve.
const PROBES_MAX: usize = 20;
/// A process that uses this part of a core is as busy as an operator should let it be.
const BUSY_SHARE_MAX: f64 = 0.8;
/// Round trips of a server that keeps up: below a packet's length, in µs, for 999 of a thousand.
const ROUND_TRIP_P999_US_MAX: f64 = 20_000.0;

/// Finds how much one core of the server carries.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Of what.
    #[arg(long, value_enum, default_value_t = Of::Starts)]
    pub of: Of,
    /// Where to begin: starts a second, or calls.
    #[arg(long, default_value_t = 100.0, value_parser = rate)]
    pub from: f64,
    /// Milliseconds that the 99th percentile of a set-up may take.
    #[arg(long, default_value_t = 20.0, value_parser = seconds)]
    pub set_up_p99_ms: f64,
    /// Seconds of each probe.
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub probe_s: f64,
    /// How many calls start a second while a probe of calls fills up.
    #[arg(long, default_value_t = 100.0, value_parser = rate)]
    pub rate: f64,
    /// Seconds that each call of a probe of starts lasts.
    #[arg(long, default_value_t = 0.3, value_parser = seconds)]
    pub hold_s: f64,
    /// The most to ask for.
    #[arg(long, default_value_t = 8_000, value_parser = value_parser!(u32).range(1..=100_000))]
    pub most: u32,
    /// The generator.
    #[command(flatten)]
    pub generator: measure::Generator,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// Starts a second, each established in time.
    Starts,
    /// Calls at once, with each process at most 80 % busy and every packet back.
    Calls,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// What was counted.
    pub of: Of,
    /// The largest load that passed; `None` when none did.
    pub passed: Option<f64>,
    /// The smallest that failed; `None` when none did, or not by the server.
    pub failed: Option<f64>,
    /// Why the smallest that failed did, or why none was found.
    pub because: String,
    /// Whether the server, not the generator, set the limit.
    pub is_the_servers: bool,
}

/// The search itself, without what it searches.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Search {
    next: f64,
    passed: Option<f64>,
    failed: Option<f64>,
    most: f64,
}

impl Search {
    fn new(from: f64, most: f64) -> Self {
        Self {
            next: from.min(most),
            passed: None,
            failed: None,
            most,
        }
    }

    /// The next load to try; `None` when the search is over.
    fn next(&self) -> Option<f64> {
        match (self.passed, self.failed) {
            (Some(passed), Some(failed)) if failed <= (passed * NEAR).max(passed + 1.0) => None,
            (Some(passed), None) if passed >= self.most => None,
            (None, Some(failed)) if failed <= 1.0 => None,
            _ => Some(self.next),
        }
    }

    fn note(&mut self, passes: bool) {
        let tried = self.next;
        if passes {
            self.passed = Some(tried);
        } else {
            self.failed = Some(tried);
        }
        self.next = match (self.passed, self.failed) {
            (Some(passed), Some(failed)) => ((passed + failed) / 2.0).round(),
            (None, Some(failed)) => (failed / 2.0).max(1.0),
            _ => (tried * 2.0).min(self.most),
        };
    }
}

/// `capacity`.
///
/// # Errors
/// When a server cannot be set up, this machine has no room, or no call comes about.
pub fn run(options: &Options, stop: &AtomicBool) -> anyhow::Result<Report> {
    let generator = &options.generator;
    let load = measure::load(generator, &starts(options, options.from), None, None);
    let mut measurement = Measurement::new("capacity", generator, load, stop)?;
    let turns = measurement.turns();
    let mut progress = Progress::new(turns.len());
    for turn in &turns {
        let found = search(options, *turn, &mut measurement, &mut progress)?;
        progress.step(&describe(turn.1.name(), &found));
        let searches = measurement.report.capacity.entry(turn.1);
        searches.or_default().push(found);
        if measurement.is_stopped() {
            break;
        }
    }
    progress.end();
    let run_count = measurement.report.runs.len();
    measurement.finish(run_count)
}

/// Probes one target until its limit is known, or the generator's, or ^C comes.
fn search(
    options: &Options,
    turn: (u32, Kind),
    measurement: &mut Measurement<'_>,
    progress: &mut Progress,
) -> anyhow::Result<Capacity> {
    let mut search = Search::new(options.from, f64::from(options.most));
    let mut because = "no more was asked for".to_owned();
    let mut is_the_servers = false;
    for _ in 0..PROBES_MAX {
        let Some(load) = search.next() else { break };
        let (plan, window) = probe(options, load);
        let stand = measurement.stand(turn.1, most_at_once(&plan, AFTERWARDS))?;
        let round = Round {
            plan: &plan,
            window,
            incident: None,
        };
        let run = measurement.play(turn, &stand, round, progress)?;
        let (fault, limits) = (fault(options, &run), run.generator.bottleneck.join("; "));
        // A server that is none is not asked for less and less.
        let is_dead = !run.complete && run.calls.established == 0;
        measurement.report.runs.push(run);
        if measurement.is_stopped() || is_dead {
            break;
        }
        search.note(fault.is_none());
        if let Some(fault) = fault {
            (is_the_servers, because) = blame(load, &fault, &limits);
        }
    }
    Ok(Capacity {
        of: options.of,
        passed: search.passed,
        failed: search.failed.filter(|_| is_the_servers),
        because,
        is_the_servers,
    })
}

fn starts(options: &Options, load: f64) -> Starts {
    let probe_s = options.probe_s.max(1.0);
    let (count, rate) = match options.of {
        Of::Starts => (load * probe_s, load),
        Of::Calls => (load, options.rate),
    };
    Starts {
        count: count.ceil() as u32,
        rate,
        ramp: Duration::ZERO,
        arrivals: options.generator.arrivals,
    }
}

/// One probe's calls, and the part of it that is measured.
fn probe(options: &Options, load: f64) -> (Vec<Planned>, std::ops::Range<Duration>) {
    let starts = starts(options, load);
    let seed = options.generator.seed;
    let length = Duration::from_secs_f64(options.probe_s.max(1.0));
    let settle = Duration::from_secs(2);
    match options.of {
        Of::Starts => {
            let hold = Duration::from_secs_f64(options.hold_s);
            let plan = plan(&starts, Hold::Each(hold), seed);
            let last = plan.last().map_or(Duration::ZERO, |call| call.start);
            (plan, hold.min(last)..last)
        }
        Of::Calls => {
            let plan = plan(&starts, Hold::Until(settle + length), seed);
            let last = plan.last().map_or(Duration::ZERO, |call| call.start);
            (plan, last + settle..last + settle + length)
        }
    }
}

/// Why a probe does not count as carried.
fn fault(options: &Options, run: &Run) -> Option<String> {
    let failed = run.calls.failed + run.calls.lost;
    if failed > 0 {
        return Some(format!("{failed} calls failed or were lost"));
    }
    match options.of {
        Of::Starts => {
            let p99_ms = run.phase(Phase::Audio)?.total.p99 / 1e3;
            let most_ms = options.set_up_p99_ms;
            (p99_ms > most_ms).then(|| format!("set-up takes {p99_ms:.1} ms at p99"))
        }
        Of::Calls => {
            let busiest = run.processes.iter().filter_map(|cost| {
                Some((
                    cost.busy_share.filter(|busy| *busy > BUSY_SHARE_MAX)?,
                    &cost.name,
                ))
            });
            if let Some((busy, name)) = busiest.max_by(|a, b| a.0.total_cmp(&b.0)) {
                return Some(format!("{name} uses {:.0} % of a core", busy * 100.0));
            }
            if run.media.lost > 0 {
                return Some(format!("{} packets were lost", run.media.lost));
            }
            let late_us = run.media.round_trip.as_ref()?.p999;
            (late_us > ROUND_TRIP_P999_US_MAX)
                .then(|| format!("round trips take {:.1} ms at p99.9", late_us / 1e3))
        }
    }
}

/// Whether it was the server that failed a probe, and what to say of it; `limits` is why the
/// generator could not keep up, empty when it could.
fn blame(load: f64, fault: &str, limits: &str) -> (bool, String) {
    if limits.is_empty() {
        return (true, format!("at {load:.0} {fault}"));
    }
    let words = format!("at {load:.0} {fault}, and the generator could not keep up: {limits}");
    (false, words)
}

/// What a search found, in a line.
pub fn describe(name: &str, found: &Capacity) -> String {
    let what = match found.of {
        Of::Starts => "starts a second",
        Of::Calls => "calls",
    };
    let passed = found
        .passed
        .map_or("no".to_owned(), |load| format!("{load:.0}"));
    let because = &found.because;
    match found.failed {
        Some(failed) => {
            format!("{name}: {passed} {what} on one core, {failed:.0} are too many ({because})")
        }
        None => format!("{name}: at least {passed} {what} on one core ({because})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads that are tried when everything up to `limit` passes.
    fn search(from: f64, most: f64, limit: f64) -> (Search, usize) {
        let mut search = Search::new(from, most);
        let mut count = 0;
        while let Some(load) = search.next() {
            search.note(load <= limit);
            count += 1;
            assert!(count <= PROBES_MAX, "{search:?}");
        }
        (search, count)
    }

    #[test]
    fn finds_the_limit_to_within_a_tenth_from_below_and_from_above() {
        for (from, limit) in [
            (100.0, 730.0),
            (1_000.0, 37.0),
            (100.0, 100.0),
            (1.0, 5_000.0),
        ] {
            let (found, _) = search(from, 8_000.0, limit);
            let (passed, failed) = (found.passed.expect("some"), found.failed.expect("some"));
            assert!(passed <= limit && limit < failed, "{found:?}");
            assert!(
                failed <= passed * NEAR || failed - passed <= 1.0,
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_probe_that_the_generator_could_not_drive_says_nothing_of_the_server() {
        let found = |limits: &str| {
            let (is_the_servers, because) = blame(800.0, "set-up takes 30.0 ms at p99", limits);
            let capacity = Capacity {
                of: Of::Starts,
                passed: Some(700.0),
                failed: Some(800.0).filter(|_| is_the_servers),
                because,
                is_the_servers,
            };
            describe("syrinx", &capacity)
        };
        let servers = found("");
        assert!(
            servers.contains(": 700 starts a second on one core, 800 are too many (at 800 set")
        );
        let generators = found("packets left 8.0 ms late");
        assert!(generators.contains("at least 700 starts"), "{generators}");
        assert!(!generators.contains("too many") && generators.contains("8.0 ms late"));
    }

    #[test]
    fn ends_at_the_most_that_may_be_asked_for_and_when_nothing_passes() {
        let (found, _) = search(100.0, 900.0, 1e9);
        assert_eq!((found.passed, found.failed), (Some(900.0), None));
        let (found, _) = search(100.0, 900.0, 0.0);
        assert_eq!((found.passed, found.failed), (None, Some(1.0)));
    }
}
