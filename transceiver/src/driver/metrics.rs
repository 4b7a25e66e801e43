//! The transceiver's metrics: handles registered at start, workers' counters published once a
//! second. Labels come from closed sets (worker, reason, phase, outcome).

mod quality;

use metrics::{Counter, Gauge, Histogram, Unit};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use syrinx_shared::http::HttpMetrics;
use syrinx_shared::metrics::{IoMetrics, Published};
use syrinx_shared::uring::IoStats;

use crate::session::{EndReason, Phases, Summary};
use crate::shard::Shard;
use crate::shard::counters::{Counters, Fate};
use crate::signalling::access::AccessError;
use crate::signalling::calls::OpenError;
use quality::QualityMetrics;

/// One worker's share.
#[derive(Debug)]
pub struct ShardMetrics {
    totals: Vec<(Published, Read)>,
    records: Vec<(Published, Fate)>,
    ends: Vec<(Published, EndReason)>,
    oversize: Published,
    sessions: Gauge,
    busy: Gauge,
    io: IoMetrics,
}

/// Where a counter is read from.
type Read = fn(&Counters) -> u64;
type Total = (&'static str, Read);

const TOTALS: &[Total] = &[
    ("syrinx_transceiver_bundles_total", |c| c.bundles),
    ("syrinx_transceiver_bad_bundles_total", |c| c.bad_bundles),
    ("syrinx_transceiver_records_sent_total", |c| c.records_out),
    ("syrinx_transceiver_sessions_opened_total", |c| {
        c.sessions_opened
    }),
    ("syrinx_transceiver_openings_refused_total", |c| {
        c.openings_refused
    }),
];

impl ShardMetrics {
    /// Registers the handles of the worker with this index.
    pub fn register(worker: usize) -> Self {
        let worker = worker.to_string();
        let records = Fate::ALL.map(|fate| {
            let counter = counter!(
                "syrinx_transceiver_records_total",
                "worker" => worker.clone(), "outcome" => fate.label()
            );
            (Published::new(counter), fate)
        });
        let ends = EndReason::ALL.map(|reason| {
            let counter = counter!(
                "syrinx_transceiver_sessions_ended_total",
                "worker" => worker.clone(), "reason" => reason.label()
            );
            (Published::new(counter), reason)
        });
        let total = |&(name, read): &Total| {
            (
                Published::new(counter!(name, "worker" => worker.clone())),
                read,
            )
        };
        let oversize = "syrinx_transceiver_oversize_records_total";
        Self {
            totals: TOTALS.iter().map(total).collect(),
            records: records.into(),
            ends: ends.into(),
            oversize: Published::new(counter!(oversize, "worker" => worker.clone())),
            sessions: gauge!("syrinx_transceiver_sessions", "worker" => worker.clone()),
            busy: gauge!("syrinx_transceiver_busy_ratio", "worker" => worker.clone()),
            io: IoMetrics::register("syrinx_transceiver", &worker, &["inner".to_owned()]),
        }
    }

    /// Publishes what was added since the last call.
    pub fn publish(&mut self, shard: &Shard, oversize_records: u64, busy: f64, io: &IoStats) {
        let counters = shard.counters();
        for (published, read) in &mut self.totals {
            published.publish(read(counters));
        }
        for (published, fate) in &mut self.records {
            published.publish(counters.records(*fate));
        }
        for (published, reason) in &mut self.ends {
            published.publish(counters.ended(*reason));
        }
        self.oversize.publish(oversize_records);
        // Sessions of a worker are far below 2^53.
        self.sessions.set(shard.session_count() as f64);
        self.busy.set(busy);
        self.io.publish(io);
    }
}

/// The control thread's share: offers, and how long set-up took.
#[derive(Debug)]
pub struct CallMetrics {
    opened: Counter,
    refused: [Counter; OpenError::LABELS.len()],
    setup: [Histogram; PHASES.len()],
    quality: QualityMetrics,
}

/// Each phase of set-up, and how it is read.
type Phase = (&'static str, fn(&Phases) -> Option<std::time::Duration>);

const PHASES: [Phase; 4] = [
    ("first_check", |phases| phases.first_check),
    ("connected", |phases| phases.connected),
    ("channel", |phases| phases.channel),
    ("first_audio", |phases| phases.first_audio),
];

impl CallMetrics {
    /// Registers the handles, and describes every metric of the process.
    pub fn register() -> Self {
        describe();
        let offers = |outcome| counter!("syrinx_transceiver_offers_total", "outcome" => outcome);
        Self {
            opened: offers("opened"),
            refused: OpenError::LABELS.map(offers),
            setup: PHASES
                .map(|(phase, _)| histogram!("syrinx_transceiver_setup_seconds", "phase" => phase)),
            quality: QualityMetrics::register(),
        }
    }

    /// An offer became a call.
    pub fn count_opened(&self) {
        self.opened.increment(1);
    }

    /// An offer did not.
    pub fn count_refused(&self, error: &OpenError) {
        let index = OpenError::LABELS
            .iter()
            .position(|label| *label == error.label());
        self.refused[index.expect("invariant: every label is listed")].increment(1);
    }

    /// A call ended: how its set-up went, and the rest of it.
    pub fn record_end(&self, call: &Summary) {
        self.quality.record(call);
        for (histogram, (_, read)) in self.setup.iter().zip(PHASES) {
            if let Some(took) = read(&call.phases) {
                histogram.record(took.as_secs_f64());
            }
        }
    }
}

/// The gate's share: credentials that were turned away.
#[derive(Debug)]
pub struct AccessMetrics([Counter; AccessError::LABELS.len()]);

impl AccessMetrics {
    /// Registers the handles.
    pub fn register() -> Self {
        let name = "syrinx_transceiver_credentials_refused_total";
        describe_counter!(
            name,
            "Requests without a key that lets them through, by reason"
        );
        Self(AccessError::LABELS.map(|reason| counter!(name, "reason" => reason)))
    }

    /// Somebody was turned away.
    pub fn count_refused(&self, error: AccessError) {
        let index = AccessError::LABELS
            .iter()
            .position(|label| *label == error.label());
        self.0[index.expect("invariant: every label is listed")].increment(1);
    }
}

/// Registers what the signalling address counts.
pub fn register_http() -> HttpMetrics {
    let (open, closed) = (
        "syrinx_transceiver_http_connections",
        "syrinx_transceiver_http_connections_closed_total",
    );
    describe_gauge!(open, "HTTP connections that hold a place");
    describe_counter!(
        closed,
        "HTTP connections closed for want of a place, by reason"
    );
    HttpMetrics {
        connections: gauge!(open),
        over_share: counter!(closed, "reason" => "over_share"),
        full: counter!(closed, "reason" => "full"),
        gave_way: counter!(closed, "reason" => "gave_way"),
    }
}

fn describe() {
    super::codec::describe();
    super::link::describe();
    describe_counter!(
        "syrinx_transceiver_offers_total",
        "SDP offers, by what became of them"
    );
    describe_histogram!(
        "syrinx_transceiver_setup_seconds",
        Unit::Seconds,
        "From the offer to each phase of set-up, recorded when a call ends"
    );
    describe_gauge!("syrinx_transceiver_sessions", "Sessions a worker holds");
    describe_gauge!(
        "syrinx_transceiver_busy_ratio",
        "CPU time of a worker, as a share of its core"
    );
    describe_counter!(
        "syrinx_transceiver_records_total",
        "Records of the inner leg, by what became of them: each ends in exactly one"
    );
    describe_counter!(
        "syrinx_transceiver_sessions_opened_total",
        "Sessions taken up"
    );
    describe_counter!(
        "syrinx_transceiver_sessions_ended_total",
        "Sessions ended, by reason"
    );
    describe_counter!("syrinx_transceiver_bundles_total", "Bundles of good form");
    describe_counter!(
        "syrinx_transceiver_bad_bundles_total",
        "Datagrams that are no bundle"
    );
    describe_counter!(
        "syrinx_transceiver_records_sent_total",
        "Records for relays"
    );
    describe_counter!(
        "syrinx_transceiver_openings_refused_total",
        "Sessions a worker did not take up; never in a sound process"
    );
    describe_counter!(
        "syrinx_transceiver_oversize_records_total",
        "Datagrams of sessions that fit no bundle"
    );
}
