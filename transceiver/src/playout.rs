//! What is still to be said to the caller: a paced queue that can be emptied at once.
//!
//! A backend gives frames as fast as it likes; they leave one by one, each when the one before has
//! been played. Three things hold:
//!
//! - **The clock is the worker's, without drift.** A frame is due when the frame before it ends,
//!   counted from the start of the talk spurt and not from when the frame before happened to leave.
//!   What is late by at most [`LATE_MAX`] leaves at once and the schedule stands; to catch up,
//!   frames leave at most at double speed, so there is no burst. What is later begins a new talk
//!   spurt: the marker bit is set, and the timestamp has moved on by the silence (RFC 3550, 5.1;
//!   RFC 3551, 4.1).
//! - **A flush is silence.** After [`Playout::flush`] no frame leaves that was queued before it.
//! - **The count is exact.** For each segment it is known how many samples have been sent: neither
//!   what waits counts, nor what a last frame was filled up with.
//!
//! Nothing leaves before [`Playout::release`]: the first word is not spoken into a connection that
//! is not there yet. All durations are in samples at 48 kHz.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How late a frame may be and still belong to the running talk spurt: three of the usual 20 ms.
/// A client's jitter buffer takes that for the network.
pub const LATE_MAX: Duration = Duration::from_millis(60);
/// How much audio can wait, in samples: one minute.
pub const QUEUE_SAMPLES_MAX: u64 = 60 * RATE_HZ;
/// How many marks and ends of segments can wait.
pub const MARKS_MAX: usize = 256;
/// How much live audio can wait, in samples: 60 ms, as much as [`LATE_MAX`] lets the other way.
pub const LIVE_SAMPLES_MAX: u64 = 60 * RATE_HZ / 1_000;

/// Samples a second.
const RATE_HZ: u64 = 48_000;
const NS_PER_S: u64 = 1_000_000_000;
/// First sequence number: any below 65,536 (RFC 3711, 3.3.1).
const FIRST_SEQUENCE: u64 = 1_024;

/// A stretch of speech that is counted on its own. A session gives each number once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u32);

/// A place in the queue that is reported when it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkId(pub u32);

/// A frame of audio, encoded for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it is part of. Frames of one segment follow each other.
    pub segment: SegmentId,
    /// The payload of its packet.
    pub payload: Arc<[u8]>,
    /// How long it plays: 120 to 5,760.
    pub samples: u32,
    /// How much of that is speech rather than filling; what is counted as sent.
    pub content: u32,
    /// Whether it belongs to this moment rather than behind what waits: it leaves at once, and when
    /// more than [`LIVE_SAMPLES_MAX`] wait the oldest is dropped.
    pub is_live: bool,
}

/// A frame whose time has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// One more than that of the packet before.
    pub sequence: u64,
    /// When it plays, on a time line that runs on through silence.
    pub timestamp: u64,
    /// Whether a talk spurt starts with it.
    pub marker: bool,
    /// How much of it counts as sent.
    pub content: u32,
    /// The payload.
    pub payload: Arc<[u8]>,
}

/// What has become audible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlayoutEvent {
    /// The first frame of a segment leaves.
    Started(SegmentId),
    /// All before the mark has been played.
    Reached(MarkId),
    /// All of a segment has been played.
    Ended(Played),
}

/// How much of a segment has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Played {
    /// The segment.
    pub segment: SegmentId,
    /// Samples of speech that were sent.
    pub samples: u64,
}

/// What comes out of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// To be sent now.
    Packet(Packet),
    /// To be told now.
    Event(PlayoutEvent),
}

/// What a flush has put an end to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flushed {
    /// The segment that was playing, if one was: started, and not yet played to its end.
    pub playing: Option<Played>,
    /// Samples of frames that waited and will not be sent.
    pub dropped: u64,
    /// Marks that were not reached.
    pub marks: Vec<MarkId>,
}

/// The queue is full; nothing was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too much waits to be played")]
pub struct Full;

#[derive(Debug)]
enum Entry {
    Frame(Frame),
    Mark(MarkId),
    End(SegmentId),
}

