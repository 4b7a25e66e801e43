//! The caller on his way to the backend: packets as they are, or as PCM, and gaps in their places.

use super::messages::{Format, ToBackend};
use super::wire::{
    FLAG_CONCEALED, FLAG_DTX, FLAG_LOST, Header, LEVEL_UNKNOWN, MediaType, push_pcm,
};
use crate::backend::Actions;
use crate::backend::decoding::{Decoded, Decoding, Pcm};
use crate::backend::link::{LinkBody, LinkClass, LinkCommand, LinkMessage};
use crate::backend::turns::{self, Speech, Turns};
use crate::engine::AudioCodec;
use crate::session::inbound::{Gap, GapKind, Heard, Placed};

/// See the module.
#[derive(Debug)]
pub(super) struct Inward {
    format: Format,
    sequence: u32,
    decoding: Decoding,
    /// Whether the caller speaks, where the backend wants to be told.
    turns: Option<Turns>,
}

impl Inward {
    pub(super) fn new(format: Format, with_turns: bool) -> Self {
        Self {
            format,
            sequence: 0,
            decoding: Decoding::default(),
            turns: with_turns.then(Turns::new),
        }
    }

    /// Rate of the PCM that the codec is to give, if it is needed at all.
    pub(super) fn decode_rate_hz(&self) -> Option<u32> {
        match self.format {
            Format::Pcm16 { rate_hz } => Some(rate_hz),
            Format::None | Format::Opus => self.turns.as_ref().map(|_| turns::RATE_HZ),
        }
    }

    /// The next piece of the caller's line, which arrived at `time_ns`.
    pub(super) fn hear(&mut self, time_ns: u64, heard: Heard, actions: &mut Actions) {
        match (heard, self.format) {
            (Heard::Key(key), _) => {
                let dtmf = ToBackend::Dtmf {
                    digit: key.key,
                    timestamp: key.at,
                };
                super::send(&dtmf, actions);
            }
            (Heard::Audio(audio), format) => {
                if format == Format::Opus {
                    self.pass(time_ns, &audio, actions);
                }
                if self.decode_rate_hz().is_some() {
                    self.decoding.hear_audio(time_ns, audio, actions);
                }
            }
            (Heard::Gap(gap), format) => {
                if format == Format::Opus {
                    self.send_gap(gap, time_ns, actions);
                }
                if self.decode_rate_hz().is_some() {
                    self.decoding.hear_gap(time_ns, gap, actions);
                }
            }
        }
    }

    /// The codec has decoded what stands at `at`.
    pub(super) fn handle_pcm(&mut self, at: u64, pcm: Vec<i16>, is_concealed: bool) {
        self.decoding.handle_pcm(at, pcm, is_concealed);
    }

    /// Sends what is decoded; called until it gives nothing, and what it gives is how the caller's
    /// turn has changed.
    pub(super) fn poll(&mut self, actions: &mut Actions) -> Option<Speech> {
        let rate_hz = self.decode_rate_hz()?;
        let is_pcm = matches!(self.format, Format::Pcm16 { .. });
        while let Some(decoded) = self.decoding.poll() {
            let speech = match decoded {
                Decoded::Gap { gap, time_ns } => {
                    if is_pcm {
                        self.send_gap(gap, time_ns, actions);
                    }
                    let turns = self.turns.as_mut();
                    turns.and_then(|turns| turns.pass(gap.at + gap.samples, gap.samples))
                }
                Decoded::Pcm(decoded) => {
                    if is_pcm {
                        self.send_pcm(&decoded, actions);
                    }
                    let scale = u64::from(48_000 / rate_hz);
                    let end = decoded.at + decoded.pcm.len() as u64 * scale;
                    let turns = self.turns.as_mut();
                    turns.and_then(|turns| turns.hear(end, &decoded.pcm, rate_hz))
                }
            };
            if speech.is_some() {
                return speech;
            }
        }
        None
    }

    fn send_pcm(&mut self, decoded: &Pcm, actions: &mut Actions) {
        let flags = if decoded.is_concealed {
            FLAG_CONCEALED
        } else {
            0
        };
        let level = level_of(decoded.level_dbov);
        let header = self.header(flags, level, decoded.at, decoded.time_ns);
        let mut message = header.to_message(decoded.pcm.len() * 2);
        push_pcm(&mut message, &decoded.pcm);
        send_audio(message, actions);
    }

    fn pass(&mut self, time_ns: u64, audio: &Placed, actions: &mut Actions) {
        let packet = &audio.packet;
        if packet.codec != AudioCodec::Opus {
            let gap = lost(audio.at, u64::from(audio.samples));
            return self.send_gap(gap, time_ns, actions);
        }
        let level = level_of(packet.level_dbov);
        let header = self.header(0, level, audio.at, time_ns);
        let mut message = header.to_message(packet.payload.len());
        message.extend_from_slice(&packet.payload);
        send_audio(message, actions);
    }

    fn send_gap(&mut self, gap: Gap, time_ns: u64, actions: &mut Actions) {
        let flag = match gap.kind {
            GapKind::Lost => FLAG_LOST,
            GapKind::Dtx => FLAG_DTX,
        };
        let header = self.header(flag, LEVEL_UNKNOWN, gap.at, time_ns);
        let mut message = header.to_message(4);
        let samples = u32::try_from(gap.samples).unwrap_or(u32::MAX);
        message.extend_from_slice(&samples.to_le_bytes());
        send_audio(message, actions);
    }

    fn header(&mut self, flags: u8, level: u16, at: u64, time_ns: u64) -> Header {
        let header = Header {
            media: MediaType::AudioIn,
            flags,
            segment: level,
            sequence: self.sequence,
            timestamp: at,
            time_ns,
        };
        self.sequence = self.sequence.wrapping_add(1);
        header
    }
}

fn lost(at: u64, samples: u64) -> Gap {
    Gap {
        kind: GapKind::Lost,
        at,
        samples,
    }
}

fn level_of(level_dbov: Option<i8>) -> u16 {
    level_dbov.map_or(LEVEL_UNKNOWN, |level| u16::from(level.unsigned_abs()))
}

fn send_audio(message: Vec<u8>, actions: &mut Actions) {
    actions.link(LinkCommand::Send(LinkMessage {
        class: LinkClass::Audio,
        body: LinkBody::Binary(message),
    }));
}
