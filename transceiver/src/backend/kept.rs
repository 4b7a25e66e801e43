//! What the caller says before the backend can listen: kept, so that no first word is lost.

use std::collections::VecDeque;
use std::time::Instant;

use crate::session::inbound::Heard;

/// How much is kept, in samples at 48 kHz: ten seconds, more than any set-up of a link takes that
/// succeeds at all.
const SAMPLES_MAX: u64 = 10 * 48_000;
/// How many pieces: ten seconds of the shortest packets, 2.5 ms.
const PIECES_MAX: usize = 4_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pieces: VecDeque<(Instant, Heard)>,
    samples: u64,
}

impl Kept {
    /// Keeps a piece that came at `now`; the samples at 48 kHz of older ones that had to go for it.
    pub(super) fn push(&mut self, now: Instant, heard: Heard) -> u64 {
        self.samples += samples_of(&heard);
        self.pieces.push_back((now, heard));
        let mut dropped = 0;
        while self.samples > SAMPLES_MAX || self.pieces.len() > PIECES_MAX {
            let Some((_, oldest)) = self.pieces.pop_front() else {
                break;
            };
            let samples = samples_of(&oldest);
            self.samples -= samples;
            dropped += samples;
        }
        dropped
    }

    /// The oldest piece, and when it came.
    pub(super) fn pop(&mut self) -> Option<(Instant, Heard)> {
        let (arrived, heard) = self.pieces.pop_front()?;
        self.samples -= samples_of(&heard);
        Some((arrived, heard))
    }
}

/// Events of the client that came before the backend could read: kept, in order.
#[derive(Debug, Default)]
pub(super) struct KeptEvents {
    events: VecDeque<String>,
    bytes: usize,
}

/// How many events are kept, and how many bytes of them: what a client says as it starts.
const EVENTS_MAX: usize = 64;
const EVENT_BYTES_MAX: usize = 256 * 1024;

impl KeptEvents {
    /// Keeps an event; `false` when too much is kept already.
    pub(super) fn push(&mut self, event: &str) -> bool {
        let bytes = self.bytes + event.len();
        let is_taken = self.events.len() < EVENTS_MAX && bytes <= EVENT_BYTES_MAX;
        if is_taken {
            self.bytes = bytes;
            self.events.push_back(event.to_owned());
        }
        is_taken
    }

    /// The oldest event.
    pub(super) fn pop(&mut self) -> Option<String> {
        let event = self.events.pop_front()?;
        self.bytes -= event.len();
        Some(event)
    }
}

fn samples_of(heard: &Heard) -> u64 {
    match heard {
        Heard::Audio(placed) => u64::from(placed.samples),
        Heard::Gap(gap) => gap.samples,
        Heard::Key(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::inbound::{Gap, GapKind};

    fn gap(at: u64, samples: u64) -> Heard {
        let kind = GapKind::Dtx;
        Heard::Gap(Gap { kind, at, samples })
    }

    #[test]
    fn the_newest_ten_seconds_are_kept_in_order() {
        let now = Instant::now();
        let mut kept = Kept::default();
        let dropped: u64 = (0..600).map(|n| kept.push(now, gap(n * 960, 960))).sum();
        assert_eq!(dropped, 100 * 960);
        let places: Vec<_> = std::iter::from_fn(|| kept.pop())
            .map(|(_, heard)| match heard {
                Heard::Gap(gap) => gap.at,
                _ => panic!("only gaps"),
            })
            .collect();
        assert_eq!(places, (100..600).map(|n| n * 960).collect::<Vec<_>>());
        assert_eq!(kept.samples, 0);
    }

    #[test]
    fn a_silence_longer_than_all_that_is_kept_leaves_nothing() {
        let mut kept = Kept::default();
        assert_eq!(kept.push(Instant::now(), gap(0, 48_000 * 60)), 48_000 * 60);
        assert!(kept.pop().is_none());
    }

    #[test]
    fn events_are_kept_until_there_are_too_many_or_too_large_ones() {
        let mut kept = KeptEvents::default();
        assert!(!kept.push(&"x".repeat(EVENT_BYTES_MAX + 1)));
        for n in 0..EVENTS_MAX {
            assert!(kept.push(&n.to_string()));
        }
        assert!(!kept.push("one more"));
        assert_eq!(kept.pop().as_deref(), Some("0"));
        assert!(kept.push("one more"));
        while kept.pop().is_some() {}
        assert_eq!(kept.bytes, 0);
    }

    #[test]
    fn pieces_without_length_are_bounded_too() {
        let mut kept = Kept::default();
        for n in 0..PIECES_MAX as u64 + 50 {
            kept.push(Instant::now(), gap(n, 0));
        }
        assert_eq!(kept.pieces.len(), PIECES_MAX);
    }
}
