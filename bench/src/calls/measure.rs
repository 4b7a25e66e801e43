//! What all verbs that make calls have in common: their options, and one round against one target.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::value_parser;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::barge_in;
use super::burst::Bursts;
use super::client::Kit;
use super::engine::{self, Drive, Incident};
use super::figures;
use super::limits;
use super::report::{Load, Report, Run};
use super::schedule::{Arrivals, Planned, Starts};
use super::signalling::Expected;
use super::sources::Sources;
use super::stand::{Kind, Need, Servers, Stand};
use super::terms::Sound;
use super::voice::Speech;
use super::watch::Observer;
use crate::live;
use crate::origin::Origin;
use crate::progress::Progress;
use crate::slo::{self, Objectives};

/// Options of the generator itself, the same for every verb.
#[derive(Clone, Debug, clap::Args)]
pub struct Generator {
    /// The servers.
    #[command(flatten)]
    pub servers: Servers,
    /// How often each target meets the load.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// What schedule and speech are drawn from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How starts follow each other.
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson)]
    pub arrivals: Arrivals,
    /// The rhythm in which clients speak.
    #[arg(long, value_enum, default_value_t = Speech::Continuous)]
    pub speech: Speech,
    /// Clients offer no data channel, and wait for none.
    #[arg(long)]
    pub no_channel: bool,
    /// Clients offer a data channel, and do not wait for `session.created` on it.
    #[arg(long)]
    pub no_session: bool,
    /// Seconds from its intended start until a call must be established.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub set_up_timeout_s: f64,
    /// The network of this machine's addresses that clients have.
    #[arg(long, default_value_t = Sources::LOOPBACK)]
    pub sources: Sources,
    /// Cores of the generator, comma separated: a media thread on each [default: 0]
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// How many calls signalling opens at once.
    #[arg(long, default_value_t = 32, value_parser = value_parser!(u16).range(1..=1_024))]
    pub diallers: u16,
    /// Where to write the result.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// A summary file to put the main figures into; calls, setup, capacity and recovery have some.
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Objectives, as 'setup_p99<300ms,loss<0.1%'; a run that misses one ends with status 3 (--help
    /// names the figures).
    #[arg(long, value_name = "OBJECTIVES", long_help = slo_help())]
    pub slo: Option<Objectives>,
    /// Shows the run to Prometheus while it goes, as 127.0.0.1:9470.
    #[arg(long, value_name = "ADDRESS")]
    pub prometheus: Option<SocketAddr>,
}

fn slo_help() -> String {
    let mut calls = slo::help("setup_p99<300ms,loss<0.1%", &figures::all_definitions());
    calls.push_str("\nThose of barge-in, which has no others:\n");
    calls.push_str(&slo::list(&barge_in::report::definitions()));
    calls
}

impl Generator {
    /// What a server for at most `calls` calls at once must do.
    pub fn need(&self, calls: u32) -> Need {
        Need {
            calls,
            expected: Expected {
                channel: !self.no_channel,
                session: !self.no_channel && !self.no_session,
            },
            http_timeout: Duration::from_secs_f64(self.set_up_timeout_s),
            diallers: usize::from(self.diallers),
            backend: None,
            backend_core: self.cores.first().copied().unwrap_or(0),
            seed: self.seed,
        }
    }
}

/// A length of time on the command line, in whatever unit its option has.
///
/// # Errors
/// When it is no number, or none that a clock can count.
pub fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| format!("{text} is no length of time"))?;
    if (0.0..=1e6).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{text} is not between 0 and 1,000,000"))
    }
}

/// A rate on the command line, in starts a second.
///
/// # Errors
/// When it is no number, or none that makes sense.
pub fn rate(text: &str) -> Result<f64, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| format!("{text} is no number of starts"))?;
    if (0.01..=100_000.0).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{text} a second is not between 0.01 and 100,000"))
    }
}

/// One load, ready to meet targets.
pub struct Measurement<'a> {
    options: &'a Generator,
    kit: Kit,
    everywhere: CpuSet,
    stop: &'a AtomicBool,
    /// What has been measured so far.
    pub report: Report,
}

/// Which round, and against what.
pub type Turn = (u32, Kind);

/// What one round does.
pub struct Round<'a> {
    /// The calls.
    pub plan: &'a [Planned],
    /// Which intended sends are measured.
    pub window: Range<Duration>,
    /// What is done in the middle.
    pub incident: Option<Incident<'a>>,
}

