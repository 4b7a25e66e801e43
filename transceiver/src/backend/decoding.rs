//! The caller's line on its way through the codec, and in order again behind it.
//!
//! The codec works elsewhere and its results come later, so what has to wait its turn stands in a
//! line: a gap is given when the PCM before it has been. The end of a lost stretch is left to the
//! packet behind it, for its forward error correction.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Actions;
use super::codec::CodecCommand;
use crate::session::inbound::{Gap, GapKind, Placed};

/// The longest gap that is made up for, in samples: 120 ms, beyond which concealment is silence.
const CONCEALED_SAMPLES_MAX: u64 = 120 * 48;
/// What may wait for the codec: all that was kept for the backend, in the shortest packets.
const EXPECTED_MAX: usize = 8_192;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Decoding {
    /// A gap that the packet behind it may help to fill.
    loss: Option<Gap>,
    expected: VecDeque<Expected>,
    decoded: VecDeque<Decoded>,
}

/// A piece of the line behind the codec.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Pcm(Pcm),
    Gap { gap: Gap, time_ns: u64 },
}

/// Decoded speech.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pcm {
    pub(super) at: u64,
    pub(super) pcm: Vec<i16>,
    pub(super) is_concealed: bool,
    pub(super) level_dbov: Option<i8>,
    /// When its packet arrived.
    pub(super) time_ns: u64,
}

#[derive(Debug)]
enum Expected {
    Pcm {
        at: u64,
        samples: u64,
        level_dbov: Option<i8>,
        time_ns: u64,
    },
    Gap {
        gap: Gap,
        time_ns: u64,
    },
}

impl Decoding {
    /// A packet, which arrived at `time_ns`.
    pub(super) fn hear_audio(&mut self, time_ns: u64, audio: Placed, actions: &mut Actions) {
        let Placed {
            at,
            samples,
            packet,
        } = audio;
        self.conceal_loss(time_ns, Some(&packet.payload), actions);
        self.expect(Expected::Pcm {
            at,
            samples: u64::from(samples),
            level_dbov: packet.level_dbov,
            time_ns,
        });
        actions.codec(CodecCommand::Decode {
            at,
            codec: packet.codec,
            payload: packet.payload,
        });
    }

    /// A gap, known at `time_ns`.
    pub(super) fn hear_gap(&mut self, time_ns: u64, gap: Gap, actions: &mut Actions) {
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
        if told.samples > 0 {
            self.expect(Expected::Gap { gap: told, time_ns });
            self.release_gaps();
        }
    }

    /// The codec has decoded what stands at `at`.
    pub(super) fn handle_pcm(&mut self, at: u64, pcm: Vec<i16>, is_concealed: bool) {
        while let Some(expected) = self.expected.pop_front() {
            match expected {
                Expected::Pcm {
                    at: own,
                    level_dbov,
                    time_ns,
                    ..
                } if own == at && !pcm.is_empty() => {
                    self.decoded.push_back(Decoded::Pcm(Pcm {
                        at,
                        pcm,
                        is_concealed,
                        level_dbov,
                        time_ns,
                    }));
                    return self.release_gaps();
                }
                // It could not be decoded, or the codec was too busy for it.
                Expected::Pcm {
                    at: own,
                    samples,
                    time_ns,
                    ..
                } => {
                    let gap = Gap {
                        kind: GapKind::Lost,
                        at: own,
                        samples,
                    };
                    self.decoded.push_back(Decoded::Gap { gap, time_ns });
                    if own == at {
                        return self.release_gaps();
                    }
                }
                Expected::Gap { gap, time_ns } => {
                    self.decoded.push_back(Decoded::Gap { gap, time_ns });
                }
            }
        }
    }

    /// The next piece of the line.
    pub(super) fn poll(&mut self) -> Option<Decoded> {
        self.decoded.pop_front()
    }

    fn conceal_loss(&mut self, time_ns: u64, behind: Option<&Arc<[u8]>>, actions: &mut Actions) {
        let Some(Gap { at, samples, .. }) = self.loss.take() else {
            return;
        };
        self.expect(Expected::Pcm {
            at,
            samples,
            level_dbov: None,
            time_ns,
        });
        actions.codec(CodecCommand::Conceal {
            at,
            samples,
            behind: behind.cloned(),
        });
    }

    fn release_gaps(&mut self) {
        while let Some(&Expected::Gap { gap, time_ns }) = self.expected.front() {
            self.expected.pop_front();
            self.decoded.push_back(Decoded::Gap { gap, time_ns });
        }
    }

    fn expect(&mut self, expected: Expected) {
        // A codec that has given nothing for so long has forgotten.
        if self.expected.len() == EXPECTED_MAX {
            self.expected.clear();
        }
        self.expected.push_back(expected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(kind: GapKind, at: u64, samples: u64) -> Gap {
        Gap { kind, at, samples }
    }

    #[test]
    fn what_the_codec_was_too_busy_for_is_a_gap_in_its_place() {
        let mut decoding = Decoding::default();
        for at in [0, 960] {
            decoding.expect(Expected::Pcm {
                at,
                samples: 960,
                level_dbov: None,
                time_ns: 1,
            });
        }
        decoding.handle_pcm(960, vec![1], false);
        let lost = gap(GapKind::Lost, 0, 960);
        let first = decoding.poll();
        assert_eq!(
            first,
            Some(Decoded::Gap {
                gap: lost,
                time_ns: 1
            })
        );
        assert!(matches!(decoding.poll(), Some(Decoded::Pcm(pcm)) if pcm.at == 960));
        assert_eq!(decoding.poll(), None);
    }

    #[test]
    fn a_loss_that_silence_follows_is_concealed_without_a_packet_behind() {
        let (mut decoding, mut actions) = (Decoding::default(), Actions::for_tests());
        decoding.hear_gap(1, gap(GapKind::Lost, 0, 960), &mut actions);
        decoding.hear_gap(2, gap(GapKind::Dtx, 960, 9_600), &mut actions);
        let Some(CodecCommand::Conceal {
            at: 0,
            behind: None,
            ..
        }) = actions.pop_codec()
        else {
            panic!("the loss is concealed");
        };
        assert_eq!(decoding.poll(), None, "the silence comes behind it");
        decoding.handle_pcm(0, vec![], true);
        for expected in [gap(GapKind::Lost, 0, 960), gap(GapKind::Dtx, 960, 9_600)] {
            let Some(Decoded::Gap { gap, .. }) = decoding.poll() else {
                panic!("a gap");
            };
            assert_eq!(gap, expected);
        }
    }
}
