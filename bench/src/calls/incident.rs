//! `roam`, `recovery` and `storm`: something happens in the middle of calls, and what it does to
//! them is measured.
//!
//! Speech is continuous here whatever was asked for: a pause of the speaker would hide how long
//! nothing could be heard.

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::value_parser;

use super::engine;
use super::measure::{self, Measurement, Round, rate, seconds};
use super::report::{Report, Run};
use super::schedule::{Ending, Hold, Move, Planned, Starts, plan};
use super::voice::Speech;
use crate::process::Daemon;
use crate::process::edge::Edge;

/// Measured before the incident: long enough for packets that it catches on their way.
const BEFORE: Duration = Duration::from_secs(1);

/// The calls to which something happens.
#[derive(Clone, Debug, clap::Args)]
pub struct Crowd {
    /// How many calls.
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub calls: u32,
    /// How many start a second.
    #[arg(long, default_value_t = 50.0, value_parser = rate)]
    pub rate: f64,
    /// Seconds from the last start to the incident.
    #[arg(long, default_value_t = 4.0, value_parser = seconds)]
    pub settle_s: f64,
    /// Seconds that are measured from the incident on.
    #[arg(long, default_value_t = 15.0, value_parser = seconds)]
    pub observe_s: f64,
    /// The generator.
    #[command(flatten)]
    pub generator: measure::Generator,
}

/// Clients change their address, each at a moment of its own.
#[derive(Clone, Debug, clap::Args)]
pub struct RoamOptions {
    /// The calls.
    #[command(flatten)]
    pub crowd: Crowd,
    /// Seconds over which the changes are spread.
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub spread_s: f64,
    /// The clients do not know: it is a NAT on their way that forgets them.
    #[arg(long)]
    pub nat: bool,
}

/// A command is run, or the relay started here is ended and started again.
#[derive(Clone, Debug, clap::Args)]
pub struct RecoveryOptions {
    /// The calls.
    #[command(flatten)]
    pub crowd: Crowd,
    /// The command, for a shell; its failure is the measurement's [default: the relay started here
    /// is restarted]
    #[arg(long, value_name = "COMMAND")]
    pub command: Option<String>,
    /// How the relay ends: by SIGTERM, as `systemctl restart` does, or by SIGKILL, as in a crash.
    #[arg(long, value_enum, default_value_t = How::Restart, conflicts_with = "command")]
    pub how: How,
}

/// All clients are gone at once, and as many call again within a short time.
#[derive(Clone, Debug, clap::Args)]
pub struct StormOptions {
    /// The calls.
    #[command(flatten)]
    pub crowd: Crowd,
    /// Seconds in which all call again.
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub within_s: f64,
}

/// How a relay ends before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum How {
    /// SIGTERM, and as soon as it is gone a start.
    Restart,
    /// SIGKILL, and a start 100 ms later, as its unit has it.
    Crash,
}

/// What is done to the server of a turn; it gets the pair that was started here, if one was.
type Act<'a> = &'a (dyn Fn(Option<&mut Edge>) -> anyhow::Result<()> + Sync);

impl Crowd {
    fn starts(&self) -> Starts {
        Starts {
            count: self.calls,
            rate: self.rate,
            ramp: Duration::ZERO,
            arrivals: self.generator.arrivals,
        }
    }

    /// The calls, which last until the observation ends, and when the incident is.
    fn plan(&self) -> (Vec<Planned>, Duration) {
        let settle = Duration::from_secs_f64(self.settle_s).max(BEFORE);
        let observe = Duration::from_secs_f64(self.observe_s);
        let plan = plan(
            &self.starts(),
            Hold::Until(settle + observe),
            self.generator.seed,
        );
        let last = plan.last().map_or(Duration::ZERO, |call| call.start);
        (plan, last + settle)
    }

    fn measurement<'a>(
        &self,
        verb: &str,
        generator: &'a measure::Generator,
        stop: &'a AtomicBool,
    ) -> anyhow::Result<Measurement<'a>> {
        let load = measure::load(generator, &self.starts(), None, Some(self.observe_s));
        Measurement::new(verb, generator, load, stop)
    }

    /// Plays all turns; `act` gives what is done to each one's server, and `what` names it.
    fn play(
        &self,
        verb: &str,
        stop: &AtomicBool,
        (plan, at): (&[Planned], Duration),
        what: &str,
        act: Act<'_>,
    ) -> anyhow::Result<Report> {
        let generator = measure::Generator {
            speech: Speech::Continuous,
            ..self.generator.clone()
        };
        let end = plan.iter().map(|call| call.end).max().unwrap_or_default();
        let measurement = self.measurement(verb, &generator, stop)?;
        measurement.play_turns(|measurement, turn, progress| {
            let mut stand = measurement.stand(turn.1, plan.len() as u32)?;
            // The act has the pair to itself; what is measured through stays with the stand.
            let mut edge = stand.edge.take();
            let incident = engine::Incident {
                at,
                what: what.to_owned(),
                act: Box::new(|| act(edge.as_mut())),
            };
            let round = Round {
                plan,
                window: at.saturating_sub(BEFORE)..end,
                incident: Some(incident),
            };
            let run = measurement.play(turn, &stand, round, progress)?;
            let words = describe(&run);
            Ok((run, words))
        })
    }
}

