//! The HTTP contract: calls opened, looked at and ended, and every way to do it wrong.

use std::net::UdpSocket;

use crate::process::{Ground, Transceiver};

pub(crate) const CALLS: &str = "/v1/realtime/calls";
pub(crate) const SDP: (&str, &str) = ("content-type", "application/sdp");

/// An offer with Opus and a data channel, as a client sends it that waits for no candidates.
pub(crate) fn offer() -> String {
    let transport = "c=IN IP4 0.0.0.0\r\na=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\n\
         a=fingerprint:sha-256 00:01:02:03:04:05:06:07:08:09:0A:0B:0C:0D:0E:0F:\
         10:11:12:13:14:15:16:17:18:19:1A:1B:1C:1D:1E:1F\r\na=setup:actpass\r\n";
    format!(
        "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0 1\r\n\
         m=audio 9 UDP/TLS/RTP/SAVPF 111\r\n{transport}a=mid:0\r\na=sendrecv\r\na=rtcp-mux\r\n\
         a=rtpmap:111 opus/48000/2\r\n\
         m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\n{transport}a=mid:1\r\n\
         a=sctp-port:5000\r\n"
    )
}

/// Opens a call, and returns its Location.
pub(crate) fn open(transceiver: &Transceiver) -> String {
    let answer = transceiver.ask("POST", CALLS, &[SDP], offer().as_bytes());
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.header("location").unwrap().to_owned()
}

#[test]
fn a_call_is_opened_looked_at_and_ended() {
    let transceiver = Ground::new().start("advertise = [\"192.0.2.7:3478\"]");
    let path = format!("{CALLS}?model=gpt-realtime&dcid=3");
    let kind = [("Content-Type", "Application/SDP; charset=utf-8")];
    let answer = transceiver.ask("POST", &path, &kind, offer().as_bytes());
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (201, Some("application/sdp"))
    );
    assert!(
        answer.body.contains("192.0.2.7 3478 typ host"),
        "{}",
        answer.body
    );
    let location = answer.header("location").unwrap();
    let id = location.strip_prefix("/v1/realtime/calls/").unwrap();
    assert!(id.starts_with("rtc_") && id.len() == 26, "{id}");

    let answer = transceiver.ask("GET", location, &[], b"");
    assert_eq!(answer.status, 200, "{answer:?}");
    let view: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(
        (view["id"].as_str(), view["object"].as_str()),
        (Some(id), Some("realtime.call"))
    );
    assert!(
        view["client"].is_null() && view["setup_ms"]["connected"].is_null(),
        "{view}"
    );
    assert!(view["age_ms"].as_f64().unwrap() < 20_000.0, "{view}");

    assert_eq!(transceiver.ask("DELETE", location, &[], b"").status, 200);
    for (method, path) in [("DELETE", ""), ("GET", ""), ("POST", "/hangup")] {
        let answer = transceiver.ask(method, &format!("{location}{path}"), &[], b"");
        assert_eq!(
            (answer.status, answer.error()["code"].as_str()),
            (404, Some("unknown_call"))
        );
    }
}

#[test]
fn hanging_up_ends_a_call_and_the_metrics_tell_why() {
    let mut transceiver = Ground::new().start("[workers]\ncount = 1");
    let location = open(&transceiver);
    assert_eq!(
        transceiver
            .ask("POST", &format!("{location}/hangup"), &[], b"")
            .status,
        200
    );
    assert_eq!(transceiver.ask("GET", &location, &[], b"").status, 404);
    transceiver.wait_for_metric("syrinx_transceiver_offers_total{outcome=\"opened\"} 1");
    transceiver.wait_for_metric("syrinx_transceiver_sessions_opened_total{worker=\"0\"} 1");
    transceiver.wait_for_metric(
        "syrinx_transceiver_sessions_ended_total{worker=\"0\",reason=\"hung_up\"} 1",
    );
    transceiver.wait_for_metric("syrinx_transceiver_sessions{worker=\"0\"} 0");
}

