//! The codec work of one session: two queues, each in its own order, taken one small piece at a
//! time and in turn. Decoding goes first, for a caller waits to be understood, but not twice while
//! a frame waits to be encoded: with more to decode than there is time for, he would hear nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use super::voice::{Decoder, Encoder, FRAME_MS, decoder, encoder, samples_of};
use crate::backend::codec::{CodecCommand, CodecEpoch, CodecOutput, CodecSetup};
use crate::engine::AudioCodec;

/// The clock that dialects count in, in Hz.
const DIALECT_HZ: u32 = 48_000;

/// What one piece of work was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// A packet decoded.
    Decode,
    /// A gap filled.
    Conceal,
    /// A frame encoded.
    Encode,
}

impl Work {
    pub(super) const ALL: [Self; 3] = [Self::Decode, Self::Conceal, Self::Encode];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Conceal => "conceal",
            Self::Encode => "encode",
        }
    }
}

/// See the module.
pub(super) struct Session {
    setup: CodecSetup,
    inbound: VecDeque<CodecCommand>,
    outbound: VecDeque<CodecCommand>,
    /// Whether the last piece was one of the caller's.
    has_decoded: bool,
    /// The decoder of what the client sent last.
    decoder: Option<(AudioCodec, Box<dyn Decoder>)>,
    encoder: Option<Box<dyn Encoder>>,
    expected_loss_percent: u8,
    /// PCM that does not fill a frame yet.
    partial: Vec<i16>,
}

impl Session {
    pub(super) fn new(setup: CodecSetup) -> Self {
        Self {
            setup,
            inbound: VecDeque::new(),
            outbound: VecDeque::new(),
            has_decoded: false,
            decoder: None,
            encoder: None,
            expected_loss_percent: 0,
            partial: Vec::new(),
        }
    }

    /// Takes a command; work is put off until [`Session::step`].
    pub(super) fn take(&mut self, command: CodecCommand) {
        match command {
            CodecCommand::Decode { .. } | CodecCommand::Conceal { .. } => {
                self.inbound.push_back(command);
            }
            CodecCommand::Encode { .. } | CodecCommand::EndEncode { .. } => {
                self.outbound.push_back(command);
            }
            CodecCommand::Flush { .. } => {
                self.outbound.clear();
                self.partial.clear();
                if let Some(encoder) = &mut self.encoder {
                    encoder.reset();
                }
            }
            CodecCommand::ExpectLoss { percent } => {
                self.expected_loss_percent = percent;
                if let Some(encoder) = &mut self.encoder {
                    encoder.expect_loss(percent);
                }
            }
            CodecCommand::Open(setup) => *self = Self::new(setup),
            CodecCommand::Close => {}
        }
    }

    /// Whether there is something to do.
    pub(super) fn is_ready(&self) -> bool {
        !self.inbound.is_empty() || !self.outbound.is_empty()
    }

    /// Does one piece of work, if there is any.
    pub(super) fn step(&mut self, outputs: &mut Vec<CodecOutput>) -> Option<Work> {
        let is_turn_of_outbound = self.has_decoded && !self.outbound.is_empty();
        self.has_decoded = !is_turn_of_outbound && !self.inbound.is_empty();
        if !self.has_decoded {
            return self.step_outbound(outputs);
        }
        match self.inbound.pop_front() {
            Some(CodecCommand::Decode { at, codec, payload }) => {
                outputs.push(self.decode(at, codec, &payload));
                Some(Work::Decode)
            }
            Some(CodecCommand::Conceal {
                at,
                samples,
                behind,
            }) => {
                outputs.push(self.conceal(at, samples, behind.as_deref()));
                Some(Work::Conceal)
            }
            _ => None,
        }
    }

    /// After a panic: what is to be done is kept, what has a state is made anew.
    pub(super) fn start_afresh(&mut self) {
        self.decoder = None;
        self.encoder = None;
    }

