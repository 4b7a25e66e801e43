//! `syrinx-relay top`: what a running relay is doing, refreshed in place.
//!
//! Everything comes from `/metrics`, so it shows what a dashboard would, without one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;

use super::admin::{DEFAULT_ADMIN, get};

/// Reasons shown, most frequent first.
const REASONS_SHOWN: usize = 12;
/// Moves the cursor home and clears what is below (ECMA-48, CUP and ED).
const CLEAR: &str = "\x1b[H\x1b[J";

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The relay's admin address.
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
    /// Seconds between refreshes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Show this many refreshes and end; endless by default.
    #[arg(long)]
    count: Option<u64>,
}

impl Top {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let clear = if std::io::stdout().is_terminal() {
            CLEAR
        } else {
            ""
        };
        let mut before = self.sample()?;
        let mut shown = 0;
        while self.count.is_none_or(|count| shown < count) {
            thread::sleep(Duration::from_secs(self.interval));
            let sample = self.sample()?;
            let screen = render(&before, &sample);
            write!(std::io::stdout(), "{clear}{screen}").context("standard output is closed")?;
            std::io::stdout()
                .flush()
                .context("standard output is closed")?;
            before = sample;
            shown += 1;
        }
        Ok(())
    }

    fn sample(&self) -> anyhow::Result<Sample> {
        let mut text = String::new();
        get(self.admin, "/metrics")?
            .read_to_string(&mut text)
            .context("the relay's answer broke off")?;
        Ok(Sample {
            at: Instant::now(),
            series: parse(&text),
        })
    }
}

/// One look at the relay: every series by name and labels.
struct Sample {
    at: Instant,
    series: BTreeMap<Series, f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
}

/// Reads the text format; lines that are no samples are passed over.
fn parse(text: &str) -> BTreeMap<Series, f64> {
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}')?;
        let labels = labels.split(',').filter_map(|label| {
            let (key, value) = label.split_once('=')?;
            Some((key.to_owned(), value.trim_matches('"').to_owned()))
        });
        let series = Series {
            name: name.to_owned(),
            labels: labels.collect(),
        };
        Some((series, value.parse().ok()?))
    };
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(sample)
        .collect()
}

impl Sample {
    /// The sum of `name` over the series that carry all of `labels`.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |series: &Series| {
            labels
                .iter()
                .all(|(key, value)| series.labels.get(*key).is_some_and(|v| v == value))
        };
        self.series
            .iter()
            .filter(|(series, _)| series.name == name && carries(series))
            .map(|(_, value)| value)
            .sum()
    }

    fn values_of(&self, name: &str, label: &str) -> Vec<String> {
        let mut values: Vec<String> = self
            .series
            .keys()
            .filter(|series| series.name == name)
            .filter_map(|series| series.labels.get(label).cloned())
            .collect();
        values.sort();
        values.dedup();
        values
    }
}

/// The change of a counter a second.
fn rate(before: &Sample, after: &Sample, name: &str, labels: &[(&str, &str)]) -> f64 {
    let elapsed = after
        .at
        .duration_since(before.at)
        .as_secs_f64()
        .max(f64::EPSILON);
    // A relay that was restarted counts from zero again.
    (after.sum(name, labels) - before.sum(name, labels)).max(0.0) / elapsed
}

fn render(before: &Sample, after: &Sample) -> String {
    let mut screen = String::new();
    let mut row = |cells: std::fmt::Arguments<'_>| {
        let _ = writeln!(screen, "{cells}");
    };
    row(format_args!(
        "{:<8} {:>9} {:>12} {:>12} {:>11} {:>11} {:>11}",
        "worker", "flows", "to transc./s", "to clients/s", "drops/s", "kernel d./s", "blocked/s"
    ));
    let workers = after.values_of("syrinx_relay_flows", "worker");
    let all = workers
        .iter()
        .map(|worker| (worker.as_str(), vec![("worker", worker.as_str())]));
    for (name, labels) in all.chain([("all", Vec::new())]) {
        let of = |name: &str| rate(before, after, name, &labels);
        let toward = |direction| {
            let labels = [&labels[..], &[("direction", direction)]].concat();
            rate(before, after, "syrinx_relay_forwarded_total", &labels)
        };
        row(format_args!(
            "{name:<8} {:>9} {:>12.0} {:>12.0} {:>11.0} {:>11.0} {:>11.0}",
            after.sum("syrinx_relay_flows", &labels),
            toward("to_transceiver"),
            toward("to_client"),
            of("syrinx_relay_drops_total"),
            of("syrinx_relay_socket_kernel_dropped_total"),
            of("syrinx_relay_socket_send_blocked_total"),
        ));
    }
    row(format_args!(""));
    row(format_args!(
        "{:<24} {:>12} {:>14}",
        "dropped because", "a second", "since start"
    ));
    let mut reasons: Vec<(f64, f64, String)> = after
        .values_of("syrinx_relay_drops_total", "reason")
        .into_iter()
        .map(|reason| {
            let labels = [("reason", reason.as_str())];
            let a_second = rate(before, after, "syrinx_relay_drops_total", &labels);
            (
                a_second,
                after.sum("syrinx_relay_drops_total", &labels),
                reason,
            )
        })
        .filter(|(_, total, _)| *total > 0.0)
        .collect();
    reasons.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
    for (a_second, total, reason) in reasons.iter().take(REASONS_SHOWN) {
        row(format_args!("{reason:<24} {a_second:>12.0} {total:>14.0}"));
    }
    screen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: Instant, text: &str) -> Sample {
        Sample {
            at,
            series: parse(text),
        }
    }

    #[test]
    fn shows_rates_by_worker_and_drops_by_reason() {
        let start = Instant::now();
        let before = sample(
            start,
            "# HELP x\nsyrinx_relay_flows{worker=\"0\"} 3\nsyrinx_relay_flows{worker=\"1\"} 4\n\
             syrinx_relay_forwarded_total{worker=\"1\",direction=\"to_client\"} 100\n\
             syrinx_relay_drops_total{worker=\"1\",side=\"client\",reason=\"no_flow\"} 10\n",
        );
        let after = sample(
            start + Duration::from_secs(2),
            "syrinx_relay_flows{worker=\"0\"} 3\nsyrinx_relay_flows{worker=\"1\"} 5\n\
             syrinx_relay_forwarded_total{worker=\"1\",direction=\"to_client\"} 300\n\
             syrinx_relay_drops_total{worker=\"1\",side=\"client\",reason=\"no_flow\"} 20\n\
             syrinx_relay_drops_total{worker=\"1\",side=\"client\",reason=\"empty\"} 0\n",
        );
        let screen = render(&before, &after);
        let lines: Vec<Vec<&str>> = screen
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["0", "3", "0", "0", "0", "0", "0"]);
        assert_eq!(lines[2], ["1", "5", "0", "100", "5", "0", "0"]);
        assert_eq!(lines[3], ["all", "8", "0", "100", "5", "0", "0"]);
        assert_eq!(lines[6], ["no_flow", "5", "20"]);
        assert_eq!(lines.len(), 7);
    }

    #[test]
    fn a_restart_shows_no_negative_rate() {
        let start = Instant::now();
        let before = sample(start, "syrinx_relay_drops_total{reason=\"empty\"} 50\n");
        let text = "syrinx_relay_drops_total{reason=\"empty\"} 1\n";
        let after = sample(start + Duration::from_secs(1), text);
        assert_eq!(rate(&before, &after, "syrinx_relay_drops_total", &[]), 0.0);
    }
}
