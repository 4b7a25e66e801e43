//! The command line of the load generator.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Parser, Subcommand};
use syrinx_bench::relay;

/// Load generator and yardstick of the Syrinx WebRTC edge.
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
}

fn main() -> ExitCode {
    let stop = Arc::new(AtomicBool::new(false));
    match dispatch(&Cli::parse().verb, &stop) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("syrinx-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(verb: &Verb, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    match verb {
        Verb::Relay(options) => {
            let report = relay::run::run(options, stop)?;
            println!("{}", serde_json::to_string(&report.summary)?);
        }
    }
    Ok(())
}
