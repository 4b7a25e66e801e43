//! `syrinx-transceiver`: the command line of the transceiver.

mod commands;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use commands::Command;
use syrinx_shared::{config, logging};
use syrinx_transceiver::config::{Config, ENVIRONMENT_PREFIX};
use syrinx_transceiver::driver::run;
use syrinx_transceiver::driver::secrets::Secrets;

/// Ends WebRTC sessions (ICE, DTLS, SRTP) behind Syrinx relays, and speaks to a backend.
///
/// Every configuration key has a twin in the environment: [media] inner_listen is
/// SYRINX_TRANSCEIVER__MEDIA__INNER_LISTEN.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and the keys, say what would run, and exit.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    match start(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("syrinx-transceiver: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(command) = &arguments.command {
        return command.run();
    }
    let config: Config = config::load(arguments.config.as_deref(), ENVIRONMENT_PREFIX)?;
    if arguments.check {
        Secrets::read(&config)?;
        run::read_backends(&config)?;
        println!(
            "configuration and keys are valid: signalling on {}, inner leg on {}",
            config.signalling.listen, config.media.inner_listen
        );
        return Ok(());
    }
    logging::init(&config.log)?;
    run::run(&config)
}
