//! The Realtime protocol as a server writes and reads it, with PCM16 at 24 kHz both ways.

use anyhow::Context;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::{Link, say};

/// The rate of a link's audio.
pub(in crate::calls) const RATE_HZ: u32 = 24_000;
/// The answer and the item that a call has: one of each.
const RESPONSE: &str = "resp_1";
const ITEM: &str = "item_1";

/// Greets the edge, as a server does when a link is made.
pub(in crate::calls) fn greet(link: &mut Link) -> tungstenite::Result<()> {
    let format = json!({ "type": "audio/pcm", "rate": RATE_HZ });
    let created = json!({
        "type": "session.created",
        "session": {
            "type": "realtime", "id": "sess_1", "model": "bench",
            "audio": { "input": { "format": format }, "output": { "format": format } },
        },
    });
    say(link, &created)
}

/// Begins the answer.
pub(in crate::calls) fn begin(link: &mut Link) -> tungstenite::Result<()> {
    let response = json!({ "id": RESPONSE, "object": "realtime.response" });
    say(
        link,
        &json!({ "type": "response.created", "response": response }),
    )?;
    let item = json!({ "id": ITEM, "type": "message", "role": "assistant" });
    say(
        link,
        &json!({ "type": "response.output_item.added", "response_id": RESPONSE, "item": item }),
    )
}

/// A piece of the answer's sound.
pub(in crate::calls) fn delta(audio: &str) -> Value {
    json!({
        "type": "response.output_audio.delta", "response_id": RESPONSE, "item_id": ITEM,
        "output_index": 0, "content_index": 0, "delta": audio,
    })
}

/// Ends the answer: all of it has been made.
pub(in crate::calls) fn end(link: &mut Link) -> tungstenite::Result<()> {
    say(
        link,
        &json!({
            "type": "response.output_audio.done", "response_id": RESPONSE, "item_id": ITEM,
            "output_index": 0, "content_index": 0,
        }),
    )?;
    let response = json!({ "id": RESPONSE, "status": "completed" });
    say(
        link,
        &json!({ "type": "response.done", "response": response }),
    )
}

/// Says that the caller has begun to speak.
pub(in crate::calls) fn notice_speech(link: &mut Link) -> tungstenite::Result<()> {
    say(
        link,
        &json!({
            "type": "input_audio_buffer.speech_started", "audio_start_ms": 0, "item_id": "item_2",
        }),
    )
}

/// PCM as it stands in an event.
pub(in crate::calls) fn encode(pcm: &[i16]) -> String {
    let bytes: Vec<u8> = pcm.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

/// The loudest sample of an event's audio.
pub(in crate::calls) fn peak(audio: &str) -> anyhow::Result<u16> {
    let bytes = BASE64_STANDARD.decode(audio).context("no base64")?;
    let samples = bytes.as_chunks::<2>().0.iter();
    let loudness = samples.map(|sample| i16::from_le_bytes(*sample).unsigned_abs());
    Ok(loudness.max().unwrap_or(0))
}
