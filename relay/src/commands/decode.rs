//! `syrinx-relay decode`: explaining a ufrag to an operator who found it in an SDP or a capture.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use syrinx_shared::config::keys::KeysConfig;
use syrinx_shared::wire::ufrag::{UfragError, decode_edge, decode_undated};

use super::unix_minutes;

#[derive(Debug, Args)]
pub(crate) struct Decode {
    /// The server's ICE ufrag: `a=ice-ufrag:` of an answer, or USERNAME up to the colon.
    ufrag: String,
    /// The cluster's key file, or the edge form of it.
    #[arg(long, value_name = "FILE", default_value = "/etc/syrinx/cluster.keys")]
    keys: PathBuf,
}

impl Decode {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let keys = KeysConfig {
            file: self.keys.clone(),
        }
        .read()?;
        let ufrag = self.ufrag.split(':').next().unwrap_or_default();
        match decode_undated(&keys, ufrag.as_bytes()) {
            Ok(decoded) => {
                let session = decoded.session;
                println!("epoch        {}", decoded.epoch.value());
                println!("cluster      {}", decoded.cluster.0);
                println!("transceiver  {}", session.transceiver.0);
                println!("shard        {}", session.shard.0);
                println!("slot         {}", session.slot.value());
                println!("generation   {}", session.generation.0);
                println!(
                    "age          {} minutes",
                    age_minutes(decoded.issued_minutes)
                );
                println!("random       {:#06x}", decoded.random);
                Ok(())
            }
            Err(UfragError::EdgeOnly) => {
                let decoded = decode_edge(&keys, ufrag.as_bytes())?;
                println!("epoch        {}", decoded.epoch.value());
                println!("cluster      {}", decoded.cluster.0);
                println!(
                    "session      hidden: {} holds edge keys only",
                    self.keys.display()
                );
                Ok(())
            }
            Err(error) => bail!("{ufrag:?} is dropped by a relay with these keys: {error}"),
        }
    }
}

/// The age modulo the 65,536 minutes (45 days) that a ufrag can tell.
fn age_minutes(issued_minutes: u16) -> u16 {
    ((unix_minutes().0 & 0xffff) as u16).wrapping_sub(issued_minutes)
}