impl<'a> Measurement<'a> {
    /// Looks whether the machine can carry `plan`, and makes what the clients share.
    ///
    /// # Errors
    /// When the machine's limits are too low, or the crypto library lacks something.
    pub fn new(
        verb: &str,
        options: &'a Generator,
        load: Load,
        stop: &'a AtomicBool,
    ) -> anyhow::Result<Self> {
        if let Some(objectives) = &options.slo {
            objectives.check(&figures::definitions(verb))?;
        }
        check_bursts(verb, options)?;
        if let Some(address) = options.prometheus {
            live::serve(address)?;
        }
        Ok(Self {
            options,
            kit: Kit::new(!options.no_channel)?,
            everywhere: sched_getaffinity(Pid::from_raw(0)).context("cannot read the affinity")?,
            stop,
            report: Report {
                origin: Origin::begun(verb, options.seed),
                load,
                versions: BTreeMap::new(),
                network: options.servers.impair.as_ref().map(ToString::to_string),
                runs: Vec::new(),
                capacity: BTreeMap::new(),
                slo: Vec::new(),
            },
        })
    }

    /// Every target once a round, next to each other, and the rounds after each other.
    pub fn turns(&self) -> Vec<Turn> {
        let rounds = 0..self.options.rounds;
        let targets = &self.options.servers.targets;
        rounds
            .flat_map(|round| targets.iter().map(move |kind| (round, *kind)))
            .collect()
    }

    /// Has `play` play every turn, until all are over or ^C comes: it gives the run, and what to
    /// say of it.
    ///
    /// # Errors
    /// When a turn cannot be played, and as [`Measurement::finish`].
    pub fn play_turns(
        mut self,
        mut play: impl FnMut(&mut Self, Turn, &mut Progress) -> anyhow::Result<(Run, String)>,
    ) -> anyhow::Result<Report> {
        let turns = self.turns();
        let mut progress = Progress::new(turns.len());
        for turn in &turns {
            let (run, words) = play(&mut self, *turn, &mut progress)?;
            progress.step(&words);
            self.report.runs.push(run);
            if self.is_stopped() {
                break;
            }
        }
        progress.end();
        self.finish(turns.len())
    }

    /// Whether ^C has come.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A fresh server for at most `calls` calls at once.
    ///
    /// # Errors
    /// When it cannot be started, or the machine has no room for so many clients.
    pub fn stand(&mut self, kind: Kind, calls: u32) -> anyhow::Result<Stand> {
        let options = self.options;
        limits::make_room(calls, usize::from(options.diallers))?;
        // A server started here takes over the affinity of this thread.
        pin(&self.everywhere)?;
        let stand = options.servers.set_up(kind, &options.need(calls));
        let stand = stand.with_context(|| format!("{} does not run", kind.name()))?;
        self.report.versions.insert(kind, stand.version.clone());
        Ok(stand)
    }

    /// Plays one round against `stand`, on the generator's cores.
    ///
    /// # Errors
    /// When the generator cannot work, or what is done in the middle fails.
    pub fn play(
        &self,
        (number, kind): Turn,
        stand: &Stand,
        round: Round<'_>,
        progress: &mut Progress,
    ) -> anyhow::Result<Run> {
        let cores = self.cores()?;
        let drive = Drive {
            plan: round.plan,
            signalling: &*stand.signalling,
            kit: &self.kit,
            speech: self.options.speech,
            sound: sound(kind)?,
            sources: stand.sources().unwrap_or(self.options.sources),
            window: round.window.clone(),
            set_up_timeout: Duration::from_secs_f64(self.options.set_up_timeout_s),
            cores: &cores,
            threads: cores.len(),
            diallers: usize::from(self.options.diallers),
        };
        let window = round.window.clone();
        let label = kind.name().to_owned();
        let mut observer = Observer::new(&stand.processes, round.window, progress, label);
        let incident = round.incident.map(|incident| self.anywhere(incident));
        let driven = engine::run(&drive, incident, self.stop, &mut observer)?;
        let length = window.end - window.start;
        let mut run = Run::of(kind, number, &driven, cores.len(), length);
        let call_s = driven.tally.call_time.as_secs_f64();
        run.processes = observer.costs(call_s, driven.tally.calls.started);
        run.series = observer.into_series();
        Ok(run)
    }

