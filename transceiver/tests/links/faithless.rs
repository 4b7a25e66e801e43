//! Backends that fail, each in its own way: what the session is told, and whether it is tried
//! again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use async_tungstenite::tungstenite::protocol::CloseFrame;
use async_tungstenite::tungstenite::{Message, WebSocket};
use syrinx_transceiver::backend::link::{LinkCause, LinkCommand, LinkEvent};

use crate::backend::{Listener, accept_with, echo, reset};
use crate::worker::{PATIENCE, Worker, among_others, audio, config, control, session, target};

/// A port that nobody listens on.
fn nobody() -> String {
    Listener::new().url()
}

#[test]
fn a_refused_connection_is_tried_again_as_often_as_it_may_and_given_up_once() {
    let _others = among_others();
    let worker = Worker::start(config(&[&nobody()]));
    worker.open(session(1));
    for will_retry in [true, true, false] {
        let (cause, detail, retried) = worker.next_down();
        assert_eq!((cause, retried), (LinkCause::Unreachable, will_retry));
        assert!(detail.contains("refused"), "{detail}");
    }
    worker.wait_for_no_links();
    assert!(worker.is_quiet_for(Duration::from_millis(50)));
}

#[test]
fn the_next_attempt_goes_to_another_address() {
    let _others = among_others();
    for order in 0..2 {
        let listener = Listener::new();
        let (good, bad) = (listener.url(), nobody());
        let urls = [good.as_str(), bad.as_str()];
        let mut config = config(&[urls[order], urls[1 - order]]);
        config.retry_count_max = 1;
        let worker = Worker::start(config);
        let backend = listener.play(3, |socket| drop(echo(socket)));
        for slot in 0..3 {
            worker.open(session(slot));
            loop {
                match worker.next() {
                    LinkEvent::Up => break,
                    LinkEvent::Down { will_retry, .. } => assert!(will_retry),
                    other => panic!("{other:?}"),
                }
            }
            worker.close(session(slot), 1000, "");
        }
        backend.join().unwrap();
    }
}

#[test]
fn a_reset_is_mended_by_a_new_connection_and_nothing_of_the_old_comes_over() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let (go, may_go) = channel();
    let backend = thread::spawn(move || {
        let mut socket = listener.accept();
        socket.send(Message::Text("hello".into())).unwrap();
        may_go.recv().unwrap();
        reset(socket.get_ref());
        drop(socket);
        echo(listener.accept())
    });
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    assert_eq!(worker.next(), LinkEvent::Text("hello".to_owned()));
    go.send(()).unwrap();
    let (cause, _, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Reset, true));
    assert_eq!(worker.next(), LinkEvent::Up);
    worker.send(session(1), control("again"));
    assert_eq!(worker.next(), LinkEvent::Text("again".to_owned()));
    worker.close(session(1), 1000, "");
    assert!(backend.join().unwrap().is_some());
}

#[test]
fn a_process_that_dies_is_a_connection_that_broke_off() {
    let _others = among_others();
    let listener = Listener::new();
    let mut config = config(&[&listener.url()]);
    config.retry_count_max = 0;
    let worker = Worker::start(config);
    let backend = listener.play(1, |mut socket| {
        socket.send(Message::Text("hello".into())).unwrap();
        // The kernel closes what a dead process had open.
    });
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    assert_eq!(worker.next(), LinkEvent::Text("hello".to_owned()));
    let (cause, _, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Reset, false));
    backend.join().unwrap();
}

fn close(mut socket: WebSocket<TcpStream>, code: u16, reason: &str) {
    socket.send(Message::Text("hello".into())).unwrap();
    let frame = CloseFrame {
        code: code.into(),
        reason: reason.to_owned().into(),
    };
    socket.close(Some(frame)).unwrap();
    while socket.read().is_ok() {}
}