/// The queue of one session; see the module.
#[derive(Debug, Default)]
pub struct Playout {
    is_released: bool,
    queue: VecDeque<Entry>,
    queued_samples: u64,
    mark_count: usize,
    playing: Option<Played>,
    schedule: Option<Schedule>,
    packet_count: u64,
    live_dropped: u64,
}

/// When what has been sent is over.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    /// When the last frame has been played, and the next is due.
    end: Instant,
    /// The timestamp that belongs to `end`.
    timestamp: u64,
    /// Before this the next frame must not leave even if it is overdue.
    earliest: Instant,
    /// Whether the talk spurt was cut off.
    is_cut: bool,
}

impl Playout {
    /// The client can hear: what waits begins to leave.
    pub fn release(&mut self) {
        self.is_released = true;
    }

    /// Puts a frame behind what waits.
    ///
    /// # Errors
    /// [`Full`], and the frame is dropped. A live frame drops the oldest instead.
    pub fn push(&mut self, frame: Frame) -> Result<(), Full> {
        let samples = u64::from(frame.samples);
        if frame.is_live {
            self.drop_oldest(LIVE_SAMPLES_MAX.saturating_sub(samples));
        } else if self.queued_samples + samples > QUEUE_SAMPLES_MAX {
            return Err(Full);
        }
        self.queued_samples += samples;
        self.queue.push_back(Entry::Frame(frame));
        Ok(())
    }

    /// Reports when all that waits has been played.
    ///
    /// # Errors
    /// [`Full`], when too many marks wait.
    pub fn mark(&mut self, mark: MarkId) -> Result<(), Full> {
        self.push_mark(Entry::Mark(mark))
    }

    /// Says that no more of the segment comes, so that its end can be reported. A frame of another
    /// segment says so too.
    ///
    /// # Errors
    /// [`Full`], when too many marks wait.
    pub fn end(&mut self, segment: SegmentId) -> Result<(), Full> {
        self.push_mark(Entry::End(segment))
    }

    /// Forgets all that waits. What left before is all the client will hear.
    pub fn flush(&mut self) -> Flushed {
        let marks = self.queue.iter().filter_map(|entry| match entry {
            Entry::Mark(mark) => Some(*mark),
            Entry::Frame(_) | Entry::End(_) => None,
        });
        let flushed = Flushed {
            marks: marks.collect(),
            playing: self.playing.take(),
            dropped: self.queued_samples,
        };
        self.queue.clear();
        self.queued_samples = 0;
        self.mark_count = 0;
        if let Some(schedule) = &mut self.schedule {
            schedule.is_cut = true;
        }
        flushed
    }

    /// What is to be sent or told at `now`; called until it gives nothing.
    pub fn poll(&mut self, now: Instant) -> Option<Output> {
        if self.poll_timeout(now)? > now {
            return None;
        }
        let changes_segment = match self.queue.front()? {
            Entry::Frame(frame) => self.playing.map(|playing| playing.segment != frame.segment),
            Entry::Mark(_) => {
                return self.pop_mark();
            }
            Entry::End(segment) => {
                let segment = *segment;
                let played = self.playing.take().unwrap_or(Played {
                    segment,
                    samples: 0,
                });
                // The end of a segment that was not playing is that of one without a frame.
                if played.segment == segment {
                    self.pop_mark();
                }
                return Some(Output::Event(PlayoutEvent::Ended(played)));
            }
        };
        match changes_segment {
            Some(false) => self.pop_packet(now).map(Output::Packet),
            Some(true) => {
                let played = self.playing.take()?;
                Some(Output::Event(PlayoutEvent::Ended(played)))
            }
            None => self.start_segment(),
        }
    }

