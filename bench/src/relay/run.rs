//! A run from command line to result: sets the targets up once, then plays the turns.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::value_parser;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::drive::{self, Driven};
use super::figures;
use super::memory;
use super::recipe::{self, Ground, Stand};
use super::report::{DelayUs, Report, Window, milliseconds, summarise};
use super::scenario::{Scenario, Turn, turns};
use super::target::Kind;
use crate::cpu::{MachineTicks, ProcessClock, TICKS_PER_SECOND};
use crate::live;
use crate::origin::Origin;
use crate::process::settings;
use crate::progress::Progress;
use crate::slo::{self, Objectives};

/// How long all clients together may take to get their flows.
const SETTLE_WITHIN: Duration = Duration::from_secs(15);

/// Tables are made for at least the default of the project's relay, whatever the clients.
const FLOW_COUNT_MIN: u32 = 28_672;

/// Measures relays: CPU time a delivered, verified datagram, and added delay.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Which targets, comma separated.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Kind::USUAL)]
    pub targets: Vec<Kind>,
    /// Which situations, comma separated.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Scenario::ALL)]
    pub scenarios: Vec<Scenario>,
    /// How often every target meets every situation.
    #[arg(long, default_value_t = 7, value_parser = value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Length of one window in milliseconds.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u64).range(50..=60_000))]
    pub window_ms: u64,
    /// How many clients, each with an address and a session of its own.
    #[arg(long, default_value_t = 2_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub clients: u32,
    /// Datagrams a second in the paced situations.
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u32).range(1..=2_000_000))]
    pub rate: u32,
    /// Datagrams laid before a held relay is released, or kept in flight where none is held.
    #[arg(long, default_value_t = 2_000, value_parser = value_parser!(u64).range(64..=8_000))]
    pub backlog: u64,
    /// What the order of turns and the clients' phases are drawn from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The core of the process under test.
    #[arg(long, default_value_t = 1)]
    pub relay_core: usize,
    /// The core of the generator and the sink.
    #[arg(long, default_value_t = 0)]
    pub generator_core: usize,
    /// Measures memory a flow with this many flows, too.
    #[arg(long, value_name = "FLOWS", value_parser = value_parser!(u32).range(2_000..=1_000_000))]
    pub flow_memory: Option<u32>,
    /// A summary file to put the main figures into.
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Where to write the result.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Objectives, as 'to_transceiver_saturated_vs_go>4,loss<0.1%'; a run that misses one ends with
    /// status 3 (--help names the figures).
    #[arg(long, value_name = "OBJECTIVES", long_help = slo_help())]
    pub slo: Option<Objectives>,
    /// Shows the run to Prometheus while it goes, as 127.0.0.1:9470.
    #[arg(long, value_name = "ADDRESS")]
    pub prometheus: Option<SocketAddr>,
    /// Where to draw the result.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// The project's relay [default: beside this program]
    #[arg(long, value_name = "PROGRAM")]
    pub syrinx_relay: Option<PathBuf>,
    /// Another build of the project's relay, for the target `baseline`.
    #[arg(long, value_name = "PROGRAM", default_value = "syrinx-relay")]
    pub baseline: PathBuf,
    /// A configuration key of the project's relay, as `workers.coalesce_us=0`; repeatable.
    #[arg(long = "relay-set", value_name = "KEY=VALUE", value_parser = settings::parse)]
    pub relay_settings: Vec<(String, String)>,
    /// The Go relay's program [default: bench/peers/go-relay under the build folder]
    #[arg(long, value_name = "PROGRAM")]
    pub go_relay: Option<PathBuf>,
    /// coturn's program.
    #[arg(long, value_name = "PROGRAM", default_value = "turnserver")]
    pub coturn: PathBuf,
}

fn slo_help() -> String {
    let example = "to_transceiver_saturated_vs_go>4,loss<0.1%";
    slo::help(example, &figures::definitions())
}

