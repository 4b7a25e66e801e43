//! Who may: API keys, ephemeral keys, what each lets through, and how they are made and replaced.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::calls::{CALLS, SDP, offer};
use crate::client::Answer;
use crate::process::{Ground, Transceiver, output_of};

const SECRETS: &str = "/v1/realtime/client_secrets";
const JSON: (&str, &str) = ("content-type", "application/json");

/// A ground with a file of API keys, and a key of that file.
pub(crate) fn ground_with_key() -> (Ground, String) {
    let ground = Ground::new();
    let key = new_key(&ground, "app");
    (ground, key)
}

/// Makes a key as an operator does.
pub(crate) fn new_key(ground: &Ground, name: &str) -> String {
    let output = output_of(&mut key_command(ground, name));
    assert!(output.status.success(), "{output:?}");
    let key = String::from_utf8(output.stdout).unwrap();
    key.trim_end().to_owned()
}

fn key_command(ground: &Ground, name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_syrinx-transceiver"));
    command.args(["api-key", "new", "--name", name, "--file"]);
    command.arg(key_file(ground));
    command
}

fn key_file(ground: &Ground) -> PathBuf {
    ground.folder.path().join("api.keys")
}

/// Starts a transceiver that asks for keys.
pub(crate) fn start_keyed(ground: Ground, more: &str) -> Transceiver {
    let file = key_file(&ground);
    let twin = "SYRINX_TRANSCEIVER__SIGNALLING__API_KEYS_FILE";
    ground.start_with(more, &[(twin, file.to_str().unwrap())])
}

/// A request with a credential.
pub(crate) fn ask_as(
    transceiver: &Transceiver,
    key: &str,
    (method, path): (&str, &str),
    kind: Option<(&str, &str)>,
    body: &[u8],
) -> Answer {
    let bearer = format!("Bearer {key}");
    let mut headers = vec![("authorization", bearer.as_str())];
    headers.extend(kind);
    transceiver.ask(method, path, &headers, body)
}

fn open_as(transceiver: &Transceiver, key: &str) -> Answer {
    ask_as(
        transceiver,
        key,
        ("POST", CALLS),
        Some(SDP),
        offer().as_bytes(),
    )
}

fn code(answer: &Answer) -> (u16, String) {
    let code = answer.error()["code"].as_str().unwrap().to_owned();
    (answer.status, code)
}

