//! What one client hears of what it said: which packets came back, when, and how long nothing did.
//!
//! A packet is measured by the moment at which it *should* have been said. One that comes back
//! after [`MEMORY`] further packets counts as lost, for nobody waits that long to hear it; that it
//! came is counted as `late`.

use std::time::Duration;

use super::emodel::{self, Conditions};
use super::voice::{FRAME, Stamp};

/// Packets that are remembered: ten seconds of speech.
const MEMORY: u32 = 512;
const WORDS: usize = MEMORY as usize / 64;
/// A sound this much overdue is a gap that a listener notices: three packets.
const GAP: Duration = Duration::from_millis(60);
/// What stands between two ears beside the network: a packet is collected before it is sent, and a
/// playout buffer holds as much.
const TERMINAL_DELAY_MS: f64 = 2.0 * FRAME.as_millis() as f64;

/// Packets of one call or of many, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Said.
    pub said: u64,
    /// Came back in time, each counted once.
    pub heard: u64,
    /// Runs of lost packets.
    pub lost_runs: u64,
    /// The longest of them.
    pub longest_run: u64,
    /// Came back more than once.
    pub duplicated: u64,
    /// Came back after one that was said later.
    pub reordered: u64,
    /// Came back when nobody waited any more; lost, too.
    pub late: u64,
}

impl Counts {
    /// Said and not heard.
    pub fn lost(&self) -> u64 {
        self.said - self.heard
    }

    /// Adds those of another call.
    pub fn add(&mut self, other: &Self) {
        self.said += other.said;
        self.heard += other.heard;
        self.lost_runs += other.lost_runs;
        self.longest_run = self.longest_run.max(other.longest_run);
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.late += other.late;
    }
}

/// What to make of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The first of its number; `measured` when it belongs to the measured part of the run.
    Fresh {
        /// Whether it counts.
        measured: bool,
    },
    /// It came before.
    Duplicate,
    /// Nobody waits for it any more.
    Late,
}

/// The listener of one call. All times are nanoseconds since the run's epoch.
#[derive(Debug)]
pub struct Ear {
    /// Packets said so far: the number of the next.
    next: u32,
    measured: [u64; WORDS],
    heard: [u64; WORDS],
    /// When each remembered packet should have been said, in steps of 100 µs: enough to tell how
    /// long a sound is overdue, and half the memory.
    intended: Box<[u32; MEMORY as usize]>,
    /// Lost packets at the end of what is judged so far.
    run: u64,
    counts: Counts,
    last: Option<Last>,
    jitter_ns: f64,
    round_trip_sum_ns: f64,
    longest_gap_ns: u64,
    recovered_ns: Option<u64>,
}

/// The latest arrival of the highest number.
#[derive(Clone, Copy, Debug)]
struct Last {
    sequence: u32,
    intended_ns: u64,
    arrived_ns: u64,
}

/// What became of one call's sound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Its packets.
    pub counts: Counts,
    /// Interarrival jitter at the end (RFC 3550, 6.4.1).
    pub jitter: Duration,
    /// The longest time for which a sound was overdue.
    pub longest_gap: Duration,
    /// When the last gap that a listener notices ended, counted from the run's epoch.
    pub recovered: Option<Duration>,
    /// The mean opinion score; `None` when nothing was measured.
    pub mos: Option<f64>,
}

impl Default for Ear {
    fn default() -> Self {
        Self {
            next: 0,
            measured: [0; WORDS],
            heard: [0; WORDS],
            intended: Box::new([0; MEMORY as usize]),
            run: 0,
            counts: Counts::default(),
            last: None,
            jitter_ns: 0.0,
            round_trip_sum_ns: 0.0,
            longest_gap_ns: 0,
            recovered_ns: None,
        }
    }
}

impl Ear {
    /// The next packet goes out; its numbers start at 0 and have no holes.
    ///
    /// # Panics
    /// When `stamp` is not the next.
    pub fn said(&mut self, stamp: &Stamp, measured: bool) {
        assert_eq!(stamp.sequence, self.next, "packets are said in order");
        if let Some(old) = self.next.checked_sub(MEMORY) {
            self.judge(old);
        }
        let place = (self.next % MEMORY) as usize;
        set(&mut self.measured, place, measured);
        set(&mut self.heard, place, false);
        self.intended[place] = steps(stamp.intended_ns);
        self.next += 1;
    }

