//! `barge-in`: how soon an answer falls silent when the caller interrupts it, and whether the edge
//! knows how much of it was played.
//!
//! The answer comes from a backend of this program, which interrupts itself at once: time counts
//! from the caller's first packet of speech, or from his client's clear, to the last packet of the
//! answer that reaches him. What he heard is compared with what the edge told the backend.

mod backend;
mod caller;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use clap::value_parser;
use serde::{Deserialize, Serialize};

use self::backend::Backend;
pub use self::caller::Trigger;
use self::caller::{Ground, Met};
use super::burst::Bursts;
use super::client::Kit;
use super::failure::{Cause, Failure, Failures};
use super::latency::{Latencies, Quantiles};
use super::measure;
use super::schedule::call_seed;
use super::stand::{Kind, Need};
use crate::machine::Machine;
use crate::process::edge::Dialect;
use crate::progress::Progress;
use crate::table::Table;

/// How long a caller listens before he interrupts: each for a time of his own, so that
/// interruptions fall anywhere between two packets.
const LISTEN_MIN: Duration = Duration::from_millis(400);
const LISTEN_SPAN: Duration = Duration::from_millis(800);

/// Measures how soon an interrupted answer falls silent.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// How many answers are interrupted.
    #[arg(long, default_value_t = 60, value_parser = value_parser!(u32).range(1..=100_000))]
    pub calls: u32,
    /// How many callers there are at once.
    #[arg(long, default_value_t = 6, value_parser = value_parser!(u16).range(1..=256))]
    pub at_once: u16,
    /// How they interrupt, comma separated; in turn.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Trigger::ALL)]
    pub by: Vec<Trigger>,
    /// What the edge and the backend speak.
    #[arg(long, value_enum, default_value_t = Dialect::MediaV1)]
    pub dialect: Dialect,
    /// Where the backend listens; a server at --url must have it as its backend of that dialect.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub backend_listen: SocketAddr,
    /// The generator.
    #[command(flatten)]
    pub generator: measure::Generator,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always `barge-in`.
    pub verb: String,
    /// Whether it came to its end.
    pub complete: bool,
    /// The machine.
    pub machine: Machine,
    /// Seconds since the Unix epoch when it began.
    pub begun_unix_s: u64,
    /// The command line.
    pub arguments: Vec<String>,
    /// What the moments of interruption were drawn from.
    pub seed: u64,
    /// What the edge and the backend spoke.
    #[serde(default)]
    pub dialect: Dialect,
    /// What the server says of its version.
    pub version: String,
    /// Median time from the interruption to the last packet of the answer, in ms.
    pub stop_p50_ms: f64,
    /// Its 99th percentile, in ms.
    pub stop_p99_ms: f64,
    /// The largest difference between what a caller heard and what the edge reported, in ms.
    pub reported_error_ms: f64,
    /// Answers that were interrupted and reported.
    pub answers: u64,
    /// Answers of which the edge reported nothing.
    pub unreported: u64,
    /// Times by how the caller interrupted, in µs.
    pub by: BTreeMap<Trigger, Quantiles>,
    /// Calls that did not get so far.
    pub failures: Failures,
}

/// What the callers have met so far.
#[derive(Default)]
struct Findings {
    stops: BTreeMap<Trigger, Latencies>,
    error: Duration,
    answers: u64,
    unreported: u64,
    failures: Failures,
}

/// `barge-in`.
///
/// # Errors
/// When the server cannot be set up, or no answer was interrupted.
pub fn run(options: &Options, stop: &AtomicBool) -> anyhow::Result<Report> {
    let generator = &options.generator;
    if generator.servers.targets != [Kind::Syrinx] {
        bail!("barge-in is for syrinx: an echo has no answer to interrupt");
    }
    let backend = Backend::start(options.backend_listen, options.dialect)?;
    let need = Need {
        backend: Some(backend.at()),
        ..generator.need(u32::from(options.at_once))
    };
    let stand = generator.servers.set_up(Kind::Syrinx, &need)?;
    let ground = Ground {
        kit: &Kit::new(true)?,
        signalling: &*stand.signalling,
        dialect: options.dialect,
        bursts: &Bursts::new()?,
        sources: generator.sources,
        stop,
    };
    let findings = Mutex::new((Findings::default(), Progress::new(options.calls as usize)));
    let next = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..options.at_once {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let id = next.fetch_add(1, Ordering::Relaxed);
                    if id >= options.calls {
                        return;
                    }
                    let trigger = options.by[id as usize % options.by.len()];
                    let mut random = fastrand::Rng::with_seed(call_seed(generator.seed, id));
                    let listen = LISTEN_MIN + LISTEN_SPAN.mul_f64(random.f64());
                    let met = caller::call(&ground, id, trigger, listen);
                    let mut found = findings.lock().unwrap_or_else(PoisonError::into_inner);
                    let (findings, progress) = &mut *found;
                    progress.step(&describe(&met));
                    findings.note(trigger, met, &backend);
                }
            });
        }
    });
    let (findings, mut progress) = findings
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    progress.end();
    findings.report(options, stand.version)
}

