//! What goes wrong with `media.v1`, and that it is told, counted, and the end of little else.

use super::*;

#[test]
fn hellos_that_cannot_be_used_close_the_link_with_their_code_and_tell_the_client() {
    for (hello, code) in [
        (r#"{"type":"hello","version":2}"#, 4001),
        (
            r#"{"type":"hello","version":1,"audio_in":{"format":"mp3"}}"#,
            4002,
        ),
        (
            r#"{"type":"hello","version":1,"audio_out":{"format":"pcm16"}}"#,
            4002,
        ),
        (r#"{"type":"hello","version":1,"session":"nobody"}"#, 4002),
        (r#"{"type":"hello","version":1,"playout_ms":5}"#, 4002),
    ] {
        let mut served = call();
        served.connect();
        served.link(LinkEvent::Up);
        served.text(hello);
        assert_eq!(served.closes[0].0, code, "{hello}");
        served.run(Duration::from_secs(2));
        assert_eq!(
            served.told("error")[0]["error"]["code"],
            "backend_unavailable"
        );
        assert_eq!(served.told("error").len(), 1);
        assert_eq!(
            served.world.shard.counters().ended(EndReason::BackendLost),
            1
        );
        assert_eq!(served.closes.len(), 1, "closed once");
    }
}

#[test]
fn a_client_without_opus_is_not_offered_as_opus() {
    let shape = Shape {
        opus: false,
        ..Shape::default()
    };
    let mut served = Served::with(Box::new(MediaV1::new(target())), shape);
    served.link(LinkEvent::Up);
    assert_eq!(served.texts()[0]["formats"], json!(["pcm16"]));
    served.text(HELLO);
    assert_eq!(served.closes[0].0, 4002);
}

#[test]
fn no_hello_in_five_seconds_ends_it() {
    let mut served = call();
    served.link(LinkEvent::Up);
    served.connect();
    served.run(Duration::from_secs(5));
    assert_eq!(served.closes[0].0, 4000);
    served.run(Duration::from_secs(2));
    assert_eq!(
        served.world.shard.counters().ended(EndReason::BackendLost),
        1
    );
}

#[test]
fn faulty_messages_are_answered_and_counted_and_too_many_end_it() {
    let mut served = agreed(HELLO);
    served.text("{");
    served.text(r#"{"type":"dance"}"#);
    served.text(HELLO);
    served.link(LinkEvent::Binary(vec![2; 10]));
    served.link(LinkEvent::Binary(vec![9; 30]));
    served.link(audio_out(1, 0, &[]));
    let codes: Vec<_> = of(&served.texts(), "error")
        .iter()
        .map(|error| error["code"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        codes,
        [
            "malformed",
            "unknown_type",
            "malformed",
            "malformed",
            "malformed",
            "bad_audio"
        ]
    );
    let summary = served
        .world
        .shard
        .inspect(served.world.now, served.session)
        .unwrap();
    assert_eq!(summary.losses.faults, 6);
    for _ in 0..10 {
        served.text("[]");
    }
    assert_eq!(served.closes[0].0, 4003);
    // What comes later from the same link is nobody's.
    play(&mut served, 1, 0..10);
    served.run(Duration::from_millis(100));
    assert!(served.heard().is_empty());
}

#[test]
fn pcm_of_an_odd_length_is_left_out_and_said_so() {
    let mut served = agreed(PCM_HELLO);
    served.link(audio_out(1, 0, &[1, 2, 3]));
    assert_eq!(of(&served.texts(), "error")[0]["code"], "bad_audio");
}

#[test]
fn a_link_that_is_made_again_begins_anew_and_what_was_said_plays_on() {
    let mut served = agreed(HELLO);
    play(&mut served, 1, 0..30);
    served.run(Duration::from_millis(100));
    served.down(true);
    served.speak(50);
    served.link(LinkEvent::Up);
    let hello = of(&served.texts(), "hello").pop().unwrap();
    assert_eq!(hello["link"], 2);
    served.text(HELLO);
    let audio = served.binaries();
    assert_eq!(audio.len(), 1, "what was said meanwhile");
    assert_eq!(Header::parse(&audio[0]).unwrap().0.sequence, 0);
    play(&mut served, 1, 30..40);
    served.run(Duration::from_secs(1));
    assert_eq!(served.heard(), (0..40).collect::<Vec<_>>());
    let texts = served.texts();
    let reports = of(&texts, "playout");
    assert_eq!(
        reports[0]["state"], "started",
        "only of its own segments: {reports:?}"
    );
    assert!(served.told("error").is_empty());
}

#[test]
fn a_link_that_is_gone_for_good_is_told_once_and_ends_the_call() {
    let mut served = call();
    served.down(false);
    served.connect();
    served.speak(1);
    served.run(Duration::from_millis(500));
    assert_eq!(served.told("error").len(), 1);
    assert_eq!(served.told("session.created").len(), 1);
    assert_eq!(
        served.world.shard.session_count(),
        1,
        "long enough to be told"
    );
    served.run(Duration::from_secs(1));
    assert_eq!(
        served.world.shard.counters().ended(EndReason::BackendLost),
        1
    );
}

#[test]
fn the_end_is_said_once_with_its_reason() {
    let mut served = agreed(HELLO);
    let now = served.world.now();
    let mut wire = Wire::default();
    let session = served.session;
    served
        .world
        .shard
        .close(now, session, EndReason::HungUp, &mut wire);
    served.run(TICK);
    assert_eq!(served.texts(), [json!({"type":"close","reason":"hung_up"})]);
    assert_eq!(served.closes, [(1000, "hung_up".to_owned())]);
}

#[test]
fn a_backend_that_says_close_ends_the_call() {
    let mut served = agreed(HELLO);
    served.text(r#"{"type":"close","reason":"enough"}"#);
    served.run(Duration::from_millis(50));
    assert_eq!(served.closes.len(), 1);
    assert_eq!(
        served
            .world
            .shard
            .counters()
            .ended(EndReason::BackendClosed),
        1
    );
    assert!(served.world.clients[0].closed);
    assert!(of(&served.texts(), "close").is_empty());
}