    /// Has the incident act on any core: what it starts must not be bound to the generator's.
    fn anywhere<'b>(&self, incident: Incident<'b>) -> Incident<'b> {
        let (everywhere, act) = (self.everywhere, incident.act);
        Incident {
            act: Box::new(move || {
                pin(&everywhere)?;
                act()
            }),
            ..incident
        }
    }

    /// The generator's cores; this thread, and those it starts, go there.
    fn cores(&self) -> anyhow::Result<Vec<usize>> {
        let cores = if self.options.cores.is_empty() {
            vec![0]
        } else {
            self.options.cores.clone()
        };
        let mut set = CpuSet::new();
        for core in &cores {
            set.set(*core)
                .with_context(|| format!("--cores: no core {core}"))?;
        }
        pin(&set).with_context(|| format!("--cores: {cores:?} are not all ours to run on"))?;
        Ok(cores)
    }

    /// The report, once all turns are over; an error instead when no call came about at all.
    ///
    /// # Errors
    /// With the most frequent cause, when nothing was measured.
    pub fn finish(mut self, turn_count: usize) -> anyhow::Result<Report> {
        let runs = &self.report.runs;
        self.report.origin.complete =
            runs.len() == turn_count && runs.iter().all(|run| run.complete);
        let nothing = runs.iter().all(|run| run.calls.established == 0);
        let failures = runs.iter().flat_map(|run| &run.failures.0);
        let worst = failures.max_by_key(|(_, occurrences)| occurrences.count);
        if let Some((cause, occurrences)) = worst.filter(|_| nothing) {
            let target = &self.options.servers.url;
            let target = target.as_deref().unwrap_or("the server started here");
            bail!(
                "no call came about at {target}: {} ({}, {} times)",
                cause.name(),
                occurrences.first,
                occurrences.count
            );
        }
        let first = self.options.servers.targets.first();
        if let Some((objectives, target)) = self.options.slo.as_ref().zip(first) {
            self.report.slo = objectives.judge(&figures::of(&self.report, *target))?;
        }
        Ok(self.report)
    }
}

/// Bursts, which take the place of packets where payloads do not survive, are a second apart: too
/// far for what an incident or a search looks at.
fn check_bursts(verb: &str, options: &Generator) -> anyhow::Result<()> {
    let mut targets = options.servers.targets.iter();
    let Some(kind) = targets.find(|kind| !kind.keeps_payloads()) else {
        return Ok(());
    };
    let name = kind.name();
    if !["calls", "setup"].contains(&verb) {
        bail!("{name} is for calls and setup: {verb} counts packets, and media-v1 has them");
    }
    if options.speech != Speech::Continuous {
        bail!("{name} decodes what clients say, who say bursts: use --speech continuous");
    }
    Ok(())
}

/// What clients of this kind of server say.
fn sound(kind: Kind) -> anyhow::Result<Sound> {
    Ok(if kind.keeps_payloads() {
        Sound::Stamped {
            marked: kind.marks(),
        }
    } else {
        Sound::Bursts(Bursts::new()?)
    })
}

fn pin(cores: &CpuSet) -> nix::Result<()> {
    sched_setaffinity(Pid::from_raw(0), cores)
}

/// Most calls of a plan that are up at once, those that linger and set up included.
pub fn most_at_once(plan: &[Planned], margin: Duration) -> u32 {
    let starts = plan.iter().map(|call| (call.start, 1));
    let ends = plan.iter().map(|call| (call.end + margin, -1));
    let mut changes: Vec<(Duration, i64)> = starts.chain(ends).collect();
    changes.sort_unstable();
    let (mut now, mut most) = (0_i64, 0_i64);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// A load in words for the report.
pub fn load(options: &Generator, starts: &Starts, hold: Option<f64>, window: Option<f64>) -> Load {
    Load {
        calls: starts.count,
        rate: starts.rate,
        ramp_s: starts.ramp.as_secs_f64(),
        arrivals: starts.arrivals,
        hold_s: hold,
        window_s: window,
        speech: options.speech,
        channel: !options.no_channel,
        set_up_timeout_s: options.set_up_timeout_s,
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::{Hold, plan};
    use super::*;

    #[test]
    fn counts_the_calls_that_overlap() {
        let starts = Starts {
            count: 100,
            rate: 10.0,
            ramp: Duration::ZERO,
            arrivals: Arrivals::Fixed,
        };
        let second = Duration::from_secs(1);
        let short = plan(&starts, Hold::Each(second * 2), 1);
        assert_eq!(most_at_once(&short, Duration::ZERO), 20);
        assert_eq!(most_at_once(&short, second), 30);
        let all = plan(&starts, Hold::Until(second), 1);
        assert_eq!(most_at_once(&all, second), 100);
    }

    #[test]
    fn refuses_times_and_rates_that_are_none() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert_eq!(rate("50"), Ok(50.0));
        for wrong in ["-1", "x", "NaN", "1e9"] {
            assert!(seconds(wrong).is_err() && rate(wrong).is_err(), "{wrong}");
        }
        assert!(rate("0").is_err());
    }
}
