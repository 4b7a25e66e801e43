//! What goes wrong with a Realtime backend, and that the client is told once and clearly.

use super::*;
use syrinx_transceiver::session::EndReason;

#[test]
fn events_of_a_client_wait_for_the_backend_and_too_many_are_refused() {
    let mut served = call();
    served.connect();
    for n in 0..70 {
        served.say(&format!(r#"{{"type":"x{n}"}}"#));
    }
    served.run(Duration::from_millis(100));
    let errors = served.told("error");
    assert_eq!(
        (errors.len(), &errors[0]["error"]["code"]),
        (6, &json!("backend_not_ready"))
    );
    served.link(LinkEvent::Up);
    served.text(CREATED);
    let texts = served.texts();
    assert_eq!(texts.len(), 64);
    assert_eq!(texts[63]["type"], "x63");
}

#[test]
fn a_link_made_again_is_told_of_and_gets_what_the_client_had_asked_for() {
    let mut served = ready();
    served.say(r#"{"type":"session.update","session":{"voice":"x"}}"#);
    served.text(&CREATED.replace("session.created", "session.updated"));
    served.text(&created("r1"));
    served.text(&delta("r1", "i1", &pcm(1, 400)));
    served.run(Duration::from_millis(100));
    served.sent.clear();
    served.down(true);
    served.speak(5);
    served.link(LinkEvent::Up);
    served.text(CREATED);
    let texts = served.texts();
    assert_eq!(of(&texts, "session.update")[0]["session"]["voice"], "x");
    assert_eq!(appended(&texts), [5; 480], "what was said meanwhile");
    served.run(Duration::from_secs(3));
    assert_eq!(served.heard().len(), 20, "what had come plays on");
    assert_eq!(served.told("output_audio_buffer.stopped").len(), 1);
    assert_eq!(served.told("session.created").len(), 1);
    assert_eq!(served.told("session.updated").len(), 1);
    assert_eq!(
        served.told("error")[0]["error"]["code"],
        "backend_restarted"
    );
}

#[test]
fn a_backend_that_is_gone_for_good_is_one_error_and_the_end() {
    let mut served = ready();
    served.text(&delta("r1", "i1", &pcm(1, 60_000)));
    served.down(false);
    served.text("too late");
    served.down(false);
    served.run(Duration::from_millis(500));
    let errors = served.told("error");
    assert_eq!(
        (errors.len(), &errors[0]["error"]["code"]),
        (1, &json!("backend_unavailable"))
    );
    served.run(Duration::from_secs(1));
    assert_eq!(
        served.world.shard.counters().ended(EndReason::BackendLost),
        1
    );
    assert!(served.world.clients[0].closed);
}

#[test]
fn what_is_no_event_is_left_out_and_counted_and_too_much_of_it_ends_the_link() {
    let mut served = ready();
    served.text("{");
    served.text("[]");
    served.link(LinkEvent::Binary(vec![1, 2, 3]));
    served.text(r#"{"type":"response.output_audio.delta","delta":"!!"}"#);
    served.text(r#"{"type":"response.done","response":7}"#);
    served.run(Duration::from_millis(50));
    let now = served.world.now;
    let summary = served.world.shard.inspect(now, served.session).unwrap();
    assert_eq!(summary.losses.faults, 5);
    assert_eq!(
        served.world.clients[0].messages.len(),
        1,
        "only the greeting"
    );
    assert!(served.closes.is_empty());
    for _ in 0..59 {
        served.text("no");
    }
    assert_eq!(served.closes[0].0, 1007);
    served.run(Duration::from_secs(2));
    assert_eq!(
        served.world.shard.counters().ended(EndReason::BackendLost),
        1
    );
    assert_eq!(served.closes.len(), 1);
}

#[test]
fn an_event_of_a_megabyte_is_one_error_and_the_channel_lives_on() {
    let mut served = ready();
    let pad = "x".repeat(1_000_000);
    served.text(&format!(r#"{{"type":"big","pad":"{pad}"}}"#));
    served.text(r#"{"type":"small"}"#);
    // Twenty seconds of speech in one event are no more than that.
    served.text(&delta("r1", "i1", &pcm(3, 20_000)));
    served.run(Duration::from_secs(21));
    assert_eq!(served.told("error")[0]["error"]["code"], "event_too_large");
    assert_eq!(served.told("small").len(), 1);
    assert_eq!(served.heard().len(), 1_000);
}

#[test]
fn five_minutes_of_silence_from_the_backend_change_nothing() {
    let mut served = ready();
    for _ in 0..10 {
        served.run(Duration::from_secs(30));
        served.speak(1);
    }
    assert_eq!(served.world.shard.session_count(), 1);
    served.text(&delta("r1", "i1", &pcm(8, 40)));
    served.run(Duration::from_millis(100));
    assert_eq!(served.heard(), [8, 8]);
    assert!(served.told("error").is_empty());
}

#[test]
fn more_than_five_minutes_that_wait_are_refused_and_counted() {
    let mut served = ready();
    let minute = pcm(1, 60_000);
    for _ in 0..6 {
        served.text(&delta("r1", "i1", &minute));
    }
    let now = served.world.now;
    let summary = served.world.shard.inspect(now, served.session).unwrap();
    assert_eq!(summary.losses.refused_samples, 60 * 48_000);
    served.text(SPEECH_STARTED);
    served.run(Duration::from_millis(100));
    let end_ms = &of(&served.texts(), "conversation.item.truncate")[0]["audio_end_ms"];
    assert_eq!(end_ms, served.heard().len() * 20);
}

#[test]
fn a_client_without_a_channel_is_served_as_well() {
    let shape = Shape {
        channel: false,
        ..Shape::default()
    };
    let mut served = Served::with(
        Box::new(Realtime::new(target(), RealtimeOptions::default())),
        shape,
    );
    served.link(LinkEvent::Up);
    served.text(CREATED);
    served.run(Duration::from_secs(1));
    assert!(served.world.clients[0].connected);
    for _ in 0..100 {
        served.text(r#"{"type":"some.event"}"#);
    }
    served.text(&delta("r1", "i1", &pcm(8, 40)));
    served.run(Duration::from_millis(100));
    assert_eq!(served.heard(), [8, 8]);
    let now = served.world.now;
    let summary = served.world.shard.inspect(now, served.session).unwrap();
    assert_eq!(summary.replies_dropped, 0);
}

#[test]
fn the_end_closes_the_link_once_with_its_reason() {
    let mut served = ready();
    let now = served.world.now();
    let mut wire = Wire::default();
    let session = served.session;
    served
        .world
        .shard
        .close(now, session, EndReason::HungUp, &mut wire);
    served.run(TICK);
    assert_eq!(served.closes, [(1000, "hung_up".to_owned())]);
}
