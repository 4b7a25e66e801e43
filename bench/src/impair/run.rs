//! `syrinx-bench impair`: the shim on its own, for a browser or any other client.
//!
//! The client learns where to send from the transceiver's answer, so the transceiver has to
//! advertise the shim (`media.advertise`) instead of the relay.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};

use super::conditions::{Conditions, Impairment, PROFILES};
use super::counts::{Counts, Totals};
use super::shim::{PATHS_MAX, Shim, ShimOptions};
use crate::table::Table;

const LOOK: Duration = Duration::from_millis(100);

/// Stands between clients and a relay as an impaired network, until ^C.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = profiles())]
pub struct Options {
    /// Where clients send to: what the transceiver advertises; repeatable, one for each --to.
    #[arg(long, required = true)]
    pub listen: Vec<SocketAddr>,
    /// The relay's public address; repeatable, one for each --listen.
    #[arg(long, required = true)]
    pub to: Vec<SocketAddr>,
    /// A profile and what differs from it, as `lte,loss=2%,down.rate=500kbps`.
    #[arg(long, value_name = "SPECIFICATION", default_value = "lte")]
    pub profile: Conditions,
    /// What the fates of packets are drawn from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Clients at once.
    #[arg(long, default_value_t = PATHS_MAX)]
    pub clients_max: usize,
}

/// Runs until `stop` is set and gives what became of all packets.
///
/// # Errors
/// An address is not to be had, or a shim ended by itself.
pub fn run(options: &Options, stop: &AtomicBool) -> anyhow::Result<Totals> {
    if options.listen.len() != options.to.len() {
        bail!(
            "{} addresses to listen on and {} to send to: give one --to for each --listen",
            options.listen.len(),
            options.to.len()
        );
    }
    let pairs = options.listen.iter().zip(&options.to);
    let shims = pairs.map(|(&listen, &to)| {
        Shim::start(ShimOptions {
            listen,
            to,
            conditions: options.profile.clone(),
            seed: options.seed,
            paths_max: options.clients_max,
        })
    });
    let shims: Vec<Shim> = shims.collect::<Result<_, _>>()?;
    for (shim, to) in shims.iter().zip(&options.to) {
        let at = shim.local_addr();
        eprintln!("{at} carries to {to}: let media.advertise of the transceiver name {at}");
    }
    while !stop.load(Ordering::Relaxed) && shims.iter().all(Shim::runs) {
        std::thread::sleep(LOOK);
    }
    let mut totals = Totals::default();
    for shim in shims {
        totals += shim.end().context("the shim ended by itself")?;
    }
    Ok(totals)
}

/// The totals as a table.
#[must_use]
pub fn render(totals: &Totals) -> String {
    let mut table = Table::new(["packets", "up", "down"]);
    let mut row = |name: &str, value: fn(&Counts) -> u64| {
        let (up, down) = (value(&totals.up), value(&totals.down));
        table.row([name.to_owned(), up.to_string(), down.to_string()]);
    };
    row("offered", |counts| counts.offered);
    row("delivered", |counts| counts.delivered);
    row("lost one by one", |counts| counts.lost_random);
    row("lost in bursts", |counts| counts.lost_burst);
    row("lost before the bottleneck", |counts| counts.lost_queue);
    row("lost by their size", |counts| counts.lost_size);
    row("duplicated", |counts| counts.duplicated);
    row("overtaken", |counts| counts.reordered);
    row("dropped, too much under way", |counts| counts.overflowed);
    row("refused by a socket", |counts| counts.unsent);
    let mut text = table.render();
    if totals.refused > 0 {
        let line = format!(
            "{} datagrams came from clients beyond --clients-max.\n",
            totals.refused
        );
        text.push_str(&line);
    }
    text
}

/// The profiles as `--help` shows them.
fn profiles() -> String {
    let mut text =
        "Profiles (delay, jitter, loss one by one, loss in bursts, rate; up / down):\n".to_owned();
    for profile in PROFILES {
        let conditions: Conditions = profile
            .name
            .parse()
            .expect("invariant: a profile's name is a specification");
        let (up, down) = (numbers(&conditions.up), numbers(&conditions.down));
        text.push_str(&format!("\n  {}\n    {up}\n    {down}\n", profile.name));
        text.push_str(&format!("    {}\n", profile.source));
    }
    text
}

fn numbers(impairment: &Impairment) -> String {
    let burst = impairment.burst.map_or("-".to_owned(), |burst| {
        format!("{} % x {}", burst.share * 100.0, burst.length)
    });
    let rate = impairment
        .rate_bps
        .map_or("-".to_owned(), |rate| format!("{} kbit/s", rate / 1_000));
    format!(
        "{:?}, {:?}, {} %, {burst}, {rate}",
        impairment.delay,
        impairment.jitter,
        impairment.loss * 100.0
    )
}
