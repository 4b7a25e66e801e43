//! `syrinx-relay keys`: making a cluster's secrets.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use syrinx_shared::keys::{MASTER_BYTES, MasterSecret, cluster_key_file, edge_key_file};
use syrinx_shared::route::Epoch;

/// The cluster's own file: master secrets.
const CLUSTER_FILE: &str = "cluster.keys";
/// The reduced file for points of presence outside the cluster.
const EDGE_FILE: &str = "edge.keys";

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Make a new master secret, and the edge-only form of it.
    New(New),
}

#[derive(Debug, Args)]
pub(crate) struct New {
    /// Where cluster.keys and edge.keys are written, readable by their owner only.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The epoch they are for, 0 to 6.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=6))]
    epoch: u8,
}

impl Keys {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::New(new) => new.run(),
        }
    }
}

impl New {
    fn run(&self) -> anyhow::Result<()> {
        let epoch = Epoch::new(self.epoch).context("an epoch is 0 to 6")?;
        let mut random = [0; MASTER_BYTES];
        getrandom::fill(&mut random).context("no randomness from the operating system")?;
        let master = MasterSecret::new(random);
        std::fs::create_dir_all(&self.dir).with_context(|| {
            format!(
                "--dir {}: cannot be created; name another folder",
                self.dir.display()
            )
        })?;
        let (cluster, edge) = (self.dir.join(CLUSTER_FILE), self.dir.join(EDGE_FILE));
        for path in [&cluster, &edge] {
            if path.exists() {
                bail!(
                    "{} exists and is kept: move it away first, or name another --dir",
                    path.display()
                );
            }
        }
        write_secret(&cluster, &cluster_key_file(epoch, &master))?;
        write_secret(&edge, &edge_key_file(epoch, &master))?;
        println!(
            "{}: for the cluster's relays and transceivers",
            cluster.display()
        );
        println!(
            "{}: for relays outside the cluster that forward to it",
            edge.display()
        );
        Ok(())
    }
}

/// Writes a file that did not exist, readable by its owner only.
fn write_secret(path: &Path, text: &str) -> anyhow::Result<()> {
    let describe = || format!("{}: cannot be written", path.display());
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(describe)?;
    file.write_all(text.as_bytes()).with_context(describe)?;
    file.sync_all().with_context(describe)
}
