//! `syrinx-relay trace`: the verdicts on one client or session, as they happen.

use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;

use anyhow::Context as _;
use clap::Args;
use syrinx_relay::driver::trace::TraceFilter;

use super::admin::{DEFAULT_ADMIN, get};

#[derive(Debug, Args)]
pub(crate) struct TraceCommand {
    /// A host (192.0.2.1), a client (192.0.2.1:5000) or a session
    /// (transceiver/shard/slot.generation, as logs and `decode` name it).
    of: String,
    /// End after this many lines.
    #[arg(long, default_value_t = 100)]
    lines: u32,
    /// End after this many seconds.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// The relay's admin address.
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
}

impl TraceCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        self.of.parse::<TraceFilter>()?;
        // What a filter can hold needs no escaping but for the brackets of an IPv6 address.
        let of = self.of.replace('[', "%5B").replace(']', "%5D");
        let Self { lines, seconds, .. } = self;
        let path = format!("/trace?of={of}&lines={lines}&seconds={seconds}");
        let mut out = std::io::stdout();
        for line in get(self.admin, &path)?.lines() {
            let line = line.context("the relay's answer broke off")?;
            writeln!(out, "{line}").context("standard output is closed")?;
        }
        Ok(())
    }
}
