//! The dialect `media.v1` from both sides: hello, audio both ways, flush, credit, faults, loss.

mod failing;

use super::served::*;
use super::support::*;
use serde_json::{Value, json};
use std::time::Duration;
use syrinx_transceiver::backend::link::LinkEvent;
use syrinx_transceiver::backend::media_v1::MediaV1;
use syrinx_transceiver::backend::media_v1::wire::{
    FLAG_CONCEALED, FLAG_DTX, FLAG_LIVE, FLAG_LOST, Header, MediaType,
};
use syrinx_transceiver::session::EndReason;

const HELLO: &str = r#"{"type":"hello","version":1}"#;
const PCM_HELLO: &str = r#"{"type":"hello","version":1,
    "audio_in":{"format":"pcm16","sample_rate":16000},
    "audio_out":{"format":"pcm16","sample_rate":24000},"playout_ms":0}"#;

fn call() -> Served {
    Served::new(Box::new(MediaV1::new(target())))
}

/// A call that has connected, with a backend that has said `hello`.
fn agreed(hello: &str) -> Served {
    let mut served = call();
    served.link(LinkEvent::Up);
    served.text(hello);
    served.connect();
    served.run(Duration::from_millis(100));
    served.sent.clear();
    served
}

fn audio_out(segment: u16, flags: u8, payload: &[u8]) -> LinkEvent {
    let header = Header {
        media: MediaType::AudioOut,
        flags,
        segment,
        sequence: 0,
        timestamp: 0,
        time_ns: 0,
    };
    let mut message = header.to_message(payload.len());
    message.extend_from_slice(payload);
    LinkEvent::Binary(message)
}

fn play(served: &mut Served, segment: u16, frames: std::ops::Range<u8>) {
    for n in frames {
        served.link(audio_out(segment, 0, &opus(n)));
    }
}

fn pcm(value: i16, samples: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(samples)
}

fn of(texts: &[Value], kind: &str) -> Vec<Value> {
    let of_kind = texts.iter().filter(|text| text["type"] == kind);
    of_kind.cloned().collect()
}

#[test]
fn the_edge_says_hello_with_what_there_is_and_asks_for_the_subprotocol() {
    let mut served = call();
    assert_eq!(served.opens, 1);
    assert!(served.sent.is_empty(), "not before the link is up");
    served.link(LinkEvent::Up);
    let texts = served.texts();
    let [hello] = &texts[..] else {
        panic!("one hello: {texts:?}");
    };
    assert_eq!(hello["type"], "hello");
    assert_eq!(hello["versions"], json!([1]));
    assert_eq!(hello["call"], "sess_test");
    assert_eq!(hello["formats"], json!(["opus", "pcm16"]));
    assert_eq!(hello["link"], 1);
}

#[test]
fn the_callers_first_words_are_kept_and_come_first_as_they_were_sent() {
    let mut served = call();
    served.connect();
    for n in 0..20 {
        served.speak(n);
    }
    assert!(served.sent.is_empty());
    served.link(LinkEvent::Up);
    served.text(HELLO);
    served.speak(20);
    let audio = served.binaries();
    for (n, message) in audio.iter().enumerate() {
        let (header, payload) = Header::parse(message).unwrap();
        assert_eq!(header.media, MediaType::AudioIn);
        assert_eq!(header.sequence, n as u32);
        assert_eq!(header.timestamp, n as u64 * 960);
        assert_eq!(payload, opus(n as u8));
    }
    assert_eq!(audio.len(), 21);
    let times: Vec<_> = audio
        .iter()
        .map(|message| Header::parse(message).unwrap().0.time_ns)
        .collect();
    assert_eq!(
        times[1] - times[0],
        20_000_000,
        "when it was said, not when it was sent"
    );
}

#[test]
fn more_than_ten_seconds_are_not_kept_and_what_went_is_counted() {
    let mut served = call();
    served.connect();
    for n in 0..=255u8 {
        served.speak(n);
    }
    for n in 0..=255u8 {
        served.speak(n);
    }
    served.link(LinkEvent::Up);
    served.text(HELLO);
    assert_eq!(served.binaries().len(), 500);
    let summary = served
        .world
        .shard
        .inspect(served.world.now, served.session)
        .unwrap();
    assert_eq!(summary.losses.unheard_samples, 12 * 960);
}