#[test]
fn a_close_for_good_is_told_with_the_backends_words_and_not_tried_again() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let backend = listener.play(1, |socket| close(socket, 1011, "out of memory"));
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    assert_eq!(worker.next(), LinkEvent::Text("hello".to_owned()));
    let (cause, detail, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Closed, false));
    assert_eq!(detail, "closed with code 1011: out of memory");
    backend.join().unwrap();
    worker.wait_for_no_links();
}

#[test]
fn a_server_that_restarts_is_tried_again() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let backend = thread::spawn(move || {
        close(listener.accept(), 1012, "");
        echo(listener.accept())
    });
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    assert_eq!(worker.next(), LinkEvent::Text("hello".to_owned()));
    let (cause, _, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Closed, true));
    assert_eq!(worker.next(), LinkEvent::Up);
    worker.close(session(1), 1000, "");
    backend.join().unwrap();
}

#[test]
fn an_http_refusal_is_final_and_an_http_failure_is_not() {
    let _others = among_others();
    for (status, will_retry) in [("401 Unauthorized", false), ("503 Unavailable", true)] {
        let listener = Listener::new();
        let worker = Worker::start(config(&[&listener.url()]));
        let backend = thread::spawn(move || {
            let mut stream = listener.accept_raw();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).unwrap() > 0);
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
        });
        worker.open(session(1));
        let (cause, detail, retried) = worker.next_down();
        assert_eq!(
            (cause, retried),
            (LinkCause::Refused, will_retry),
            "{detail}"
        );
        assert!(detail.contains(&status[..3]), "{detail}");
        backend.join().unwrap();
    }
}

#[test]
fn what_is_no_http_at_all_is_refused() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let backend = thread::spawn(move || {
        let mut stream = listener.accept_raw();
        stream.write_all(b"220 mail.example ESMTP\r\n\r\n").unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    worker.open(session(1));
    let (cause, _, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Protocol, false));
    backend.join().unwrap();
}

#[test]
fn a_subprotocol_that_was_not_asked_for_is_refused() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let backend = thread::spawn(move || {
        let (mut socket, _) = accept_with(listener.accept_raw(), Some("soap"));
        while socket.read().is_ok() {}
    });
    worker.command(session(1), LinkCommand::Open(target(Some("media"))));
    let (cause, detail, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Refused, false));
    assert!(detail.contains("subprotocol"), "{detail}");
    backend.join().unwrap();
}

#[test]
fn a_handshake_that_is_not_answered_is_given_up_in_time() {
    let _others = among_others();
    let listener = Listener::new();
    let mut config = config(&[&listener.url()]);
    config.connect_timeout_ms = 100;
    config.retry_count_max = 0;
    let worker = Worker::start(config);
    worker.open(session(1));
    let connection = listener.accept_raw();
    let (cause, _, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::TimedOut, false));
    let mut rest = Vec::new();
    let request = (&connection).read_to_end(&mut rest);
    assert!(request.is_ok(), "it hung up: {request:?}");
}

#[test]
fn a_backend_that_never_says_a_word_is_mute() {
    let _others = among_others();
    let listener = Listener::new();
    let mut config = config(&[&listener.url()]);
    config.first_message_timeout_ms = 100;
    config.retry_count_max = 0;
    let worker = Worker::start(config);
    let backend = thread::spawn(move || echo(listener.accept()));
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    let (cause, _, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::TimedOut, false));
    let (code, _) = backend.join().unwrap().expect("it is told why");
    assert_eq!(code, 1008);
}

#[test]
fn a_backend_that_answers_no_pings_is_lost() {
    let _others = among_others();
    let listener = Listener::new();
    let mut config = config(&[&listener.url()]);
    config.ping_ms = 50;
    config.retry_count_max = 0;
    let worker = Worker::start(config);
    let mut socket = {
        worker.open(session(1));
        listener.accept()
    };
    socket.send(Message::Text("hello".into())).unwrap();
    assert_eq!(worker.next(), LinkEvent::Up);
    assert_eq!(worker.next(), LinkEvent::Text("hello".to_owned()));
    // It reads nothing from here on.
    let (cause, _, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Unresponsive, false));
}