/// `roam`.
///
/// # Errors
/// When a server cannot be set up, this machine has no room, or no call comes about.
pub fn roam(options: &RoamOptions, stop: &AtomicBool) -> anyhow::Result<Report> {
    let crowd = &options.crowd;
    let (mut plan, at) = crowd.plan();
    let mut random = fastrand::Rng::with_seed(crowd.generator.seed.rotate_left(32));
    for call in &mut plan {
        let moment = Duration::from_secs_f64(random.f64() * options.spread_s);
        call.moves = Some(Move {
            at: (at + moment).min(call.end),
            known: !options.nat,
        });
    }
    let what = if options.nat {
        "every client got another address from its NAT"
    } else {
        "every client changed its address"
    };
    crowd.play("roam", stop, (&plan, at), what, &|_| Ok(()))
}

/// `recovery`.
///
/// # Errors
/// As [`roam`], and when the command fails or the relay does not come back.
pub fn recovery(options: &RecoveryOptions, stop: &AtomicBool) -> anyhow::Result<Report> {
    let crowd = &options.crowd;
    let (plan, at) = crowd.plan();
    if options.command.is_none() && crowd.generator.servers.url.is_some() {
        bail!("the server at --url was not started here: say with --command what to do to it");
    }
    let (what, how) = match (&options.command, options.how) {
        (Some(command), _) => (format!("`{command}`"), options.how),
        (None, How::Restart) => ("the relay was restarted".to_owned(), How::Restart),
        (None, How::Crash) => ("the relay crashed".to_owned(), How::Crash),
    };
    crowd.play(
        "recovery",
        stop,
        (&plan, at),
        &what,
        &|edge| match (&options.command, edge) {
            (Some(command), _) => shell(command),
            (None, Some(edge)) => Ok(restart(&mut edge.relay, how)?),
            (None, None) => bail!("there is no relay that was started here: use --command"),
        },
    )
}

/// `storm`.
///
/// # Errors
/// As [`roam`].
pub fn storm(options: &StormOptions, stop: &AtomicBool) -> anyhow::Result<Report> {
    let crowd = &options.crowd;
    let (mut plan, at) = crowd.plan();
    let end = plan.iter().map(|call| call.end).max().unwrap_or_default();
    let again = Starts {
        rate: f64::from(crowd.calls) / options.within_s.max(0.001),
        ..crowd.starts()
    };
    let mut again = super::schedule::plan(&again, Hold::Each(end), !crowd.generator.seed);
    for call in &mut plan {
        (call.end, call.ending, call.counts) = (at, Ending::Vanishing, false);
    }
    for call in &mut again {
        call.id += crowd.calls;
        (call.start, call.end) = (call.start + at, end);
    }
    plan.append(&mut again);
    let what = "all clients vanished and called again";
    crowd.play("storm", stop, (&plan, at), what, &|_| Ok(()))
}

fn restart(relay: &mut Daemon, how: How) -> Result<(), crate::process::ProcessError> {
    match how {
        How::Restart => {
            relay.stop()?;
            relay.start_again()
        }
        How::Crash => {
            relay.kill();
            relay.restart()
        }
    }
}

/// Runs a command, its output on ours.
fn shell(command: &str) -> anyhow::Result<()> {
    let status = Command::new("sh").args(["-c", command]).status();
    let status = status.context("cannot run a shell")?;
    if !status.success() {
        bail!("`{command}` failed: {status}");
    }
    Ok(())
}

fn describe(run: &Run) -> String {
    let known = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.0} ms"));
    let incident = run.incident.as_ref();
    format!(
        "{}: {} packets and {} calls lost, nothing heard for {}, settled after {}",
        run.target.name(),
        run.media.lost,
        run.calls.lost,
        known(incident.and_then(|incident| incident.blackout_ms)),
        known(incident.and_then(|incident| incident.settled_ms)),
    )
}
