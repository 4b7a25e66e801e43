//! The caller on his way to the backend: packets as they are, or as PCM, and gaps in their places.
//!
//! With PCM the codec works elsewhere and its results come later, so what has to wait its turn
//! stands in a line: a gap is told when the PCM before it has been.

use std::collections::VecDeque;
use std::sync::Arc;

use super::messages::{Format, ToBackend};
use super::wire::{
    FLAG_CONCEALED, FLAG_DTX, FLAG_LOST, Header, LEVEL_UNKNOWN, MediaType, push_pcm,
};
use crate::backend::Actions;
use crate::backend::codec::CodecCommand;
use crate::backend::link::{LinkBody, LinkClass, LinkCommand, LinkMessage};
use crate::engine::AudioCodec;
use crate::session::inbound::{Gap, GapKind, Heard, Placed};

/// The longest gap that is made up for, in samples: 120 ms, beyond which concealment is silence.
const CONCEALED_SAMPLES_MAX: u64 = 120 * 48;
/// What may wait for the codec: all that was kept for the backend, in the shortest packets.
const EXPECTED_MAX: usize = 8_192;

/// See the module.
#[derive(Debug)]
pub(super) struct Inward {
    format: Format,
    sequence: u32,
    /// A gap that the packet behind it may help to fill.
    loss: Option<Gap>,
    expected: VecDeque<Expected>,
}

#[derive(Debug)]
enum Expected {
    Pcm {
        at: u64,
        samples: u64,
        level: u16,
        time_ns: u64,
    },
    Gap {
        gap: Gap,
        time_ns: u64,
    },
}

impl Inward {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            sequence: 0,
            loss: None,
            expected: VecDeque::new(),
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
            (_, Format::None) => {}
            (Heard::Audio(audio), Format::Opus) => self.pass(time_ns, audio, actions),
            (Heard::Gap(gap), Format::Opus) => self.send_gap(gap, time_ns, actions),
            (Heard::Audio(audio), Format::Pcm16 { .. }) => self.decode(time_ns, audio, actions),
            (Heard::Gap(gap), Format::Pcm16 { .. }) => self.wait_with_gap(time_ns, gap, actions),
        }
    }

    /// The codec has decoded what stands at `at`.
    pub(super) fn handle_pcm(
        &mut self,
        at: u64,
        pcm: &[i16],
        is_concealed: bool,
        actions: &mut Actions,
    ) {
        while let Some(expected) = self.expected.pop_front() {
            match expected {
                Expected::Pcm {
                    at: own,
                    samples,
                    level,
                    time_ns,
                } if own == at => {
                    if pcm.is_empty() {
                        self.send_gap(lost(at, samples), time_ns, actions);
                    } else {
                        let flags = if is_concealed { FLAG_CONCEALED } else { 0 };
                        let mut message = self
                            .header(flags, level, at, time_ns)
                            .to_message(pcm.len() * 2);
                        push_pcm(&mut message, pcm);
                        send_audio(message, actions);
                    }
                    self.send_gaps_in_turn(actions);
                    return;
                }
                // The codec was too busy for it.
                Expected::Pcm {
                    at,
                    samples,
                    time_ns,
                    ..
                } => self.send_gap(lost(at, samples), time_ns, actions),
                Expected::Gap { gap, time_ns } => self.send_gap(gap, time_ns, actions),
            }
        }
    }

    fn pass(&mut self, time_ns: u64, audio: Placed, actions: &mut Actions) {
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

    fn decode(&mut self, time_ns: u64, audio: Placed, actions: &mut Actions) {
        self.conceal_loss(time_ns, Some(&audio.packet.payload), actions);
        let level = level_of(audio.packet.level_dbov);
        self.expect_pcm(audio.at, u64::from(audio.samples), level, time_ns);
        actions.codec(CodecCommand::Decode {
            at: audio.at,
            codec: audio.packet.codec,
            payload: audio.packet.payload,
        });
    }

    fn conceal_loss(&mut self, time_ns: u64, behind: Option<&Arc<[u8]>>, actions: &mut Actions) {
        let Some(Gap { at, samples, .. }) = self.loss.take() else {
            return;
        };
        self.expect_pcm(at, samples, LEVEL_UNKNOWN, time_ns);
        actions.codec(CodecCommand::Conceal {
            at,
            samples,
            behind: behind.cloned(),
        });
    }

    /// The end of a lost stretch is left to the packet behind it, for its forward error correction.
    fn wait_with_gap(&mut self, time_ns: u64, gap: Gap, actions: &mut Actions) {
        self.conceal_loss(time_ns, None, actions);
        let mut told = gap;
        if gap.kind == GapKind::Lost {
            let concealed = gap.samples.min(CONCEALED_SAMPLES_MAX);
            told.samples = gap.samples - concealed;
            self.loss = Some(Gap {
                at: gap.at + told.samples,
                samples: concealed,
                ..gap
            });
        }
        if told.samples == 0 {
            return;
        }
        self.expect(Expected::Gap { gap: told, time_ns });
        self.send_gaps_in_turn(actions);
    }

    fn send_gaps_in_turn(&mut self, actions: &mut Actions) {
        while let Some(&Expected::Gap { gap, time_ns }) = self.expected.front() {
            self.expected.pop_front();
            self.send_gap(gap, time_ns, actions);
        }
    }

    fn expect_pcm(&mut self, at: u64, samples: u64, level: u16, time_ns: u64) {
        self.expect(Expected::Pcm {
            at,
            samples,
            level,
            time_ns,
        });
    }

    fn expect(&mut self, expected: Expected) {
        // A codec that has given nothing for so long has forgotten.
        if self.expected.len() == EXPECTED_MAX {
            self.expected.clear();
        }
        self.expected.push_back(expected);
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