#[test]
fn what_the_backend_says_before_the_client_can_hear_is_held_and_then_heard_whole() {
    let mut served = call();
    served.link(LinkEvent::Up);
    served.text(HELLO);
    play(&mut served, 1, 0..30);
    assert!(of(&served.texts(), "playout").is_empty());
    served.connect();
    served.run(Duration::from_millis(700));
    assert_eq!(served.heard(), (0..30).collect::<Vec<_>>());
    let texts = served.texts();
    assert_eq!(of(&texts, "ready").len(), 1);
    let playout = of(&texts, "playout");
    assert_eq!(playout[0]["state"], "started");
    assert_eq!(playout[0]["segment"], 1);
    assert_eq!(playout[1]["state"], "playing");
}

#[test]
fn a_segment_is_reported_from_start_to_end_and_marks_in_between() {
    let mut served = agreed(HELLO);
    play(&mut served, 7, 0..25);
    served.text(r#"{"type":"mark","name":"half"}"#);
    play(&mut served, 7, 25..50);
    served.text(r#"{"type":"end_of_segment","segment":7}"#);
    served.run(Duration::from_millis(1_100));
    let texts = served.texts();
    let told: Vec<_> = of(&texts, "playout")
        .iter()
        .map(|report| {
            let state = report["state"].as_str().unwrap().to_owned();
            (state, report["sent_samples"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(told[0], ("started".to_owned(), 0));
    for (n, (state, sent)) in told[1..5].iter().enumerate() {
        // A report may be made just before or just after the frame that is due with it.
        let due = (n as u64 + 1) * 10 * 960;
        assert_eq!(state, "playing");
        assert!(sent.abs_diff(due) <= 960, "{told:?}");
    }
    assert_eq!(told.last(), Some(&("ended".to_owned(), 50 * 960)));
    assert_eq!(
        of(&texts, "mark"),
        [json!({"type":"mark","name":"half","flushed":false})]
    );
}

#[test]
fn a_flush_silences_within_a_frame_and_tells_exactly_what_was_sent() {
    let mut served = agreed(HELLO);
    play(&mut served, 3, 0..200);
    served.text(r#"{"type":"mark","name":"never"}"#);
    served.run(Duration::from_millis(500));
    served.sent.clear();
    served.text(r#"{"type":"flush"}"#);
    let texts = served.texts();
    let sent = served.heard().len();
    served.run(Duration::from_secs(1));
    assert_eq!(served.heard().len(), sent, "silence");
    assert_eq!(
        of(&texts, "mark"),
        [json!({"type":"mark","name":"never","flushed":true})]
    );
    let flushed = of(&texts, "flushed");
    assert_eq!(
        flushed,
        [json!({
            "type":"flushed","segment":3,"sent_samples":sent * 960,"heard_samples":null,
            "dropped_samples":(200 - sent) * 960,
        })]
    );
    // The next answer is heard whole.
    play(&mut served, 4, 0..20);
    served.run(Duration::from_millis(500));
    assert_eq!(served.heard()[sent..], (0..20).collect::<Vec<_>>());
    let summary = served
        .world
        .shard
        .inspect(served.world.now, served.session)
        .unwrap();
    assert_eq!(summary.losses.flushes, 1);
}

#[test]
fn every_flush_is_answered_before_the_first_packet_after_the_last_and_twice() {
    let mut served = agreed(HELLO);
    let nothing = json!({
        "type":"flushed","segment":null,"sent_samples":0,"heard_samples":null,
        "dropped_samples":0,
    });
    let flush = |served: &mut Served| {
        served.text(r#"{"type":"flush"}"#);
        let flushed = of(&served.texts(), "flushed");
        assert_eq!(flushed.len(), 1);
        flushed
    };
    assert_eq!(flush(&mut served)[0], nothing);
    play(&mut served, 1, 0..10);
    served.run(Duration::from_millis(60));
    let first = flush(&mut served);
    assert_eq!(first[0]["segment"], 1);
    served.run(Duration::from_millis(50));
    assert_eq!(flush(&mut served)[0], nothing);
    play(&mut served, 2, 0..5);
    served.text(r#"{"type":"end_of_segment","segment":2}"#);
    served.run(Duration::from_millis(500));
    assert_eq!(flush(&mut served)[0], nothing);
}

#[test]
fn pcm_goes_through_the_codec_both_ways() {
    let mut served = agreed(PCM_HELLO);
    served.speak(9);
    let audio = served.binaries();
    let (header, payload) = Header::parse(&audio[0]).unwrap();
    assert_eq!((header.flags, header.timestamp), (0, 0));
    assert_eq!(payload, pcm(9, 320));
    // 50 ms: two frames and a half, of which the last is filled up.
    served.link(audio_out(5, 0, &pcm(77, 1_200)));
    served.text(r#"{"type":"end_of_segment","segment":5}"#);
    served.run(Duration::from_millis(200));
    assert_eq!(served.heard(), [77, 77, 77]);
    let ended = of(&served.texts(), "playout").pop().unwrap();
    assert_eq!(
        (&ended["state"], &ended["sent_samples"]),
        (&json!("ended"), &json!(50 * 48))
    );
}

#[test]
fn gaps_are_told_in_their_places_and_the_end_of_a_loss_is_concealed() {
    let mut served = agreed(PCM_HELLO);
    served.speak(1);
    served.world.clients[0].skip_packets(10);
    served.speak(2);
    served.run(Duration::from_millis(200));
    served.world.clients[0].stay_silent(9);
    served.speak(3);
    let told: Vec<_> = served
        .binaries()
        .iter()
        .map(|message| {
            let (header, payload) = Header::parse(message).unwrap();
            let length = match header.flags {
                0 | FLAG_CONCEALED => payload.len() as u64 / 2 * 3,
                _ => u64::from(u32::from_le_bytes(payload.try_into().unwrap())),
            };
            (header.flags, header.timestamp / 960, length / 960)
        })
        .collect();
    assert_eq!(
        told,
        [
            (0, 0, 1),
            (FLAG_LOST, 1, 4),
            (FLAG_CONCEALED, 5, 6),
            (0, 11, 1),
            (FLAG_DTX, 12, 9),
            (0, 21, 1),
        ]
    );
}

#[test]
fn a_codec_that_lags_delays_no_gap_past_its_place() {
    let mut served = agreed(PCM_HELLO);
    served.stick_codec(true);
    served.speak(1);
    served.run(Duration::from_millis(200));
    served.world.clients[0].stay_silent(9);
    served.speak(2);
    assert!(served.binaries().is_empty());
    served.stick_codec(false);
    let flags: Vec<_> = served
        .binaries()
        .iter()
        .map(|message| Header::parse(message).unwrap().0.flags)
        .collect();
    assert_eq!(flags, [0, FLAG_DTX, 0]);
}

#[test]
fn speech_that_the_codec_still_has_is_flushed_too() {
    let mut served = agreed(PCM_HELLO);
    served.stick_codec(true);
    served.link(audio_out(1, 0, &pcm(5, 48_000)));
    served.text(r#"{"type":"flush"}"#);
    let flushed = of(&served.texts(), "flushed").pop().unwrap();
    assert_eq!(flushed["dropped_samples"], 96_000);
    served.stick_codec(false);
    served.run(Duration::from_millis(300));
    assert!(served.heard().is_empty());
    served.link(audio_out(2, 0, &pcm(6, 480)));
    served.run(Duration::from_millis(100));
    assert_eq!(served.heard(), [6]);
}

#[test]
fn credit_bounds_what_waits_and_comes_back_as_it_is_played() {
    let mut served = agreed(HELLO);
    for n in 0..1_500u32 {
        served.link(audio_out(1, 0, &opus(n as u8)));
    }
    assert!(of(&served.texts(), "error").is_empty());
    for n in 0..5 {
        served.link(audio_out(1, 0, &opus(n)));
    }
    let errors = of(&served.texts(), "error");
    assert_eq!(errors.len(), 1, "told once: {errors:?}");
    assert_eq!(errors[0]["code"], "over_credit");
    served.run(Duration::from_secs(5));
    let credits = of(&served.texts(), "credit");
    assert!(credits[0]["credit_samples"].as_u64().unwrap() > 1_440_000);
    served.text(r#"{"type":"flush"}"#);
    let credit = of(&served.texts(), "credit").pop().unwrap();
    assert_eq!(credit["credit_samples"], 2 * 1_440_000, "all is given back");
    let summary = served
        .world
        .shard
        .inspect(served.world.now, served.session)
        .unwrap();
    assert_eq!(summary.losses.refused_samples, 5 * 960);
    assert!(served.closes.is_empty());
}

#[test]
fn live_audio_never_falls_behind() {
    let mut served = agreed(HELLO);
    for n in 0..100 {
        served.link(audio_out(1, FLAG_LIVE, &opus(n)));
    }
    served.run(Duration::from_millis(200));
    assert_eq!(
        served.heard(),
        [0, 97, 98, 99],
        "the first leaves at once, and of the others the newest"
    );
}

#[test]
fn events_pass_word_for_word_both_ways_and_updates_are_answered_by_the_edge() {
    let mut served = agreed(HELLO);
    let event = r#"{"type":"session.update", "session":{ "voice":"a", "n":1.0 }}"#;
    served.say(event);
    let sent = served.sent.pop_front();
    let expected = format!(r#"{{"type":"event","event":{event}}}"#);
    assert_eq!(
        sent,
        Some(syrinx_transceiver::backend::link::LinkBody::Text(expected))
    );
    served.run(Duration::from_millis(50));
    assert_eq!(served.told("session.updated")[0]["session"]["voice"], "a");
    served.text(r#"{"type":"event","event":{"type":"x",  "n":1.50}}"#);
    served.run(Duration::from_millis(50));
    assert_eq!(
        served.world.clients[0].messages.last().unwrap(),
        r#"{"type":"x",  "n":1.50}"#
    );
}

#[test]
fn a_backend_that_keeps_the_session_answers_for_itself() {
    let mut served = agreed(r#"{"type":"hello","version":1,"session":"backend"}"#);
    served.say(r#"{"type":"session.update","session":{}}"#);
    served.run(Duration::from_millis(50));
    assert_eq!(of(&served.texts(), "event").len(), 1);
    assert!(served.told("session.updated").is_empty());
}

#[test]
fn events_of_the_client_wait_for_the_hello() {
    let mut served = call();
    served.connect();
    served.run(Duration::from_millis(50));
    served.say(r#"{"type":"early"}"#);
    served.link(LinkEvent::Up);
    assert!(of(&served.texts(), "event").is_empty());
    served.text(HELLO);
    assert_eq!(of(&served.texts(), "event")[0]["event"]["type"], "early");
}

#[test]
fn a_key_is_told_once() {
    let mut served = agreed(HELLO);
    let now = served.world.now;
    for n in 1..=3 {
        served.world.clients[0].send(now, KEYS, &[5, 10, 0, n * 80], n == 1);
    }
    served.run(PACKET);
    let keys = of(&served.texts(), "dtmf");
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0]["digit"], "5");
}

#[test]
fn the_clock_is_told() {
    let mut served = agreed(HELLO);
    served.text(r#"{"type":"clock","id":42}"#);
    let clock = served.texts().pop().unwrap();
    assert_eq!(
        (&clock["type"], &clock["id"]),
        (&json!("clock"), &json!(42))
    );
    assert!(clock["time_ns"].as_u64().unwrap() > 0);
}

#[test]
fn speech_is_told_where_it_is_asked_for_and_can_silence_at_once() {
    let hello = r#"{"type":"hello","version":1,"speech":true,"flush_on_speech":true}"#;
    let mut served = agreed(hello);
    play(&mut served, 1, 0..200);
    for _ in 0..10 {
        served.speak(0);
    }
    assert!(of(&served.texts(), "speech").is_empty());
    for _ in 0..50 {
        served.speak(WORDS);
    }
    let texts = served.texts();
    let speech = of(&texts, "speech");
    assert_eq!((speech.len(), &speech[0]["state"]), (1, &json!("started")));
    let at = speech[0]["timestamp"].as_u64().unwrap();
    assert!(
        (7_000..24_000).contains(&at),
        "about where the words began: {at}"
    );
    let flushed = of(&texts, "flushed");
    assert_eq!((flushed.len(), &flushed[0]["segment"]), (1, &json!(1)));
    for _ in 0..40 {
        served.speak(0);
    }
    assert_eq!(of(&served.texts(), "speech")[0]["state"], "stopped");
}
