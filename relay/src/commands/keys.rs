//! `syrinx-relay keys`: making a cluster's secrets, and rotating them.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use syrinx_shared::keys::{KeyFile, MASTER_BYTES, MasterSecret, cluster_key_file, edge_key_file};
use syrinx_shared::route::Epoch;

use super::unix_minutes;

/// The cluster's own file: master secrets.
const CLUSTER_FILE: &str = "cluster.keys";
/// The reduced file for points of presence outside the cluster.
const EDGE_FILE: &str = "edge.keys";

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Make a new master secret, and the edge-only form of it.
    New(New),
    /// Add an epoch that verifies but does not mint yet: the first step of a rotation. Give the
    /// file to all relays before the next step.
    Add(Edit),
    /// Let an epoch mint: the second step. Give the file to the transceivers.
    Mint(EditEpoch),
    /// Take out an epoch that no session can name any more: the last step.
    Retire(Retire),
    /// Write the edge-only form of a key file.
    Edge(Edge),
}

/// Which file.
#[derive(Debug, Args)]
pub(crate) struct Edit {
    /// The cluster's key file; it is replaced whole, and never half written.
    #[arg(long, value_name = "FILE", default_value = "/etc/syrinx/cluster.keys")]
    file: PathBuf,
}

/// Which epoch of which file.
#[derive(Debug, Args)]
pub(crate) struct EditEpoch {
    #[command(flatten)]
    edit: Edit,
    /// The epoch, 0 to 6.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=6))]
    epoch: u8,
}

#[derive(Debug, Args)]
pub(crate) struct Retire {
    #[command(flatten)]
    which: EditEpoch,
    /// How long a ufrag lives, in minutes: flows.ufrag_lifetime_minutes of the relays.
    #[arg(long, default_value_t = 1_440)]
    lifetime_minutes: u16,
    /// Take it out even though sessions may still use it.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Edge {
    #[command(flatten)]
    edit: Edit,
    /// Where the edge form is written.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
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
            Self::Add(edit) => {
                let mut file = edit.read()?;
                let epoch = file.add(&new_master()?)?;
                edit.replace(&file)?;
                println!("epoch {} was added and does not mint yet", epoch.value());
                Ok(())
            }
            Self::Mint(which) => {
                let mut file = which.edit.read()?;
                file.let_mint(which.epoch()?, unix_minutes())?;
                which.edit.replace(&file)?;
                println!("epoch {} mints", which.epoch);
                Ok(())
            }
            Self::Retire(retire) => {
                let which = &retire.which;
                let mut file = which.edit.read()?;
                let lifetime = retire.lifetime_minutes;
                file.retire(which.epoch()?, unix_minutes(), lifetime, retire.force)?;
                which.edit.replace(&file)?;
                println!("epoch {} is retired", which.epoch);
                Ok(())
            }
            Self::Edge(edge) => {
                let text = edge.edit.read()?.to_edge_text()?;
                replace_secret(&edge.out, &text)
            }
        }
    }
}

impl EditEpoch {
    fn epoch(&self) -> anyhow::Result<Epoch> {
        Epoch::new(self.epoch).context("an epoch is 0 to 6")
    }
}

impl Edit {
    fn read(&self) -> anyhow::Result<KeyFile> {
        let name = self.file.display();
        let text = std::fs::read_to_string(&self.file).with_context(|| {
            format!("--file {name}: cannot be read; check path and permissions")
        })?;
        let file = KeyFile::parse(&text).with_context(|| format!("--file {name}"))?;
        // What would not be accepted is not built upon.
        file.ring().with_context(|| format!("--file {name}"))?;
        Ok(file)
    }

    fn replace(&self, file: &KeyFile) -> anyhow::Result<()> {
        replace_secret(&self.file, &file.to_text())
    }
}

fn new_master() -> anyhow::Result<MasterSecret> {
    let mut random = [0; MASTER_BYTES];
    getrandom::fill(&mut random).context("no randomness from the operating system")?;
    Ok(MasterSecret::new(random))
}

impl New {
    fn run(&self) -> anyhow::Result<()> {
        let epoch = Epoch::new(self.epoch).context("an epoch is 0 to 6")?;
        let master = new_master()?;
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

/// Replaces a file whole: written beside it, then renamed over it, with the owner it had.
fn replace_secret(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    write_secret(&beside, text)?;
    if let Ok(before) = std::fs::metadata(path) {
        std::os::unix::fs::chown(&beside, Some(before.uid()), Some(before.gid()))
            .with_context(|| format!("{}: cannot be given its owner", beside.display()))?;
        std::fs::set_permissions(&beside, before.permissions())
            .with_context(|| format!("{}: cannot be given its mode", beside.display()))?;
    }
    std::fs::rename(&beside, path)
        .with_context(|| format!("{}: cannot be replaced", path.display()))
}
