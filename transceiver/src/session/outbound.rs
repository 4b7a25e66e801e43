//! What goes to the client: datagrams by the right path, audio, and events.

use std::time::{Duration, Instant};

use syrinx_shared::wire::demux::{Protocol, classify};

use super::events::{self, EventFault};
use super::paths::PathIndex;
use super::{Session, Step, TransmitSink};
use crate::backend::{Addressee, ClientEvent, Input};
use crate::engine::{AudioOut, ChannelId, ChannelWrite, Transmit};
use crate::playout::{self, Packet, Way};

impl Session {
    /// STUN answers go back by the path of the request; all else goes by the current one, whatever
    /// address the engine has in mind.
    pub(super) fn transmit<S: TransmitSink>(
        &mut self,
        step: &mut Step<'_, S>,
        path: Option<PathIndex>,
        transmit: &Transmit,
    ) {
        let answers_check = classify(&transmit.bytes) == Some(Protocol::Stun);
        let by = match path.filter(|_| answers_check) {
            Some(path) => Some(self.paths.at(path)),
            None => self.paths.current(),
        };
        let Some(by) = by else { return };
        self.counts.datagrams_out += 1;
        let sealed =
            (answers_check && self.answers_in_sha256).then(|| self.engine.seal(&transmit.bytes));
        let bytes = sealed.as_deref().unwrap_or(&transmit.bytes);
        step.sink.transmit(by.relay, &by.back, bytes);
    }

    /// A message of the client: an event for the backend, or something to be told about.
    pub(super) fn handle_message(&mut self, now: Instant, channel: ChannelId, message: &[u8]) {
        if !self.channels.contains(&channel) {
            return;
        }
        self.counts.messages_in += 1;
        let from = Addressee::Channel(channel);
        match events::check(message) {
            Ok(text) => self.tell(now, Input::ClientEvent(ClientEvent { from, text })),
            Err(fault) => self.actions.say_fault(from, fault),
        }
    }

    /// Sends one thing, if one can be sent, and says whether the engine has something to drain.
    pub(super) fn write_reply(&mut self, now: Instant) -> Result<bool, String> {
        if let Some(audio) = self.actions.pop_audio() {
            self.write_audio(now, audio);
            return self.wake_engine(now);
        }
        match self.actions.playout().poll(now) {
            Some(playout::Output::Packet(packet)) => {
                self.write_packet(now, packet);
                return self.wake_engine(now);
            }
            Some(playout::Output::Event(event)) => {
                self.tell(now, Input::Playout(event));
                return Ok(true);
            }
            None => {}
        }
        let Some((to, event)) = self.actions.first_event() else {
            return Ok(false);
        };
        let channel = match to {
            Addressee::Channel(channel) => channel,
            Addressee::Client | Addressee::Sideband => match self.channels.first() {
                Some(&channel) => channel,
                // It waits for the client's channel, if he has offered to open one.
                None if self.engine.has_channel() => return Ok(false),
                None => {
                    self.actions.pop_event();
                    return Ok(true);
                }
            },
        };
        match self
            .engine
            .write_channel(channel, event)
            .map_err(|error| error.to_string())?
        {
            ChannelWrite::Taken => self.counts.messages_out += 1,
            // What the client acknowledges comes as a datagram, and that step tries again.
            ChannelWrite::Full => return Ok(false),
            ChannelWrite::Closed => {}
            ChannelWrite::TooLarge => {
                let to = Addressee::Channel(channel);
                self.actions.say_fault(to, EventFault::TooLarge);
            }
        }
        self.actions.pop_event();
        self.wake_engine(now)
    }

    /// What is known of the way to the client.
    pub(super) fn way(&self) -> Way {
        let sent = self.counts.audio_out_packets;
        let jitter_ms = self.delivery.jitter_ms;
        Way {
            round_trip: self.delivery.round_trip,
            jitter: jitter_ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok()),
            // Counts of packets: exact in 53 bits.
            loss: (self.delivery.is_reported && sent > 0)
                .then(|| self.delivery.lost_packets as f64 / sent as f64),
            recent_loss: self.delivery.recent_loss,
        }
    }

    /// Sends what is due. A packet that the client takes none of does not count as played.
    fn write_packet(&mut self, now: Instant, packet: Packet) {
        let content = packet.content;
        let is_sent = self.engine.audio_format().is_some_and(|format| {
            let ticks = packet.timestamp * u64::from(format.clock_rate_hz) / 48_000;
            let audio = AudioOut {
                sequence: packet.sequence,
                // RTP carries the low 32 bits (RFC 3550, 5.1).
                timestamp: (ticks & u64::from(u32::MAX)) as u32,
                marker: packet.marker,
                payload_type: format.payload_type,
                payload: packet.payload,
            };
            self.write_audio(now, audio)
        });
        if !is_sent {
            self.actions.playout().note_unsent(content);
        }
    }

    fn write_audio(&mut self, now: Instant, audio: AudioOut) -> bool {
        let bytes = audio.payload.len() as u64;
        let is_sent = self.engine.write_audio(now, audio);
        if is_sent {
            self.counts.audio_out_packets += 1;
            self.counts.audio_out_bytes += bytes;
        }
        is_sent
    }

    /// What was written is sent by the time-out that follows.
    fn wake_engine(&mut self, now: Instant) -> Result<bool, String> {
        self.engine
            .handle_timeout(now)
            .map_err(|error| error.to_string())?;
        Ok(true)
    }
}
