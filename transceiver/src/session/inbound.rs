//! The caller's audio, put in order: between the engine, which gives packets as they come, and the
//! backend, which is told a line of audio without holes.
//!
//! - **Order.** A packet that is next passes at once. Behind a missing one, up to
//!   [`WINDOW_PACKETS`] wait for it, at most [`HOLD`]; then it counts as lost. What comes later
//!   still is late, and dropped.
//! - **Time.** The line runs at 48 kHz from the first packet on, whatever the codec's clock. Each
//!   sample of it belongs to one packet or one [`Gap`]: *lost* where sequence numbers are missing,
//!   *DTX* where the caller sent nothing (discontinuous transmission, or a muted microphone).
//! - **Jumps.** A new source, a new payload type or a numbering that jumped goes on where the line
//!   ended, after as much silence as really passed. A distance between timestamps is believed only
//!   where the clock on the wall agrees.
//! - **Key presses** (RFC 4733) come once each, in their place.
//!
//! [`Inbound::poll`] is called until it gives nothing, after each [`Inbound::push`] and at each
//! [`Inbound::poll_timeout`]. Nothing is allocated for a packet that is in order.

mod keys;

use std::time::{Duration, Instant};

use crate::engine::{AudioCodec, AudioIn};
use keys::Keys;

pub use keys::KeyPress;

/// Packets that wait for a missing one before it: reordering on real networks rarely exceeds two
/// places, and each further place delays everything behind a real loss.
pub const WINDOW_PACKETS: usize = 3;
/// Longest wait for a missing packet: three packets of the usual 20 ms.
pub const HOLD: Duration = Duration::from_millis(60);
/// Sequence distance beyond which a source has restarted rather than lost packets (RFC 3550, A.1).
const SEQUENCE_JUMP: u64 = 3_000;
/// By how much timestamps may run ahead of the wall clock before they count as having jumped: more
/// than any network holds packets back and then lets them go at once.
const CLOCK_SLACK: Duration = Duration::from_secs(1);
/// For so long after a change of source, packets of the former one are stragglers.
const STRAGGLER_TIME: Duration = Duration::from_millis(100);
/// Pauses shorter than this are jitter when only arrival times can tell.
const PAUSE_MIN: Duration = Duration::from_millis(60);
/// The clock of the line, in Hz.
const LINE_HZ: u32 = 48_000;
/// Samples of the longest packet, 120 ms (RFC 6716, 3.2.5).
const PACKET_SAMPLES_MAX: u32 = LINE_HZ / 1_000 * 120;

/// The next piece of the caller's line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A packet of audio.
    Audio(Placed),
    /// Samples for which there is no packet.
    Gap(Gap),
    /// A key was pressed.
    Key(KeyPress),
}

/// A packet in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Where it starts, in samples at 48 kHz since the first packet.
    pub at: u64,
    /// How long it is, in samples at 48 kHz: 120 to 5,760.
    pub samples: u32,
    /// The packet.
    pub packet: AudioIn,
}

/// A stretch of the line without packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Why there is none.
    pub kind: GapKind,
    /// Where it starts, in samples at 48 kHz since the first packet.
    pub at: u64,
    /// How long it is, in samples at 48 kHz.
    pub samples: u64,
}

/// Why there is no packet for a stretch of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapKind {
    /// Packets were sent and did not come in time: to be concealed, with the next packet's in-band
    /// FEC where it has one.
    Lost,
    /// The caller sent nothing: discontinuous transmission, or a muted microphone.
    Dtx,
}

/// What was done to put the audio in order. Only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Packets that arrived behind a newer one and were put back in their place.
    pub reordered: u64,
    /// Packets that came when their place had been passed.
    pub late: u64,
    /// Packets whose codec's header makes no sense.
    pub unreadable: u64,
    /// Changes of source or payload type, and jumps of numbers or timestamps.
    pub jumps: u64,
    /// Samples at 48 kHz of [`GapKind::Lost`].
    pub lost_samples: u64,
    /// Samples at 48 kHz of [`GapKind::Dtx`].
    pub silent_samples: u64,
    /// Keys pressed.
    pub keys: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Inbound {
    source: Option<Source>,
    /// The source before, and when it was left.
    former: Option<(u32, Instant)>,
    /// By sequence number.
    held: Vec<Held>,
    /// A packet of another source: it takes over once everything held is released.
    successor: Option<Held>,
    line: Line,
    keys: Keys,
    repairs: Repairs,
}

