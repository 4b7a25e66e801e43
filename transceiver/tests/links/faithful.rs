//! Backends that do as they should.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use async_tungstenite::tungstenite::Message;
use syrinx_transceiver::backend::link::{LinkBody, LinkCommand, LinkEvent};

use crate::backend::{Listener, accept_with, echo};
use crate::worker::{Worker, among_others, audio, config, control, session, target};

#[test]
fn messages_go_both_ways_in_order_and_the_close_is_said_once() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let backend = thread::spawn(move || echo(listener.accept()));
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    let sent = (0..300u16).map(|n| {
        if n % 3 == 0 {
            control(&format!("{{\"n\":{n}}}"))
        } else {
            audio(n.to_be_bytes().repeat(80))
        }
    });
    for message in sent.clone() {
        worker.send(session(1), message);
    }
    for message in sent {
        let back = match message.body {
            LinkBody::Text(text) => LinkEvent::Text(text),
            LinkBody::Binary(bytes) => LinkEvent::Binary(bytes),
        };
        assert_eq!(worker.next(), back);
    }
    worker.close(session(1), 1000, "hung up");
    let said = backend.join().unwrap();
    assert_eq!(said, Some((1000, "hung up".to_owned())));
    worker.wait_for_no_links();
    assert!(worker.is_quiet_for(Duration::from_millis(20)));
}

#[test]
fn the_handshake_carries_path_headers_and_secrets() {
    let _others = among_others();
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "sk-1\n").unwrap();
    let listener = Listener::new();
    let url = format!(
        "{}v1/realtime?model={{model}}&call={{call}}",
        listener.url()
    );
    let mut config = config(&[&url]);
    config.headers = vec!["OpenAI-Beta: realtime=v1".to_owned()];
    config.token_file = token.to_str().unwrap().to_owned();
    let worker = Worker::start(config);
    let address = listener.address();
    let backend = thread::spawn(move || {
        let (socket, request) = accept_with(listener.accept_raw(), Some("media"));
        (echo(socket), request)
    });
    let target = target(Some("media"));
    worker.command(session(1), LinkCommand::Open(target));
    assert_eq!(worker.next(), LinkEvent::Up);
    worker.close(session(1), 1000, "");
    let (_, request) = backend.join().unwrap();
    let path = request.uri().to_string();
    assert_eq!(path, "/v1/realtime?model=gpt%20realtime&call=rtc_1");
    let header = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("host"), address.to_string());
    assert_eq!(header("openai-beta"), "realtime=v1");
    assert_eq!(header("authorization"), "Bearer sk-1");
    assert_eq!(header("sec-websocket-protocol"), "media");
}

#[test]
fn a_backend_may_listen_on_a_unix_socket() {
    let _others = among_others();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let worker = Worker::start(config(&[&format!("unix:{}:/media", path.display())]));
    let backend = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let (socket, request) = accept_with(stream, None);
        (echo(socket), request.uri().to_string())
    });
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    worker.send(session(1), control("hello"));
    assert_eq!(worker.next(), LinkEvent::Text("hello".to_owned()));
    worker.close(session(1), 1001, "drained");
    let (said, uri) = backend.join().unwrap();
    assert_eq!(said, Some((1001, "drained".to_owned())));
    assert_eq!(uri, "/media");
}

#[test]
fn a_backend_that_selects_no_subprotocol_is_spoken_to_all_the_same() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let backend = listener.play(1, |socket| drop(echo(socket)));
    worker.command(session(1), LinkCommand::Open(target(Some("media"))));
    assert_eq!(worker.next(), LinkEvent::Up);
    worker.close(session(1), 1000, "");
    backend.join().unwrap();
}

#[test]
fn silence_is_no_loss_as_long_as_pings_are_answered() {
    let _others = among_others();
    let listener = Listener::new();
    let mut config = config(&[&listener.url()]);
    config.ping_ms = 50;
    let worker = Worker::start(config);
    let (pinged, pings) = channel();
    let backend = thread::spawn(move || {
        let mut socket = listener.accept();
        socket.send(Message::Text("hello".into())).unwrap();
        loop {
            match socket.read() {
                Ok(Message::Ping(_)) => pinged.send(()).unwrap(),
                Ok(Message::Close(_)) | Err(_) => return,
                Ok(_) => {}
            }
        }
    });
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    assert_eq!(worker.next(), LinkEvent::Text("hello".to_owned()));
    for _ in 0..6 {
        pings.recv_timeout(crate::worker::PATIENCE).unwrap();
    }
    assert!(worker.is_quiet_for(Duration::ZERO), "it is still up");
    worker.close(session(1), 1000, "");
    backend.join().unwrap();
}

#[test]
fn the_largest_message_passes_both_ways() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let backend = listener.play(1, |socket| drop(echo(socket)));
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    let largest = "x".repeat(1 << 20);
    worker.send(session(1), control(&largest));
    assert!(worker.next() == LinkEvent::Text(largest));
    worker.close(session(1), 1000, "");
    backend.join().unwrap();
}
