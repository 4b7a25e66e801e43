//! The commands of `syrinx-transceiver` beside serving.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use syrinx_transceiver::signalling::api_keys::{ApiKeys, is_name, make};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Keys of the client-facing API.
    #[command(subcommand)]
    ApiKey(ApiKey),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ApiKey {
    /// Make a key: print it, once, and append its digest to the key file. Then SIGHUP the daemon.
    /// To revoke a key, take its entry out of the file.
    New(New),
}

#[derive(Debug, Args)]
pub(crate) struct New {
    /// Whom the key is for, as log lines and the file name it.
    #[arg(long)]
    name: String,
    /// The key file (signalling.api_keys_file); made if it is not there.
    #[arg(long, value_name = "FILE", default_value = "/etc/syrinx/api.keys")]
    file: PathBuf,
}

impl Command {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let Self::ApiKey(ApiKey::New(new)) = self;
        new.run()
    }
}

impl New {
    fn run(&self) -> anyhow::Result<()> {
        if !is_name(&self.name) {
            bail!(
                "--name {:?}: use 1 to 64 printable ASCII characters",
                self.name
            );
        }
        let before = existing(&self.file)?;
        let mut random = [0; 32];
        getrandom::fill(&mut random).context("no randomness from the operating system")?;
        let (key, entry) = make(random, &self.name);
        let entry = match before.as_str() {
            "" => entry,
            text if text.ends_with('\n') => format!("\n{entry}"),
            _ => format!("\n\n{entry}"),
        };
        // What the daemon would not take is not written.
        ApiKeys::parse(&format!("{before}{entry}")).with_context(|| self.named())?;
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        let written = options.open(&self.file).and_then(|mut file| {
            file.write_all(entry.as_bytes())?;
            file.sync_all()
        });
        written.with_context(|| format!("{}: cannot be written", self.named()))?;
        println!("{key}");
        Ok(())
    }

    fn named(&self) -> String {
        format!("--file {}", self.file.display())
    }
}

/// The text of the file, which is empty if there is none.
fn existing(file: &Path) -> anyhow::Result<String> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => {
            Err(error).with_context(|| format!("--file {}: cannot be read", file.display()))
        }
    }
}
