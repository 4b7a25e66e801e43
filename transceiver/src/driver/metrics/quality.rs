//! How well calls went: totals and distributions, added when a call ends, without a label that
//! would tell one call from another.

use metrics::{Counter, Histogram, Unit};
use metrics::{counter, describe_counter, describe_histogram, histogram};

use crate::session::Summary;

/// A counter, and what of a call is added to it.
struct Total {
    name: &'static str,
    label: Option<(&'static str, &'static str)>,
    read: fn(&Summary) -> u64,
}

const fn total(name: &'static str, read: fn(&Summary) -> u64) -> Total {
    let label = None;
    Total { name, label, read }
}

const fn labelled(
    name: &'static str,
    label: (&'static str, &'static str),
    read: fn(&Summary) -> u64,
) -> Total {
    let label = Some(label);
    Total { name, label, read }
}

const PACKETS: &str = "syrinx_transceiver_audio_packets_total";
const LOST: &str = "syrinx_transceiver_audio_lost_packets_total";
const REPAIRS: &str = "syrinx_transceiver_audio_repairs_total";
const UNHEARD: &str = "syrinx_transceiver_backend_unheard_samples_total";
const REFUSED: &str = "syrinx_transceiver_backend_refused_samples_total";
const FAULTS: &str = "syrinx_transceiver_backend_faults_total";
const FLUSHES: &str = "syrinx_transceiver_backend_flushes_total";
const IN: (&str, &str) = ("direction", "in");
const OUT: (&str, &str) = ("direction", "out");

const TOTALS: [Total; 16] = [
    labelled(PACKETS, IN, |call| call.reception.packets),
    labelled(PACKETS, OUT, |call| call.counts.audio_out_packets),
    labelled(LOST, IN, |call| call.reception.lost()),
    labelled(LOST, OUT, |call| call.delivery.lost_packets),
    labelled(REPAIRS, ("kind", "reordered"), |call| {
        call.repairs.reordered
    }),
    labelled(REPAIRS, ("kind", "late"), |call| call.repairs.late),
    labelled(REPAIRS, ("kind", "unreadable"), |call| {
        call.repairs.unreadable
    }),
    labelled(REPAIRS, ("kind", "jump"), |call| call.repairs.jumps),
    total("syrinx_transceiver_keys_pressed_total", |call| {
        call.repairs.keys
    }),
    total("syrinx_transceiver_client_moves_total", |call| {
        call.moves.into()
    }),
    total("syrinx_transceiver_ice_restarts_total", |call| {
        call.counts.ice_restarts
    }),
    total("syrinx_transceiver_replies_dropped_total", |call| {
        call.replies_dropped
    }),
    total(UNHEARD, |call| call.losses.unheard_samples),
    total(REFUSED, |call| call.losses.refused_samples),
    total(FAULTS, |call| call.losses.faults),
    total(FLUSHES, |call| call.losses.flushes),
];

/// See the module.
#[derive(Debug)]
pub(super) struct QualityMetrics {
    /// In the order of [`TOTALS`].
    totals: Vec<Counter>,
    duration: Histogram,
    round_trip: Histogram,
    jitter_in: Histogram,
    jitter_out: Histogram,
}

fn handle(Total { name, label, .. }: Total) -> Counter {
    match label {
        Some((key, value)) => counter!(name, key => value),
        None => counter!(name),
    }
}

impl QualityMetrics {
    /// Registers and describes the handles.
    pub(super) fn register() -> Self {
        describe();
        let jitter =
            |direction| histogram!("syrinx_transceiver_jitter_seconds", "direction" => direction);
        Self {
            totals: TOTALS.into_iter().map(handle).collect(),
            duration: histogram!("syrinx_transceiver_call_seconds"),
            round_trip: histogram!("syrinx_transceiver_round_trip_seconds"),
            jitter_in: jitter("in"),
            jitter_out: jitter("out"),
        }
    }

    /// A call ended.
    pub(super) fn record(&self, call: &Summary) {
        for (counter, Total { read, .. }) in self.totals.iter().zip(TOTALS) {
            counter.increment(read(call));
        }
        self.duration.record(call.age.as_secs_f64());
        if let Some(round_trip) = call.delivery.round_trip {
            self.round_trip.record(round_trip.as_secs_f64());
        }
        if call.reception.packets > 0 {
            self.jitter_in.record(call.reception.jitter_ms / 1e3);
        }
        if let Some(jitter_ms) = call.delivery.jitter_ms {
            self.jitter_out.record(jitter_ms / 1e3);
        }
    }
}

fn describe() {
    describe_counter!(
        UNHEARD,
        "Samples at 48 kHz of callers that came before the backend was there and were not kept"
    );
    describe_counter!(
        REFUSED,
        "Samples at 48 kHz of backends that were not played because too much waited"
    );
    describe_counter!(FAULTS, "Messages of backends that made no sense");
    describe_counter!(FLUSHES, "Flushes that cut an answer off");
    describe_counter!(PACKETS, "Audio packets of ended calls");
    describe_counter!(LOST, "Audio packets of ended calls that never arrived");
    describe_counter!(
        REPAIRS,
        "What was done to put callers' audio in order, in ended calls"
    );
    describe_counter!(
        "syrinx_transceiver_keys_pressed_total",
        "Keys that callers pressed, in ended calls"
    );
    describe_counter!(
        "syrinx_transceiver_client_moves_total",
        "Changes of clients' addresses, in ended calls"
    );
    describe_counter!(
        "syrinx_transceiver_ice_restarts_total",
        "ICE restarts, in ended calls"
    );
    describe_counter!(
        "syrinx_transceiver_replies_dropped_total",
        "Events and audio left out because too many waited, in ended calls"
    );
    describe_histogram!(
        "syrinx_transceiver_call_seconds",
        Unit::Seconds,
        "From the offer to the end of a call"
    );
    describe_histogram!(
        "syrinx_transceiver_round_trip_seconds",
        Unit::Seconds,
        "The last round trip that a call's client reported"
    );
    describe_histogram!(
        "syrinx_transceiver_jitter_seconds",
        Unit::Seconds,
        "Interarrival jitter at the end of a call"
    );
}
