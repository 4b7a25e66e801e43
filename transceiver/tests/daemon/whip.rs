//! WHIP (RFC 9725), as its clients speak it.

use crate::calls::{SDP, offer};
use crate::client::Answer;
use crate::keys::{ask_as, ground_with_key, start_keyed};
use crate::process::{Ground, Transceiver};

const FRAGMENT: (&str, &str) = ("content-type", "application/trickle-ice-sdpfrag");

const TRICKLE: &str = concat!(
    "a=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\n",
    "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:0\r\n",
    "a=candidate:1 1 udp 2122260223 192.0.2.77 50000 typ host\r\na=end-of-candidates\r\n",
);
const RESTART: &str = concat!(
    "a=ice-ufrag:EsAw\r\na=ice-pwd:P2uYro0UCOQ4zxjKXaWCBui1\r\n",
    "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:0\r\n",
);

fn publish(transceiver: &Transceiver) -> Answer {
    let answer = transceiver.ask("POST", "/whip", &[SDP], offer().as_bytes());
    assert_eq!(answer.status, 201, "{answer:?}");
    answer
}

fn patch(transceiver: &Transceiver, path: &str, tag: Option<&str>, body: &str) -> Answer {
    let mut headers = vec![FRAGMENT];
    headers.extend(tag.map(|tag| ("if-match", tag)));
    transceiver.ask("PATCH", path, &headers, body.as_bytes())
}

fn code(answer: &Answer) -> (u16, String) {
    let code = answer.error()["code"].as_str().unwrap().to_owned();
    (answer.status, code)
}

fn is(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

fn line<'a>(sdp: &'a str, start: &str) -> &'a str {
    sdp.lines().find(|line| line.starts_with(start)).unwrap()
}

#[test]
fn a_stream_is_published_trickled_restarted_and_ended() {
    let transceiver = Ground::new().start("");
    let published = publish(&transceiver);
    assert_eq!(published.header("content-type"), Some("application/sdp"));
    assert!(
        published.body.contains("a=sendrecv"),
        "an offer both ways is answered in kind"
    );
    let location = published.header("location").unwrap();
    assert!(location.starts_with("/whip/rtc_"), "{location}");
    let first = published.header("etag").unwrap();

    let trickled = patch(&transceiver, location, Some(first), TRICKLE);
    assert_eq!((trickled.status, trickled.body.as_str()), (204, ""));

    let mut seen = vec![line(&published.body, "a=ice-ufrag:").to_owned()];
    let mut tag = first.to_owned();
    for any in ["*", "\"*\""] {
        let restarted = patch(&transceiver, location, Some(any), RESTART);
        assert_eq!(restarted.status, 200, "{restarted:?}");
        assert_eq!(restarted.header("content-type"), Some(FRAGMENT.1));
        let next = restarted.header("etag").unwrap();
        assert_ne!(next, tag);
        let ufrag = line(&restarted.body, "a=ice-ufrag:").to_owned();
        assert!(!seen.contains(&ufrag), "{seen:?}");
        line(&restarted.body, "a=candidate:");
        let stale = patch(&transceiver, location, Some(&tag), TRICKLE);
        assert_eq!(code(&stale), is(412, "stale_ice_session"));
        assert_eq!(
            patch(&transceiver, location, Some(next), TRICKLE).status,
            204
        );
        seen.push(ufrag);
        tag = next.to_owned();
    }

    assert_eq!(transceiver.ask("DELETE", location, &[], b"").status, 200);
    let gone = patch(&transceiver, location, Some("*"), RESTART);
    assert_eq!(code(&gone), is(404, "unknown_call"));
    let again = transceiver.ask("DELETE", location, &[], b"");
    assert_eq!(code(&again), is(404, "unknown_call"));
}

#[test]
fn patches_that_cannot_be_served_are_told_apart() {
    let transceiver = Ground::new().start("");
    let published = publish(&transceiver);
    let location = published.header("location").unwrap();
    let large = "a=candidate:1 1 udp 1 192.0.2.77 50000 typ host\r\n".repeat(800);
    let half = "a=ice-ufrag:EsAw\r\n";
    for (tag, body, expected) in [
        (None, TRICKLE, is(428, "precondition_required")),
        (Some("\"other\""), TRICKLE, is(412, "stale_ice_session")),
        (
            Some("*"),
            "m=audio 9 x 0\r\n",
            is(422, "unsupported_fragment"),
        ),
        (Some("*"), half, is(400, "invalid_fragment")),
        (Some("*"), "nonsense", is(400, "invalid_fragment")),
        (Some("*"), &large, is(413, "fragment_too_large")),
    ] {
        let answer = patch(&transceiver, location, tag, body);
        assert_eq!(code(&answer), expected, "{body:.60}");
    }
    let headers = [SDP, ("if-match", "*")];
    let answer = transceiver.ask("PATCH", location, &headers, RESTART.as_bytes());
    assert_eq!(code(&answer), is(415, "unsupported_media_type"));
}

