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

use crate::calls::failure::Failures;
use crate::calls::latency::Latencies;
use crate::calls::report::Point;
use crate::relay::memory::FlowMemory;
use crate::relay::report::Window;

/// Names and meanings, as `# HELP` shows them.
const GAUGES: [(&str, &str); 18] = [
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
    (
        "syrinx_bench_answers_interrupted",
        "Answers interrupted and reported so far in this round of barge-in.",
    ),
    (
        "syrinx_bench_answers_failed",
        "Calls of this round in which no answer was interrupted.",
    ),
    (
        "syrinx_bench_answer_stop_seconds",
        "From interruptions to the last packets of their answers in this round, by quantile.",
    ),
    (
        "syrinx_bench_windows_played",
        "Windows of the relay yardstick that a target has had in a situation.",
    ),
    (
        "syrinx_bench_datagram_cpu_seconds",
        "CPU time of the relay a datagram that arrived whole, in its latest window.",
    ),
    (
        "syrinx_bench_datagrams_delivered",
        "Datagrams that arrived whole in the latest window.",
    ),
    (
        "syrinx_bench_datagrams_lost",
        "Datagrams lost in the latest window.",
    ),
    (
        "syrinx_bench_datagram_delay_seconds",
        "Delay from the intended send in the latest paced window, by quantile.",
    ),
    (
        "syrinx_bench_flow_resident_bytes",
        "Resident memory of the relay a flow.",
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

/// Shows how far a round of `barge-in` is; does nothing where nobody serves.
pub fn show_answers(answers: u64, failures: &Failures, stops: &Latencies) {
    gauge!("syrinx_bench_answers_interrupted").set(answers as f64);
    gauge!("syrinx_bench_answers_failed").set(failures.total() as f64);
    for (name, part) in [("0.5", 0.5), ("0.99", 0.99)] {
        if let Some(us) = stops.quantile_us(part) {
            gauge!("syrinx_bench_answer_stop_seconds", "quantile" => name).set(us / 1e6);
        }
    }
}

/// Shows a window of the relay yardstick; does nothing where nobody serves.
pub fn show_window(window: &Window) {
    let (target, situation) = (window.kind.name(), window.scenario.name());
    let labels = [("target", target), ("situation", situation)];
    let fates = window.fates();
    gauge!("syrinx_bench_windows_played", &labels).increment(1.0);
    gauge!("syrinx_bench_datagrams_delivered", &labels).set(fates.delivered as f64);
    gauge!("syrinx_bench_datagrams_lost", &labels).set(fates.lost() as f64);
    if let Some(cost_ns) = window.cpu_ns_each() {
        gauge!("syrinx_bench_datagram_cpu_seconds", &labels).set(cost_ns / 1e9);
    }
    let delay = window.delay.as_ref();
    for (quantile, us) in [
        ("0.5", delay.map(|delay| delay.p50)),
        ("0.99", delay.map(|delay| delay.p99)),
    ] {
        if let Some(us) = us {
            let labels = [labels[0], labels[1], ("quantile", quantile)];
            gauge!("syrinx_bench_datagram_delay_seconds", &labels).set(us / 1e6);
        }
    }
    if let Some(kib) = window.resident_kib {
        let labels = [("target", target), ("process", target)];
        gauge!("syrinx_bench_server_resident_bytes", &labels).set(kib as f64 * 1024.0);
    }
}

/// Shows what a flow of a relay costs; does nothing where nobody serves.
pub fn show_flow_memory(memory: &FlowMemory) {
    let target = memory.kind.name();
    gauge!("syrinx_bench_flow_resident_bytes", "target" => target).set(memory.bytes_each);
}
