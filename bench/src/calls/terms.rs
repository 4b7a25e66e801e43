//! What all calls of a run share: its clock, what is measured, and what clients say.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::burst::Bursts;
use super::signalling::Expected;
use super::sources::Sources;
use super::voice::{Speech, Stamp};

/// What clients say.
#[derive(Clone, Debug)]
pub enum Sound {
    /// Stamps, which come back as they are: each packet is known again.
    Stamped {
        /// Whether the echo marks when it had a packet.
        marked: bool,
    },
    /// Sound that is decoded on its way: each burst is known by when it begins.
    Bursts(Bursts),
}

/// What all calls of a run share. Times are nanoseconds since the epoch.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) epoch: Instant,
    /// The epoch by the clock that an echo on this machine marks packets with.
    pub(super) epoch_clock_ns: u64,
    /// Which intended sends are measured.
    pub(super) window_ns: Range<u64>,
    pub(super) speech: Speech,
    pub(super) sound: Sound,
    pub(super) expected: Expected,
    /// Whether goodbye is not enough for the server.
    pub(super) needs_hang_up: bool,
    pub(super) set_up_timeout: Duration,
    /// When something is done to the run, if it is: calls measure their recovery from it.
    pub(super) incident_ns: Option<u64>,
    pub(super) sources: Sources,
}

impl Terms {
    pub(super) fn now_ns(&self) -> u64 {
        ns(self.epoch.elapsed())
    }

    pub(super) fn since_epoch(&self, at: Instant) -> u64 {
        ns(at.saturating_duration_since(self.epoch))
    }

    /// When the echo had the packet with this stamp, by its mark; `None` for a packet that is not
    /// marked as its sound says, or with a time that cannot be, which is none of ours.
    pub(super) fn turned_ns(
        &self,
        payload: &[u8],
        stamp: &Stamp,
        now_ns: u64,
    ) -> Option<Option<u64>> {
        let Sound::Stamped { marked: true } = self.sound else {
            return Stamp::marked_ns(payload).is_none().then_some(None);
        };
        let turned_ns = Stamp::marked_ns(payload)?.checked_sub(self.epoch_clock_ns)?;
        (stamp.intended_ns..=now_ns)
            .contains(&turned_ns)
            .then_some(Some(turned_ns))
    }

    pub(super) fn measures(&self, intended_ns: u64) -> bool {
        self.window_ns.contains(&intended_ns)
    }
}

/// A duration in nanoseconds; a run is shorter than the five centuries that fit.
pub(super) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
