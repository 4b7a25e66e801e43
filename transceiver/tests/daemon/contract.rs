//! The API keeps to its own description, `openapi.json`, whatever is sent to it.
//!
//! Requests are made up from the description: right ones, and right ones with something wrong
//! about them. Each answer must be one that the description has for its operation: the status, the
//! headers it promises, the kind of body, and for errors their shape and a listed code. A status
//! of 500 is in the description, and never the answer here: nothing is misconfigured.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value;

use crate::calls::{offer, open};
use crate::client::{Answer, parse};
use crate::process::{Ground, Transceiver};

/// Requests in all: a few seconds of them.
const CASES: u32 = 1_200;
const METHODS: [&str; 6] = ["get", "post", "put", "patch", "delete", "options"];
const KINDS: [&str; 6] = [
    "application/sdp",
    "application/json",
    "multipart/form-data; boundary=b",
    "application/trickle-ice-sdpfrag",
    "text/plain",
    "",
];
const FRAGMENT: &str =
    "a=ice-ufrag:EsAw\r\na=ice-pwd:P2uYro0UCOQ4zxjKXaWCBui1\r\nm=audio 9 x 0\r\n";

/// One request, as choices.
#[derive(Debug, Clone)]
struct Attempt {
    path: prop::sample::Index,
    method: prop::sample::Index,
    /// Which kind of body; beyond [`KINDS`] it is the one that the operation takes.
    kind: usize,
    body: usize,
    call: usize,
    query: String,
    if_match: usize,
    mutations: Vec<(prop::sample::Index, u8)>,
}

fn attempts() -> impl Strategy<Value = Attempt> {
    let mutation = (any::<prop::sample::Index>(), any::<u8>());
    let query = prop_oneof![
        3 => Just(String::new()),
        1 => "\\?(model|dcid|call_id)=[a-z0-9%_]{0,8}",
        1 => "\\?dcid=[0-9]{1,6}&model=m",
        1 => "\\?[!-~]{0,20}",
    ];
    (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        0..3 * KINDS.len(),
        0..6usize,
        0..3usize,
        query,
        0..4usize,
        prop::collection::vec(mutation, 0..3),
    )
        .prop_map(
            |(path, method, kind, body, call, query, if_match, mutations)| Attempt {
                path,
                method,
                kind,
                body,
                call,
                query,
                if_match,
                mutations,
            },
        )
}

struct Contract(Value);

impl Contract {
    fn paths(&self) -> Vec<&String> {
        self.0["paths"].as_object().unwrap().keys().collect()
    }

    /// What a reference stands for.
    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(reference) => self.0.pointer(&reference[1..]).unwrap(),
            None => value,
        }
    }

    /// Whether the answer is one that the description has.
    fn judge(&self, path: &str, method: &str, answer: &Answer) -> Result<(), String> {
        let operation = &self.0["paths"][path][method];
        if operation.is_null() {
            let allow = answer.header("allow").unwrap_or_default().to_lowercase();
            let has = |method: &&str| !self.0["paths"][path][*method].is_null();
            let agrees = METHODS
                .iter()
                .all(|m| has(m) == allow.split(", ").any(|a| a == *m));
            return match (answer.status, agrees) {
                (405, true) => self.judge_error(answer),
                _ => Err(format!("405 and the methods it has, not {allow:?}")),
            };
        }
        let described = &operation["responses"][answer.status.to_string()];
        if described.is_null() || answer.status == 500 {
            return Err(format!("one of {}", operation["responses"]));
        }
        let described = self.resolve(described);
        for (name, header) in described["headers"].as_object().into_iter().flatten() {
            if header["required"] == true && answer.header(name).is_none() {
                return Err(format!("a header {name}"));
            }
        }
        match described["content"].as_object() {
            None if !answer.body.is_empty() => return Err("no body".to_owned()),
            None => {}
            Some(kinds) => {
                let kind = answer.header("content-type").unwrap_or_default();
                if !kinds.contains_key(kind) {
                    return Err(format!("a body of {kinds:?}"));
                }
            }
        }
        match answer.status {
            400.. => self.judge_error(answer),
            _ => Ok(()),
        }
    }

    fn judge_error(&self, answer: &Answer) -> Result<(), String> {
        let error = answer.error();
        let schema = &self.0["components"]["schemas"]["Error"]["properties"]["error"];
        for member in ["code", "type"] {
            let known = schema["properties"][member]["enum"].as_array().unwrap();
            if !known.contains(&error[member]) {
                return Err(format!("a {member} of {known:?}"));
            }
        }
        match error["message"].as_str() {
            Some(message) if message.ends_with('.') => Ok(()),
            _ => Err("a message that is a sentence".to_owned()),
        }
    }

    /// The kind of body that an operation takes first.
    fn kind_of(&self, path: &str, method: &str) -> &str {
        let content = &self.0["paths"][path][method]["requestBody"]["content"];
        let first = content.as_object().and_then(|kinds| kinds.keys().next());
        first.map_or("", String::as_str)
    }
}

