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
            .map(|ticks| to_line(ticks, next.packet.clock_rate_hz))
            .map(|samples| last.at.saturating_add(samples));
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
    ticks.saturating_mul(u64::from(LINE_HZ)) / u64::from(clock_rate_hz.max(1))
}

fn samples_of(span: Duration) -> u64 {
    // A session lives far less than the twelve years that overflow.
    (span.as_micros() as u64) * u64::from(LINE_HZ) / 1_000_000
}

fn duration_of(samples: u64) -> Duration {
    Duration::from_micros(samples * 1_000_000 / u64::from(LINE_HZ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 20 ms of CELT, one frame.
    const FRAME: [u8; 3] = [31 << 3, 1, 2];
    const PACKET: Duration = Duration::from_millis(20);

    fn packet(sequence: u64, timestamp: u64) -> AudioIn {
        AudioIn {
            sequence,
            timestamp,
            clock_rate_hz: 48_000,
            marker: false,
            ssrc: 7,
            payload_type: 111,
            codec: AudioCodec::Opus,
            level_dbov: None,
            payload: FRAME.as_slice().into(),
        }
    }

    /// The n-th packet of an even source.
    fn nth(n: u64) -> AudioIn {
        packet(65_000 + n, 90_000 + n * 960)
    }

    /// What is heard, in few words: `a65000@0+960`, `lost@960+1920`, `dtx@..`, `key5@..`.
    fn words(heard: &Heard) -> String {
        match heard {
            Heard::Audio(audio) => {
                format!("a{}@{}+{}", audio.packet.sequence, audio.at, audio.samples)
            }
            Heard::Gap(Gap { kind, at, samples }) => {
                format!("{kind:?}@{at}+{samples}").to_lowercase()
            }
            Heard::Key(key) => format!("key{}@{}", key.key, key.at),
        }
    }

    struct Ear {
        inbound: Inbound,
        start: Instant,
        now: Instant,
    }

    impl Ear {
        fn new() -> Self {
            let start = Instant::now();
            Self {
                inbound: Inbound::default(),
                start,
                now: start,
            }
        }

        fn at(&mut self, ms: u64) -> &mut Self {
            self.now = self.start + Duration::from_millis(ms);
            self
        }

        fn hear(&mut self) -> Vec<String> {
            let (inbound, now) = (&mut self.inbound, self.now);
            std::iter::from_fn(|| inbound.poll(now))
                .map(|heard| words(&heard))
                .collect()
        }

        fn push(&mut self, packet: AudioIn) -> Vec<String> {
            self.inbound.push(self.now, packet);
            self.hear()
        }
    }

    #[test]
    fn packets_in_order_pass_at_once_over_a_wrap_of_the_sequence() {
        let mut ear = Ear::new();
        for n in 0..2_000u64 {
            let heard = ear.at(n * 20).push(nth(n));
            assert_eq!(heard, [format!("a{}@{}+960", 65_000 + n, n * 960)]);
            assert_eq!(ear.inbound.poll_timeout(), None);
        }
        assert_eq!(ear.inbound.repairs(), Repairs::default());
    }

    #[test]
    fn swapped_packets_are_put_back_in_their_places() {
        let mut ear = Ear::new();
        ear.push(nth(0));
        assert_eq!(ear.at(20).push(nth(2)), [""; 0]);
        assert_eq!(ear.at(25).push(nth(3)), [""; 0]);
        let heard = ear.at(30).push(nth(1));
        assert_eq!(
            heard,
            ["a65001@960+960", "a65002@1920+960", "a65003@2880+960"]
        );
        assert_eq!(ear.inbound.repairs().reordered, 1);
    }

    #[test]
    fn a_lost_packet_is_given_up_when_three_have_come_behind_it() {
        let mut ear = Ear::new();
        ear.push(nth(0));
        assert_eq!(ear.at(1).push(nth(2)), [""; 0]);
        assert_eq!(ear.at(2).push(nth(3)), [""; 0]);
        assert_eq!(
            ear.at(3).push(nth(4)),
            [
                "lost@960+960",
                "a65002@1920+960",
                "a65003@2880+960",
                "a65004@3840+960"
            ]
        );
        assert_eq!(ear.at(4).push(nth(1)), [""; 0], "too late");
        let repairs = ear.inbound.repairs();
        assert_eq!((repairs.late, repairs.lost_samples), (1, 960));
    }

    #[test]
    fn a_lost_packet_is_given_up_after_the_hold() {
        let mut ear = Ear::new();
        ear.push(nth(0));
        assert_eq!(ear.at(40).push(nth(2)), [""; 0]);
        assert_eq!(ear.inbound.poll_timeout(), Some(ear.now + HOLD));
        assert_eq!(ear.at(99).hear(), [""; 0]);
        assert_eq!(ear.at(100).hear(), ["lost@960+960", "a65002@1920+960"]);
        assert_eq!(ear.inbound.poll_timeout(), None);
    }

    #[test]
    fn silence_is_told_from_loss() {
        let mut ear = Ear::new();
        ear.push(nth(0));
        // Nothing sent for 400 ms.
        let heard = ear.at(420).push(packet(65_001, 90_000 + 21 * 960));
        assert_eq!(heard, ["dtx@960+19200", "a65001@20160+960"]);
        // Two lost, then 100 ms of silence.
        ear.at(580).push(packet(65_004, 90_000 + 29 * 960));
        assert_eq!(
            ear.at(640).hear(),
            ["lost@21120+1920", "dtx@23040+4800", "a65004@27840+960"]
        );
        let repairs = ear.inbound.repairs();
        assert_eq!(
            (repairs.lost_samples, repairs.silent_samples),
            (1_920, 24_000)
        );
        assert_eq!(repairs.jumps, 0);
    }

    #[test]
    fn a_new_source_goes_on_where_the_line_ended_after_the_silence_that_passed() {
        let mut ear = Ear::new();
        ear.push(nth(0));
        let other = |n: u64| AudioIn {
            ssrc: 8,
            ..packet(5 + n, n * 960)
        };
        assert_eq!(ear.at(20).push(other(0)), ["a5@960+960"]);
        assert_eq!(
            ear.at(40).push(nth(1)),
            [""; 0],
            "a straggler of the former source"
        );
        assert_eq!(ear.at(41).push(other(1)), ["a6@1920+960"]);
        let third = AudioIn {
            ssrc: 9,
            ..packet(1_000, 77)
        };
        assert_eq!(
            ear.at(1_041).push(third),
            ["dtx@2880+47040", "a1000@49920+960"]
        );
        let repairs = ear.inbound.repairs();
        assert_eq!((repairs.jumps, repairs.late), (2, 1));
    }

    #[test]
    fn a_source_that_ends_with_a_hole_is_heard_out_before_the_next() {
        let mut ear = Ear::new();
        ear.push(nth(0));
        assert_eq!(ear.at(40).push(nth(2)), [""; 0]);
        let other = AudioIn {
            ssrc: 8,
            ..packet(5, 0)
        };
        assert_eq!(
            ear.at(60).push(other),
            ["lost@960+960", "a65002@1920+960", "a5@2880+960"]
        );
    }

    #[test]
    fn numbers_and_timestamps_that_jump_do_not_tear_the_line() {
        let mut ear = Ear::new();
        ear.push(nth(0));
        assert_eq!(ear.at(20).push(packet(99_999, 90_960)), ["a99999@960+960"]);
        assert_eq!(
            ear.at(40).push(packet(100_000, 4_000_000_000)),
            ["a100000@1920+960"]
        );
        assert_eq!(
            ear.at(60).push(packet(100_001, 4_000_000_960)),
            ["a100001@2880+960"]
        );
        assert_eq!(
            ear.at(80).push(packet(100_002, 5)),
            ["a100002@3840+960"],
            "backwards"
        );
        assert_eq!(ear.inbound.repairs().jumps, 3);
        // Half a minute of a muted microphone is no jump, as the wall clock agrees.
        let heard = ear.at(80 + 30_020).push(packet(100_003, 5 + 1_501 * 960));
        assert_eq!(heard, ["dtx@4800+1440000", "a100003@1444800+960"]);
        assert_eq!(ear.inbound.repairs().jumps, 3);
    }

    #[test]
    fn every_length_of_packet_and_every_codec_moves_the_line_by_its_own_length() {
        let mut ear = Ear::new();
        let toc = |byte: u8| AudioIn {
            payload: [byte, 0].as_slice().into(),
            ..packet(0, 0)
        };
        let pcm = |codec, bytes: usize| AudioIn {
            codec,
            payload_type: if codec == AudioCodec::Pcmu { 0 } else { 8 },
            clock_rate_hz: 8_000,
            payload: vec![0xd5; bytes].into(),
            ..packet(0, 0)
        };
        let kinds = [
            (toc(16 << 3), 120),
            (toc(17 << 3), 240),
            (toc(18 << 3), 480),
            (toc((3 << 3) | 1), 5_760),
            (pcm(AudioCodec::Pcmu, 160), 960),
            (pcm(AudioCodec::Pcmu, 80), 480),
            (pcm(AudioCodec::Pcma, 960), 5_760),
        ];
        let (mut at, mut timestamp) = (0, 1_000);
        for (n, (kind, samples)) in (0u64..).zip(kinds) {
            let clock_rate_hz = kind.clock_rate_hz;
            let packet = AudioIn {
                sequence: 9 + n,
                timestamp,
                ..kind
            };
            assert_eq!(ear.push(packet), [format!("a{}@{at}+{samples}", 9 + n)]);
            at += samples;
            timestamp += samples * u64::from(clock_rate_hz) / 48_000;
        }
    }

    #[test]
    fn a_packet_that_makes_no_sense_is_counted_and_the_line_goes_on() {
        let mut ear = Ear::new();
        ear.push(nth(0));
        let empty = AudioIn {
            payload: [].as_slice().into(),
            ..nth(1)
        };
        assert_eq!(ear.at(20).push(empty), [""; 0]);
        assert_eq!(ear.at(40).push(nth(2)), ["dtx@960+960", "a65002@1920+960"]);
        assert_eq!(ear.inbound.repairs().unreadable, 1);
    }

    #[test]
    fn key_presses_take_their_sequence_numbers_and_no_time() {
        let mut ear = Ear::new();
        let key = |sequence: u64, duration: u8| AudioIn {
            codec: AudioCodec::TelephoneEvent,
            payload_type: 126,
            clock_rate_hz: 8_000,
            payload: [5, 10, 0, duration].as_slice().into(),
            ..packet(sequence, 15_160)
        };
        ear.push(nth(0));
        assert_eq!(ear.at(20).push(key(65_001, 80)), ["key5@960"]);
        assert_eq!(ear.at(40).push(key(65_002, 160)), [""; 0]);
        assert_eq!(ear.at(60).push(key(65_003, 240)), [""; 0]);
        // The tone took the place of 60 ms of audio.
        assert_eq!(
            ear.at(80).push(packet(65_004, 90_000 + 4 * 960)),
            ["dtx@960+2880", "a65004@3840+960"]
        );
        assert_eq!(ear.inbound.repairs().keys, 1);
    }

    #[test]
    fn a_key_press_behind_a_lost_packet_waits_like_audio() {
        let mut ear = Ear::new();
        ear.push(nth(0));
        let key = AudioIn {
            codec: AudioCodec::TelephoneEvent,
            clock_rate_hz: 8_000,
            payload: [11, 10, 0, 80].as_slice().into(),
            ..packet(65_002, 15_160)
        };
        assert_eq!(ear.at(20).push(key), [""; 0]);
        assert_eq!(ear.at(80).hear(), ["lost@960+960", "key#@1920"]);
        assert_eq!(ear.at(81).push(nth(3)), ["dtx@1920+960", "a65003@2880+960"]);
    }

    /// What the network does to one packet.
    #[derive(Debug, Clone)]
    struct Fate {
        lost: bool,
        late_ms: u64,
        twice: bool,
        /// The sender is silent before it for so many packets.
        silence: u64,
    }

    fn any_fate() -> impl Strategy<Value = Fate> {
        (
            prop::bool::weighted(0.1),
            prop_oneof![4 => 0..15u64, 1 => 0..200u64],
            prop::bool::weighted(0.05),
            prop_oneof![9 => Just(0), 1 => 1..80u64],
        )
            .prop_map(|(lost, late_ms, twice, silence)| Fate {
                lost,
                late_ms,
                twice,
                silence,
            })
    }

    fn any_packet() -> impl Strategy<Value = AudioIn> {
        let codec = prop::sample::select(vec![
            (111, AudioCodec::Opus),
            (0, AudioCodec::Pcmu),
            (8, AudioCodec::Pcma),
            (126, AudioCodec::TelephoneEvent),
        ]);
        let payload = prop::collection::vec(any::<u8>(), 0..6);
        (any::<u64>(), any::<u64>(), 0..3u32, codec, payload).prop_map(
            |(sequence, timestamp, ssrc, (payload_type, codec), payload)| AudioIn {
                // An RTP receiver counts to 48 bits.
                sequence: sequence >> 16,
                timestamp: timestamp >> 16,
                ssrc,
                codec,
                payload_type,
                payload: payload.into(),
                ..packet(0, 0)
            },
        )
    }

    /// All packets of a call in the order of arrival: `(arrival in ms, packet)`.
    fn arrivals(fates: &[Fate]) -> Vec<(u64, AudioIn)> {
        let mut arrivals = vec![(0, nth(0))];
        let mut ticks = 0;
        for (n, fate) in (1u64..).zip(fates) {
            ticks += 1 + fate.silence;
            let packet = packet(65_000 + n, 90_000 + ticks * 960);
            let copies = usize::from(!fate.lost) * (1 + usize::from(fate.twice));
            for copy in 0..copies {
                arrivals.push((ticks * 20 + fate.late_ms + copy as u64, packet.clone()));
            }
        }
        arrivals.sort_by_key(|(at, _)| *at);
        arrivals
    }

    proptest! {
        /// The line is continuous, in order, at its true time, nothing waits longer than the hold,
        /// and every packet is heard or counted as late.
        #[test]
        fn the_line_has_no_holes(fates in prop::collection::vec(any_fate(), 1..120)) {
            let mut ear = Ear::new();
            let (mut end, mut sequence, mut heard_count) = (0, 0, 0);
            let arrivals = arrivals(&fates);
            let last = arrivals.last().expect("one at least").0;
            let mut coming = arrivals.iter().peekable();
            for ms in 0..=last + 60 {
                ear.at(ms);
                while let Some((_, packet)) = coming.next_if(|(at, _)| *at <= ms) {
                    ear.inbound.push(ear.now, packet.clone());
                }
                let now = ear.now;
                while let Some(heard) = ear.inbound.poll(now) {
                    match heard {
                        Heard::Audio(audio) => {
                            prop_assert_eq!(audio.at, end);
                            prop_assert_eq!(audio.at, audio.packet.timestamp - 90_000);
                            prop_assert!(audio.packet.sequence > sequence);
                            sequence = audio.packet.sequence;
                            heard_count += 1;
                            end += u64::from(audio.samples);
                        }
                        Heard::Gap(gap) => {
                            prop_assert!(gap.at == end && gap.samples > 0);
                            end += gap.samples;
                        }
                        Heard::Key(_) => prop_assert!(false, "nobody pressed a key"),
                    }
                }
                prop_assert!(ear.inbound.poll_timeout().is_none_or(|at| at > now));
                prop_assert!(ear.inbound.held.len() < WINDOW_PACKETS);
            }
            let repairs = ear.inbound.repairs();
            prop_assert_eq!(heard_count + repairs.late, arrivals.len() as u64);
            prop_assert_eq!((repairs.jumps, repairs.unreadable), (0, 0));
        }

        #[test]
        fn no_packets_make_it_panic_or_tear_the_line(
            packets in prop::collection::vec(any_packet(), 0..60),
        ) {
            let mut ear = Ear::new();
            let mut end = 0;
            for packet in packets {
                ear.now += PACKET;
                let now = ear.now;
                ear.inbound.push(now, packet);
                while let Some(heard) = ear.inbound.poll(now) {
                    let (at, samples) = match heard {
                        Heard::Audio(audio) => (audio.at, u64::from(audio.samples)),
                        Heard::Gap(gap) => (gap.at, gap.samples),
                        Heard::Key(key) => (key.at, 0),
                    };
                    prop_assert_eq!(at, end);
                    end += samples;
                }
            }
        }
    }
}
