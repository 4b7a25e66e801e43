//! How the process ends: asked to, while draining, and what its clients and its log are told.

use crate::calls::{offer, open};
use crate::process::Ground;

#[test]
fn sigterm_and_sigint_close_calls_and_exit_cleanly() {
    for signal in ["TERM", "INT"] {
        let transceiver = Ground::new().start("");
        let location = open(&transceiver);
        let id = location.rsplit('/').next().unwrap().to_owned();
        transceiver.signal(signal);
        let (code, log) = transceiver.wait();
        assert_eq!(code, Some(0), "{log}");
        let end = log
            .lines()
            .find(|line| line.contains("call ended"))
            .unwrap();
        assert!(end.contains(&id) && end.contains("drained"), "{end}");
    }
}

#[test]
fn a_draining_process_serves_what_is_open_takes_nothing_more_and_ends_with_its_last_call() {
    let mut transceiver = Ground::new().start("[shutdown]\ndrain_ms = 60_000");
    let location = open(&transceiver);
    transceiver.signal("TERM");
    transceiver.wait_for_health("\"status\":\"draining\"");
    let sdp = [("content-type", "application/sdp")];
    let answer = transceiver.ask("POST", "/v1/realtime/calls", &sdp, offer().as_bytes());
    assert_eq!(
        (answer.status, answer.error()["code"].as_str()),
        (503, Some("draining"))
    );
    assert!(answer.header("retry-after").is_some());
    assert_eq!(transceiver.ask("GET", &location, &[], b"").status, 200);
    assert_eq!(transceiver.ask("DELETE", &location, &[], b"").status, 200);
    let (code, log) = transceiver.wait();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("hung_up"), "{log}");
}

#[test]
fn a_second_signal_ends_the_drain() {
    let transceiver = Ground::new().start("[shutdown]\ndrain_ms = 60_000");
    open(&transceiver);
    transceiver.signal("TERM");
    std::thread::sleep(std::time::Duration::from_millis(200));
    transceiver.signal("TERM");
    let (code, log) = transceiver.wait();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("reason=\"drained\""), "{log}");
}

#[test]
fn sighup_does_not_end_the_process() {
    let transceiver = Ground::new().start("");
    transceiver.signal("HUP");
    std::thread::sleep(std::time::Duration::from_millis(100));
    open(&transceiver);
    transceiver.signal("TERM");
    let (code, log) = transceiver.wait();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("SIGHUP"), "{log}");
}

#[test]
fn the_log_says_that_calls_need_no_key() {
    let transceiver = Ground::new().start("");
    transceiver.signal("TERM");
    let (_, log) = transceiver.wait();
    assert!(
        log.contains("calls need no key: signalling.listen is a loopback address"),
        "{log}"
    );
}

#[test]
fn systemd_is_told_of_readiness_life_and_the_end() {
    let ground = Ground::new();
    let path = ground.folder.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(crate::process::PATIENCE))
        .unwrap();
    let next = || {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let variables = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "400000"),
    ];
    let transceiver = ground.start_with("", &variables);
    let mut told = [next(), next()];
    told.sort();
    assert!(told[0].starts_with("READY=1\nSTATUS="), "{told:?}");
    assert_eq!(told[1], "WATCHDOG=1\n");
    assert_eq!(next(), "WATCHDOG=1\n", "fed again within half its time");
    transceiver.signal("TERM");
    let mut last = next();
    while last == "WATCHDOG=1\n" {
        last = next();
    }
    assert!(last.starts_with("STOPPING=1\n"), "{last}");
    assert_eq!(transceiver.wait().0, Some(0));
}
