//! Plays the caller back to himself: built in, so that a deployment can be heard to work before
//! any inference service exists, and the yardstick for everything that costs more.
//!
//! Payloads pass through untouched. Sequence numbers and timestamps are the echo's own: they keep
//! the distances the caller's had, so that a packet lost on the way in is concealed by the
//! caller's decoder like any other, and they run on without a jump when the caller changes his
//! source. Key presses are not played back, and leave no gap.

use std::time::Instant;

use super::{Actions, Addressee, Backend, Input};
use crate::engine::{AudioCodec, AudioIn, AudioOut};

/// First sequence number: any below 65,536 (RFC 3711, 3.3.1), with room for reordering below it.
const FIRST_SEQUENCE: u64 = 1024;
/// First timestamp, likewise with room below it.
const FIRST_TIMESTAMP: u64 = 48_000;
/// Distances from the last packet beyond which the caller's numbering has jumped rather than gone
/// on: what RFC 3550 (A.1) takes for a restarted source, and half a minute of Opus.
const SEQUENCE_JUMP: u64 = 3_000;
const TIMESTAMP_JUMP: u64 = 30 * 48_000;
/// Samples at 48 kHz in the usual packet of 20 ms.
const PACKET_SAMPLES: u64 = 960;

/// The echo of one session.
#[derive(Debug, Default)]
pub struct Echo {
    source: Option<Source>,
    last: Option<Last>,
}

/// How the numbers of the current source map to ours.
#[derive(Debug, Clone, Copy)]
struct Source {
    ssrc: u32,
    sequence_base: u64,
    timestamp_base: u64,
    sequence_out: u64,
    timestamp_out: u64,
}

/// The newest packet of the current source.
#[derive(Debug, Clone, Copy)]
struct Last {
    sequence_in: u64,
    timestamp_in: u64,
    sequence_out: u64,
    timestamp_out: u64,
    /// How long it plays, in units of its clock.
    ticks: u64,
}

impl Backend for Echo {
    fn handle(&mut self, _: Instant, input: Input<'_>, actions: &mut Actions) {
        match input {
            Input::Audio(audio) => self.handle_audio(audio, actions),
            Input::ChannelOpen(channel) => actions.greet(Addressee::Channel(channel)),
            Input::ClientEvent(event) => actions.say(event.from, event.text.to_owned()),
            // A gap is in the distances of the packets around it.
            Input::Gap(_)
            | Input::Start
            | Input::MediaReady
            | Input::Link(_)
            | Input::Codec(_)
            | Input::Timeout
            | Input::Closing(_) => {}
        }
    }
}

impl Echo {
    fn handle_audio(&mut self, audio: AudioIn, actions: &mut Actions) {
        match audio.codec {
            AudioCodec::Opus | AudioCodec::Pcmu | AudioCodec::Pcma => {
                if let Some(reply) = self.echo(audio) {
                    actions.pass_audio(reply);
                }
            }
            AudioCodec::TelephoneEvent => self.skip(&audio),
        }
    }

    fn echo(&mut self, audio: AudioIn) -> Option<AudioOut> {
        let follows = self.follows(&audio);
        let source = match self.source {
            Some(source) if follows => source,
            _ => self.adopt(&audio),
        };
        // A packet from before the source was adopted has no number of ours.
        let sequence = (source.sequence_out + audio.sequence).checked_sub(source.sequence_base)?;
        let timestamp =
            (source.timestamp_out + audio.timestamp).checked_sub(source.timestamp_base)?;
        let resumes = self.last.is_none_or(|last| {
            sequence == last.sequence_out + 1 && timestamp > last.timestamp_out + last.ticks
        });
        let marker = !follows || resumes;
        if self.last.is_none_or(|last| sequence > last.sequence_out) {
            self.last = Some(Last {
                sequence_in: audio.sequence,
                timestamp_in: audio.timestamp,
                sequence_out: sequence,
                timestamp_out: timestamp,
                ticks: ticks_of(&audio),
            });
        }
        Some(AudioOut {
            sequence,
            // RTP carries the low 32 bits (RFC 3550, 5.1).
            timestamp: (timestamp & u64::from(u32::MAX)) as u32,
            marker,
            payload_type: audio.payload_type,
            payload: audio.payload,
        })
    }

    fn follows(&self, audio: &AudioIn) -> bool {
        let same = self.source.is_some_and(|source| source.ssrc == audio.ssrc);
        same && self.last.is_some_and(|last| {
            audio.sequence.abs_diff(last.sequence_in) < SEQUENCE_JUMP
                && audio.timestamp.abs_diff(last.timestamp_in) < TIMESTAMP_JUMP
        })
    }