    /// One of this call's packets came back.
    pub fn heard(&mut self, stamp: &Stamp, now_ns: u64) -> Arrival {
        if stamp.sequence >= self.next || stamp.sequence + MEMORY < self.next {
            self.counts.late += 1;
            return Arrival::Late;
        }
        let place = (stamp.sequence % MEMORY) as usize;
        let measured = is_set(&self.measured, place);
        if is_set(&self.heard, place) {
            self.counts.duplicated += u64::from(measured);
            return Arrival::Duplicate;
        }
        set(&mut self.heard, place, true);
        if measured {
            self.round_trip_sum_ns += now_ns.saturating_sub(stamp.intended_ns) as f64;
        }
        self.follow(stamp, now_ns, measured);
        Arrival::Fresh { measured }
    }

    /// Compares an arrival with the one before it.
    fn follow(&mut self, stamp: &Stamp, now_ns: u64, measured: bool) {
        let this = Last {
            sequence: stamp.sequence,
            intended_ns: stamp.intended_ns,
            arrived_ns: now_ns,
        };
        let Some(last) = self.last else {
            self.last = Some(this);
            return;
        };
        if this.sequence < last.sequence {
            self.counts.reordered += u64::from(measured);
            return;
        }
        self.last = Some(this);
        if !measured {
            return;
        }
        let passed = this.arrived_ns.saturating_sub(last.arrived_ns);
        let meant = this.intended_ns.saturating_sub(last.intended_ns);
        self.jitter_ns += (passed.abs_diff(meant) as f64 - self.jitter_ns) / 16.0;
        // The packet after the last one was to sound this much later than it; after a silence so
        // long that it is forgotten, a frame is near enough.
        let following = last.sequence + 1;
        let step_ns = if following + MEMORY < self.next {
            FRAME.as_nanos() as u64
        } else {
            let following = self.intended[(following % MEMORY) as usize];
            u64::from(following.wrapping_sub(steps(last.intended_ns))) * STEP_NS
        };
        let overdue = passed.saturating_sub(step_ns);
        self.longest_gap_ns = self.longest_gap_ns.max(overdue);
        if u128::from(overdue) >= GAP.as_nanos() {
            self.recovered_ns = Some(now_ns);
        }
    }

    /// Decides about a packet for good.
    fn judge(&mut self, sequence: u32) {
        let place = (sequence % MEMORY) as usize;
        if !is_set(&self.measured, place) {
            return;
        }
        self.counts.said += 1;
        if is_set(&self.heard, place) {
            self.counts.heard += 1;
            self.run = 0;
        } else {
            self.counts.lost_runs += u64::from(self.run == 0);
            self.run += 1;
            self.counts.longest_run = self.counts.longest_run.max(self.run);
        }
    }

    /// How long nothing has been heard at `now_ns`, if anything ever was.
    pub fn silent_for(&self, now_ns: u64) -> Option<Duration> {
        let last = self.last?;
        Some(Duration::from_nanos(now_ns.saturating_sub(last.arrived_ns)))
    }

    /// Decides about everything that is still open.
    pub fn finish(mut self) -> Verdict {
        for sequence in self.next.saturating_sub(MEMORY)..self.next {
            self.judge(sequence);
        }
        Verdict {
            counts: self.counts,
            jitter: Duration::from_nanos(self.jitter_ns as u64),
            longest_gap: Duration::from_nanos(self.longest_gap_ns),
            recovered: self.recovered_ns.map(Duration::from_nanos),
            mos: self.mos(),
        }
    }

    /// Half the echo's round trip stands for one way: two clients that talk to each other would
    /// have the server in the middle of it.
    fn mos(&self) -> Option<f64> {
        let Counts {
            said,
            heard,
            lost_runs,
            ..
        } = self.counts;
        if heard == 0 {
            return (said > 0).then_some(1.0);
        }
        let loss = (said - heard) as f64 / said as f64;
        let burst = if lost_runs == 0 {
            1.0
        } else {
            // Random loss has bursts of 1 / (1 - loss) on average (G.107, 7.5).
            (said - heard) as f64 / lost_runs as f64 * (1.0 - loss)
        };
        let round_trip_ms = self.round_trip_sum_ns / heard as f64 / 1e6;
        Some(emodel::mos(&Conditions {
            delay_ms: round_trip_ms / 2.0 + TERMINAL_DELAY_MS,
            loss_percent: loss * 100.0,
            burst_ratio: burst.max(1.0),
        }))
    }
}

/// Length of a step of [`Ear::intended`], in nanoseconds.
const STEP_NS: u64 = 100_000;

/// Wraps after five days.
fn steps(ns: u64) -> u32 {
    (ns / STEP_NS) as u32
}

fn is_set(words: &[u64; WORDS], place: usize) -> bool {
    words[place / 64] >> (place % 64) & 1 == 1
}