#[derive(Debug, Clone, Copy)]
struct Source {
    ssrc: u32,
    next_sequence: u64,
}

#[derive(Debug)]
struct Held {
    packet: AudioIn,
    arrived: Instant,
}

/// Where the line has come to.
#[derive(Debug, Default)]
struct Line {
    end: u64,
    /// The packet that ended there, if the timestamps of the next can be compared with its own.
    last: Option<Last>,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    payload_type: u8,
    timestamp: u64,
    at: u64,
    samples: u32,
    arrived: Instant,
    /// Whether the next packet is of the same numbering.
    continues: bool,
}

impl Inbound {
    /// A packet came at `now`.
    pub fn push(&mut self, now: Instant, packet: AudioIn) {
        let held = Held {
            arrived: now,
            packet,
        };
        let Some(source) = self.source else {
            self.successor = Some(held);
            return;
        };
        let (ssrc, sequence) = (held.packet.ssrc, held.packet.sequence);
        if ssrc != source.ssrc {
            let straggles = self.former.is_some_and(|(former, left)| {
                former == ssrc && now.saturating_duration_since(left) < STRAGGLER_TIME
            });
            if straggles {
                self.repairs.late += 1;
            } else {
                self.successor = Some(held);
            }
        } else if sequence.abs_diff(source.next_sequence) >= SEQUENCE_JUMP {
            self.successor = Some(held);
        } else if sequence < source.next_sequence {
            self.repairs.late += 1;
        } else {
            self.hold(held);
        }
    }

    fn hold(&mut self, held: Held) {
        let sequence = held.packet.sequence;
        let behind = |other: &Held| other.packet.sequence < sequence;
        let place = self.held.partition_point(behind);
        match self.held.get(place) {
            Some(other) if other.packet.sequence == sequence => self.repairs.late += 1,
            newer => {
                self.repairs.reordered += u64::from(newer.is_some());
                self.held.insert(place, held);
            }
        }
    }

    /// The next piece of the line, if it is known by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Heard> {
        loop {
            if self.is_releasable(now) {
                if let Some(gap) = self.gap_before_first() {
                    return Some(Heard::Gap(gap));
                }
                let held = self.held.remove(0);
                self.advance_past(held.packet.sequence);
                if let Some(heard) = self.release(held) {
                    return Some(heard);
                }
            } else {
                let successor = self.successor.take()?;
                self.adopt(successor);
            }
        }
    }

    /// When [`Inbound::poll`] next has something to give without a packet.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.arrived + HOLD).min()
    }

    /// What was done so far.
    pub fn repairs(&self) -> Repairs {
        self.repairs
    }

    /// Whether the first packet held is next, or has waited long enough for the ones before it.
    fn is_releasable(&self, now: Instant) -> bool {
        let (Some(first), Some(source)) = (self.held.first(), self.source) else {
            return false;
        };
        first.packet.sequence == source.next_sequence
            || self.held.len() >= WINDOW_PACKETS
            || self.successor.is_some()
            || self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// Goes over to the numbering of `held`, and takes it as its first packet.
    fn adopt(&mut self, held: Held) {
        if let Some(source) = self.source {
            self.repairs.jumps += 1;
            if source.ssrc != held.packet.ssrc {
                self.former = Some((source.ssrc, held.arrived));
            }
        }
        if let Some(last) = &mut self.line.last {
            last.continues = false;
        }
        self.source = Some(Source {
            ssrc: held.packet.ssrc,
            next_sequence: held.packet.sequence,
        });
        self.held.push(held);
    }

    fn advance_past(&mut self, sequence: u64) {
        if let Some(source) = &mut self.source {
            source.next_sequence = sequence + 1;
        }
    }

    /// What is missing before the first packet held, one piece at a time: first what was lost.
    fn gap_before_first(&mut self) -> Option<Gap> {
        let first = self.held.first()?;
        let source = self.source.as_mut()?;
        let missing = first.packet.sequence - source.next_sequence;
        source.next_sequence = first.packet.sequence;
        if first.packet.codec == AudioCodec::TelephoneEvent {
            return self.line.lose(missing).inspect(|gap| {
                self.repairs.lost_samples += gap.samples;
            });
        }
        let (samples, jumped) = self.line.distance_to(first, missing);
        self.repairs.jumps += u64::from(jumped);
        if samples == 0 {
            return None;
        }
        let lost = self.line.lost_samples(missing).min(samples);
        let (kind, samples) = if lost > 0 {
            self.repairs.lost_samples += lost;
            (GapKind::Lost, lost)
        } else {
            self.repairs.silent_samples += samples;
            (GapKind::Dtx, samples)
        };
        Some(self.line.pass(kind, samples))
    }

    /// A packet whose turn it is; `None` when it adds nothing to the line.
    fn release(&mut self, held: Held) -> Option<Heard> {
        let packet = &held.packet;
        if packet.codec == AudioCodec::TelephoneEvent {
            let key = self.keys.note(packet, self.line.end)?;
            self.repairs.keys += 1;
            return Some(Heard::Key(key));
        }
        let samples = packet
            .codec
            .samples(&packet.payload)
            .filter(|samples| (1..=PACKET_SAMPLES_MAX).contains(samples));
        let Some(samples) = samples else {
            self.repairs.unreadable += 1;
            return None;
        };
        let at = self.line.end;
        self.line.append(&held, samples);
        Some(Heard::Audio(Placed {
            at,
            samples,
            packet: held.packet,
        }))
    }
}

