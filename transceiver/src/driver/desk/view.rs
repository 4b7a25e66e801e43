//! How a call is doing, as JSON.

use std::time::Duration;

use serde::Serialize;

use crate::session::Summary;

/// A duration in ms, to the microsecond.
pub(super) fn rounded_ms(took: Duration) -> f64 {
    took.as_micros() as f64 / 1e3
}

/// Samples at 48 kHz in ms.
pub(super) fn samples_ms(samples: u64) -> f64 {
    samples as f64 / 48.0
}

/// `GET /v1/realtime/calls/{id}`.
#[derive(Debug, Serialize)]
pub struct CallView {
    id: String,
    object: &'static str,
    shard: u8,
    /// Null until the client's first check.
    client: Option<String>,
    age_ms: f64,
    setup_ms: SetupView,
    moves: u32,
    ice_restarts: u64,
    /// Null without audio.
    codec: Option<&'static str>,
    /// Null until the client has reported one.
    round_trip_ms: Option<f64>,
    round_trip_min_ms: Option<f64>,
    audio_in: AudioInView,
    audio_out: AudioOutView,
    datagrams: TrafficView,
    messages: TrafficView,
    replies_dropped: u64,
}

/// Time from the offer to each phase; null until then.
#[derive(Debug, Serialize)]
struct SetupView {
    first_check: Option<f64>,
    connected: Option<f64>,
    channel: Option<f64>,
    first_audio: Option<f64>,
}

#[derive(Debug, Serialize)]
struct AudioInView {
    packets: u64,
    bytes: u64,
    lost: u64,
    reordered: u64,
    late: u64,
    unreadable: u64,
    jumps: u64,
    lost_ms: f64,
    silent_ms: f64,
    keys: u64,
    jitter_ms: f64,
}

#[derive(Debug, Serialize)]
struct AudioOutView {
    packets: u64,
    bytes: u64,
    /// What the client has reported so far.
    lost: u64,
    jitter_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
struct TrafficView {
    r#in: u64,
    out: u64,
}

impl CallView {
    pub(super) fn new(summary: &Summary) -> Self {
        let Summary {
            reception,
            repairs,
            delivery,
            counts,
            phases,
            ..
        } = summary;
        Self {
            id: summary.id.clone(),
            object: "realtime.call",
            shard: summary.session.shard.0,
            client: summary.client.map(|client| client.to_string()),
            age_ms: rounded_ms(summary.age),
            setup_ms: SetupView {
                first_check: phases.first_check.map(rounded_ms),
                connected: phases.connected.map(rounded_ms),
                channel: phases.channel.map(rounded_ms),
                first_audio: phases.first_audio.map(rounded_ms),
            },
            moves: summary.moves,
            ice_restarts: counts.ice_restarts,
            codec: summary.audio.map(|format| format.codec.name()),
            round_trip_ms: delivery.round_trip.map(rounded_ms),
            round_trip_min_ms: delivery.round_trip_min.map(rounded_ms),
            audio_in: AudioInView {
                packets: reception.packets,
                bytes: reception.bytes,
                lost: reception.lost(),
                reordered: reception.reordered,
                late: repairs.late,
                unreadable: repairs.unreadable,
                jumps: repairs.jumps,
                lost_ms: samples_ms(repairs.lost_samples),
                silent_ms: samples_ms(repairs.silent_samples),
                keys: repairs.keys,
                jitter_ms: reception.jitter_ms,
            },
            audio_out: AudioOutView {
                packets: counts.audio_out_packets,
                bytes: counts.audio_out_bytes,
                lost: delivery.lost_packets,
                jitter_ms: delivery.jitter_ms,
            },
            datagrams: TrafficView {
                r#in: counts.datagrams_in,
                out: counts.datagrams_out,
            },
            messages: TrafficView {
                r#in: counts.messages_in,
                out: counts.messages_out,
            },
            replies_dropped: summary.replies_dropped,
        }
    }
}
