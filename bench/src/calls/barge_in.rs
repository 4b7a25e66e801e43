//! `barge-in`: how soon an answer falls silent when the caller interrupts it, and whether the edge
//! knows how much of it was played.
//!
//! The answer comes from a backend of this program, which interrupts itself at once: time counts
//! from the caller's first packet of speech, or from his client's clear, to the last packet of the
//! answer that reaches him. What he heard is compared with what the edge told the backend.

mod backend;
mod caller;
pub mod report;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use clap::value_parser;

use self::backend::Backend;
pub use self::caller::Trigger;
use self::caller::{Ground, Met};
use self::report::{Report, Run};
use super::burst::Bursts;
use super::client::Kit;
use super::engine::HOPELESS;
use super::failure::{Cause, Failure};
use super::latency::Latencies;
use super::measure;
use super::schedule::{Arrivals, call_seed};
use super::stand::{Kind, Need};
use super::voice::Speech;
use crate::live;
use crate::origin::Origin;
use crate::process::edge::Dialect;
use crate::progress::Progress;

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

/// What the callers have met so far.
#[derive(Default)]
struct Findings {
    /// Counts and failures; times are drawn from the histograms in the end.
    run: Run,
    all: Latencies,
    stops: BTreeMap<Trigger, Latencies>,
}

/// `barge-in`.
///
/// # Errors
/// When the server cannot be set up, or no answer was interrupted.
pub fn run(options: &Options, stop: &AtomicBool) -> anyhow::Result<Report> {
    check(options)?;
    let generator = &options.generator;
    if let Some(address) = generator.prometheus {
        live::serve(address)?;
    }
    let mut report = begin(options);
    let (kit, bursts) = (Kit::new(true)?, Bursts::new()?);
    let mut progress = Progress::new((options.calls * generator.rounds) as usize);
    for round in 0..generator.rounds {
        let run = play(options, round, (&kit, &bursts), stop, &mut progress);
        let (run, version) = run?;
        report.runs.push(run);
        report.version = version;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    progress.end();
    finish(report, options)
}

/// What can be known to be wrong before anything starts.
fn check(options: &Options) -> anyhow::Result<()> {
    let generator = &options.generator;
    if generator.servers.targets != [Kind::Syrinx] {
        bail!("barge-in is for syrinx: an echo has no answer to interrupt");
    }
    let usual = generator.speech == Speech::Continuous && generator.arrivals == Arrivals::Poisson;
    if generator.no_channel || generator.no_session || !usual {
        bail!(
            "--no-channel, --no-session, --speech and --arrivals are not for barge-in: its callers \
             clear on the channel, speak when they interrupt, and call one after the other"
        );
    }
    if let Some(objectives) = &generator.slo {
        objectives.check(&report::definitions())?;
    }
    Ok(())
}

fn begin(options: &Options) -> Report {
    Report {
        origin: Origin::begun(report::VERB, options.generator.seed),
        dialect: options.dialect,
        version: String::new(),
        calls: options.calls,
        at_once: options.at_once,
        runs: Vec::new(),
        slo: Vec::new(),
    }
}

/// One round against a server of its own; gives the server's version, too.
fn play(
    options: &Options,
    round: u32,
    (kit, bursts): (&Kit, &Bursts),
    stop: &AtomicBool,
    progress: &mut Progress,
) -> anyhow::Result<(Run, String)> {
    let generator = &options.generator;
    let backend = Backend::start(options.backend_listen, options.dialect)?;
    let need = Need {
        backend: Some(backend.at()),
        ..generator.need(u32::from(options.at_once))
    };
    let stand = generator.servers.set_up(Kind::Syrinx, &need)?;
    let ground = Ground {
        kit,
        signalling: &*stand.signalling,
        dialect: options.dialect,
        bursts,
        sources: generator.sources,
        stop,
    };
    let found = Mutex::new((Findings::default(), progress));
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
                    let seed = generator.seed.wrapping_add(u64::from(round));
                    let mut random = fastrand::Rng::with_seed(call_seed(seed, id));
                    let listen = LISTEN_MIN + LISTEN_SPAN.mul_f64(random.f64());
                    let met = caller::call(&ground, id, trigger, listen);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    let (findings, progress) = &mut *found;
                    progress.step(&describe(&met));
                    findings.note(trigger, met, &backend);
                    live::show_answers(findings.run.answers, &findings.run.failures, &findings.all);
                    if findings.are_hopeless() {
                        next.store(options.calls, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (findings, _) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((findings.run(), stand.version))
}

/// The report of all rounds, judged; an error instead when no answer was interrupted at all.
fn finish(mut report: Report, options: &Options) -> anyhow::Result<Report> {
    let generator = &options.generator;
    let runs = &report.runs;
    if runs.iter().all(|run| run.stop.is_none()) {
        let failures = runs.iter().flat_map(|run| &run.failures.0);
        let worst = failures.max_by_key(|(_, failed)| failed.count);
        let words = worst.map_or("it was stopped before".to_owned(), |(cause, failed)| {
            format!("{} ({})", cause.name(), failed.first)
        });
        bail!("no answer was interrupted: {words}");
    }
    let whole = |run: &Run| run.calls() == u64::from(options.calls);
    report.origin.complete = runs.len() == generator.rounds as usize && runs.iter().all(whole);
    if let Some(objectives) = &generator.slo {
        report.slo = objectives.judge(&report::figures(&report))?;
    }
    Ok(report)
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
            Err(failure) => return self.run.failures.count(failure),
        };
        self.all.record(met.stop);
        self.stops.entry(trigger).or_default().record(met.stop);
        match backend.played(&met.call) {
            Some(played) => {
                self.run.answers += 1;
                let error_us = played.abs_diff(met.heard).as_secs_f64() * 1e6;
                let worst_us = self.run.reported_error_us.get_or_insert(0.0);
                *worst_us = worst_us.max(error_us);
            }
            None => self.run.unreported += 1,
        }
    }

    /// Whether every call so far has failed, and they were many.
    fn are_hopeless(&self) -> bool {
        self.all.count() == 0 && self.run.failures.total() >= HOPELESS
    }

    fn run(self) -> Run {
        let by = self.stops.iter();
        let by = by.filter_map(|(trigger, stops)| Some((*trigger, stops.quantiles()?)));
        Run {
            stop: self.all.quantiles(),
            by: by.collect(),
            ..self.run
        }
    }
}