#[test]
fn offers_that_cannot_be_served_are_refused_by_their_own_status() {
    let transceiver = Ground::new().start("");
    let large = vec![b'a'; 600_000];
    let nothing = offer()
        .replace("m=audio", "m=video")
        .replace("opus", "VP8")
        .replace(
            "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
            "m=text 9 UDP/TLS/RTP/SAVPF 98",
        );
    for (body, status, code) in [
        (&b""[..], 400, "invalid_offer"),
        (b"not an offer", 400, "invalid_offer"),
        (b"\xff\xfe\x00", 400, "invalid_offer"),
        (nothing.as_bytes(), 406, "nothing_usable"),
        (&large, 413, "offer_too_large"),
    ] {
        let answer = transceiver.ask("POST", CALLS, &[SDP], body);
        let error = answer.error();
        assert_eq!(
            (answer.status, error["code"].as_str()),
            (status, Some(code)),
            "{error}"
        );
        assert_eq!(
            (&error["param"], &error["type"]),
            (&"sdp".into(), &"invalid_request_error".into())
        );
        assert!(error["message"].as_str().unwrap().ends_with('.'), "{error}");
    }
    let health = transceiver.admin("GET", "/healthz").body;
    assert!(
        health.contains("\"sessions\":0"),
        "nothing is left of them: {health}"
    );
}

#[test]
fn wrong_types_methods_paths_and_parameters_get_json_errors() {
    let transceiver = Ground::new().start("");
    let sdp = offer();
    let body = sdp.as_bytes();
    let status_of = |method, path: &str, headers: &[(&str, &str)]| {
        let answer = transceiver.ask(method, path, headers, body);
        let error = answer.error();
        (answer.status, error["code"].as_str().unwrap().to_owned())
    };
    let is = |status, code: &str| (status, code.to_owned());
    let unsupported = is(415, "unsupported_media_type");
    assert_eq!(status_of("POST", CALLS, &[]), unsupported);
    assert_eq!(
        status_of("POST", CALLS, &[("content-type", "application/json")]),
        unsupported
    );
    assert_eq!(
        status_of("POST", &format!("{CALLS}?dcid=x"), &[SDP]),
        is(400, "invalid_query")
    );
    assert_eq!(
        status_of("POST", &format!("{CALLS}?dcid=65535"), &[SDP]),
        is(400, "invalid_query")
    );
    let model = "m".repeat(129);
    assert_eq!(
        status_of("POST", &format!("{CALLS}?model={model}"), &[SDP]),
        is(400, "invalid_query")
    );
    for (method, path, allow) in [
        ("GET", CALLS, "POST"),
        ("PUT", "/v1/realtime/calls/rtc_x", "GET, HEAD, DELETE"),
        ("GET", "/v1/realtime/calls/rtc_x/hangup", "POST"),
        ("POST", "/", "GET, HEAD"),
        ("DELETE", "/app.js", "GET, HEAD"),
    ] {
        let answer = transceiver.ask(method, path, &[], b"");
        let code = answer.error()["code"].clone();
        assert_eq!(
            (answer.status, code.as_str()),
            (405, Some("method_not_allowed")),
            "{path}"
        );
        assert_eq!(answer.header("allow"), Some(allow), "{path}");
    }
    let unknown = is(404, "unknown_call");
    assert_eq!(
        status_of("GET", "/v1/realtime/calls/rtc_0000000000000000000000", &[]),
        unknown
    );
    assert_eq!(
        status_of("DELETE", "/v1/realtime/calls/nobody", &[]),
        unknown
    );
    assert_eq!(
        status_of("GET", "/v2/realtime", &[]),
        is(404, "unknown_path")
    );
}

#[test]
fn a_full_process_refuses_with_a_time_to_retry_and_takes_calls_again_when_one_ends() {
    let mut transceiver =
        Ground::new().start("sessions_per_worker_count_max = 1\n[workers]\ncount = 1");
    let location = open(&transceiver);
    let answer = transceiver.ask("POST", CALLS, &[SDP], offer().as_bytes());
    assert_eq!(
        (answer.status, answer.error()["code"].as_str()),
        (503, Some("full"))
    );
    assert_eq!(answer.header("retry-after"), Some("5"));
    assert_eq!(answer.error()["type"], "server_error");
    transceiver.ask("DELETE", &location, &[], b"");
    transceiver.wait_for_health("\"sessions\":0");
    open(&transceiver);
    transceiver.wait_for_metric("syrinx_transceiver_offers_total{outcome=\"full\"} 1");
}