fn set(words: &mut [u64; WORDS], place: usize, on: bool) {
    let bit = 1 << (place % 64);
    if on {
        words[place / 64] |= bit;
    } else {
        words[place / 64] &= !bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn stamp(sequence: u32) -> Stamp {
        Stamp {
            call: 1,
            sequence,
            intended_ns: u64::from(sequence) * 20 * MS,
        }
    }

    /// Says `count` packets and hears each after the delay that `delay_ms` gives, in order of
    /// numbers; `None` loses it.
    fn listen(count: u32, delay_ms: impl Fn(u32) -> Option<u64>) -> Verdict {
        let mut ear = Ear::default();
        for sequence in 0..count {
            ear.said(&stamp(sequence), true);
            if let Some(delay_ms) = delay_ms(sequence) {
                ear.heard(
                    &stamp(sequence),
                    stamp(sequence).intended_ns + delay_ms * MS,
                );
            }
        }
        ear.finish()
    }

    #[test]
    fn a_clean_call_loses_nothing_and_has_no_jitter() {
        let verdict = listen(2_000, |_| Some(30));
        let expected = Counts {
            said: 2_000,
            heard: 2_000,
            ..Counts::default()
        };
        assert_eq!(verdict.counts, expected);
        assert_eq!(
            (verdict.jitter, verdict.longest_gap),
            (Duration::ZERO, Duration::ZERO)
        );
        assert_eq!(verdict.recovered, None);
        assert!(verdict.mos.is_some_and(|mos| mos > 4.4));
    }

    #[test]
    fn losses_are_counted_as_packets_and_as_runs() {
        let verdict = listen(1_000, |sequence| {
            let lost = sequence == 10 || (100..105).contains(&sequence) || sequence == 999;
            (!lost).then_some(5)
        });
        assert_eq!((verdict.counts.lost(), verdict.counts.lost_runs), (7, 3));
        assert_eq!(verdict.counts.longest_run, 5);
        assert_eq!(verdict.longest_gap, Duration::from_millis(100));
        let recovered = stamp(105).intended_ns + 5 * MS;
        assert_eq!(verdict.recovered, Some(Duration::from_nanos(recovered)));
    }

    #[test]
    fn jitter_follows_rfc_3550() {
        // A delay that alternates by 8 ms has a difference of 8 ms each time: J settles at 8 ms.
        let verdict = listen(1_000, |sequence| Some(20 + u64::from(sequence % 2) * 8));
        let off = verdict.jitter.abs_diff(Duration::from_millis(8));
        assert!(off < Duration::from_micros(10), "{:?}", verdict.jitter);
    }

    #[test]
    fn tells_duplicates_overtaken_and_late_packets_apart() {
        let mut ear = Ear::default();
        for sequence in 0..3 {
            ear.said(&stamp(sequence), true);
        }
        let fresh = Arrival::Fresh { measured: true };
        assert_eq!(ear.heard(&stamp(1), 50 * MS), fresh);
        assert_eq!(ear.heard(&stamp(1), 51 * MS), Arrival::Duplicate);
        assert_eq!(ear.heard(&stamp(0), 52 * MS), fresh);
        for sequence in 3..3 + MEMORY {
            ear.said(&stamp(sequence), true);
        }
        assert_eq!(ear.heard(&stamp(2), 53 * MS), Arrival::Late);
        assert_eq!(ear.heard(&stamp(9_999), 54 * MS), Arrival::Late);
        let counts = ear.finish().counts;
        assert_eq!((counts.said, counts.heard, counts.late), (515, 2, 2));
        assert_eq!((counts.duplicated, counts.reordered), (1, 1));
    }

    #[test]
    fn a_pause_of_the_speaker_is_no_gap() {
        let mut ear = Ear::default();
        for (sequence, at_ms) in [(0, 0), (1, 20), (2, 420), (3, 820)] {
            let stamp = Stamp {
                intended_ns: at_ms * MS,
                ..stamp(sequence)
            };
            ear.said(&stamp, true);
            ear.heard(&stamp, (at_ms + 7) * MS);
        }
        assert_eq!(ear.silent_for(1_027 * MS), Some(Duration::from_millis(200)));
        let verdict = ear.finish();
        assert_eq!(
            (verdict.longest_gap, verdict.recovered),
            (Duration::ZERO, None)
        );
    }

    #[test]
    fn what_lies_outside_the_window_is_not_counted() {
        let mut ear = Ear::default();
        for sequence in 0..600 {
            ear.said(&stamp(sequence), (100..200).contains(&sequence));
        }
        let counts = ear.finish().counts;
        assert_eq!(
            (counts.said, counts.lost(), counts.lost_runs),
            (100, 100, 1)
        );
    }

    #[test]
    fn a_call_of_which_nothing_came_back_has_the_worst_score() {
        assert_eq!(listen(10, |_| None).mos, Some(1.0));
        assert_eq!(Ear::default().finish().mos, None);
    }
}
