//! Calls opened by a form: an offer and a session in one request, as browsers and SDKs send it.

use crate::calls::{CALLS, SDP, offer};
use crate::client::Answer;
use crate::process::{Ground, Transceiver};

const KIND: (&str, &str) = ("content-type", "multipart/form-data; boundary=----Edge7");

/// A form as `fetch` writes a `FormData` of strings: parts without a Content-Type.
fn form(parts: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, content) in parts {
        text += "------Edge7\r\nContent-Disposition: form-data; ";
        text += &format!("name=\"{name}\"\r\n\r\n{content}\r\n");
    }
    text + "------Edge7--\r\n"
}

fn post(transceiver: &Transceiver, body: &str) -> Answer {
    transceiver.ask("POST", CALLS, &[KIND], body.as_bytes())
}

fn code(answer: &Answer) -> (u16, String, Option<String>) {
    let error = answer.error();
    let code = error["code"].as_str().unwrap().to_owned();
    (
        answer.status,
        code,
        error["param"].as_str().map(str::to_owned),
    )
}

#[test]
fn a_form_with_an_offer_and_a_session_opens_a_call() {
    let transceiver = Ground::new().start("");
    let session = r#"{"type":"realtime","model":"gpt-realtime","tools":[]}"#;
    for parts in [
        &[("sdp", offer().as_str()), ("session", session)][..],
        &[("session", session), ("sdp", &offer())],
        &[("sdp", &offer())],
        &[("other", "ignored"), ("sdp", &offer())],
    ] {
        let answer = post(&transceiver, &form(parts));
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/sdp"));
        assert!(answer.header("location").is_some());
    }
    // As curl writes -F, with names and kinds of its own.
    let typed = form(&[("sdp", "@"), ("session", session)])
        .replace(
            "name=\"sdp\"",
            "name=\"sdp\"; filename=\"offer.sdp\"\r\nContent-Type: application/sdp",
        )
        .replace("\r\n@\r\n", &format!("\r\n{}\r\n", offer()));
    assert_eq!(post(&transceiver, &typed).status, 201, "{typed}");
}

#[test]
fn a_form_that_cannot_be_used_is_refused_with_what_is_wrong() {
    let transceiver = Ground::new().start("");
    let offer = offer();
    let bad_form = |param: Option<&str>| {
        (
            400,
            "invalid_multipart".to_owned(),
            param.map(str::to_owned),
        )
    };
    let large = "a".repeat(132_000);
    let session = |json| form(&[("sdp", offer.as_str()), ("session", json)]);
    let of = |status, code: &str, param: &str| (status, code.to_owned(), Some(param.to_owned()));
    for (body, expected) in [
        (String::new(), bad_form(None)),
        ("no form".to_owned(), bad_form(None)),
        (form(&[]), bad_form(Some("sdp"))),
        (form(&[("session", "{}")]), bad_form(Some("sdp"))),
        (form(&[("sdp", &offer), ("sdp", &offer)]), bad_form(None)),
        (form(&[("sdp", &offer)])[..200].to_owned(), bad_form(None)),
        (
            form(&[("sdp", "nonsense")]),
            of(400, "invalid_offer", "sdp"),
        ),
        (session("nonsense"), of(400, "invalid_session", "session")),
        (session("[]"), of(400, "invalid_session", "session")),
        (
            session(r#"{"model":7}"#),
            of(400, "invalid_session", "session.model"),
        ),
        (form(&[("sdp", &large)]), of(413, "offer_too_large", "sdp")),
    ] {
        let answer = post(&transceiver, &body);
        assert_eq!(code(&answer), expected, "{body:.200}");
    }
    let huge = form(&[("sdp", &offer), ("session", &"x".repeat(300_000))]);
    assert_eq!(
        code(&post(&transceiver, &huge)),
        (413, "body_too_large".to_owned(), None)
    );
    let no_boundary = [("content-type", "multipart/form-data")];
    let answer = transceiver.ask("POST", CALLS, &no_boundary, b"");
    assert_eq!(code(&answer), bad_form(None));
    let health = transceiver.admin("GET", "/healthz").body;
    assert!(
        health.contains("\"sessions\":0"),
        "nothing is left of them: {health}"
    );
}

#[test]
fn an_offer_of_112_kilobytes_is_taken() {
    let transceiver = Ground::new().start("");
    let candidate = "a=candidate:1 1 udp 2122260223 192.0.2.77 50000 typ host\r\n";
    let padding = candidate.repeat((112 * 1024 - offer().len()) / candidate.len());
    let large = offer().replacen("a=mid:0\r\n", &format!("a=mid:0\r\n{padding}"), 1);
    assert!(
        (110_000..=112 * 1024).contains(&large.len()),
        "{}",
        large.len()
    );
    let answer = transceiver.ask("POST", CALLS, &[SDP], large.as_bytes());
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(post(&transceiver, &form(&[("sdp", &large)])).status, 201);
}

#[test]
fn a_foreign_page_opens_no_call_by_a_form_where_no_key_is_needed() {
    let transceiver = Ground::new().start("");
    let body = form(&[("sdp", &offer())]);
    let stranger = ("origin", "https://evil.example");
    let answer = transceiver.ask("POST", CALLS, &[KIND, stranger], body.as_bytes());
    assert_eq!(code(&answer), (403, "origin_not_allowed".to_owned(), None));
    let own = format!("http://{}", transceiver.ground.at(8080));
    let answer = transceiver.ask("POST", CALLS, &[KIND, ("origin", &own)], body.as_bytes());
    assert_eq!(answer.status, 201, "{answer:?}");
}
