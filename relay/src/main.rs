//! `syrinx-relay`: the command line of the relay.

mod commands;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Thin UDP forwarder between WebRTC clients and Syrinx transceivers.
///
/// Without a subcommand it runs the relay. Every configuration key has a twin in the environment:
/// [public] listen is SYRINX_RELAY__PUBLIC__LISTEN.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and the keys, say what would run, and exit.
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the keys of a cluster.
    #[command(subcommand)]
    Keys(commands::keys::Keys),
    /// Explain a server ufrag: what it says, and what a relay would make of it.
    Decode(commands::decode::Decode),
    /// Show what a running relay does: flows, rates, drops by reason.
    Top(commands::top::Top),
    /// Print the verdicts on one client or session as they happen.
    Trace(commands::trace::TraceCommand),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Some(Command::Keys(command)) => command.run(),
        Some(Command::Decode(command)) => command.run(),
        Some(Command::Top(command)) => command.run(),
        Some(Command::Trace(command)) => command.run(),
        None => commands::run::run(arguments.config.as_deref(), arguments.check),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("syrinx-relay: {error:#}");
            ExitCode::FAILURE
        }
    }
}
