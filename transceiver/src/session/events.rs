//! The JSON events that the edge itself says on a data channel, in the Realtime API's words.
//!
//! `session.created` greets each channel as it opens; `error` answers what cannot be passed on.
//! An event is a JSON object with a `type`; everything else in it is the backend's business and
//! is not looked at.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::backend::EdgeError;

/// Whom a session is for, as its `session.created` says.
#[derive(Debug, Clone, Serialize)]
pub struct Profile {
    /// The session's public name.
    pub id: String,
    /// The model the client asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Everything else that was asked of the session, as it came: the `session` object of the
    /// Realtime API without its `type`, `object`, `id` and `model`.
    #[serde(flatten)]
    pub members: Map<String, Value>,
}

/// Names events: unique within a session, and between sessions by 64 random bits.
#[derive(Debug)]
pub(crate) struct EventIds {
    seed: u64,
    next: u32,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Event<'a> {
    #[serde(rename = "session.created")]
    Created {
        event_id: String,
        session: Session<'a>,
    },
    #[serde(rename = "error")]
    Error {
        event_id: String,
        error: ErrorBody<'a>,
    },
}

#[derive(Serialize)]
struct Session<'a> {
    r#type: &'static str,
    object: &'static str,
    #[serde(flatten)]
    profile: &'a Profile,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    r#type: &'static str,
    code: &'static str,
    message: &'a str,
    param: Option<&'a str>,
    event_id: Option<&'a str>,
}

/// The part of a client's event that is looked at.
#[derive(Debug, Deserialize)]
struct Head<'a> {
    #[serde(borrow, rename = "type")]
    _type: Cow<'a, str>,
}

/// What is wrong with something that should be, or become, an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventFault {
    /// Not UTF-8, not JSON, not an object, or without a `type` of text.
    NotAnEvent,
    /// The client's data channel takes no message of its size.
    TooLarge,
}

impl EventFault {
    /// What its sender, or the one it was for, is told.
    pub(crate) fn as_error(self) -> EdgeError<'static> {
        let (kind, code, message) = match self {
            Self::NotAnEvent => (
                "invalid_request_error",
                "invalid_event",
                "A message on a data channel is a JSON object with a \"type\".",
            ),
            Self::TooLarge => (
                "server_error",
                "event_too_large",
                "An event for you exceeds the max-message-size of your offer and was left out.",
            ),
        };
        EdgeError {
            kind,
            code,
            message,
        }
    }
}

impl EventIds {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, next: 0 }
    }

    pub(crate) fn next(&mut self) -> String {
        self.next = self.next.wrapping_add(1);
        format!("event_{:016x}{:08x}", self.seed, self.next)
    }
}

/// The text of an event, or what is wrong with it.
///
/// The parser stops at 128 levels of nesting and keeps nothing but the type, so a hostile message
/// costs its own length.
pub(crate) fn check(message: &[u8]) -> Result<&str, EventFault> {
    let text = std::str::from_utf8(message).map_err(|_| EventFault::NotAnEvent)?;
    match serde_json::from_str::<Head<'_>>(text) {
        Ok(_) => Ok(text),
        Err(_) => Err(EventFault::NotAnEvent),
    }
}

/// `session.created`.
pub(crate) fn created(ids: &mut EventIds, profile: &Profile) -> String {
    let session = Session {
        r#type: "realtime",
        object: "realtime.session",
        profile,
    };
    write(&Event::Created {
        event_id: ids.next(),
        session,
    })
}

/// `error`.
pub(crate) fn error(ids: &mut EventIds, error: EdgeError<'_>) -> String {
    let error = ErrorBody {
        r#type: error.kind,
        code: error.code,
        message: error.message,
        param: None,
        event_id: None,
    };
    write(&Event::Error {
        event_id: ids.next(),
        error,
    })
}

fn write(event: &Event<'_>) -> String {
    serde_json::to_string(event).expect("invariant: strings and options serialize")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn greets_with_the_profile_and_a_fresh_event_id() {
        let mut ids = EventIds::new(0xabc);
        let profile = Profile {
            id: "sess_1".into(),
            model: Some("m\"1".into()),
            members: Map::from_iter([("voice".to_owned(), Value::from("v"))]),
        };
        let event = json(&created(&mut ids, &profile));
        assert_eq!(event["type"], "session.created");
        assert_eq!(
            event["session"],
            serde_json::json!({
                "type": "realtime", "object": "realtime.session", "id": "sess_1",
                "model": "m\"1", "voice": "v"
            })
        );
        let nameless = json(&created(
            &mut ids,
            &Profile {
                model: None,
                ..profile
            },
        ));
        assert_eq!(nameless["session"].get("model"), None);
        assert_ne!(event["event_id"], nameless["event_id"]);
    }

    #[test]
    fn an_event_is_a_json_object_with_a_type() {
        assert_eq!(
            check(br#"{"type":"a","x":[1,{"y":2}]}"#),
            Ok(r#"{"type":"a","x":[1,{"y":2}]}"#)
        );
        assert!(check(br#"{"type":"\u00e9"}"#).is_ok());
        let deep = format!("{{\"type\":\"a\",\"x\":{}", "[".repeat(100_000));
        for bad in [
            "",
            "hello",
            "[]",
            "{}",
            r#"{"type":1}"#,
            r#"{"type":"a"} x"#,
            &deep,
        ] {
            assert_eq!(check(bad.as_bytes()), Err(EventFault::NotAnEvent));
        }
        assert_eq!(check(&[0xff, 0xfe]), Err(EventFault::NotAnEvent));
    }

    #[test]
    fn an_error_says_what_was_wrong() {
        let event = json(&error(
            &mut EventIds::new(1),
            EventFault::NotAnEvent.as_error(),
        ));
        assert_eq!(event["type"], "error");
        assert_eq!(event["error"]["type"], "invalid_request_error");
        assert_eq!(event["error"]["code"], "invalid_event");
    }

    proptest! {
        #[test]
        fn no_message_makes_the_check_panic(message in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check(&message);
        }
    }
}