#[test]
fn what_is_asked_of_the_endpoint_itself_is_answered() {
    let transceiver = Ground::new().start("");
    let answer = transceiver.ask("OPTIONS", "/whip", &[], b"");
    assert_eq!(answer.status, 204);
    assert_eq!(answer.header("accept-post"), Some("application/sdp"));
    let location = publish(&transceiver).header("location").unwrap().to_owned();
    let answer = transceiver.ask("OPTIONS", &location, &[], b"");
    assert_eq!(answer.header("accept-patch"), Some(FRAGMENT.1));
    for (method, path, allow) in [
        ("GET", "/whip", "POST, OPTIONS"),
        ("PUT", "/whip", "POST, OPTIONS"),
        ("GET", &location, "DELETE, PATCH, OPTIONS"),
        ("POST", &location, "DELETE, PATCH, OPTIONS"),
    ] {
        let answer = transceiver.ask(method, path, &[], b"");
        assert_eq!(
            code(&answer),
            is(405, "method_not_allowed"),
            "{method} {path}"
        );
        assert_eq!(answer.header("allow"), Some(allow));
    }
    let form = [("content-type", "multipart/form-data; boundary=x")];
    let answer = transceiver.ask("POST", "/whip", &form, b"");
    assert_eq!(code(&answer), is(415, "unsupported_media_type"));
}

#[test]
fn a_call_takes_no_second_offer_and_says_what_to_do_instead() {
    let transceiver = Ground::new().start("");
    let first = publish(&transceiver).header("location").unwrap().to_owned();
    let as_call = first.replace("/whip/", "/v1/realtime/calls/");
    let body = offer();
    for (method, path, expected) in [
        ("PATCH", &first, is(415, "unsupported_media_type")),
        ("PUT", &first, is(405, "method_not_allowed")),
        ("POST", &first, is(405, "method_not_allowed")),
        ("PATCH", &as_call, is(405, "method_not_allowed")),
        ("PUT", &as_call, is(405, "method_not_allowed")),
        ("POST", &as_call, is(405, "method_not_allowed")),
    ] {
        let answer = transceiver.ask(method, path, &[SDP], body.as_bytes());
        assert_eq!(code(&answer), expected, "{method} {path}");
        let message = answer.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("opens another call"), "{message}");
    }
    let call = transceiver.ask("POST", "/v1/realtime/calls", &[SDP], body.as_bytes());
    let path = call.header("location").unwrap();
    let as_whip = path.replace("/v1/realtime/calls/", "/whip/");
    assert_eq!(
        patch(&transceiver, &as_whip, Some("*"), RESTART).status,
        200
    );
    let second = publish(&transceiver).header("location").unwrap().to_owned();
    assert_ne!(first, second, "the same offer, another call");
    for call in [&first, &second] {
        let path = call.replace("/whip/", "/v1/realtime/calls/");
        assert_eq!(transceiver.ask("GET", &path, &[], b"").status, 200);
        assert_eq!(transceiver.ask("DELETE", call, &[], b"").status, 200);
    }
}

#[test]
fn whip_needs_a_bearer_token_where_keys_are_configured() {
    let (ground, key) = ground_with_key();
    let transceiver = start_keyed(ground, "");
    let answer = transceiver.ask("POST", "/whip", &[SDP], offer().as_bytes());
    assert_eq!(code(&answer), is(401, "missing_api_key"));
    let body = offer();
    let published = ask_as(
        &transceiver,
        &key,
        ("POST", "/whip"),
        Some(SDP),
        body.as_bytes(),
    );
    assert_eq!(published.status, 201, "{published:?}");
    let location = published.header("location").unwrap();
    assert_eq!(
        code(&patch(&transceiver, location, Some("*"), RESTART)).0,
        401
    );
    assert_eq!(transceiver.ask("DELETE", location, &[], b"").status, 401);
    let ended = ask_as(&transceiver, &key, ("DELETE", location), None, b"");
    assert_eq!(ended.status, 200, "{ended:?}");
}