/// Plays all turns, or as many as fit before `stop` is set.
///
/// # Errors
/// When a target cannot be set up or ends on its own, with what to do about it.
pub fn run(options: &Options, stop: &AtomicBool) -> anyhow::Result<Report> {
    if options.relay_core == options.generator_core {
        bail!(
            "relay and generator share core {}: give them one each",
            options.relay_core
        );
    }
    if let Some(objectives) = &options.slo {
        objectives.check(&figures::definitions())?;
    }
    if let Some(address) = options.prometheus {
        live::serve(address)?;
    }
    let ground = ground(options)?;
    let folder = tempfile::tempdir().context("no folder for the targets' files")?;
    let mut report = begin(options, &ground);
    pin(options.generator_core)?;
    let mut stands = BTreeMap::new();
    for kind in &options.targets {
        let stand = recipe::set_up(*kind, &ground, folder.path())?;
        stands.insert(*kind, stand);
    }
    let plan = turns(
        &options.targets,
        &options.scenarios,
        options.rounds,
        options.seed,
    );
    let mut progress = Progress::new(plan.len());
    for turn in &plan {
        let Some(stand) = stands.get_mut(&turn.kind) else {
            continue;
        };
        let window = play(turn, stand, options)
            .with_context(|| format!("{} in {}", turn.kind.name(), turn.scenario.name()))?;
        progress.step(&describe(&window));
        live::show_window(&window);
        report.windows.push(window);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    progress.end();
    drop(stands);
    report.origin.complete = report.windows.len() == plan.len();
    for (kind, flow_count) in flow_tables(options) {
        if stop.load(Ordering::Relaxed) {
            report.origin.complete = false;
            break;
        }
        let memory = memory::measure(kind, &ground, flow_count, folder.path())?;
        live::show_flow_memory(&memory);
        report.flow_memory.push(memory);
    }
    report.summary = summarise(&report.windows);
    if let Some((objectives, target)) = options.slo.as_ref().zip(options.targets.first()) {
        report.slo = objectives.judge(&figures::of(&report, *target))?;
    }
    Ok(report)
}

/// The targets whose memory a flow is measured, and with how many flows.
fn flow_tables(options: &Options) -> impl Iterator<Item = (Kind, u32)> {
    let kinds = options.targets.iter().filter(|kind| kind.has_flow_table());
    kinds.filter_map(|kind| Some((*kind, options.flow_memory?)))
}

fn begin(options: &Options, ground: &Ground) -> Report {
    let versions = options.targets.iter().map(|kind| {
        let version = recipe::version(*kind, ground);
        (
            *kind,
            version.unwrap_or_else(|error| format!("unknown ({error})")),
        )
    });
    Report {
        origin: Origin::begun("relay", options.seed),
        client_count: options.clients,
        rate_pps: options.rate,
        backlog: options.backlog,
        versions: versions.collect(),
        windows: Vec::new(),
        flow_memory: Vec::new(),
        summary: Vec::new(),
        slo: Vec::new(),
    }
}

/// Has the clients confirm their flows, then drives one window.
fn play(turn: &Turn, stand: &mut Stand, options: &Options) -> anyhow::Result<Window> {
    let Stand { target, rig } = stand;
    let missing = rig.settle(SETTLE_WITHIN)?;
    target.check()?;
    if missing > 0 {
        bail!(
            "{missing} of {} clients got no flow within {SETTLE_WITHIN:?}",
            options.clients
        );
    }
    rig.open_window();
    let own = ProcessClock::of(std::process::id())?;
    let (ticks, own_before) = (MachineTicks::read(None)?, own.read()?);
    let length = Duration::from_millis(options.window_ms);
    let direction = turn.scenario.direction();
    let driven = match turn.scenario.rate_pps(options.rate) {
        None => drive::saturated(
            rig,
            target,
            direction,
            turn.kind.backlog(options.backlog),
            length,
        )?,
        Some(rate_pps) => {
            let seed = options.seed ^ u64::from(turn.round);
            drive::paced(rig, target, direction, rate_pps, length, seed)?
        }
    };
    let ticks = MachineTicks::read(None)?.since(&ticks);
    let known = driven.cpu + (own.read()? - own_before);
    let mut window = window(turn, &driven, stand);
    (window.foreign_share, window.stolen_share) = shares(&ticks, known);
    Ok(window)
}

fn window(turn: &Turn, driven: &Driven, stand: &Stand) -> Window {
    let (up, down) = stand.rig.fates();
    let paced = driven.hold_count == 0 && !driven.lateness.is_empty();
    let (delay_up, delay_down) = stand.rig.delays();
    let mut delay = delay_up.clone();
    delay
        .add(delay_down)
        .expect("invariant: all delay histograms have the same bounds");
    Window {
        kind: turn.kind,
        scenario: turn.scenario,
        round: turn.round,
        up,
        down,
        wall_ms: milliseconds(driven.wall),
        cpu_ms: milliseconds(driven.cpu),
        delay: DelayUs::of(&delay).filter(|_| paced),
        lateness: DelayUs::of(&driven.lateness),
        foreign_share: 0.0,
        stolen_share: 0.0,
        hold_count: driven.hold_count,
        resident_kib: stand.target.resident_kib(),
    }
}

/// The parts of the machine that others and the hypervisor used.
fn shares(ticks: &MachineTicks, known: Duration) -> (f64, f64) {
    let total = (ticks.busy + ticks.idle + ticks.stolen) as f64;
    if total == 0.0 {
        return (0.0, 0.0);
    }
    let known_ticks = known.as_secs_f64() * TICKS_PER_SECOND as f64;
    (
        (ticks.busy as f64 - known_ticks).max(0.0) / total,
        ticks.stolen as f64 / total,
    )
}

fn describe(window: &Window) -> String {
    let cost = window
        .cpu_ns_each()
        .map_or("-".to_owned(), |cost| format!("{cost:.0} ns"));
    let lost = window.fates().lost();
    let (kind, scenario) = (window.kind.name(), window.scenario.name());
    format!(
        "{kind} {scenario}: {cost}, {:.0} kpps, {lost} lost",
        window.delivered_kpps()
    )
}

/// Programs that were not named are looked for where the build puts them: the relay beside this
/// program, the peers in `bench/peers` beside its folder.
fn ground(options: &Options) -> anyhow::Result<Ground> {
    let own = std::env::current_exe().context("cannot tell where this program lies")?;
    let folder = own.parent().context("this program lies at the root")?;
    let build = folder.parent().context("this program lies at the root")?;
    let or = |named: &Option<PathBuf>, usual: PathBuf| named.clone().unwrap_or(usual);
    Ok(Ground {
        client_count: options.clients,
        flow_count: FLOW_COUNT_MIN.max(options.clients * 2),
        relay_core: options.relay_core,
        syrinx_relay: or(&options.syrinx_relay, folder.join("syrinx-relay")),
        baseline: options.baseline.clone(),
        relay_settings: options.relay_settings.clone(),
        go_relay: or(&options.go_relay, build.join("bench/peers/go-relay")),
        coturn: options.coturn.clone(),
    })
}

fn pin(core: usize) -> anyhow::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core).with_context(|| format!("no core {core}"))?;
    sched_setaffinity(Pid::from_raw(0), &cores)
        .with_context(|| format!("core {core} is not ours to run on: see --generator-core"))
}
