//! The dialect `realtime` from both sides: greetings, audio both ways, and an interruption that
//! tells the exact milliseconds.

mod failing;
mod greeting;

use super::served::*;
use super::support::*;
use serde_json::{Value, json};
use std::time::Duration;
use syrinx_transceiver::backend::link::LinkEvent;
use syrinx_transceiver::backend::realtime::{AudioFormat, Realtime, RealtimeOptions};

const CREATED: &str = r#"{"type":"session.created","event_id":"b1","session":{"type":"realtime",
    "id":"sess_backend","audio":{"input":{"format":{"type":"audio/pcm","rate":24000},
    "turn_detection":{"type":"server_vad"}},
    "output":{"format":{"type":"audio/pcm","rate":24000}}}}}"#;

fn call() -> Served {
    Served::new(Box::new(Realtime::new(
        target(),
        RealtimeOptions::default(),
    )))
}

/// A call that has connected, with a backend whose session is there.
fn ready() -> Served {
    ready_with(CREATED)
}

fn ready_with(created: &str) -> Served {
    let mut served = call();
    served.link(LinkEvent::Up);
    served.text(created);
    served.connect();
    served.run(Duration::from_millis(100));
    served.sent.clear();
    served
}

/// Base64 of so many milliseconds of PCM at 24 kHz, all of this value.
fn pcm(value: i16, ms: usize) -> String {
    base64(&value.to_le_bytes().repeat(ms * 24))
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn delta(response: &str, item: &str, audio: &str) -> String {
    json!({
        "type":"response.output_audio.delta","response_id":response,"item_id":item,
        "output_index":0,"content_index":0,"delta":audio,
    })
    .to_string()
}

fn created(response: &str) -> String {
    json!({"type":"response.created","response":{"id":response,"status":"in_progress"}}).to_string()
}

fn done(response: &str, status: &str) -> String {
    json!({"type":"response.done","response":{"id":response,"status":status}}).to_string()
}

fn audio_done(response: &str, item: &str) -> String {
    json!({
        "type":"response.output_audio.done","response_id":response,"item_id":item,
        "content_index":0,
    })
    .to_string()
}

const SPEECH_STARTED: &str =
    r#"{"type":"input_audio_buffer.speech_started","audio_start_ms":100,"item_id":"u1"}"#;

fn of(texts: &[Value], kind: &str) -> Vec<Value> {
    let of_kind = texts.iter().filter(|text| text["type"] == kind);
    of_kind.cloned().collect()
}

/// The samples that were appended, back as PCM.
fn appended(texts: &[Value]) -> Vec<i16> {
    use base64::Engine as _;
    let audio = of(texts, "input_audio_buffer.append");
    let bytes = audio.iter().flat_map(|event| {
        let text = event["audio"].as_str().unwrap();
        base64::engine::general_purpose::STANDARD
            .decode(text)
            .unwrap()
    });
    let bytes: Vec<_> = bytes.collect();
    let (samples, rest) = bytes.as_chunks::<2>();
    assert!(rest.is_empty());
    samples
        .iter()
        .map(|&sample| i16::from_le_bytes(sample))
        .collect()
}

#[test]
fn the_callers_first_words_are_kept_and_appended_in_order() {
    let mut served = call();
    served.connect();
    for n in 0..10 {
        served.speak(n);
    }
    served.link(LinkEvent::Up);
    assert!(served.sent.is_empty(), "the backend's session comes first");
    served.text(CREATED);
    served.speak(10);
    let audio = appended(&served.texts());
    let expected: Vec<_> = (0..11).flat_map(|n| vec![n; 480]).collect();
    assert_eq!(audio, expected);
}

#[test]
fn a_lost_packet_is_concealed_and_silence_that_was_not_sent_is_filled_as_it_passes() {
    let mut served = ready();
    served.speak(1);
    served.world.clients[0].skip_packets(1);
    served.speak(2);
    served.run(Duration::from_millis(60));
    let audio = appended(&served.texts());
    assert_eq!(
        audio,
        [vec![1; 480], vec![1_002; 480], vec![2; 480]].concat()
    );
    // The caller's encoder stops; the backend hears silence meanwhile, not afterwards.
    served.run(Duration::from_millis(940));
    let silence = appended(&served.texts());
    assert!(silence.iter().all(|&sample| sample == 0));
    let ms = silence.len() / 24;
    assert!((780..=900).contains(&ms), "{ms} ms of the second");
    served.world.clients[0].stay_silent(50);
    served.speak(3);
    let rest = appended(&served.texts());
    let (silence_rest, word) = rest.split_at(rest.len() - 480);
    assert_eq!(word, [3; 480]);
    assert_eq!(
        (silence.len() + silence_rest.len()) / 480,
        50,
        "as long as it was"
    );
}

#[test]
fn an_answer_is_taken_off_and_played_whole_and_everything_else_passes_unchanged() {
    let mut served = ready();
    served.text(&created("r1"));
    let transcript =
        r#"{"type":"response.output_audio_transcript.delta", "delta":"hé",  "n":1.50}"#;
    served.text(transcript);
    served.text(r#"{"type":"brand.new.event","x":[1,{"y":null}]}"#);
    for n in 0..5 {
        served.text(&delta("r1", "i1", &pcm(n, 100)));
    }
    served.text(&audio_done("r1", "i1"));
    served.text(&done("r1", "completed"));
    served.run(Duration::from_secs(1));
    let expected: Vec<_> = (0..5u8).flat_map(|n| [n; 5]).collect();
    assert_eq!(served.heard(), expected);
    let messages = &served.world.clients[0].messages;
    assert!(messages.iter().any(|message| message == transcript));
    assert!(served.told("response.output_audio.delta").is_empty());
    assert_eq!(served.told("response.output_audio.done").len(), 1);
    assert_eq!(
        served.told("brand.new.event")[0]["x"],
        json!([1, {"y":null}])
    );
    let started = served.told("output_audio_buffer.started");
    assert_eq!(
        (started.len(), &started[0]["response_id"]),
        (1, &json!("r1"))
    );
    let stopped = served.told("output_audio_buffer.stopped");
    assert_eq!(
        (stopped.len(), &stopped[0]["response_id"]),
        (1, &json!("r1"))
    );
    assert!(served.texts().is_empty(), "nothing to tell the backend");
}

#[test]
fn the_betas_names_mean_the_same() {
    let mut served = ready();
    let beta = |event: String| event.replace("output_audio", "audio");
    served.text(&beta(delta("r1", "i1", &pcm(7, 50))));
    served.text(&beta(audio_done("r1", "i1")));
    served.run(Duration::from_millis(200));
    assert_eq!(served.heard(), [7, 7, 7]);
    assert!(served.told("response.audio.delta").is_empty());
}

#[test]
fn speech_silences_the_answer_and_the_backend_learns_the_exact_milliseconds() {
    let mut served = ready();
    served.text(&created("r1"));
    served.text(&delta("r1", "i1", &pcm(1, 5_000)));
    served.text(&delta("r1", "i2", &pcm(2, 1_000)));
    served.run(Duration::from_millis(700));
    served.text(SPEECH_STARTED);
    let sent = served.heard().len();
    // What was on its way of the answer, and its end.
    served.text(&delta("r1", "i1", &pcm(3, 500)));
    served.text(&done("r1", "cancelled"));
    served.run(Duration::from_millis(500));
    assert_eq!(served.heard().len(), sent, "silence");
    let truncations = of(&served.texts(), "conversation.item.truncate");
    let truncated: Vec<_> = truncations
        .iter()
        .map(|event| {
            (
                event["item_id"].as_str().unwrap(),
                event["audio_end_ms"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(truncated, [("i1", sent as u64 * 20), ("i2", 0)]);
    assert_eq!(truncations[0]["content_index"], 0);
    let order: Vec<_> = served.world.clients[0]
        .events()
        .iter()
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .filter(|kind| kind.contains("buffer"))
        .collect();
    assert_eq!(
        order,
        [
            "output_audio_buffer.started",
            "input_audio_buffer.speech_started",
            "output_audio_buffer.cleared"
        ]
    );
    // The next answer is heard whole.
    served.text(&created("r2"));
    served.text(&delta("r2", "i3", &pcm(9, 200)));
    served.text(&done("r2", "completed"));
    served.run(Duration::from_millis(400));
    assert_eq!(served.heard()[sent..], [9; 10]);
    assert_eq!(served.told("output_audio_buffer.stopped").len(), 1);
}

#[test]
fn a_session_that_is_not_to_be_interrupted_by_speech_is_not() {
    let created_event = CREATED.replace(
        r#""type":"server_vad""#,
        r#""type":"server_vad","interrupt_response":false"#,
    );
    let mut served = ready_with(&created_event);
    served.text(&delta("r1", "i1", &pcm(1, 400)));
    served.run(Duration::from_millis(100));
    served.text(SPEECH_STARTED);
    served.text(&done("r1", "completed"));
    served.run(Duration::from_millis(500));
    assert_eq!(served.heard().len(), 20);
    assert!(served.texts().is_empty());
}

#[test]
fn the_client_clears_and_the_backend_is_told_to_stop_and_how_far_it_came() {
    let mut served = ready();
    served.text(&created("r1"));
    served.text(&delta("r1", "i1", &pcm(1, 3_000)));
    served.run(Duration::from_millis(400));
    served.say(r#"{"type":"output_audio_buffer.clear"}"#);
    let sent = served.heard().len() as u64;
    let texts = served.texts();
    assert!(
        of(&texts, "output_audio_buffer.clear").is_empty(),
        "it is for the edge"
    );
    assert_eq!(
        of(&texts, "conversation.item.truncate")[0]["audio_end_ms"],
        sent * 20
    );
    let cancel = of(&texts, "response.cancel").pop().unwrap();
    assert_eq!(cancel["response_id"], "r1");
    // The backend had just finished: its complaint is about the edge's event, not the client's.
    let complaint = json!({"type":"error","error":{"code":"response_cancel_not_active",
        "event_id":cancel["event_id"]}});
    served.text(&complaint.to_string());
    served.run(Duration::from_millis(100));
    assert!(served.told("error").is_empty());
    assert_eq!(served.told("output_audio_buffer.cleared").len(), 1);
    assert_eq!(served.heard().len() as u64, sent);
}

#[test]
fn clearing_and_cancelling_with_nothing_playing_and_twice_do_nothing_more() {
    let mut served = ready();
    served.say(r#"{"type":"output_audio_buffer.clear"}"#);
    served.text(SPEECH_STARTED);
    assert!(served.texts().is_empty());
    served.say(r#"{"type":"response.cancel"}"#);
    assert_eq!(served.texts(), [json!({"type":"response.cancel"})]);
    served.text(&delta("r1", "i1", &pcm(1, 500)));
    served.run(Duration::from_millis(100));
    served.text(SPEECH_STARTED);
    served.run(Duration::from_millis(50));
    served.text(SPEECH_STARTED);
    served.say(r#"{"type":"output_audio_buffer.clear"}"#);
    served.run(Duration::from_millis(50));
    assert_eq!(of(&served.texts(), "conversation.item.truncate").len(), 1);
    assert_eq!(served.told("output_audio_buffer.cleared").len(), 1);
    // After the last packet of an answer there is nothing to truncate.
    served.text(&delta("r2", "i2", &pcm(1, 100)));
    served.text(&done("r2", "completed"));
    served.run(Duration::from_millis(300));
    served.text(SPEECH_STARTED);
    assert!(served.texts().is_empty());
}

#[test]
fn what_is_cancelled_plays_what_it_had_and_takes_no_more() {
    let mut served = ready();
    served.text(&created("r1"));
    served.text(&delta("r1", "i1", &pcm(1, 200)));
    served.run(Duration::from_millis(40));
    served.say(r#"{"type":"response.cancel","response_id":"r1"}"#);
    served.text(&delta("r1", "i1", &pcm(2, 200)));
    served.text(&done("r1", "cancelled"));
    served.run(Duration::from_millis(500));
    assert_eq!(served.heard(), [1; 10]);
    assert_eq!(served.told("output_audio_buffer.stopped").len(), 1);
}

#[test]
fn g711_on_the_link_is_spoken_when_the_backends_session_says_so() {
    let law = CREATED.replace(
        r#"{"type":"audio/pcm","rate":24000}"#,
        r#"{"type":"audio/pcmu"}"#,
    );
    let mut served = ready_with(&law);
    served.sent.clear();
    served.speak(0);
    let event = of(&served.texts(), "input_audio_buffer.append")
        .pop()
        .unwrap();
    assert_eq!(event["audio"], base64(&[0xff; 160]));
    served.text(&delta("r1", "i1", &base64(&[0xff; 800])));
    served.run(Duration::from_millis(200));
    assert_eq!(served.heard(), [0; 5]);
}

#[test]
fn a_client_that_speaks_g711_passes_through_to_a_link_that_does() {
    let law = CREATED.replace(
        r#"{"type":"audio/pcm","rate":24000}"#,
        r#"{"type":"audio/pcmu"}"#,
    );
    let shape = Shape {
        opus: false,
        ..Shape::default()
    };
    let mut served = Served::with(
        Box::new(Realtime::new(target(), RealtimeOptions::default())),
        shape,
    );
    served.link(LinkEvent::Up);
    served.text(&law);
    served.connect();
    served.sent.clear();
    let now = served.world.now;
    served.world.clients[0].send(now, PCMU, &[0x55; 160], false);
    served.run(PACKET);
    let event = of(&served.texts(), "input_audio_buffer.append")
        .pop()
        .unwrap();
    assert_eq!(event["audio"], base64(&[0x55; 160]));
}

#[test]
fn deltas_of_odd_lengths_are_one_stream() {
    let mut served = ready();
    let bytes = 300i16.to_le_bytes().repeat(480);
    for piece in bytes.chunks(77) {
        served.text(&delta("r1", "i1", &base64(piece)));
    }
    served.run(Duration::from_millis(100));
    assert_eq!(served.heard(), [44], "300 without its high byte");
}

#[test]
fn a_minute_at_once_is_played_in_a_minute() {
    let mut served = ready();
    for n in 0..60 {
        served.text(&delta("r1", "i1", &pcm(n, 1_000)));
    }
    served.text(&done("r1", "completed"));
    served.run(Duration::from_secs(61));
    let expected: Vec<_> = (0..60u8).flat_map(|n| [n; 50]).collect();
    assert_eq!(served.heard(), expected);
    assert_eq!(served.told("output_audio_buffer.stopped").len(), 1);
}

#[test]
fn a_backend_slower_than_speech_is_played_with_pauses_and_nothing_lost() {
    let mut served = ready();
    for n in 0..50 {
        served.text(&delta("r1", "i1", &pcm(n, 90)));
        served.run(Duration::from_millis(100));
    }
    served.text(&done("r1", "completed"));
    served.run(Duration::from_millis(300));
    let heard = served.heard();
    assert_eq!(heard.len(), 50 * 90 / 20);
    let markers = served.world.clients[0]
        .heard
        .iter()
        .filter(|packet| packet.header.marker);
    assert!(
        (2..=20).contains(&markers.count()),
        "a talk spurt after each pause"
    );
}

#[test]
fn a_key_is_told_to_the_client() {
    let mut served = ready();
    let now = served.world.now;
    served.world.clients[0].send(now, KEYS, &[11, 10, 0, 160], true);
    served.run(Duration::from_millis(50));
    let told = served.told("input_audio_buffer.dtmf_event_received");
    assert_eq!(told[0]["event"], "#");
}

fn with_turns(options: RealtimeOptions) -> Served {
    let mut served = Served::new(Box::new(Realtime::new(target(), options)));
    served.link(LinkEvent::Up);
    served.text(CREATED);
    served.connect();
    served.run(Duration::from_millis(100));
    served.text(&created("r1"));
    served.text(&delta("r1", "i1", &pcm(1, 5_000)));
    for _ in 0..10 {
        served.speak(0);
    }
    served.sent.clear();
    for _ in 0..50 {
        served.speak(WORDS);
    }
    served
}

#[test]
fn the_edge_takes_turns_for_a_backend_that_does_not() {
    let options = RealtimeOptions {
        takes_turns: true,
        ..RealtimeOptions::default()
    };
    let mut served = with_turns(options);
    let texts = served.texts();
    assert_eq!(of(&texts, "conversation.item.truncate").len(), 1);
    assert_eq!(of(&texts, "response.cancel")[0]["response_id"], "r1");
    assert!(of(&texts, "response.create").is_empty());
    for _ in 0..40 {
        served.speak(0);
    }
    let texts = served.texts();
    assert_eq!(of(&texts, "input_audio_buffer.commit").len(), 1);
    assert_eq!(of(&texts, "response.create").len(), 1);
    let started = served.told("input_audio_buffer.speech_started");
    assert!((100..600).contains(&started[0]["audio_start_ms"].as_u64().unwrap()));
    assert_eq!(served.told("input_audio_buffer.speech_stopped").len(), 1);
}

#[test]
fn an_answer_can_be_silenced_before_the_backend_says_that_the_caller_speaks() {
    let options = RealtimeOptions {
        flushes_on_speech: true,
        ..RealtimeOptions::default()
    };
    let mut served = with_turns(options);
    let heard = served.heard().len();
    served.text(SPEECH_STARTED);
    served.text(&done("r1", "cancelled"));
    served.run(Duration::from_millis(500));
    assert_eq!(served.heard().len(), heard);
    let texts = served.texts();
    assert_eq!(of(&texts, "conversation.item.truncate").len(), 1, "once");
    assert!(
        of(&texts, "input_audio_buffer.commit").is_empty(),
        "turns are the backend's"
    );
    assert_eq!(served.told("input_audio_buffer.speech_started").len(), 1);
    assert_eq!(served.told("output_audio_buffer.cleared").len(), 1);
}

#[test]
fn packets_are_made_for_the_loss_that_the_client_reports() {
    let mut served = ready();
    served.text(&created("r1"));
    for _ in 0..45 {
        served.text(&delta("r1", "i1", &pcm(1, 1_000)));
    }
    served.run(Duration::from_secs(8));
    assert_eq!(served.expected_loss_percent(), None, "none was lost");
    served.world.clients[0].misses = 40;
    served.run(Duration::from_secs(7));
    let percent = served.expected_loss_percent();
    assert!(matches!(percent, Some(5 | 10 | 20)), "{percent:?}");
    served.run(Duration::from_secs(24));
    let later = served.expected_loss_percent();
    assert!(later < percent, "{later:?} after {percent:?}");
}