fn is(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

/// An ephemeral key, and the whole answer.
fn issue(transceiver: &Transceiver, key: &str, asked: &Value) -> (String, Value) {
    let body = asked.to_string();
    let answer = ask_as(
        transceiver,
        key,
        ("POST", SECRETS),
        Some(JSON),
        body.as_bytes(),
    );
    assert_eq!(answer.status, 200, "{answer:?}");
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    (body["value"].as_str().unwrap().to_owned(), body)
}

#[test]
fn every_request_needs_a_key_where_keys_are_configured() {
    let (ground, key) = ground_with_key();
    let mut transceiver = start_keyed(ground, "");
    let call = format!("{CALLS}/rtc_0000000000000000000000");
    let hangup = format!("{call}/hangup");
    for (method, path) in [
        ("POST", CALLS),
        ("POST", "/v1/realtime?model=m"),
        ("POST", SECRETS),
        ("POST", "/v1/realtime/sessions"),
        ("GET", &call),
        ("DELETE", &call),
        ("POST", &hangup),
    ] {
        let answer = transceiver.ask(method, path, &[SDP], offer().as_bytes());
        assert_eq!(code(&answer), is(401, "missing_api_key"), "{method} {path}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        let answer = ask_as(&transceiver, "sk-other", (method, path), Some(SDP), b"");
        assert_eq!(code(&answer), is(401, "invalid_api_key"), "{method} {path}");
    }
    let opened = open_as(&transceiver, &key);
    assert_eq!(opened.status, 201, "{opened:?}");
    let location = opened.header("location").unwrap();
    let view = ask_as(&transceiver, &key, ("GET", location), None, b"");
    assert_eq!(view.status, 200, "{view:?}");
    let page = transceiver.ask("GET", "/", &[], b"");
    assert_eq!(page.status, 200, "the page holds no secret");
    let refused = "syrinx_transceiver_credentials_refused_total";
    transceiver.wait_for_metric(&format!("{refused}{{reason=\"missing\"}} 7"));
    transceiver.wait_for_metric(&format!("{refused}{{reason=\"unknown\"}} 7"));
}

#[test]
fn an_ephemeral_key_opens_calls_until_it_expires_and_ends_them_after_that_too() {
    let (ground, key) = ground_with_key();
    let transceiver = start_keyed(ground, "");
    let session = json!({"type": "realtime", "model": "gpt-realtime", "instructions": "Be brief."});
    let asked =
        json!({"expires_after": {"anchor": "created_at", "seconds": 10}, "session": session});
    let (ephemeral, answer) = issue(&transceiver, &key, &asked);
    assert!(ephemeral.starts_with("ek_"), "{ephemeral}");
    assert_eq!(answer["session"]["object"], "realtime.session");
    assert_eq!(answer["session"]["model"], "gpt-realtime");
    assert_eq!(answer["session"]["instructions"], "Be brief.");

    let first = open_as(&transceiver, &ephemeral);
    assert_eq!(
        (first.status, open_as(&transceiver, &ephemeral).status),
        (201, 201)
    );
    let answer = ask_as(
        &transceiver,
        &ephemeral,
        ("POST", SECRETS),
        Some(JSON),
        b"{}",
    );
    assert_eq!(code(&answer), is(403, "needs_api_key"));

    let until = std::time::UNIX_EPOCH
        + std::time::Duration::from_secs(answer_expiry(&asked, &transceiver, &key));
    while std::time::SystemTime::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let answer = open_as(&transceiver, &ephemeral);
    assert_eq!(code(&answer), is(401, "expired_ephemeral_key"));
    let location = first.header("location").unwrap();
    let ended = ask_as(&transceiver, &ephemeral, ("DELETE", location), None, b"");
    assert_eq!(ended.status, 200, "{ended:?}");
}

/// When a key issued at this moment expires, which is not before one issued earlier does.
fn answer_expiry(asked: &Value, transceiver: &Transceiver, key: &str) -> u64 {
    issue(transceiver, key, asked).1["expires_at"]
        .as_u64()
        .unwrap()
}

#[test]
fn an_ephemeral_key_survives_a_restart_and_falls_with_its_api_key() {
    let (ground, key) = ground_with_key();
    let other = new_key(&ground, "other");
    let transceiver = start_keyed(ground, "");
    let (ephemeral, answer) = issue(&transceiver, &key, &json!({}));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let good_for = answer["expires_at"].as_u64().unwrap() - now.unwrap().as_secs();
    assert!((590..=600).contains(&good_for), "{good_for}");
    let mut transceiver = transceiver.restart();
    assert_eq!(open_as(&transceiver, &ephemeral).status, 201);

    // The first entry goes, the second stays.
    let file = key_file(&transceiver.ground);
    let text = std::fs::read_to_string(&file).unwrap();
    let (_, second) = text.split_once("\n\n").unwrap();
    std::fs::write(&file, second).unwrap();
    transceiver.signal("HUP");
    transceiver.wait_for("the reload", |transceiver| {
        open_as(transceiver, &key).status == 401
    });
    assert_eq!(
        code(&open_as(&transceiver, &ephemeral)),
        is(401, "invalid_api_key")
    );
    assert_eq!(open_as(&transceiver, &other).status, 201);

    // A file that cannot be used changes nothing.
    std::fs::write(&file, "key = 1").unwrap();
    transceiver.signal("HUP");
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(open_as(&transceiver, &other).status, 201);
    transceiver.signal("TERM");
    let (_, log) = transceiver.wait();
    assert!(
        log.contains("SIGHUP: keys and certificates were read again"),
        "{log}"
    );
    assert!(log.contains("what is in force stays in force"), "{log}");
    assert!(
        log.contains("key=\"other\""),
        "a call's end names its key: {log}"
    );
}

#[test]
fn a_key_sees_only_its_own_calls_and_has_only_so_many() {
    let (ground, key) = ground_with_key();
    let other = new_key(&ground, "other");
    let file = key_file(&ground);
    let mut text = std::fs::read_to_string(&file).unwrap();
    text += "calls_count_max = 1\n";
    std::fs::write(&file, text).unwrap();
    let transceiver = start_keyed(ground, "");
    let opened = open_as(&transceiver, &key);
    let location = opened.header("location").unwrap();
    let hangup = format!("{location}/hangup");
    for request in [("GET", location), ("DELETE", location), ("POST", &hangup)] {
        let answer = ask_as(&transceiver, &other, request, None, b"");
        assert_eq!(code(&answer), is(404, "unknown_call"), "{request:?}");
    }
    assert_eq!(open_as(&transceiver, &other).status, 201);
    let refused = open_as(&transceiver, &other);
    assert_eq!(code(&refused), is(429, "too_many_calls"));
    assert_eq!(refused.header("retry-after"), Some("5"));
    let (ephemeral, _) = issue(&transceiver, &other, &json!({}));
    assert_eq!(
        code(&open_as(&transceiver, &ephemeral)),
        is(429, "too_many_calls")
    );
    assert_eq!(open_as(&transceiver, &key).status, 201);
}

#[test]
fn half_open_calls_are_limited_and_one_that_ends_makes_room() {
    let twin = "SYRINX_TRANSCEIVER__SIGNALLING__HALF_OPEN_CALLS_PER_KEY_COUNT_MAX";
    let mut transceiver = Ground::new().start_with("", &[(twin, "2")]);
    let location = crate::calls::open(&transceiver);
    crate::calls::open(&transceiver);
    let answer = transceiver.ask("POST", CALLS, &[SDP], offer().as_bytes());
    assert_eq!(code(&answer), is(429, "too_many_half_open_calls"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    transceiver.ask("DELETE", &location, &[], b"");
    transceiver.wait_for_health("\"sessions\":1");
    crate::calls::open(&transceiver);
}

#[test]
fn what_asks_for_an_ephemeral_key_wrongly_is_told_how() {
    let transceiver = Ground::new().start("");
    let large = json!({"session": {"instructions": "x".repeat(17 * 1024)}}).to_string();
    let nested = "[".repeat(5_000);
    let text = ("content-type", "text/plain");
    for (kind, body, expected, param) in [
        (text, "{}", is(415, "unsupported_media_type"), None),
        (JSON, "{", is(400, "invalid_json"), None),
        (JSON, "[]", is(400, "invalid_json"), None),
        (JSON, &nested, is(400, "invalid_json"), None),
        (
            JSON,
            r#"{"expires_after":{"seconds":9}}"#,
            is(400, "invalid_expiry"),
            Some("expires_after.seconds"),
        ),
        (
            JSON,
            r#"{"expires_after":{"seconds":7201}}"#,
            is(400, "invalid_expiry"),
            Some("expires_after.seconds"),
        ),
        (
            JSON,
            r#"{"expires_after":{"anchor":"x"}}"#,
            is(400, "invalid_expiry"),
            Some("expires_after.anchor"),
        ),
        (
            JSON,
            r#"{"session":7}"#,
            is(400, "invalid_session"),
            Some("session"),
        ),
        (
            JSON,
            r#"{"session":{"type":"x"}}"#,
            is(400, "invalid_session"),
            Some("session.type"),
        ),
        (
            JSON,
            r#"{"session":{"model":""}}"#,
            is(400, "invalid_session"),
            Some("session.model"),
        ),
        (JSON, &large, is(413, "invalid_session"), Some("session")),
    ] {
        let answer = transceiver.ask("POST", SECRETS, &[kind], body.as_bytes());
        assert_eq!(code(&answer), expected, "{body:.60}");
        assert_eq!(answer.error()["param"].as_str(), param, "{body:.60}");
    }
    let huge = vec![b' '; 70_000];
    let answer = transceiver.ask("POST", SECRETS, &[JSON], &huge);
    assert_eq!(code(&answer), is(413, "body_too_large"));
    let answer = transceiver.ask("POST", SECRETS, &[], b"");
    assert_eq!(answer.status, 200, "everything has a default");
}

#[test]
fn the_largest_session_travels_in_an_ephemeral_key() {
    let transceiver = Ground::new().start("");
    let asked = json!({"session": {"instructions": "x".repeat(16_000)}});
    let answer = transceiver.ask("POST", SECRETS, &[JSON], asked.to_string().as_bytes());
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let ephemeral = body["value"].as_str().unwrap();
    assert!(ephemeral.len() > 21_000);
    assert_eq!(open_as(&transceiver, ephemeral).status, 201);
}

#[test]
fn the_older_session_request_gives_an_ephemeral_key_too() {
    let (ground, key) = ground_with_key();
    let transceiver = start_keyed(ground, "");
    let asked = json!({"model": "gpt-4o-realtime-preview", "voice": "verse",
        "client_secret": {"expires_after": {"anchor": "created_at", "seconds": 60}}});
    let body = asked.to_string();
    let request = ("POST", "/v1/realtime/sessions");
    let answer = ask_as(&transceiver, &key, request, Some(JSON), body.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(
        (&body["object"], &body["voice"]),
        (&"realtime.session".into(), &"verse".into())
    );
    assert!(
        body["client_secret"]["expires_at"].as_u64().is_some(),
        "{body}"
    );
    let ephemeral = body["client_secret"]["value"].as_str().unwrap();
    let request = ("POST", "/v1/realtime?model=gpt-4o-realtime-preview");
    let opened = ask_as(
        &transceiver,
        ephemeral,
        request,
        Some(SDP),
        offer().as_bytes(),
    );
    assert_eq!(opened.status, 201, "{opened:?}");
    assert!(
        opened
            .header("location")
            .unwrap()
            .starts_with("/v1/realtime/calls/rtc_")
    );
}

#[test]
fn a_key_is_printed_once_and_its_file_holds_only_its_digest() {
    use std::os::unix::fs::PermissionsExt as _;
    let (ground, key) = ground_with_key();
    let file = key_file(&ground);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        !text.contains(&key) && text.contains("name = \"app\""),
        "{text}"
    );
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let twice = output_of(&mut key_command(&ground, "app"));
    assert_eq!(twice.status.code(), Some(1));
    let said = String::from_utf8(twice.stderr).unwrap();
    assert!(said.contains("key \"app\" is listed twice"), "{said}");
    assert_eq!(
        std::fs::read_to_string(&file).unwrap(),
        text,
        "nothing was written"
    );
    let unnamed = output_of(&mut key_command(&ground, "a b"));
    assert_eq!(unnamed.status.code(), Some(1));
}

#[test]
fn the_log_says_how_many_keys_there_are_and_that_their_file_is_too_open() {
    use std::os::unix::fs::PermissionsExt as _;
    let (ground, _) = ground_with_key();
    let mode = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(key_file(&ground), mode).unwrap();
    let transceiver = start_keyed(ground, "");
    transceiver.signal("TERM");
    let (_, log) = transceiver.wait();
    assert!(
        log.contains("calls need a key") && log.contains("keys=1"),
        "{log}"
    );
    assert!(log.contains("chmod 600"), "{log}");
}
