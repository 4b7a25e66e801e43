//! How a call is doing, as JSON.

use std::time::Duration;

use serde::Serialize;

use crate::session::Summary;

/// A duration in ms, to the microsecond.
pub(super) fn rounded_ms(took: Duration) -> f64 {
    took.as_micros() as f64 / 1e3
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
    jitter_ms: f64,
}

#[derive(Debug, Serialize)]
struct AudioOutView {
    packets: u64,
    bytes: u64,
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
            audio_in: AudioInView {
                packets: reception.packets,
                bytes: reception.bytes,
                lost: reception.lost(),
                reordered: reception.reordered,
                jitter_ms: reception.jitter_ms,
            },
            audio_out: AudioOutView {
                packets: counts.audio_out_packets,
                bytes: counts.audio_out_bytes,
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