    fn decode(&mut self, at: u64, codec: AudioCodec, payload: &[u8]) -> CodecOutput {
        let rate_hz = self.setup.decode_rate_hz;
        if self.decoder.as_ref().is_none_or(|(last, _)| *last != codec) {
            self.decoder = decoder(codec, rate_hz).map(|decoder| (codec, decoder));
        }
        let mut pcm = Vec::new();
        if let Some((_, decoder)) = &mut self.decoder {
            decoder.decode(payload, &mut pcm);
        }
        CodecOutput::Pcm {
            at,
            pcm,
            is_concealed: false,
        }
    }

    fn conceal(&mut self, at: u64, samples: u64, behind: Option<&[u8]>) -> CodecOutput {
        let rate_hz = self.setup.decode_rate_hz;
        let count = samples.saturating_mul(u64::from(rate_hz)) / u64::from(DIALECT_HZ);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut pcm = Vec::new();
        if self.decoder.is_none() {
            let codec = self.setup.client;
            self.decoder = decoder(codec, rate_hz).map(|decoder| (codec, decoder));
        }
        if let Some((_, decoder)) = &mut self.decoder {
            decoder.conceal(count, behind, &mut pcm);
        }
        CodecOutput::Pcm {
            at,
            pcm,
            is_concealed: true,
        }
    }

    fn step_outbound(&mut self, outputs: &mut Vec<CodecOutput>) -> Option<Work> {
        let frame = samples_of(FRAME_MS, self.setup.encode_rate_hz);
        match self.outbound.front_mut()? {
            CodecCommand::Encode { epoch, pcm } => {
                let epoch = *epoch;
                let taken = pcm.len().min(frame - self.partial.len());
                self.partial.extend(pcm.drain(..taken));
                if pcm.is_empty() {
                    self.outbound.pop_front();
                }
                if self.partial.len() == frame {
                    outputs.extend(self.encode(epoch, frame));
                }
            }
            CodecCommand::EndEncode { epoch } => {
                let epoch = *epoch;
                self.outbound.pop_front();
                let content = self.partial.len();
                if content > 0 {
                    self.partial.resize(frame, 0);
                    outputs.extend(self.encode(epoch, content));
                }
                outputs.push(CodecOutput::Ended { epoch });
            }
            _ => {
                self.outbound.pop_front();
            }
        }
        Some(Work::Encode)
    }

