//! The line has no holes, whatever comes.

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
        Heard::Gap(Gap { kind, at, samples }) => format!("{kind:?}@{at}+{samples}").to_lowercase(),
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
    /// The line is continuous, in order, at its true time, nothing waits longer than the hold, and
    /// every packet is heard or counted as late.
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
        packets in prop::collection::vec(
            (any::<u64>(), any::<u64>(), 0..3u32, 0..4usize, prop::collection::vec(any::<u8>(), 0..6)),
            0..60,
        ),
    ) {
        let codecs = [AudioCodec::Opus, AudioCodec::Pcmu, AudioCodec::Pcma, AudioCodec::TelephoneEvent];
        let mut ear = Ear::new();
        let mut end = 0;
        for (sequence, timestamp, ssrc, codec, payload) in packets {
            let packet = AudioIn {
                // Extended numbers of 48 bits are what an RTP receiver can count to.
                sequence: sequence >> 16,
                timestamp: timestamp >> 16,
                ssrc,
                codec: codecs[codec],
                payload_type: codec as u8,
                payload: payload.into(),
                ..packet(0, 0)
            };
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
