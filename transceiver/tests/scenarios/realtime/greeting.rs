//! `session.created` and `session.updated`: bridged, and made up for where the backend is late.

use super::*;

#[test]
fn the_backends_session_greets_the_channel_as_it_opens() {
    let mut served = ready();
    served.run(Duration::from_secs(3));
    let greetings = served.told("session.created");
    assert_eq!(greetings.len(), 1);
    assert_eq!(greetings[0]["session"]["id"], "sess_backend");
}

#[test]
fn a_session_that_is_created_after_the_channel_opened_greets_it_then() {
    let mut served = call();
    served.connect();
    served.run(Duration::from_secs(1));
    assert!(served.told("session.created").is_empty());
    served.link(LinkEvent::Up);
    served.text(CREATED);
    served.run(Duration::from_secs(3));
    let greetings = served.told("session.created");
    assert_eq!(greetings.len(), 1);
    assert_eq!(greetings[0]["session"]["id"], "sess_backend");
}

#[test]
fn a_backend_that_greets_nobody_is_stood_in_for_and_hears_the_caller_all_the_same() {
    let mut served = call();
    served.link(LinkEvent::Up);
    served.connect();
    served.run(Duration::from_millis(2_100));
    let greetings = served.told("session.created");
    assert_eq!(
        (greetings.len(), &greetings[0]["session"]["id"]),
        (1, &json!("sess_test"))
    );
    served.speak(4);
    assert_eq!(appended(&served.texts()), [4; 480]);
}

#[test]
fn updates_are_answered_by_the_backend_where_it_does() {
    let mut served = ready();
    let update = r#"{"type":"session.update", "session":{"voice":"x"}}"#;
    served.say(update);
    assert_eq!(
        of(&served.texts(), "session.update")[0]["session"]["voice"],
        "x"
    );
    let updated = CREATED.replace("session.created", "session.updated");
    served.text(&updated);
    served.run(Duration::from_secs(3));
    let answers = served.told("session.updated");
    assert_eq!(
        (answers.len(), &answers[0]["session"]["id"]),
        (1, &json!("sess_backend"))
    );
}

#[test]
fn and_by_the_edge_after_two_seconds_where_it_does_not() {
    let mut served = ready();
    served.say(r#"{"type":"session.update","session":{"voice":"x"}}"#);
    served.run(Duration::from_millis(1_900));
    assert!(served.told("session.updated").is_empty());
    served.run(Duration::from_millis(200));
    let answers = served.told("session.updated");
    assert_eq!(
        (answers.len(), &answers[0]["session"]["voice"]),
        (1, &json!("x"))
    );
    assert!(
        answers[0]["session"]["audio"]["input"].is_object(),
        "what the backend's was"
    );
}

#[test]
fn an_update_that_the_backend_refuses_is_answered_by_its_error_alone() {
    let mut served = ready();
    served.say(r#"{"type":"session.update","event_id":"mine1","session":{"voice":7}}"#);
    served.text(r#"{"type":"error","error":{"message":"no such voice","event_id":"mine1"}}"#);
    served.run(Duration::from_secs(3));
    assert_eq!(served.told("error").len(), 1);
    assert!(served.told("session.updated").is_empty());
}

#[test]
fn a_wanted_format_is_asked_for_and_the_answer_is_not_the_clients() {
    use syrinx_transceiver::backend::g711::Law;
    let options = RealtimeOptions {
        audio: AudioFormat::G711(Law::Mu),
        ..RealtimeOptions::default()
    };
    let mut served = Served::new(Box::new(Realtime::new(target(), options)));
    served.link(LinkEvent::Up);
    served.text(CREATED);
    let update = of(&served.texts(), "session.update").pop().unwrap();
    assert_eq!(
        update["session"]["audio"]["input"]["format"]["type"],
        "audio/pcmu"
    );
    served.connect();
    let law = r#"{"type":"audio/pcmu"}"#;
    let updated = CREATED.replace(r#"{"type":"audio/pcm","rate":24000}"#, law);
    served.text(&updated.replace("session.created", "session.updated"));
    served.run(Duration::from_millis(100));
    assert!(served.told("session.updated").is_empty());
    served.speak(0);
    let event = of(&served.texts(), "input_audio_buffer.append")
        .pop()
        .unwrap();
    assert_eq!(event["audio"], base64(&[0xff; 160]));
}

#[test]
fn the_sideband_is_told_what_the_client_is_and_speaks_for_him() {
    let mut served = ready();
    let session = served.session;
    assert!(served.world.shard.tap(session, true));
    served.text(&delta("r1", "i1", &pcm(1, 1_000)));
    served.text(r#"{"type":"response.output_text.delta","delta":"x"}"#);
    served.run(Duration::from_millis(100));
    let now = served.world.now();
    let mut wire = Wire::default();
    let clear = r#"{"type":"output_audio_buffer.clear"}"#;
    assert!(served.world.shard.inject(now, session, clear, &mut wire));
    served.run(Duration::from_millis(100));
    let said: Vec<_> = served
        .world
        .ended
        .iter()
        .filter_map(|event| match event {
            syrinx_transceiver::shard::ShardEvent::Said { event, .. } => {
                let event: Value = serde_json::from_str(event).unwrap();
                Some(event["type"].as_str().unwrap().to_owned())
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        said,
        [
            "output_audio_buffer.started",
            "response.output_text.delta",
            "output_audio_buffer.cleared"
        ]
    );
    assert_eq!(of(&served.texts(), "conversation.item.truncate").len(), 1);
}