    /// Encodes what waits, a whole frame of which `content` samples came.
    fn encode(&mut self, epoch: CodecEpoch, content: usize) -> Option<CodecOutput> {
        let setup = self.setup;
        if self.encoder.is_none() {
            self.encoder = encoder(setup.client, setup.encode_rate_hz);
            if let Some(encoder) = &mut self.encoder {
                encoder.expect_loss(self.expected_loss_percent);
            }
        }
        let payload: Option<Arc<[u8]>> = self
            .encoder
            .as_mut()
            .and_then(|encoder| encoder.encode(&self.partial));
        self.partial.clear();
        let content_ms = content as u64 * u64::from(DIALECT_HZ) / u64::from(setup.encode_rate_hz);
        Some(CodecOutput::Frame {
            epoch,
            payload: payload?,
            samples: DIALECT_HZ / 1_000 * FRAME_MS,
            content: u32::try_from(content_ms).unwrap_or(u32::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(client: AudioCodec) -> Session {
        Session::new(CodecSetup {
            client,
            decode_rate_hz: 16_000,
            encode_rate_hz: 24_000,
        })
    }

    fn encode(count: usize) -> CodecCommand {
        CodecCommand::Encode {
            epoch: CodecEpoch(1),
            pcm: vec![1_000; count],
        }
    }

    fn outputs(session: &mut Session) -> Vec<CodecOutput> {
        let mut outputs = Vec::new();
        while session.is_ready() {
            session.step(&mut outputs).unwrap();
        }
        outputs
    }

    fn frames(outputs: &[CodecOutput]) -> Vec<(u32, u32)> {
        let frame = |output: &CodecOutput| match output {
            CodecOutput::Frame {
                samples, content, ..
            } => Some((*samples, *content)),
            _ => None,
        };
        outputs.iter().filter_map(frame).collect()
    }

    #[test]
    fn pcm_of_any_length_becomes_frames_and_the_end_is_filled_up() {
        let mut session = session(AudioCodec::Opus);
        let end = CodecCommand::EndEncode {
            epoch: CodecEpoch(1),
        };
        for command in [encode(100), encode(1_000), encode(1), end.clone()] {
            session.take(command);
        }
        let made = outputs(&mut session);
        assert_eq!(frames(&made), [(960, 960), (960, 960), (960, 282)]);
        let ended = CodecOutput::Ended {
            epoch: CodecEpoch(1),
        };
        assert_eq!(made.last(), Some(&ended));
        session.take(encode(480));
        session.take(end);
        let made = outputs(&mut session);
        assert_eq!(frames(&made), [(960, 960)], "nothing is left over");
        assert_eq!(made.len(), 2);
    }

    #[test]
    fn packets_carry_their_predecessors_only_for_a_client_that_loses_some() {
        let voice = crate::driver::codec::voice::tests::voice(24_000);
        let has_spare = |session: &mut Session| {
            session.take(CodecCommand::Encode {
                epoch: CodecEpoch(1),
                pcm: voice.clone(),
            });
            let spares = outputs(session).into_iter().filter(|output| match output {
                // A frame of 20 ms begins with its VAD flag and this one (RFC 6716, 4.2.3).
                CodecOutput::Frame { payload, .. } => payload[1] & 0x40 != 0,
                _ => false,
            });
            spares.count() > 25
        };
        let mut session = session(AudioCodec::Opus);
        assert!(!has_spare(&mut session));
        session.take(CodecCommand::ExpectLoss { percent: 10 });
        assert!(has_spare(&mut session));
        session.start_afresh();
        assert!(has_spare(&mut session), "a new encoder knows it, too");
        session.take(CodecCommand::ExpectLoss { percent: 0 });
        assert!(!has_spare(&mut session));
    }

    #[test]
    fn a_flush_leaves_nothing_to_encode_and_everything_to_decode() {
        let mut session = session(AudioCodec::Pcmu);
        session.take(encode(4_800));
        let mut made = Vec::new();
        session.step(&mut made);
        session.take(CodecCommand::Decode {
            at: 7,
            codec: AudioCodec::Pcmu,
            payload: vec![0xff; 160].into(),
        });
        session.take(CodecCommand::Flush {
            epoch: CodecEpoch(2),
        });
        let left = outputs(&mut session);
        assert_eq!(left.len(), 1);
        let CodecOutput::Pcm { at: 7, pcm, .. } = &left[0] else {
            panic!("{left:?}");
        };
        assert_eq!(pcm.len(), 320, "20 ms at 16 kHz");
    }

    #[test]
    fn the_caller_is_understood_first_and_in_turn_with_what_he_is_told() {
        let mut session = session(AudioCodec::Pcmu);
        session.take(encode(3 * 480));
        for at in [0, 960, 1_920] {
            session.take(CodecCommand::Conceal {
                at,
                samples: 960,
                behind: None,
            });
        }
        let mut made = Vec::new();
        assert_eq!(session.step(&mut made), Some(Work::Conceal));
        let concealed = CodecOutput::Pcm {
            at: 0,
            pcm: vec![0; 320],
            is_concealed: true,
        };
        assert_eq!(made, [concealed]);
        let rest: Vec<_> = std::iter::from_fn(|| session.step(&mut made)).collect();
        let (decoded, encoded) = (Work::Conceal, Work::Encode);
        assert_eq!(rest, [encoded, decoded, encoded, decoded, encoded]);
        session.take(encode(480));
        assert_eq!(session.step(&mut made), Some(Work::Encode));
        assert!(!session.is_ready());
    }

    #[test]
    fn what_cannot_be_decoded_is_an_answer_without_samples() {
        let mut session = session(AudioCodec::Opus);
        for (codec, payload) in [
            (AudioCodec::Opus, &[0xff][..]),
            (AudioCodec::TelephoneEvent, &[1, 2, 3, 4][..]),
        ] {
            session.take(CodecCommand::Decode {
                at: 1,
                codec,
                payload: payload.into(),
            });
            let none = CodecOutput::Pcm {
                at: 1,
                pcm: Vec::new(),
                is_concealed: false,
            };
            assert_eq!(outputs(&mut session), [none]);
        }
    }
}
