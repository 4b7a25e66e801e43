//! What a session's audio and events are for: the seam to whatever answers the caller.
//!
//! A backend is told what the client sent and writes its answers into a [`Replies`]; the session
//! sends them in the same step where it can. It never sees datagrams, paths or WebRTC.

pub mod echo;

use std::collections::VecDeque;

use crate::engine::{AudioIn, AudioOut, ChannelId};

/// Audio packets that a backend can answer within one step: one for each packet that came, and a
/// step takes one datagram, so this is room for a backend that releases a small burst.
const AUDIO_MAX: usize = 8;
/// Events that wait for a client that reads slowly.
const EVENTS_MAX: usize = 64;
/// Bytes of those events: two of the largest that can be sent.
const EVENT_BYTES_MAX: usize = 2 * crate::engine::CHANNEL_BUFFER_BYTES;

/// Answers the caller.
pub trait Backend: Send {
    /// An audio packet came, in the order of arrival.
    fn handle_audio(&mut self, audio: AudioIn, replies: &mut Replies);

    /// An event came on `channel`: JSON text with a `type`, already checked.
    fn handle_event(&mut self, channel: ChannelId, event: &str, replies: &mut Replies);
}

/// What a session still has to send, bounded.
#[derive(Debug, Default)]
pub struct Replies {
    audio: VecDeque<AudioOut>,
    events: VecDeque<(ChannelId, String)>,
    event_bytes: usize,
    dropped: u64,
}

impl Replies {
    /// Sends an audio packet in this step; dropped and counted when too many wait.
    pub fn push_audio(&mut self, audio: AudioOut) {
        if self.audio.len() < AUDIO_MAX {
            self.audio.push_back(audio);
        } else {
            self.dropped += 1;
        }
    }

    /// Sends an event on `channel` as soon as the client takes it; dropped and counted when too
    /// many wait.
    pub fn push_event(&mut self, channel: ChannelId, event: String) {
        let event_bytes = self.event_bytes + event.len();
        if self.events.len() < EVENTS_MAX && event_bytes <= EVENT_BYTES_MAX {
            self.event_bytes = event_bytes;
            self.events.push_back((channel, event));
        } else {
            self.dropped += 1;
        }
    }

    /// How many replies were dropped so far because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn pop_audio(&mut self) -> Option<AudioOut> {
        self.audio.pop_front()
    }

    pub(crate) fn first_event(&self) -> Option<&(ChannelId, String)> {
        self.events.front()
    }

    pub(crate) fn pop_event(&mut self) -> Option<(ChannelId, String)> {
        let popped = self.events.pop_front()?;
        self.event_bytes -= popped.1.len();
        Some(popped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(sequence: u64) -> AudioOut {
        let payload = [0u8; 4].as_slice().into();
        AudioOut {
            sequence,
            timestamp: 0,
            marker: false,
            payload_type: 111,
            payload,
        }
    }

    #[test]
    fn keeps_the_oldest_audio_and_counts_what_it_drops() {
        let mut replies = Replies::default();
        for sequence in 0..AUDIO_MAX as u64 + 3 {
            replies.push_audio(packet(sequence));
        }
        assert_eq!(replies.dropped(), 3);
        assert_eq!(replies.pop_audio().map(|audio| audio.sequence), Some(0));
    }
}