    /// Takes up a source that is new or has jumped, right behind what was sent last.
    fn adopt(&mut self, audio: &AudioIn) -> Source {
        let behind = self.last.map_or((FIRST_SEQUENCE, FIRST_TIMESTAMP), |last| {
            (last.sequence_out + 1, last.timestamp_out + last.ticks)
        });
        let source = Source {
            ssrc: audio.ssrc,
            sequence_base: audio.sequence,
            timestamp_base: audio.timestamp,
            sequence_out: behind.0,
            timestamp_out: behind.1,
        };
        self.source = Some(source);
        source
    }

    /// A packet that is not played back: what follows it closes up.
    fn skip(&mut self, audio: &AudioIn) {
        let newest = self
            .last
            .is_some_and(|last| audio.sequence > last.sequence_in);
        if let Some(source) = self
            .source
            .as_mut()
            .filter(|source| source.ssrc == audio.ssrc)
            && newest
        {
            source.sequence_base += 1;
        }
    }
}

/// How long a packet plays, in units of its clock; the usual 20 ms where it does not say.
fn ticks_of(audio: &AudioIn) -> u64 {
    let samples = audio.codec.samples(&audio.payload);
    let samples = samples.map_or(PACKET_SAMPLES, u64::from);
    samples * u64::from(audio.clock_rate_hz) / 48_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::events::Profile;

    /// 20 ms of CELT, one frame.
    const FRAME: [u8; 3] = [31 << 3, 1, 2];

    fn packet(ssrc: u32, sequence: u64, timestamp: u64) -> AudioIn {
        AudioIn {
            sequence,
            timestamp,
            clock_rate_hz: 48_000,
            marker: false,
            ssrc,
            payload_type: 111,
            codec: AudioCodec::Opus,
            level_dbov: None,
            payload: FRAME.as_slice().into(),
        }
    }

    fn play(echo: &mut Echo, packets: &[AudioIn]) -> Vec<(u64, u32, bool)> {
        let profile = Profile {
            id: "sess_1".into(),
            model: None,
        };
        let mut actions = Actions::new(profile, 1);
        let mut played = Vec::new();
        for packet in packets {
            echo.handle(Instant::now(), Input::Audio(packet.clone()), &mut actions);
            played.extend(
                std::iter::from_fn(|| actions.pop_audio())
                    .map(|out| (out.sequence, out.timestamp, out.marker)),
            );
        }
        played
    }

    #[test]
    fn keeps_the_distances_of_lost_and_reordered_packets() {
        let at = |n: u64| packet(7, 500 + n, 90_000 + n * 960);
        let played = play(&mut Echo::default(), &[at(0), at(1), at(4), at(3), at(5)]);
        let want = |n: u64, marker| {
            (
                FIRST_SEQUENCE + n,
                (FIRST_TIMESTAMP + n * 960) as u32,
                marker,
            )
        };
        let expected = [
            want(0, true),
            want(1, false),
            want(4, false),
            want(3, false),
            want(5, false),
        ];
        assert_eq!(played, expected);
    }

    #[test]
    fn marks_the_first_packet_after_silence_and_keeps_the_silence() {
        let played = play(
            &mut Echo::default(),
            &[packet(7, 1, 0), packet(7, 2, 960), packet(7, 3, 48_000)],
        );
        assert_eq!(
            played.iter().map(|out| out.2).collect::<Vec<_>>(),
            [true, false, true]
        );
        assert_eq!(played[2].1, (FIRST_TIMESTAMP + 48_000) as u32);
        assert_eq!(played[2].0, FIRST_SEQUENCE + 2);
    }

    #[test]
    fn goes_on_without_a_jump_when_the_source_changes_or_restarts() {
        let played = play(
            &mut Echo::default(),
            &[
                packet(7, 1, 0),
                packet(8, 9_999, 1_000_000_000),
                packet(8, 50, 77),
            ],
        );
        let steps: Vec<_> = played
            .windows(2)
            .map(|w| (w[1].0 - w[0].0, w[1].1 - w[0].1))
            .collect();
        assert_eq!(steps, [(1, 960), (1, 960)]);
        assert!(played.iter().all(|out| out.2));
    }

    #[test]
    fn key_presses_are_not_played_back_and_leave_no_gap() {
        let mut key = packet(7, 2, 960);
        key.codec = AudioCodec::TelephoneEvent;
        let played = play(
            &mut Echo::default(),
            &[packet(7, 1, 0), key, packet(7, 3, 1_920)],
        );
        let sequences: Vec<_> = played.iter().map(|out| out.0).collect();
        assert_eq!(sequences, [FIRST_SEQUENCE, FIRST_SEQUENCE + 1]);
    }

    #[test]
    fn a_packet_from_before_the_beginning_is_left_out_rather_than_misnumbered() {
        let played = play(
            &mut Echo::default(),
            &[packet(7, 2_000, 0), packet(7, 2, 960)],
        );
        assert_eq!(played.len(), 1);
    }
}
