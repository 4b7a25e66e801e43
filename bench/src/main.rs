//! The command line of the load generator.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use clap::{Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use syrinx_bench::process::edge::Dialect;
use syrinx_bench::{calls, compare, impair, page, relay, result_file, slo};

/// Load generator and yardstick of the Syrinx WebRTC edge.
///
/// Ends with status 0 when all went well, 1 when a measurement failed, 2 when the command line was
/// wrong, and 3 when an objective of --slo was missed.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Measure relays packet by packet, ours and its rivals, in interleaved runs.
    Relay(Box<relay::run::Options>),
    /// Measure calls that are up at the same time: sound, CPU and memory, by real WebRTC clients.
    Calls(Box<calls::load::CallsOptions>),
    /// Measure what a call's start takes, phase by phase.
    Setup(Box<calls::load::SetUpOptions>),
    /// Find how many starts a second, or calls at once, one core of the server carries.
    Capacity(Box<calls::capacity::Options>),
    /// Measure what becomes of calls whose clients change address.
    Roam(Box<calls::incident::RoamOptions>),
    /// Measure what becomes of calls while the relay restarts, or a command is run.
    Recovery(Box<calls::incident::RecoveryOptions>),
    /// Measure how long it takes when all clients vanish and call again within a second.
    Storm(Box<calls::incident::StormOptions>),
    /// Watch whether memory, descriptors and round trips grow with the calls that a server served.
    Soak(Box<calls::soak::Options>),
    /// Measure how soon an answer falls silent when the caller interrupts it.
    BargeIn(Box<calls::barge_in::Options>),
    /// Answer calls and send their audio back, no more: for a look at the generator alone.
    Reflect {
        /// Where to take offers.
        #[arg(long, default_value = "127.0.0.1:8089")]
        listen: SocketAddr,
    },
    /// Answer a transceiver's backend links and send each caller's audio back, no more.
    EchoBackend {
        /// Where to take links.
        #[arg(long, default_value = "127.0.0.1:8765")]
        listen: SocketAddr,
        /// What to speak.
        #[arg(long, value_enum, default_value_t = Dialect::MediaV1)]
        dialect: Dialect,
    },
    /// Stand between clients and a relay as an impaired network.
    Impair(Box<impair::run::Options>),
    /// Make one HTML page of results, with tables and charts.
    Report(page::Options),
    /// Say what changed from one result file to another, and what is noise.
    Compare {
        /// The result before.
        a: PathBuf,
        /// The result after.
        b: PathBuf,
    },
}

fn main() -> ExitCode {
    let Err(error) = dispatch(&Cli::parse().verb) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("syrinx-bench: {error:#}");
    if error.is::<slo::Missed>() {
        ExitCode::from(slo::EXIT_MISSED)
    } else if error.is::<slo::SloError>() {
        ExitCode::from(slo::EXIT_USAGE)
    } else {
        ExitCode::FAILURE
    }
}

fn dispatch(verb: &Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Relay(options) => measure_relays(options),
        Verb::Calls(options) => {
            let report = calls::load::calls(options, &*stop_flag()?)?;
            tell_calls(&report, &options.generator)
        }
        Verb::Setup(options) => {
            let report = calls::load::set_up(options, &*stop_flag()?)?;
            tell_calls(&report, &options.generator)
        }
        Verb::Capacity(options) => {
            let report = calls::capacity::run(options, &*stop_flag()?)?;
            tell_calls(&report, &options.generator)
        }
        Verb::Roam(options) => {
            let report = calls::incident::roam(options, &*stop_flag()?)?;
            tell_calls(&report, &options.crowd.generator)
        }
        Verb::Recovery(options) => {
            let report = calls::incident::recovery(options, &*stop_flag()?)?;
            tell_calls(&report, &options.crowd.generator)
        }
        Verb::Storm(options) => {
            let report = calls::incident::storm(options, &*stop_flag()?)?;
            tell_calls(&report, &options.crowd.generator)
        }
        Verb::Soak(options) => {
            let report = calls::soak::run(options, &*stop_flag()?)?;
            tell_calls(&report, &options.generator)
        }
        Verb::BargeIn(options) => {
            let report = calls::barge_in::run(options, &*stop_flag()?)?;
            print!("{}", calls::barge_in::report::render(&report));
            if let Some(path) = &options.generator.json {
                result_file::write_json(path, &report)?;
            }
            judge(&report.slo)
        }
        Verb::Reflect { listen } => {
            let reflector = calls::reflector::Reflector::start_at(*listen)?;
            println!("{}", reflector.url());
            reflector.wait(&*stop_flag()?);
            Ok(())
        }
        Verb::EchoBackend { listen, dialect } => {
            calls::echo_backend(*listen, *dialect, &*stop_flag()?)
        }
        Verb::Impair(options) => {
            print!(
                "{}",
                impair::run::render(&impair::run::run(options, &*stop_flag()?)?)
            );
            Ok(())
        }
        Verb::Report(options) => page::run(options),
        Verb::Compare { a, b } => {
            print!("{}", compare::files(a, b)?);
            Ok(())
        }
    }
}

/// Set by the first ^C, which ends a run with the result so far; the second ends the program as ^C
/// does.
fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot catch ^C")?;
    }
    Ok(stop)
}

fn tell_calls(
    report: &calls::report::Report,
    options: &calls::measure::Generator,
) -> anyhow::Result<()> {
    print!("{}", calls::text::render(report));
    if let Some(path) = &options.json {
        result_file::write_json(path, report)?;
    }
    if let Some(path) = &options.summary {
        calls::summary::write(path, report)?;
    }
    judge(&report.slo)
}

/// Says what became of the objectives, if there were any.
fn judge(verdicts: &[slo::Verdict]) -> anyhow::Result<()> {
    if !verdicts.is_empty() {
        print!("\n{}", slo::render(verdicts));
    }
    Ok(slo::all_met(verdicts)?)
}

fn measure_relays(options: &relay::run::Options) -> anyhow::Result<()> {
    let report = relay::run::run(options, &*stop_flag()?)?;
    print!("{}", relay::text::render(&report));
    if let Some(path) = &options.json {
        result_file::write_json(path, &report)?;
    }
    if let Some(path) = &options.summary {
        relay::summary::Section::of(&report).write(path)?;
    }
    if let Some(path) = &options.plot {
        relay::plot::write(path, &report)?;
    }
    judge(&report.slo)
}