#[test]
fn a_message_that_is_too_large_ends_the_link_and_the_backend_is_told() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    let backend = thread::spawn(move || {
        let mut socket = listener.accept();
        let oversize = "x".repeat((1 << 20) + 1);
        // The other side closes before it has read all of it.
        let _ = socket.send(Message::Text(oversize.into()));
    });
    worker.open(session(1));
    assert_eq!(worker.next(), LinkEvent::Up);
    let (cause, _, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Protocol, false));
    backend.join().unwrap();
    worker.wait_for_no_links();
}

#[test]
fn a_backend_that_does_not_read_loses_old_audio_and_nothing_else() {
    let _others = among_others();
    let listener = Listener::new();
    let mut config = config(&[&listener.url()]);
    config.audio_backlog_ms = 100;
    config.ping_ms = 20_000;
    let worker = Worker::start(config);
    let mut socket = {
        worker.open(session(1));
        listener.accept()
    };
    assert_eq!(worker.next(), LinkEvent::Up);
    // More than the kernel's buffers hold on either side.
    let packets: u32 = 3_000;
    for n in 0..packets {
        worker.send(session(1), audio(n.to_be_bytes().repeat(1_000)));
        if n % 100 == 50 {
            worker.send(session(1), control(&n.to_string()));
            thread::sleep(Duration::from_millis(20));
        }
    }
    let (mut heard, mut marks) = (Vec::new(), Vec::new());
    while heard.last() != Some(&(packets - 1)) {
        match socket.read().unwrap() {
            Message::Binary(bytes) => {
                heard.push(u32::from_be_bytes(bytes[..4].try_into().unwrap()));
            }
            Message::Text(text) => marks.push(text.as_str().to_owned()),
            _ => {}
        }
    }
    assert!(heard.len() < packets as usize, "something was dropped");
    assert!(heard.is_sorted(), "and the order kept");
    let expected: Vec<_> = (0..packets / 100)
        .map(|n| (100 * n + 50).to_string())
        .collect();
    assert_eq!(marks, expected, "no other message was");
    // What is said from here on arrives at once.
    worker.send(session(1), audio(vec![7; 4]));
    assert_eq!(socket.read().unwrap(), Message::Binary(vec![7; 4].into()));
}

#[test]
fn too_many_messages_that_are_not_read_end_the_link() {
    let _others = among_others();
    let listener = Listener::new();
    let mut config = config(&[&listener.url()]);
    config.retry_count_max = 5;
    let worker = Worker::start(config);
    let socket = {
        worker.open(session(1));
        listener.accept()
    };
    assert_eq!(worker.next(), LinkEvent::Up);
    let large = "x".repeat(1 << 20);
    for _ in 0..16 {
        worker.send(session(1), control(&large));
    }
    let (cause, _, will_retry) = worker.next_down();
    assert_eq!((cause, will_retry), (LinkCause::Overflow, false));
    drop(socket);
}

#[test]
fn a_session_that_has_left_hears_nothing_more_and_the_link_goes_in_time() {
    let _others = among_others();
    let listener = Listener::new();
    let worker = Worker::start(config(&[&listener.url()]));
    worker.open(session(1));
    let mut socket = listener.accept();
    assert_eq!(worker.next(), LinkEvent::Up);
    worker.close(session(1), 1000, "hung up");
    // It talks on, and never answers the close.
    for _ in 0..10 {
        socket.send(Message::Text("more".into())).unwrap();
    }
    assert!(worker.is_quiet_for(Duration::from_millis(50)));
    let start = std::time::Instant::now();
    worker.wait_for_no_links();
    assert!(start.elapsed() < PATIENCE / 2);
}