#[test]
fn calls_spread_over_the_workers() {
    let transceiver = Ground::new().start("");
    let health: serde_json::Value =
        serde_json::from_str(&transceiver.admin("GET", "/healthz").body).unwrap();
    let workers = health["workers"].as_u64().unwrap();
    let shard_of = |_| {
        let view = transceiver.ask("GET", &open(&transceiver), &[], b"").body;
        serde_json::from_str::<serde_json::Value>(&view).unwrap()["shard"]
            .as_u64()
            .unwrap()
    };
    let shards: Vec<u64> = (0..workers).map(shard_of).collect();
    assert_eq!(shards, (0..workers).collect::<Vec<_>>());
}

#[test]
fn only_configured_origins_are_given_leave() {
    let origins = (
        "SYRINX_TRANSCEIVER__SIGNALLING__ALLOWED_ORIGINS",
        "https://app.example",
    );
    let transceiver = Ground::new().start_with("", &[origins]);
    let friend = ("Origin", "https://app.example");
    let preflight = [
        ("Access-Control-Request-Method", "POST"),
        (
            "Access-Control-Request-Headers",
            "authorization, x-openai-agents-sdk, content-type",
        ),
    ];
    let answer = transceiver.ask("OPTIONS", CALLS, &[friend, preflight[0], preflight[1]], b"");
    assert_eq!(answer.status, 204);
    assert_eq!(
        answer.header("access-control-allow-origin"),
        Some("https://app.example")
    );
    assert_eq!(
        answer.header("access-control-allow-methods"),
        Some("GET, POST, PATCH, DELETE")
    );
    assert_eq!(
        answer.header("access-control-allow-headers"),
        Some(preflight[1].1)
    );

    let answer = transceiver.ask("POST", CALLS, &[friend, SDP], offer().as_bytes());
    assert_eq!(answer.status, 201);
    assert_eq!(
        answer.header("access-control-allow-origin"),
        Some("https://app.example")
    );
    assert!(
        answer
            .header("access-control-expose-headers")
            .unwrap()
            .contains("Location")
    );
    let refusal = transceiver.ask("POST", CALLS, &[friend], b"");
    assert_eq!(refusal.status, 415);
    assert!(
        refusal.header("access-control-allow-origin").is_some(),
        "errors can be read, too"
    );

    let stranger = ("Origin", "https://evil.example");
    let answer = transceiver.ask(
        "OPTIONS",
        CALLS,
        &[stranger, preflight[0], preflight[1]],
        b"",
    );
    assert_eq!(answer.header("access-control-allow-origin"), None);
    assert_eq!(answer.header("access-control-allow-methods"), None);
}

#[test]
fn the_page_is_served_with_a_policy_that_lets_nothing_else_in() {
    let transceiver = Ground::new().start("");
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/conversation.js", "text/javascript; charset=utf-8"),
        ("/events.js", "text/javascript; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
    ] {
        let answer = transceiver.ask("GET", path, &[], b"");
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, Some(kind))
        );
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'self';"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert!(answer.body.len() > 100, "{path}");
    }
}

#[test]
fn strangers_on_the_inner_port_are_counted_and_not_answered() {
    let mut transceiver = Ground::new().start("[workers]\ncount = 1");
    let socket = UdpSocket::bind((transceiver.ground.address, 0)).unwrap();
    socket
        .set_read_timeout(Some(std::time::Duration::from_millis(300)))
        .unwrap();
    for datagram in [&b""[..], b"x", b"\x0c\x10\x00", &[0x0c; 300]] {
        socket
            .send_to(datagram, transceiver.ground.at(3490))
            .unwrap();
    }
    transceiver.wait_for_metric("syrinx_transceiver_bad_bundles_total{worker=\"0\"} 4");
    assert!(
        socket.recv(&mut [0; 64]).is_err(),
        "no answer to a stranger"
    );
}