    /// When [`Playout::poll`] next has something; `now` is for what need not wait.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let front = self.queue.front().filter(|_| self.is_released)?;
        let Some(schedule) = self.schedule else {
            return Some(now);
        };
        Some(match front {
            Entry::Frame(frame) if frame.is_live => schedule.earliest,
            Entry::Frame(_) => schedule.end.max(schedule.earliest),
            Entry::Mark(_) | Entry::End(_) => schedule.end,
        })
    }

    /// How much of the segment that is playing has been sent.
    pub fn position(&self) -> Option<Played> {
        self.playing
    }

    /// How much waits.
    pub fn queued_samples(&self) -> u64 {
        self.queued_samples
    }

    /// Whether nothing waits and nothing that was sent is still sounding at `now`.
    pub fn is_silent(&self, now: Instant) -> bool {
        self.queue.is_empty() && self.schedule.is_none_or(|schedule| schedule.end <= now)
    }

    /// Samples of live audio that were dropped because too much of it waited.
    pub fn live_dropped(&self) -> u64 {
        self.live_dropped
    }

    /// Takes back the count of a packet that could not be sent.
    pub fn note_unsent(&mut self, packet_content: u32) {
        if let Some(playing) = &mut self.playing {
            playing.samples -= u64::from(packet_content);
        }
    }

    fn push_mark(&mut self, entry: Entry) -> Result<(), Full> {
        if self.mark_count == MARKS_MAX {
            return Err(Full);
        }
        self.mark_count += 1;
        self.queue.push_back(entry);
        Ok(())
    }

    fn pop_mark(&mut self) -> Option<Output> {
        self.mark_count -= 1;
        match self.queue.pop_front()? {
            Entry::Mark(mark) => Some(Output::Event(PlayoutEvent::Reached(mark))),
            Entry::End(_) | Entry::Frame(_) => None,
        }
    }

    fn start_segment(&mut self) -> Option<Output> {
        let Entry::Frame(frame) = self.queue.front()? else {
            return None;
        };
        let segment = frame.segment;
        self.playing = Some(Played {
            segment,
            samples: 0,
        });
        Some(Output::Event(PlayoutEvent::Started(segment)))
    }

    fn pop_packet(&mut self, now: Instant) -> Option<Packet> {
        let Entry::Frame(frame) = self.queue.pop_front()? else {
            return None;
        };
        self.queued_samples -= u64::from(frame.samples);
        if let Some(playing) = &mut self.playing {
            playing.samples += u64::from(frame.content);
        }
        let sequence = FIRST_SEQUENCE + self.packet_count;
        self.packet_count += 1;
        let (timestamp, marker) = self.place(now, &frame);
        Some(Packet {
            sequence,
            timestamp,
            marker,
            content: frame.content,
            payload: frame.payload,
        })
    }

    /// Moves the schedule on by a frame that leaves at `now`; its timestamp, and whether a talk
    /// spurt starts with it.
    fn place(&mut self, now: Instant, frame: &Frame) -> (u64, bool) {
        let length = duration_of(u64::from(frame.samples));
        let (due, timestamp, marker) = match self.schedule {
            // Room below the first timestamp, for clients that look back.
            None => (now, RATE_HZ, true),
            Some(schedule) => {
                let late = now.saturating_duration_since(schedule.end);
                if late > LATE_MAX {
                    (now, schedule.timestamp + samples_of(late), true)
                } else {
                    // Live audio may leave before its time.
                    (schedule.end.min(now), schedule.timestamp, schedule.is_cut)
                }
            }
        };
        self.schedule = Some(Schedule {
            end: due + length,
            timestamp: timestamp + u64::from(frame.samples),
            earliest: now + length / 2,
            is_cut: false,
        });
        (timestamp, marker)
    }

    /// Drops frames until no more than `samples_max` wait.
    fn drop_oldest(&mut self, samples_max: u64) {
        while self.queued_samples > samples_max {
            let oldest = self
                .queue
                .iter()
                .position(|entry| matches!(entry, Entry::Frame(_)));
            let oldest = oldest.and_then(|at| self.queue.remove(at));
            let Some(Entry::Frame(frame)) = oldest else {
                return;
            };
            self.queued_samples -= u64::from(frame.samples);
            self.live_dropped += u64::from(frame.samples);
        }
    }
}

/// What is known of the way to the client, as far as he reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Way {
    /// Time to the client and back.
    pub round_trip: Option<Duration>,
    /// Interarrival jitter of our packets there.
    pub jitter: Option<Duration>,
    /// The part of our packets that never arrived, 0 to 1.
    pub loss: Option<f64>,
    /// The part of them that was lost of late, 0 to 1; 0 as long as nothing is reported.
    pub recent_loss: f64,
}

