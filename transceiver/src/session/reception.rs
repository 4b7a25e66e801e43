//! What arrived of the client's audio: counts, loss and jitter (RFC 3550, 6.4.1, A.3 and A.8).

use std::time::Instant;

use crate::engine::AudioIn;

/// Sequence distance beyond which a source has restarted rather than lost packets (RFC 3550, A.1).
const SEQUENCE_JUMP: u64 = 3_000;
/// The jitter estimate moves by a sixteenth of each deviation (RFC 3550, A.8).
const JITTER_GAIN: f64 = 1.0 / 16.0;

/// Statistics of the audio that came.
#[derive(Debug, Clone, Default)]
pub struct Reception {
    /// Packets that decrypted, duplicates left out.
    pub packets: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Packets that arrived behind a newer one.
    pub reordered: u64,
    /// Interarrival jitter, in milliseconds.
    pub jitter_ms: f64,
    /// Packets expected of sources that have ended, less the ones that came.
    lost_before: u64,
    source: Option<Source>,
}

#[derive(Debug, Clone)]
struct Source {
    ssrc: u32,
    first: u64,
    newest: u64,
    packets: u64,
    /// Arrival and media time of the last packet, in order to compare the distances.
    last: (Instant, u64),
}

impl Reception {
    /// Counts a packet that arrived at `now`, and says whether it is the newest so far.
    pub(super) fn note(&mut self, audio: &AudioIn, now: Instant) -> bool {
        self.packets += 1;
        self.bytes += audio.payload.len() as u64;
        let goes_on = self.source.as_ref().is_some_and(|source| {
            source.ssrc == audio.ssrc && source.newest.abs_diff(audio.sequence) < SEQUENCE_JUMP
        });
        if !goes_on {
            self.lost_before = self.lost();
            self.source = None;
        }
        let Some(mut source) = self.source.take() else {
            self.source = Some(Source {
                ssrc: audio.ssrc,
                first: audio.sequence,
                newest: audio.sequence,
                packets: 1,
                last: (now, audio.timestamp),
            });
            return true;
        };
        self.note_jitter(&source, audio, now);
        source.packets += 1;
        source.first = source.first.min(audio.sequence);
        source.last = (now, audio.timestamp);
        let newest = audio.sequence > source.newest;
        source.newest = source.newest.max(audio.sequence);
        self.reordered += u64::from(!newest);
        self.source = Some(source);
        newest
    }

    /// Packets that never came.
    pub fn lost(&self) -> u64 {
        let missing = self.source.as_ref().map_or(0, |source| {
            (source.newest - source.first + 1).saturating_sub(source.packets)
        });
        self.lost_before + missing
    }

    fn note_jitter(&mut self, source: &Source, audio: &AudioIn, now: Instant) {
        let (last_arrival, last_timestamp) = source.last;
        let arrived_ms = now.saturating_duration_since(last_arrival).as_secs_f64() * 1e3;
        // Difference of two extended timestamps of one source: exact in 53 bits.
        let ticks = audio.timestamp as f64 - last_timestamp as f64;
        let sent_ms = ticks * 1e3 / f64::from(audio.clock_rate_hz);
        self.jitter_ms += ((arrived_ms - sent_ms).abs() - self.jitter_ms) * JITTER_GAIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::AudioCodec;
    use std::time::Duration;

    fn packet(ssrc: u32, sequence: u64) -> AudioIn {
        AudioIn {
            sequence,
            timestamp: sequence * 960,
            clock_rate_hz: 48_000,
            marker: false,
            ssrc,
            payload_type: 111,
            codec: AudioCodec::Opus,
            level_dbov: None,
            payload: [0; 10].as_slice().into(),
        }
    }

    #[test]
    fn counts_loss_and_reordering_over_a_change_of_source() {
        let mut reception = Reception::default();
        let now = Instant::now();
        let newest: Vec<_> = [(1, 10), (1, 11), (1, 14), (1, 13), (2, 70_000), (2, 70_002)]
            .map(|(ssrc, sequence)| reception.note(&packet(ssrc, sequence), now))
            .into();
        assert_eq!(newest, [true, true, true, false, true, true]);
        assert_eq!((reception.packets, reception.bytes), (6, 60));
        assert_eq!((reception.lost(), reception.reordered), (2, 1));
    }

    #[test]
    fn jitter_is_zero_for_even_arrival_and_grows_with_uneven() {
        let now = Instant::now();
        let arrive = |late: &dyn Fn(u64) -> u64| {
            let mut reception = Reception::default();
            for n in 0..200 {
                reception.note(&packet(1, n), now + Duration::from_millis(n * 20 + late(n)));
            }
            reception.jitter_ms
        };
        assert!(arrive(&|_| 0) < 1e-9);
        let jitter_ms = arrive(&|n| (n % 2) * 8);
        assert!((jitter_ms - 8.0).abs() < 0.1, "{jitter_ms}");
    }
}
