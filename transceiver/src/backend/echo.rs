//! Plays the caller back to himself: built in, so that a deployment can be heard to work before
//! any inference service exists, and the yardstick for everything that costs more.
//!
//! Payloads pass through untouched, as soon as they are in order. Sequence numbers and timestamps
//! are the echo's own: timestamps follow the caller's time line, so that his silence stays silence,
//! and numbers are left out for what was lost on the way in, so that his decoder conceals it like
//! any other loss. Neither jumps when the caller changes his source.

use std::time::Instant;

use super::session_view::{SESSION_UPDATE, SessionView};
use super::{Actions, Addressee, Backend, ClientEvent, Input, event_type};
use crate::engine::AudioOut;
use crate::session::inbound::{Gap, GapKind, Placed};

/// First sequence number: any below 65,536 (RFC 3711, 3.3.1).
const FIRST_SEQUENCE: u64 = 1_024;
/// First timestamp, in samples at 48 kHz.
const FIRST_TIMESTAMP: u64 = 48_000;
/// Samples at 48 kHz in the usual packet of 20 ms.
const PACKET_SAMPLES: u32 = 960;

/// The echo of one session.
#[derive(Debug)]
pub struct Echo {
    next_sequence: u64,
    /// How long the last packet was, in samples at 48 kHz: what is lost was probably as long.
    packet_samples: u32,
    starts_spurt: bool,
    view: SessionView,
}

impl Default for Echo {
    fn default() -> Self {
        Self {
            next_sequence: FIRST_SEQUENCE,
            packet_samples: PACKET_SAMPLES,
            starts_spurt: true,
            view: SessionView::default(),
        }
    }
}

impl Backend for Echo {
    fn handle(&mut self, _: Instant, input: Input<'_>, actions: &mut Actions) {
        match input {
            Input::Audio(audio) => actions.pass_audio(self.play_back(audio)),
            Input::Gap(gap) => self.leave_out(gap),
            Input::ChannelOpen(channel) => actions.greet(Addressee::Channel(channel)),
            Input::ClientEvent(event) => self.answer(event, actions),
            Input::Key(_)
            | Input::Start
            | Input::MediaReady
            | Input::Link(_)
            | Input::Codec(_)
            | Input::Playout(_)
            | Input::Timeout
            | Input::Closing(_) => {}
        }
    }
}

impl Echo {
    /// Returns an event as it came, save one that a stock client waits to see answered.
    fn answer(&mut self, event: ClientEvent<'_>, actions: &mut Actions) {
        let updates = event_type(event.text).is_some_and(|kind| kind == SESSION_UPDATE);
        let updated = updates.then(|| self.view.update(event.text, actions));
        let text = updated.flatten().unwrap_or_else(|| event.text.to_owned());
        actions.say(event.from, text);
    }

    fn play_back(&mut self, audio: Placed) -> AudioOut {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.packet_samples = audio.samples;
        let marker = std::mem::take(&mut self.starts_spurt);
        let rate_hz = u64::from(audio.packet.clock_rate_hz);
        let timestamp = (FIRST_TIMESTAMP + audio.at) * rate_hz / 48_000;
        AudioOut {
            sequence,
            // RTP carries the low 32 bits (RFC 3550, 5.1).
            timestamp: (timestamp & u64::from(u32::MAX)) as u32,
            marker,
            payload_type: audio.packet.payload_type,
            payload: audio.packet.payload,
        }
    }

    fn leave_out(&mut self, gap: Gap) {
        match gap.kind {
            GapKind::Lost => {
                self.next_sequence += gap.samples.div_ceil(u64::from(self.packet_samples));
            }
            GapKind::Dtx => self.starts_spurt = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{AudioCodec, AudioIn};
    use crate::session::inbound::KeyPress;
    use std::time::Duration;

    fn audio(at: u64, codec: AudioCodec) -> Input<'static> {
        Input::Audio(Placed {
            at,
            samples: 960,
            packet: AudioIn {
                sequence: 7,
                timestamp: 9,
                clock_rate_hz: codec.clock_rate_hz().unwrap(),
                marker: false,
                ssrc: 1,
                payload_type: 111,
                codec,
                level_dbov: None,
                payload: [31 << 3, 1, 2].as_slice().into(),
            },
        })
    }

    fn gap(kind: GapKind, at: u64, samples: u64) -> Input<'static> {
        Input::Gap(Gap { kind, at, samples })
    }

    /// What is played: distances from the first sequence number and timestamp, and the marker.
    fn play(inputs: Vec<Input<'_>>) -> Vec<(u64, u32, bool)> {
        let mut actions = Actions::for_tests();
        let mut echo = Echo::default();
        let mut played = Vec::new();
        for input in inputs {
            echo.handle(Instant::now(), input, &mut actions);
            played.extend(std::iter::from_fn(|| actions.pop_audio()));
        }
        let first = played[0].timestamp;
        played
            .iter()
            .map(|out| {
                (
                    out.sequence - FIRST_SEQUENCE,
                    out.timestamp - first,
                    out.marker,
                )
            })
            .collect()
    }

    #[test]
    fn what_was_lost_is_left_out_of_the_numbers() {
        let played = play(vec![
            audio(0, AudioCodec::Opus),
            gap(GapKind::Lost, 960, 1_920),
            audio(2_880, AudioCodec::Opus),
            audio(3_840, AudioCodec::Opus),
        ]);
        assert_eq!(played, [(0, 0, true), (3, 2_880, false), (4, 3_840, false)]);
    }

    #[test]
    fn silence_is_kept_and_the_first_packet_after_it_marked() {
        let played = play(vec![
            audio(0, AudioCodec::Opus),
            gap(GapKind::Dtx, 960, 47_040),
            audio(48_000, AudioCodec::Opus),
        ]);
        assert_eq!(played, [(0, 0, true), (1, 48_000, true)]);
    }

    #[test]
    fn timestamps_run_at_the_clock_of_the_codec() {
        let played = play(vec![
            audio(0, AudioCodec::Pcma),
            audio(960, AudioCodec::Pcma),
        ]);
        assert_eq!(played, [(0, 0, true), (1, 160, false)]);
    }

    #[test]
    fn key_presses_are_not_played_back_and_leave_no_gap() {
        let key = Input::Key(KeyPress {
            key: '5',
            at: 960,
            held: Duration::ZERO,
        });
        let played = play(vec![
            audio(0, AudioCodec::Opus),
            key,
            audio(960, AudioCodec::Opus),
        ]);
        assert_eq!(played, [(0, 0, true), (1, 960, false)]);
    }
}
