//! Metrics of the process: the recorder, its text form, and counters a worker can afford.
//!
//! Workers count in plain integers of their own. Once a second each publishes what was added since,
//! through handles it registered at start ([`Published`]); the packet path never meets the
//! process-global recorder, whose shared state puts spikes in the forwarding tail. Labels come from
//! closed sets (shard, reason): nothing a client sends may become one.

mod io_stats;

use std::io;

use ::metrics::Counter;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub use io_stats::IoMetrics;

/// Upper bounds of every histogram of durations, in seconds: three a decade, from the half
/// millisecond of a local DTLS flight to the 30 s of a set-up deadline.
const SECONDS_BUCKETS: [f64; 15] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
];

/// The metrics of this process in the Prometheus text format.
#[derive(Clone)]
pub struct Exposition(PrometheusHandle);

impl Exposition {
    /// Everything registered so far; `Content-Type: text/plain; version=0.0.4`.
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Folds the samples of histograms into their buckets. Unfolded samples are kept one by one, so
    /// this must run even if nobody scrapes: [`crate::admin::serve`] does, every few seconds.
    pub fn fold(&self) {
        self.0.run_upkeep();
    }
}

/// Installs the process's recorder. Called once, before any handle is registered.
///
/// # Errors
///
/// When a recorder was installed before.
pub fn install() -> io::Result<Exposition> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .map(Exposition)
        .map_err(io::Error::other)
}

/// A counter kept as a plain integer by its owner and published as a delta.
#[derive(Debug)]
pub struct Published {
    counter: Counter,
    total: u64,
}

impl Published {
    /// Takes a handle from `metrics::counter!`, registered once at start.
    pub fn new(counter: Counter) -> Self {
        Self { counter, total: 0 }
    }

    /// Adds what the owner's total, which never falls, has grown by since the last call.
    pub fn publish(&mut self, total: u64) {
        debug_assert!(
            total >= self.total,
            "a counter fell from {} to {total}",
            self.total
        );
        let delta = total.saturating_sub(self.total);
        if delta > 0 {
            self.counter.increment(delta);
            self.total = total;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_counter_shows_the_total_and_histograms_have_buckets() {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)
            .unwrap()
            .build_recorder();
        let exposition = Exposition(recorder.handle());
        ::metrics::with_local_recorder(&recorder, || {
            let mut records =
                Published::new(::metrics::counter!("edge_records_total", "shard" => "0"));
            for total in [0, 3, 3, 10] {
                records.publish(total);
            }
            ::metrics::histogram!("edge_setup_seconds").record(0.003);
        });
        exposition.fold();
        let text = exposition.render();
        assert!(
            text.contains("edge_records_total{shard=\"0\"} 10\n"),
            "{text}"
        );
        assert!(
            text.contains("edge_setup_seconds_bucket{le=\"0.002\"} 0\n"),
            "{text}"
        );
        assert!(
            text.contains("edge_setup_seconds_bucket{le=\"0.005\"} 1\n"),
            "{text}"
        );
    }
}