impl Way {
    /// How much of what was sent has probably reached the ear: less by the way to the client, and
    /// by what its jitter buffer holds, which is taken for a frame and twice the jitter. `None`
    /// when the client has reported no round trip.
    pub fn heard_samples(&self, sent: u64) -> Option<u64> {
        let one_way = self.round_trip? / 2;
        let buffer = Duration::from_millis(20) + self.jitter.unwrap_or_default() * 2;
        Some(sent.saturating_sub(samples_of(one_way + buffer)))
    }
}

/// How long so many samples play.
pub fn duration_of(samples: u64) -> Duration {
    let (seconds, rest) = (samples / RATE_HZ, samples % RATE_HZ);
    Duration::new(seconds, (rest * NS_PER_S / RATE_HZ) as u32)
}

/// How many samples play for so long, rounded down.
pub fn samples_of(duration: Duration) -> u64 {
    duration.as_secs() * RATE_HZ + u64::from(duration.subsec_nanos()) * RATE_HZ / NS_PER_S
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRAME: u32 = 960;
    const FRAME_TIME: Duration = Duration::from_millis(20);

    /// Something, and the millisecond at which it came.
    type At<T> = (u64, T);

    fn frame(segment: u32, n: u8) -> Frame {
        Frame {
            segment: SegmentId(segment),
            payload: [n].as_slice().into(),
            samples: FRAME,
            content: FRAME,
            is_live: false,
        }
    }

    fn live(n: u8) -> Frame {
        Frame {
            is_live: true,
            ..frame(1, n)
        }
    }

    fn released() -> Playout {
        let mut playout = Playout::default();
        playout.release();
        playout
    }

    /// Lets time pass by the millisecond from `start + from` until before `start + until`, and
    /// collects what comes out with the milliseconds at which it came.
    fn run(
        playout: &mut Playout,
        start: Instant,
        from: u64,
        until: u64,
    ) -> (Vec<At<Packet>>, Vec<At<PlayoutEvent>>) {
        let (mut packets, mut events) = (Vec::new(), Vec::new());
        for ms in from..until {
            while let Some(output) = playout.poll(start + Duration::from_millis(ms)) {
                match output {
                    Output::Packet(packet) => packets.push((ms, packet)),
                    Output::Event(event) => events.push((ms, event)),
                }
            }
        }
        (packets, events)
    }

    fn times(packets: &[(u64, Packet)]) -> Vec<u64> {
        packets.iter().map(|(ms, _)| *ms).collect()
    }

    fn played(segment: u32, samples: u64) -> Played {
        Played {
            segment: SegmentId(segment),
            samples,
        }
    }

    #[test]
    fn a_burst_leaves_frame_by_frame_on_the_clock_with_one_marker() {
        let start = Instant::now();
        let mut playout = released();
        for n in 0..50 {
            playout.push(frame(1, n)).unwrap();
        }
        let (packets, _) = run(&mut playout, start, 0, 2_000);
        assert_eq!(times(&packets), (0..50).map(|n| n * 20).collect::<Vec<_>>());
        for (n, (_, packet)) in packets.iter().enumerate() {
            assert_eq!(packet.payload[..], [n as u8]);
            assert_eq!(packet.marker, n == 0);
            let first = &packets[0].1;
            assert_eq!(packet.sequence, first.sequence + n as u64);
            assert_eq!(packet.timestamp, first.timestamp + n as u64 * 960);
        }
    }

    #[test]
    fn nothing_leaves_before_the_client_can_hear() {
        let start = Instant::now();
        let mut playout = Playout::default();
        playout.push(frame(1, 0)).unwrap();
        playout.mark(MarkId(7)).unwrap();
        assert_eq!(playout.poll_timeout(start), None);
        assert_eq!(run(&mut playout, start, 0, 100), (vec![], vec![]));
        playout.release();
        let (packets, events) = run(&mut playout, start, 100, 200);
        assert_eq!(times(&packets), [100]);
        let started = PlayoutEvent::Started(SegmentId(1));
        assert_eq!(
            events,
            [(100, started), (120, PlayoutEvent::Reached(MarkId(7)))]
        );
    }

    #[test]
    fn a_worker_that_is_late_does_not_shift_the_schedule_and_catches_up_without_a_burst() {
        let start = Instant::now();
        let mut playout = released();
        for n in 0..20 {
            playout.push(frame(1, n)).unwrap();
        }
        let (first, _) = run(&mut playout, start, 0, 101);
        assert_eq!(times(&first), [0, 20, 40, 60, 80, 100]);
        // The worker is away for 55 ms: frames were due at 120, 140 and 160.
        let (then, _) = run(&mut playout, start, 155, 300);
        assert_eq!(
            times(&then)[..7],
            [155, 165, 175, 185, 200, 220, 240],
            "double speed until the schedule is reached"
        );
        assert!(then.iter().all(|(_, packet)| !packet.marker));
        let last = then.last().unwrap();
        assert_eq!(last.1.timestamp - first[0].1.timestamp, last.0 / 20 * 960);
    }

    #[test]
    fn a_pause_moves_the_timestamps_on_and_starts_a_talk_spurt() {
        let start = Instant::now();
        let mut playout = released();
        playout.push(frame(1, 0)).unwrap();
        let (first, _) = run(&mut playout, start, 0, 1_000);
        playout.push(frame(1, 1)).unwrap();
        let (second, _) = run(&mut playout, start, 1_000, 1_100);
        assert_eq!(times(&second), [1_000]);
        assert!(second[0].1.marker);
        assert_eq!(
            second[0].1.timestamp - first[0].1.timestamp,
            48_000,
            "a second has passed"
        );
        assert_eq!(second[0].1.sequence, first[0].1.sequence + 1);
    }

    #[test]
    fn a_frame_that_is_a_little_late_belongs_to_the_talk_spurt() {
        let start = Instant::now();
        let mut playout = released();
        playout.push(frame(1, 0)).unwrap();
        run(&mut playout, start, 0, 50);
        playout.push(frame(1, 1)).unwrap();
        let (late, _) = run(&mut playout, start, 50, 60);
        assert_eq!(times(&late), [50]);
        assert!(!late[0].1.marker);
        playout.push(frame(1, 2)).unwrap();
        playout.push(frame(1, 3)).unwrap();
        let (next, _) = run(&mut playout, start, 60, 200);
        assert_eq!(
            times(&next),
            [60, 70],
            "back on the schedule of the spurt, at double speed"
        );
    }

    #[test]
    fn frames_of_every_length_are_due_when_the_one_before_ends() {
        let start = Instant::now();
        let mut playout = released();
        for samples in [120, 480, 5_760, 2_880, 960] {
            let frame = Frame {
                samples,
                content: samples,
                ..frame(1, 0)
            };
            playout.push(frame).unwrap();
        }
        let (packets, _) = run(&mut playout, start, 0, 400);
        // 2.5 ms is over at the third millisecond of this test's clock, and shifts nothing.
        assert_eq!(times(&packets), [0, 3, 13, 133, 193]);
    }

    #[test]
    fn after_a_flush_nothing_leaves_and_the_count_is_exact() {
        let start = Instant::now();
        let mut playout = released();
        for n in 0..100 {
            playout.push(frame(3, n)).unwrap();
        }
        playout.mark(MarkId(1)).unwrap();
        let (packets, _) = run(&mut playout, start, 0, 500);
        assert_eq!(packets.len(), 25);
        let flushed = playout.flush();
        assert_eq!(flushed.playing, Some(played(3, 25 * 960)));
        assert_eq!(flushed.dropped, 75 * 960);
        assert_eq!(flushed.marks, [MarkId(1)]);
        assert_eq!(run(&mut playout, start, 500, 1_000), (vec![], vec![]));
        assert_eq!(playout.queued_samples(), 0);
        // What comes behind the flush is played, as a talk spurt of its own.
        playout.push(frame(4, 0)).unwrap();
        let (packets, events) = run(&mut playout, start, 1_000, 1_100);
        assert_eq!(times(&packets), [1_000]);
        assert!(packets[0].1.marker);
        assert_eq!(events, [(1_000, PlayoutEvent::Started(SegmentId(4)))]);
    }

    #[test]
    fn what_follows_a_flush_at_once_waits_for_the_last_frame_and_is_marked() {
        let start = Instant::now();
        let mut playout = released();
        playout.push(frame(1, 0)).unwrap();
        playout.push(frame(1, 1)).unwrap();
        run(&mut playout, start, 0, 5);
        playout.flush();
        playout.push(frame(2, 2)).unwrap();
        let (packets, _) = run(&mut playout, start, 5, 100);
        assert_eq!(times(&packets), [20]);
        assert!(packets[0].1.marker);
    }

    #[test]
    fn flushing_with_nothing_queued_and_twice_says_so() {
        let start = Instant::now();
        let mut playout = released();
        assert_eq!(playout.flush(), Flushed::default());
        playout.push(frame(1, 0)).unwrap();
        run(&mut playout, start, 0, 10);
        assert_eq!(playout.flush().playing, Some(played(1, 960)));
        assert_eq!(playout.flush(), Flushed::default());
    }

    #[test]
    fn a_segment_that_was_played_to_its_end_is_not_playing_any_more() {
        let start = Instant::now();
        let mut playout = released();
        playout.push(frame(1, 0)).unwrap();
        playout.end(SegmentId(1)).unwrap();
        let (_, events) = run(&mut playout, start, 0, 19);
        assert_eq!(events, [(0, PlayoutEvent::Started(SegmentId(1)))]);
        assert_eq!(playout.position(), Some(played(1, 960)));
        let (_, events) = run(&mut playout, start, 19, 100);
        assert_eq!(events, [(20, PlayoutEvent::Ended(played(1, 960)))]);
        assert_eq!(playout.flush(), Flushed::default());
    }

    #[test]
    fn a_segment_ends_by_the_next_one_and_an_empty_one_ends_with_nothing_sent() {
        let start = Instant::now();
        let mut playout = released();
        playout.push(frame(1, 0)).unwrap();
        playout.push(frame(2, 1)).unwrap();
        playout.end(SegmentId(2)).unwrap();
        playout.end(SegmentId(3)).unwrap();
        let (_, events) = run(&mut playout, start, 0, 100);
        let started = |segment| PlayoutEvent::Started(SegmentId(segment));
        let ended = |segment, samples| PlayoutEvent::Ended(played(segment, samples));
        assert_eq!(
            events,
            [
                (0, started(1)),
                (20, ended(1, 960)),
                (20, started(2)),
                (40, ended(2, 960)),
                (40, ended(3, 0)),
            ]
        );
    }

    #[test]
    fn filling_is_played_and_not_counted() {
        let start = Instant::now();
        let mut playout = released();
        playout.push(frame(1, 0)).unwrap();
        let last = Frame {
            content: 100,
            ..frame(1, 1)
        };
        playout.push(last).unwrap();
        playout.end(SegmentId(1)).unwrap();
        let (_, events) = run(&mut playout, start, 0, 100);
        assert_eq!(events[1], (40, PlayoutEvent::Ended(played(1, 1_060))));
    }

    #[test]
    fn live_audio_leaves_at_once_and_never_falls_behind() {
        let start = Instant::now();
        let mut playout = released();
        // What had to wait for the link comes at once: all but the newest 60 ms is dropped.
        for n in 0..30 {
            playout.push(live(n)).unwrap();
        }
        assert_eq!(playout.live_dropped(), 27 * 960);
        let (first, _) = run(&mut playout, start, 0, 30);
        assert_eq!(times(&first), [0, 10, 20]);
        // From then on each leaves as it comes.
        for n in 0..10 {
            let at = 45 + n * 20 + u64::from(n % 2 == 0) * 3;
            playout.push(live(30 + n as u8)).unwrap();
            let (packets, _) = run(&mut playout, start, at, at + 2);
            assert_eq!(times(&packets), [at]);
            assert!(!packets[0].1.marker);
        }
    }

    #[test]
    fn a_full_queue_takes_no_more_and_says_so() {
        let mut playout = Playout::default();
        for n in 0..QUEUE_SAMPLES_MAX / 960 {
            playout.push(frame(1, n as u8)).unwrap();
        }
        assert_eq!(playout.push(frame(1, 0)), Err(Full));
        for n in 0..MARKS_MAX as u32 {
            playout.mark(MarkId(n)).unwrap();
        }
        assert_eq!(playout.mark(MarkId(0)), Err(Full));
        assert_eq!(playout.end(SegmentId(1)), Err(Full));
        assert_eq!(playout.flush().marks.len(), MARKS_MAX);
        playout.push(frame(1, 0)).unwrap();
        playout.end(SegmentId(1)).unwrap();
    }

    #[test]
    fn a_packet_that_could_not_be_sent_is_not_counted() {
        let start = Instant::now();
        let mut playout = released();
        playout.push(frame(1, 0)).unwrap();
        let (packets, _) = run(&mut playout, start, 0, 5);
        playout.note_unsent(packets[0].1.content);
        assert_eq!(playout.position(), Some(played(1, 0)));
    }

    #[test]
    fn what_is_on_its_way_has_not_been_heard() {
        let mut way = Way::default();
        assert_eq!(way.heard_samples(48_000), None);
        way.round_trip = Some(Duration::from_millis(60));
        assert_eq!(way.heard_samples(48_000), Some(48_000 - 50 * 48));
        way.jitter = Some(Duration::from_millis(5));
        assert_eq!(way.heard_samples(48_000), Some(48_000 - 60 * 48));
        assert_eq!(way.heard_samples(960), Some(0));
    }

    #[test]
    fn samples_and_time_agree_over_days() {
        for samples in [0, 1, 120, 960, 48_000, 48_000 * 86_400 * 30 + 960] {
            let back = samples_of(duration_of(samples));
            assert!(samples - back <= 1, "{samples}: {back}");
        }
        assert_eq!(duration_of(960), FRAME_TIME);
        assert_eq!(duration_of(120), Duration::from_micros(2_500));
    }

    #[derive(Debug, Clone)]
    enum Deed {
        Push(u32, u32, bool),
        End(u32),
        Mark,
        Flush,
        Wait(u64),
    }

    fn deeds() -> impl Strategy<Value = Vec<Deed>> {
        let lengths = prop::sample::select(vec![120u32, 480, 960, 1_920, 5_760]);
        let push = (0u32..4, lengths, prop::bool::weighted(0.2));
        let push =
            push.prop_map(|(segment, samples, is_live)| Deed::Push(segment, samples, is_live));
        let deed = prop_oneof![
            8 => push,
            1 => (0u32..4).prop_map(Deed::End),
            1 => Just(Deed::Mark),
            1 => Just(Deed::Flush),
            4 => (0u64..200).prop_map(Deed::Wait),
        ];
        prop::collection::vec(deed, 1..120)
    }

    proptest! {
        /// Whatever is done: every sample pushed is sent, waiting, flushed or dropped; sequence
        /// numbers and timestamps only rise; a flush leaves nothing.
        #[test]
        fn audio_is_conserved_and_numbers_only_rise(deeds in deeds()) {
            let start = Instant::now();
            let mut playout = released();
            let (mut ms, mut pushed, mut sent, mut flushed) = (0u64, 0u64, 0u64, 0u64);
            let mut last: Option<Packet> = None;
            for deed in deeds {
                match deed {
                    Deed::Push(segment, samples, is_live) => {
                        let content = samples;
                        let taken = playout.push(Frame {
                            samples, content, is_live, ..frame(segment, 0)
                        });
                        pushed += if taken.is_ok() { u64::from(samples) } else { 0 };
                    }
                    Deed::End(segment) => { let _ = playout.end(SegmentId(segment)); }
                    Deed::Mark => { let _ = playout.mark(MarkId(0)); }
                    Deed::Flush => {
                        flushed += playout.flush().dropped;
                        prop_assert_eq!(playout.poll(start + Duration::from_millis(ms)), None);
                    }
                    Deed::Wait(span) => {
                        let (packets, _) = run(&mut playout, start, ms, ms + span);
                        ms += span;
                        for (_, packet) in packets {
                            sent += u64::from(packet.content);
                            if let Some(last) = &last {
                                prop_assert_eq!(packet.sequence, last.sequence + 1);
                                let end = last.timestamp + u64::from(last.content);
                                prop_assert!(packet.timestamp >= end);
                            }
                            last = Some(packet);
                        }
                    }
                }
                let waits = playout.queued_samples();
                prop_assert_eq!(pushed, sent + flushed + waits + playout.live_dropped());
            }
        }
    }
}