fn describe(met: &Result<Met, Failure>) -> String {
    match met {
        Ok(met) => format!(
            "silent {:.1} ms after the interruption, {} ms heard",
            met.stop.as_secs_f64() * 1e3,
            met.heard.as_millis()
        ),
        Err(failure) => failure.to_string(),
    }
}

impl Findings {
    fn note(&mut self, trigger: Trigger, met: Result<Met, Failure>, backend: &Backend) {
        let met = match met {
            Ok(met) => met,
            // ^C is nobody's failure.
            Err(failure) if failure.cause == Cause::Stopped => return,
            Err(failure) => return self.failures.count(failure),
        };
        self.stops.entry(trigger).or_default().record(met.stop);
        match backend.played(&met.call) {
            Some(played) => {
                self.answers += 1;
                self.error = self.error.max(played.abs_diff(met.heard));
            }
            None => self.unreported += 1,
        }
    }

    fn report(self, options: &Options, version: String) -> anyhow::Result<Report> {
        let mut all = Latencies::default();
        self.stops.values().for_each(|stops| all.add(stops));
        let Some(all) = all.quantiles() else {
            let worst = self
                .failures
                .0
                .iter()
                .max_by_key(|(_, failed)| failed.count);
            let words = worst.map_or("it was stopped before".to_owned(), |(cause, failed)| {
                format!("{} ({})", cause.name(), failed.first)
            });
            bail!("no answer was interrupted: {words}");
        };
        let interrupted = self.answers + self.unreported + self.failures.total();
        let by = self.stops.iter();
        let by = by.filter_map(|(trigger, stops)| Some((*trigger, stops.quantiles()?)));
        Ok(Report {
            verb: "barge-in".to_owned(),
            complete: interrupted == u64::from(options.calls),
            machine: Machine::read(),
            begun_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |age| age.as_secs()),
            arguments: std::env::args().skip(1).collect(),
            seed: options.generator.seed,
            dialect: options.dialect,
            version,
            stop_p50_ms: all.p50 / 1e3,
            stop_p99_ms: all.p99 / 1e3,
            reported_error_ms: self.error.as_secs_f64() * 1e3,
            answers: self.answers,
            unreported: self.unreported,
            by: by.collect(),
            failures: self.failures,
        })
    }
}

/// The result as a person reads it.
pub fn render(report: &Report) -> String {
    let mut table = Table::new(["silent after, ms", "p50", "p90", "p99", "max", "answers"]);
    for (trigger, stops) in &report.by {
        let name = match trigger {
            Trigger::Speech => "  the caller's first word",
            Trigger::Clear => "  the client's clear",
        };
        let ms = |us: f64| format!("{:.1}", us / 1e3);
        table.row([
            name.to_owned(),
            ms(stops.p50),
            ms(stops.p90),
            ms(stops.p99),
            ms(stops.max),
            stops.count.to_string(),
        ]);
    }
    let mut text = table.render();
    for (cause, failed) in &report.failures.0 {
        text.push_str(&format!(
            "{} × {}: {}\n",
            failed.count,
            cause.name(),
            failed.first
        ));
    }
    let early = if report.complete {
        ""
    } else {
        " STOPPED EARLY."
    };
    text.push_str(&format!(
        "What was heard differs from what the edge reported by {:.1} ms at most; {} answers were \
         not reported. The link spoke {}.{early}\n",
        report.reported_error_ms,
        report.unreported,
        report.dialect.name(),
    ));
    text
}
