//! `media.v1` as a backend writes and reads it, with Opus both ways.

use serde_json::{Value, json};
use tungstenite::Message;

/// The header of a binary message.
pub(in crate::calls) const HEADER_BYTES: usize = 24;
pub(in crate::calls) const AUDIO_IN: u8 = 1;
pub(in crate::calls) const AUDIO_OUT: u8 = 2;
/// Flags of a message that is a gap: `lost` and `dtx`.
const GAP: u8 = 0b11;
/// The flag of audio that belongs to this moment.
pub(in crate::calls) const LIVE: u8 = 1;

/// The backend's side of the hello.
pub(in crate::calls) fn hello() -> Value {
    json!({
        "type": "hello", "version": 1, "playout_ms": 0,
        "audio_in": { "format": "opus" }, "audio_out": { "format": "opus" },
    })
}

/// The caller's packet in a binary message; `None` for a gap or anything else.
pub(in crate::calls) fn packet(message: &[u8]) -> Option<&[u8]> {
    let (header, packet) = message.split_at_checked(HEADER_BYTES)?;
    let is_audio = header[0] == AUDIO_IN && header[1] & GAP == 0 && !packet.is_empty();
    is_audio.then_some(packet)
}

/// A packet for the caller.
pub(in crate::calls) fn audio(flags: u8, segment: u16, sequence: u32, packet: &[u8]) -> Message {
    let mut message = vec![0; HEADER_BYTES];
    (message[0], message[1]) = (AUDIO_OUT, flags);
    message[2..4].copy_from_slice(&segment.to_le_bytes());
    message[4..8].copy_from_slice(&sequence.to_le_bytes());
    message.extend_from_slice(packet);
    Message::binary(message)
}
