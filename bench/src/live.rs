//! A running measurement in numbers for Prometheus, so that a dashboard shows it while it goes:
//! `--prometheus 127.0.0.1:9470`.
//!
//! The endpoint is the daemons' own admin surface, on a thread of its own; a measurement only sets
//! gauges, once a look, so nothing that scrapes can hold it up.

use std::net::{SocketAddr, TcpListener};

use anyhow::Context;
use metrics::{describe_gauge, gauge};
use serde_json::Map;
use syrinx_shared::admin::{self, Health, Status};

use crate::calls::report::Point;

/// Names and meanings, as `# HELP` shows them.
const GAUGES: [(&str, &str); 9] = [
    ("syrinx_bench_calls_active", "Calls that are up."),
    (
        "syrinx_bench_calls_established",
        "Calls established so far in this run.",
    ),
    (
        "syrinx_bench_calls_failed",
        "Calls that failed so far in this run.",
    ),
    ("syrinx_bench_calls_lost", "Calls lost so far in this run."),
    (
        "syrinx_bench_packets_said",
        "Packets said since the look before.",
    ),
    (
        "syrinx_bench_packets_heard",
        "Packets heard since the look before.",
    ),
    (
        "syrinx_bench_round_trip_seconds",
        "Round trip of the echo since the look before, by quantile.",
    ),
    (
        "syrinx_bench_server_cpu_seconds",
        "CPU time of a server's process since it began.",
    ),
    (
        "syrinx_bench_server_resident_bytes",
        "Resident memory of a server's process.",
    ),
];

/// Serves `/metrics` on `address` until the program ends.
///
/// # Errors
/// When the address is not to be had.
pub fn serve(address: SocketAddr) -> anyhow::Result<()> {
    let taken = || format!("--prometheus: cannot listen on {address}");
    let listener = TcpListener::bind(address).with_context(taken)?;
    listener.set_nonblocking(true).with_context(taken)?;
    let exposition = syrinx_shared::metrics::install().context("cannot record metrics")?;
    for (name, meaning) in GAUGES {
        describe_gauge!(name, meaning);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("--prometheus")?;
    let work = async move {
        // The conversion fails only outside of a runtime.
        let listener = tokio::net::TcpListener::from_std(listener);
        let listener = listener.expect("invariant: this runs in a runtime");
        let health = || Health {
            status: Status::Ok,
            facts: Map::new(),
        };
        admin::serve(
            listener,
            health,
            exposition,
            Default::default(),
            std::future::pending(),
        )
        .await;
    };
    std::thread::Builder::new()
        .name("prometheus".to_owned())
        .spawn(move || runtime.block_on(work))
        .context("--prometheus")?;
    Ok(())
}

/// Shows one look at a run; does nothing where nobody serves.
pub fn show(target: &str, processes: &[&str], point: &Point) {
    let set = |name: &'static str, value: f64| {
        gauge!(name, "target" => target.to_owned()).set(value);
    };
    set("syrinx_bench_calls_active", point.active as f64);
    set("syrinx_bench_calls_established", point.established as f64);
    set("syrinx_bench_calls_failed", point.failed as f64);
    set("syrinx_bench_calls_lost", point.lost as f64);
    set("syrinx_bench_packets_said", point.said as f64);
    set("syrinx_bench_packets_heard", point.heard as f64);
    for (quantile, us) in [
        ("0.5", point.round_trip_p50_us),
        ("0.99", point.round_trip_p99_us),
    ] {
        if let Some(us) = us {
            let labels = [
                ("target", target.to_owned()),
                ("quantile", quantile.to_owned()),
            ];
            gauge!("syrinx_bench_round_trip_seconds", &labels).set(us / 1e6);
        }
    }
    for (name, process) in processes.iter().zip(&point.processes) {
        let labels = [
            ("target", target.to_owned()),
            ("process", (*name).to_owned()),
        ];
        gauge!("syrinx_bench_server_cpu_seconds", &labels).set(process.cpu_ms / 1e3);
        let bytes = process.resident_kib as f64 * 1024.0;
        gauge!("syrinx_bench_server_resident_bytes", &labels).set(bytes);
    }
}
