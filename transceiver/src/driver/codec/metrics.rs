//! What is counted of codec work.

use std::time::Duration;

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use syrinx_shared::metrics::Published;

use super::session::Work;

/// One thread's share.
pub(super) struct ThreadMetrics {
    jobs: [Counter; Work::ALL.len()],
    busy_us: [Counter; Work::ALL.len()],
    panics: Counter,
}

impl ThreadMetrics {
    /// Registers the handles of the thread with this index.
    pub(super) fn register(thread: usize) -> Self {
        let thread = thread.to_string();
        let by_work = |name: &'static str| {
            Work::ALL.map(|work| {
                let labels = [
                    ("thread", thread.clone()),
                    ("work", work.label().to_owned()),
                ];
                counter!(name, &labels)
            })
        };
        Self {
            jobs: by_work("syrinx_transceiver_codec_jobs_total"),
            busy_us: by_work("syrinx_transceiver_codec_busy_us_total"),
            panics: counter!("syrinx_transceiver_codec_panics_total", "thread" => thread.clone()),
        }
    }

    /// A piece of work took so long.
    pub(super) fn note(&self, work: Work, took: Duration) {
        self.jobs[work as usize].increment(1);
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.busy_us[work as usize].increment(took_us);
    }

    /// A codec panicked, and was made anew.
    pub(super) fn note_panic(&self) {
        self.panics.increment(1);
    }
}

/// One worker's share.
pub(super) struct DeskMetrics {
    dropped: Published,
    kept: Gauge,
}

impl DeskMetrics {
    /// Registers the handles of the worker with this index.
    pub(super) fn register(worker: usize) -> Self {
        let worker = worker.to_string();
        let dropped = "syrinx_transceiver_codec_dropped_total";
        let kept = "syrinx_transceiver_codec_waiting";
        Self {
            dropped: Published::new(counter!(dropped, "worker" => worker.clone())),
            kept: gauge!(kept, "worker" => worker.clone()),
        }
    }

    /// Publishes what was added since the last call.
    pub(super) fn publish(&mut self, dropped: u64, kept: usize) {
        self.dropped.publish(dropped);
        // Commands that wait are far below 2^53.
        self.kept.set(kept as f64);
    }
}

/// Describes the metrics of codec work.
pub fn describe() {
    describe_counter!(
        "syrinx_transceiver_codec_jobs_total",
        "Packets decoded, gaps concealed, and pieces of at most a frame encoded"
    );
    describe_counter!(
        "syrinx_transceiver_codec_busy_us_total",
        "Time spent on them, in microseconds"
    );
    describe_counter!(
        "syrinx_transceiver_codec_panics_total",
        "Codecs that panicked and were made anew; worth a report"
    );
    describe_counter!(
        "syrinx_transceiver_codec_dropped_total",
        "Packets and gaps that were not decoded, as the codec threads were overloaded"
    );
    describe_gauge!(
        "syrinx_transceiver_codec_waiting",
        "Commands that wait for a codec thread to have room"
    );
}