impl Line {
    fn pass(&mut self, kind: GapKind, samples: u64) -> Gap {
        let at = self.end;
        self.end += samples;
        Gap { kind, at, samples }
    }

    /// Packets are missing before a key press, whose timestamp says nothing of audio's.
    fn lose(&mut self, packets: u64) -> Option<Gap> {
        let samples = self.lost_samples(packets);
        (samples > 0).then(|| self.pass(GapKind::Lost, samples))
    }

    /// How much audio so many packets of the last kind are.
    fn lost_samples(&self, packets: u64) -> u64 {
        self.last
            .map_or(0, |last| packets * u64::from(last.samples))
    }

    fn append(&mut self, held: &Held, samples: u32) {
        self.last = Some(Last {
            payload_type: held.packet.payload_type,
            timestamp: held.packet.timestamp,
            at: self.end,
            samples,
            arrived: held.arrived,
            continues: true,
        });
        self.end += u64::from(samples);
    }

    /// How many samples lie between the end of the line and `next`, before which packets are
    /// `missing`, and whether its timestamp was of no use.
    fn distance_to(&mut self, next: &Held, missing: u64) -> (u64, bool) {
        let Some(last) = self.last else {
            return (0, false);
        };
        let elapsed = next.arrived.saturating_duration_since(last.arrived);
        let comparable = last.continues && last.payload_type == next.packet.payload_type;
        let by_clock = comparable
            .then(|| next.packet.timestamp.checked_sub(last.timestamp))
            .flatten()
            .map(|ticks| last.at + to_line(ticks, next.packet.clock_rate_hz));
        let latest = self.end + self.lost_samples(missing) + samples_of(elapsed + CLOCK_SLACK);
        match by_clock {
            // Frames that overlap the line's end follow it.
            Some(at) if at <= latest => (at.saturating_sub(self.end), false),
            _ => {
                // Told once: what remains of the gap, if anything, is measured like this again.
                let jumped = comparable;
                if let Some(last) = &mut self.last {
                    last.continues = false;
                }
                let spoken = last.at + u64::from(last.samples);
                let passed = self.end.saturating_sub(spoken);
                let pause = elapsed.saturating_sub(duration_of(u64::from(last.samples) + passed));
                let pause = if pause < PAUSE_MIN {
                    0
                } else {
                    samples_of(pause)
                };
                (pause, jumped)
            }
        }
    }
}

/// Ticks of a clock in samples of the line.
fn to_line(ticks: u64, clock_rate_hz: u32) -> u64 {
    ticks * u64::from(LINE_HZ) / u64::from(clock_rate_hz.max(1))
}

fn samples_of(span: Duration) -> u64 {
    // A session lives far less than the 12,000 years that overflow.
    (span.as_micros() as u64) * u64::from(LINE_HZ) / 1_000_000
}

fn duration_of(samples: u64) -> Duration {
    Duration::from_micros(samples * 1_000_000 / u64::from(LINE_HZ))
}

#[cfg(test)]
mod tests;
