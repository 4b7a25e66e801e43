//! The WebSocket beside a call: events both ways, and the reason when the call ends.

use std::net::TcpStream;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Bytes, Message, WebSocket, client};

use crate::calls::open;
use crate::keys::{ask_as, ground_with_key, new_key, start_keyed};
use crate::process::{Ground, PATIENCE, Transceiver};

/// What a WebSocket client sends (RFC 6455, 1.2).
const HANDSHAKE: [(&str, &str); 4] = [
    ("connection", "upgrade, close"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

type Socket = WebSocket<TcpStream>;

fn path(location: &str) -> String {
    let id = location.rsplit('/').next().unwrap();
    format!("/v1/realtime?call_id={id}")
}

/// Listens beside the call at `location`.
fn listen(transceiver: &Transceiver, location: &str, headers: &[(&'static str, &str)]) -> Socket {
    let address = transceiver.ground.at(8080);
    let url = format!("ws://{address}{}", path(location));
    let mut request = url.into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    client(request, stream).unwrap().0
}

fn say(socket: &mut Socket, event: &Value) {
    socket.send(Message::text(event.to_string())).unwrap();
}

fn hear(socket: &mut Socket) -> Value {
    loop {
        match socket.read().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The close frame that comes next.
fn end(socket: &mut Socket) -> (CloseCode, String) {
    match socket.read().unwrap() {
        Message::Close(Some(frame)) => (frame.code, frame.reason.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn events_go_both_ways_and_every_listener_is_told_why_the_call_ended() {
    let transceiver = Ground::new().start("");
    let location = open(&transceiver);
    let mut one = listen(&transceiver, &location, &[]);
    let mut two = listen(&transceiver, &location, &[]);
    // The echo returns what it is told, to whoever listens.
    let event = json!({"type": "response.create", "event_id": "1"});
    say(&mut one, &event);
    assert_eq!(hear(&mut one), event);
    assert_eq!(hear(&mut two), event);
    one.send(Message::text("no event")).unwrap();
    let error = hear(&mut one);
    assert_eq!(
        (&error["type"], &error["error"]["code"]),
        (&"error".into(), &"invalid_event".into())
    );
    say(&mut two, &event);
    assert_eq!(hear(&mut two), event, "the other's mistake is not his");
    assert_eq!(hear(&mut one), event);

    transceiver.ask("DELETE", &location, &[], b"");
    for socket in [&mut one, &mut two] {
        assert_eq!(end(socket), (CloseCode::Normal, "hung_up".to_owned()));
    }
}

#[test]
fn a_sideband_is_told_that_the_process_drains() {
    let transceiver = Ground::new().start("");
    let location = open(&transceiver);
    let mut socket = listen(&transceiver, &location, &[]);
    transceiver.signal("TERM");
    assert_eq!(end(&mut socket), (CloseCode::Away, "drained".to_owned()));
    assert_eq!(transceiver.wait().0, Some(0));
}

#[test]
fn what_is_no_event_ends_the_sideband_and_leaves_the_call() {
    let transceiver = Ground::new().start("");
    let location = open(&transceiver);
    let mut socket = listen(&transceiver, &location, &[]);
    socket
        .send(Message::binary(Bytes::from_static(b"audio")))
        .unwrap();
    assert_eq!(end(&mut socket).0, CloseCode::Unsupported);
    let mut socket = listen(&transceiver, &location, &[]);
    let large = format!(r#"{{"type":"{}"}}"#, "x".repeat(300_000));
    socket.send(Message::text(large)).unwrap();
    assert_eq!(end(&mut socket).0, CloseCode::Size);
    // Gone without a word.
    drop(listen(&transceiver, &location, &[]));
    assert_eq!(transceiver.ask("GET", &location, &[], b"").status, 200);
}

#[test]
fn requests_that_cannot_become_a_sideband_get_json_errors() {
    let transceiver = Ground::new().start("");
    let location = open(&transceiver);
    let ask = |path: &str, headers: &[(&str, &str)]| {
        let answer = transceiver.ask("GET", path, headers, b"");
        let code = answer.error()["code"].as_str().unwrap().to_owned();
        (answer.status, code)
    };
    let is = |status, code: &str| (status, code.to_owned());
    assert_eq!(ask(&path(&location), &[]), is(426, "upgrade_required"));
    let unknown = "/v1/realtime?call_id=rtc_0000000000000000000000";
    assert_eq!(ask(unknown, &HANDSHAKE), is(404, "unknown_call"));
    let nobody = "/v1/realtime?call_id=x";
    assert_eq!(ask(nobody, &HANDSHAKE), is(404, "unknown_call"));
    assert_eq!(ask("/v1/realtime", &HANDSHAKE), is(400, "invalid_query"));
    let listeners: Vec<_> = (0..4)
        .map(|_| listen(&transceiver, &location, &[]))
        .collect();
    let crowded = ask(&path(&location), &HANDSHAKE);
    assert_eq!(crowded, is(429, "too_many_sidebands"));
    drop(listeners);
}

#[test]
fn a_sideband_needs_the_key_of_its_call_wherever_it_is_put() {
    let (ground, key) = ground_with_key();
    let other = new_key(&ground, "other");
    let transceiver = start_keyed(ground, "");
    let request = ("POST", crate::calls::CALLS);
    let offer = crate::calls::offer();
    let kind = Some(crate::calls::SDP);
    let opened = ask_as(&transceiver, &key, request, kind, offer.as_bytes());
    let location = opened.header("location").unwrap();
    let path = path(location);
    let ask = |credential: Option<&str>| {
        let mut headers = HANDSHAKE.to_vec();
        let bearer = credential.map(|key| format!("Bearer {key}"));
        headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
        transceiver.ask("GET", &path, &headers, b"").status
    };
    assert_eq!(ask(None), 401);
    assert_eq!(ask(Some(&other)), 404);
    let bearer = format!("Bearer {key}");
    let protocols = format!("realtime, openai-insecure-api-key.{key}");
    for header in [
        ("authorization", &bearer),
        ("sec-websocket-protocol", &protocols),
    ] {
        let mut socket = listen(&transceiver, location, &[(header.0, header.1)]);
        let event = json!({"type": "x"});
        say(&mut socket, &event);
        assert_eq!(hear(&mut socket), event);
    }
}
