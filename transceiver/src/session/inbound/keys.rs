//! Key presses (RFC 4733): each is several packets with one timestamp, of which any may be lost.

use std::time::Duration;

use crate::engine::AudioIn;

/// The keys of a telephone, by event number (RFC 4733, 3.2).
const KEYS: [char; 16] = [
    '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '*', '#', 'A', 'B', 'C', 'D',
];
/// The longest duration a packet can state. A longer event goes on in another segment, which starts
/// where this one ends (RFC 4733, 2.5.1.3).
const SEGMENT_TICKS_MAX: u64 = 0xffff;

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPress {
    /// `0` to `9`, `*`, `#`, `A` to `D`.
    pub key: char,
    /// Where in the caller's line, in samples at 48 kHz since the first packet.
    pub at: u64,
    /// How long it has been held when its first packet arrived.
    pub held: Duration,
}

/// Tells the first packet of an event from its repetitions.
#[derive(Debug, Default)]
pub(super) struct Keys {
    last: Option<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Event {
    ssrc: u32,
    number: u8,
    timestamp: u64,
}

impl Keys {
    /// The key press that a packet starts, at this place of the line; `None` for one that goes on,
    /// for events that are no keys, and for a payload too short to be one.
    pub(super) fn note(&mut self, packet: &AudioIn, at: u64) -> Option<KeyPress> {
        // event (8), end (1), reserved (1), volume (6), duration (16).
        let &[number, _, high, low] = packet.payload.first_chunk::<4>()?;
        let event = Event {
            ssrc: packet.ssrc,
            number,
            timestamp: packet.timestamp,
        };
        let goes_on = self.last.is_some_and(|last| {
            let next_segment = Event {
                timestamp: last.timestamp + SEGMENT_TICKS_MAX,
                ..last
            };
            event == last || (event == next_segment && !packet.marker)
        });
        // A repetition that comes late belongs to an event that has been told.
        let older = self
            .last
            .is_some_and(|last| event.ssrc == last.ssrc && event.timestamp < last.timestamp);
        if !older {
            self.last = Some(event);
        }
        if goes_on || older {
            return None;
        }
        let ticks = u64::from(u16::from_be_bytes([high, low]));
        let rate_hz = u64::from(packet.clock_rate_hz.max(1));
        Some(KeyPress {
            key: *KEYS.get(usize::from(number))?,
            at,
            held: Duration::from_micros(ticks * 1_000_000 / rate_hz),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::AudioCodec;

    fn packet(number: u8, timestamp: u64, duration: u16, marker: bool) -> AudioIn {
        let [high, low] = duration.to_be_bytes();
        AudioIn {
            sequence: 1,
            timestamp,
            clock_rate_hz: 8_000,
            marker,
            ssrc: 7,
            payload_type: 126,
            codec: AudioCodec::TelephoneEvent,
            level_dbov: None,
            payload: [number, 10, high, low].as_slice().into(),
        }
    }

    #[test]
    fn a_key_is_told_once_whichever_of_its_packets_come() {
        let mut keys = Keys::default();
        let told: Vec<_> = [
            packet(5, 100, 320, false),
            packet(5, 100, 480, false),
            packet(5, 100, 800, false),
            packet(5, 4_000, 160, true),
            packet(5, 100, 800, false),
            packet(11, 9_000, 160, true),
        ]
        .iter()
        .filter_map(|packet| keys.note(packet, 0))
        .map(|press| (press.key, press.held.as_millis()))
        .collect();
        assert_eq!(told, [('5', 40), ('5', 20), ('#', 20)]);
    }

    #[test]
    fn a_key_held_for_longer_than_a_segment_is_one_key() {
        let mut keys = Keys::default();
        assert!(keys.note(&packet(1, 100, 0xffff, true), 0).is_some());
        assert!(keys.note(&packet(1, 100 + 0xffff, 400, false), 0).is_none());
        assert!(
            keys.note(&packet(1, 100 + 2 * 0xffff, 400, true), 0)
                .is_some()
        );
    }

    #[test]
    fn what_is_no_key_is_nothing() {
        let mut keys = Keys::default();
        assert_eq!(keys.note(&packet(16, 100, 160, true), 0), None);
        let mut short = packet(1, 200, 160, true);
        short.payload = [1, 10, 0].as_slice().into();
        assert_eq!(keys.note(&short, 0), None);
        assert!(keys.note(&packet(1, 300, 160, true), 0).is_some());
    }
}