/// A body that suits a kind, spoilt as the attempt has it.
fn body(attempt: &Attempt, kind: &str) -> Vec<u8> {
    let form = |session: &str| {
        let part = "--b\r\ncontent-disposition: form-data; name=";
        let sdp = offer();
        format!("{part}\"sdp\"\r\n\r\n{sdp}\r\n{part}\"session\"\r\n\r\n{session}\r\n--b--\r\n")
    };
    let text = match (attempt.body, kind.split(';').next().unwrap()) {
        (0, _) => String::new(),
        (1, _) => "{\"session\": [".to_owned(),
        (_, "application/sdp") => offer(),
        (2, "application/json") => r#"{"expires_after":{"seconds":5},"model":7}"#.to_owned(),
        (_, "application/json") => r#"{"session":{"model":"m"}}"#.to_owned(),
        (2, "multipart/form-data") => form("[]"),
        (_, "multipart/form-data") => form(r#"{"model":"m"}"#),
        _ => FRAGMENT.to_owned(),
    };
    let mut bytes = text.into_bytes();
    for (at, byte) in attempt.mutations.iter().filter(|_| attempt.body > 3) {
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
    }
    bytes
}

fn send(
    transceiver: &Transceiver,
    contract: &Contract,
    live: &str,
    attempt: &Attempt,
) -> Result<(), String> {
    let paths = contract.paths();
    let path = paths[attempt.path.index(paths.len())];
    let method = METHODS[attempt.method.index(METHODS.len())];
    let kind = KINDS.get(attempt.kind).copied();
    let kind = kind.unwrap_or_else(|| contract.kind_of(path, method));
    let kind = match kind {
        "multipart/form-data" => "multipart/form-data; boundary=b",
        kind => kind,
    };
    let id = [live, "rtc_0000000000000000000000", "x%20y"][attempt.call];
    let mut url = path.replace("{id}", id);
    // What is no request line never comes to the API.
    let is_plain = |c: char| c.is_ascii_graphic() && !"#\"<>\\^`{|}".contains(c);
    url.extend(attempt.query.chars().filter(|c| is_plain(*c)));
    let mut headers = vec![];
    if !kind.is_empty() {
        headers.push(("content-type", kind));
    }
    if let Some(tag) = ["*", "\"ice-0\"", "\"x\""].get(attempt.if_match) {
        headers.push(("if-match", *tag));
    }
    let answer = transceiver.ask(&method.to_uppercase(), &url, &headers, &body(attempt, kind));
    contract.judge(path, method, &answer).map_err(|expected| {
        format!("{method} {url} {headers:?}: got {answer:?}, the description has {expected}")
    })
}

#[test]
fn whatever_is_sent_is_answered_as_the_description_says() {
    let transceiver = Ground::new().start("sessions_per_worker_count_max = 100");
    let description = transceiver.ask("GET", "/openapi.json", &[], b"");
    let contract = Contract(serde_json::from_str(&description.body).unwrap());
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let live = std::cell::RefCell::new(open(&transceiver));
    let outcome = runner.run(&attempts(), |attempt| {
        let location = live.borrow().clone();
        let id = location.rsplit('/').next().unwrap();
        send(&transceiver, &contract, id, &attempt).map_err(TestCaseError::fail)?;
        // An attempt may have ended it.
        if transceiver.ask("GET", &location, &[], b"").status == 404 {
            let form = [("content-type", "application/sdp")];
            let next = transceiver.ask("POST", "/whip", &form, offer().as_bytes());
            if let Some(next) = next.header("location") {
                *live.borrow_mut() = next.replace("/whip/", "/v1/realtime/calls/");
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn an_answer_that_is_not_described_is_noticed() {
    let contract = Contract(serde_json::from_str(include_str!("../../openapi.json")).unwrap());
    let judge = |method, head: &str, body: &str| {
        let answer = parse(&format!("HTTP/1.1 {head}\r\n\r\n{body}"));
        contract.judge("/v1/realtime/calls", method, &answer)
    };
    let (json, sdp) = (
        "Content-Type: application/json",
        "Content-Type: application/sdp",
    );
    let error = |code: &str, message: &str| {
        let error = serde_json::json!({
            "message": message, "type": "invalid_request_error", "code": code, "param": null,
        });
        serde_json::json!({ "error": error }).to_string()
    };
    let opened = format!("201 Created\r\nLocation: /x\r\n{sdp}");
    assert_eq!(judge("post", &opened, "v=0"), Ok(()));
    let bad = format!("400 Bad\r\n{json}");
    assert_eq!(judge("post", &bad, &error("invalid_offer", "No.")), Ok(()));
    let denied = format!("405 No\r\nAllow: POST\r\n{json}");
    assert_eq!(
        judge("get", &denied, &error("method_not_allowed", "No.")),
        Ok(())
    );
    for (method, head, body) in [
        (
            "post",
            format!("418 Teapot\r\n{json}"),
            error("invalid_offer", "No."),
        ),
        (
            "post",
            format!("500 Broken\r\n{json}"),
            error("misconfigured", "No."),
        ),
        ("post", format!("201 Created\r\n{sdp}"), "v=0".to_owned()),
        (
            "post",
            format!("201 Created\r\nLocation: /x\r\n{json}"),
            "{}".to_owned(),
        ),
        ("post", format!("503 Full\r\n{json}"), error("full", "No.")),
        ("post", bad.clone(), error("unheard_of", "No.")),
        ("post", bad, error("invalid_offer", "no sentence")),
        (
            "get",
            format!("405 No\r\nAllow: PUT\r\n{json}"),
            error("method_not_allowed", "No."),
        ),
    ] {
        assert!(judge(method, &head, &body).is_err(), "{head} {body}");
    }
}

#[test]
fn every_code_of_an_error_is_in_the_description() {
    let text = include_str!("../../openapi.json");
    let description: Value = serde_json::from_str(text).unwrap();
    let schema = &description["components"]["schemas"]["Error"]["properties"]["error"];
    let codes = schema["properties"]["code"]["enum"].as_array().unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/signalling/http");
    let mut sources: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    sources.push(include_str!("../../../shared/src/http.rs").to_owned());
    let text = sources.concat();
    for code in codes {
        let code = code.as_str().unwrap();
        assert!(
            text.contains(&format!("\"{code}\"")),
            "{code} is described and never given"
        );
    }
}
