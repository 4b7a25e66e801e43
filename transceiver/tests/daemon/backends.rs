//! Calls that are for a backend: which one, what it hears, and what becomes of them without it.

use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Sender};
use std::thread;

use async_tungstenite::tungstenite::{self, Message, WebSocket};

use crate::calls::{CALLS, SDP, offer};
use crate::process::{Ground, PATIENCE, Transceiver, output_of};

/// An entry of the configuration.
fn entry(name: &str, model: &str, address: &str, more: &str) -> String {
    format!(
        "[[backends]]\nname = {name:?}\nmodels = [{model:?}]\ndialect = \"media.v1\"\n\
         urls = [\"ws://{address}/\"]\n{more}\n"
    )
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn accept(listener: &TcpListener) -> WebSocket<TcpStream> {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    tungstenite::accept(stream).unwrap()
}

/// Reads to the end, and gives away the first text when it comes: how the link was closed.
fn close_of(mut socket: WebSocket<TcpStream>, first: &Sender<String>) -> Option<(u16, String)> {
    let mut is_first = true;
    loop {
        match socket.read() {
            Ok(Message::Text(text)) if is_first => {
                first.send(text.as_str().to_owned()).unwrap();
                is_first = false;
            }
            Ok(Message::Close(frame)) => {
                let said = frame.map(|frame| (frame.code.into(), frame.reason.as_str().to_owned()));
                while socket.read().is_ok() {}
                return said;
            }
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

fn open(transceiver: &Transceiver, model: &str) -> String {
    let path = format!("{CALLS}?model={model}");
    let answer = transceiver.ask("POST", &path, &[SDP], offer().as_bytes());
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.header("location").unwrap().to_owned()
}

#[test]
fn a_call_brings_up_its_link_and_its_end_is_said_to_the_backend() {
    let (listener, address) = listener();
    let transceiver = Ground::new().start(&entry("agent", "my-*", &address, ""));
    let (sender, first) = mpsc::channel();
    let backend = thread::spawn(move || {
        let hung_up = close_of(accept(&listener), &sender);
        (hung_up, close_of(accept(&listener), &sender))
    });
    let location = open(&transceiver, "my-agent");
    let call = location.rsplit('/').next().unwrap();
    // A call that ends sooner leaves its link without a word.
    let hello = first.recv_timeout(PATIENCE).unwrap();
    assert!(hello.contains(call), "{hello}");
    assert!(hello.contains("my-agent"), "{hello}");
    assert_eq!(transceiver.ask("DELETE", &location, &[], b"").status, 200);
    // The second is open when the process is asked to stop.
    open(&transceiver, "my-agent");
    let mut transceiver = transceiver;
    transceiver.wait_for("both links", |transceiver| {
        let metrics = transceiver.admin("GET", "/metrics").body;
        sum(&metrics, "syrinx_transceiver_links_opened_total{") == 2.0
    });
    transceiver.signal("TERM");
    let (code, log) = transceiver.wait();
    assert_eq!(code, Some(0), "{log}");
    let (hung_up, drained) = backend.join().unwrap();
    let (code, reason) = hung_up.expect("the first link is closed in order");
    assert_eq!((code, reason.as_str()), (1000, "hung_up"));
    let (_, reason) = drained.expect("the second too, before the process is gone");
    assert_eq!(reason, "drained");
}

/// The sum of all series that begin like this.
fn sum(metrics: &str, series: &str) -> f64 {
    let lines = metrics.lines().filter(|line| line.starts_with(series));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

#[test]
fn a_model_of_no_backend_is_404_and_a_backend_that_is_down_503() {
    let (listener, address) = listener();
    drop(listener);
    let gone = entry(
        "gone",
        "gone",
        &address,
        "retry_count_max = 1\nretry_ms = 10",
    );
    let mut transceiver = Ground::new().start(&gone);
    let ask = |transceiver: &Transceiver, model: &str| {
        let path = format!("{CALLS}?model={model}");
        transceiver.ask("POST", &path, &[SDP], offer().as_bytes())
    };
    let answer = ask(&transceiver, "other");
    assert_eq!(answer.status, 404, "{answer:?}");
    assert_eq!(answer.error()["code"], "unknown_model");
    assert_eq!(answer.error()["param"], "session.model");
    transceiver.wait_for("a refusal", |transceiver| {
        let answer = ask(transceiver, "gone");
        answer.status == 503
            && answer.error()["code"] == "backend_down"
            && answer.header("retry-after").is_some()
    });
    // Calls that were taken before end when their links are given up.
    transceiver.wait_for_health("\"sessions\":0");
    transceiver.wait_for("failures", |transceiver| {
        let metrics = transceiver.admin("GET", "/metrics").body;
        let failures = "syrinx_transceiver_link_failures_total{";
        let lines = metrics.lines().filter(|line| line.starts_with(failures));
        let unreachable = lines.filter(|line| line.contains("unreachable"));
        unreachable.map(|line| sum(line, failures)).sum::<f64>() >= 2.0
    });
}

#[test]
fn a_backend_that_is_back_is_found_by_the_health_check() {
    let (first, address) = listener();
    drop(first);
    let more = "retry_count_max = 1\nretry_ms = 10\nhealth_check_ms = 100";
    let mut transceiver = Ground::new().start(&entry("back", "*", &address, more));
    let status = |transceiver: &Transceiver| {
        let path = format!("{CALLS}?model=any");
        let answer = transceiver.ask("POST", &path, &[SDP], offer().as_bytes());
        answer.status
    };
    transceiver.wait_for("a refusal", |transceiver| status(transceiver) == 503);
    let listener = TcpListener::bind(&address).unwrap();
    transceiver.wait_for("a call", |transceiver| status(transceiver) == 201);
    drop(listener);
    transceiver.signal("TERM");
    let (_, log) = transceiver.wait();
    assert!(log.contains("a backend's address answers again"), "{log}");
}

#[test]
fn calls_that_end_while_their_links_connect_leave_nothing_open() {
    let (listener, address) = listener();
    let mut transceiver = Ground::new().start(&entry("deaf", "*", &address, ""));
    let start = transceiver.descriptor_count();
    // The kernel takes the connections; nobody answers their handshakes.
    let locations: Vec<_> = (0..20).map(|_| open(&transceiver, "any")).collect();
    // Some of those at the start were the health check's.
    transceiver.wait_for("links", |transceiver| {
        transceiver.descriptor_count() >= start + 15
    });
    for location in locations {
        assert_eq!(transceiver.ask("DELETE", &location, &[], b"").status, 200);
    }
    transceiver.wait_for("their end", |transceiver| {
        transceiver.descriptor_count() <= start
    });
    drop(listener);
}

#[test]
fn check_reads_the_files_of_backends() {
    let ground = Ground::new();
    let secret = "token_file = \"/nonexistent/token\"";
    let more = entry("agent", "*", "agent.internal", secret);
    let output = output_of(ground.command(&more).arg("--check"));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("backends[0]: /nonexistent/token: cannot be read"),
        "{error}"
    );
    let output = output_of(
        ground
            .command(&entry("agent", "a*b", "agent.internal", ""))
            .arg("--check"),
    );
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("backends[0].models[0] = \"a*b\""), "{error}");
}
