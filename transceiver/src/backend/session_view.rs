//! The session as the client configures it, for backends that do not keep it themselves.
//!
//! A stock client sends `session.update` and waits a few seconds for `session.updated` with the
//! session as it has become. Where the backend leaves that to the edge, the edge merges what the
//! client wants into what it knows and says so.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Actions;

/// How large a session may become, in bytes of JSON: instructions and tools included.
const SESSION_BYTES_MAX: usize = 128 * 1024;

/// The type of the client's event.
pub(super) const SESSION_UPDATE: &str = "session.update";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SessionView {
    session: Map<String, Value>,
}

#[derive(Deserialize)]
struct Update {
    session: Map<String, Value>,
}

impl SessionView {
    /// The session is this, says a backend that does keep it.
    pub(super) fn set(&mut self, session: Map<String, Value>) {
        self.session = session;
    }

    /// Merges a `session.update` and gives the `session.updated` that answers it; `None` when it
    /// has no session, or would make it larger than it may be.
    pub(super) fn update(&mut self, text: &str, actions: &mut Actions) -> Option<String> {
        let Update { session } = serde_json::from_str(text).ok()?;
        let mut merged = self.session.clone();
        if merged.is_empty() {
            merged.clone_from(&actions.profile().members);
        }
        merge(&mut merged, session);
        let profile = actions.profile();
        let own = json!({
            "type": "realtime", "object": "realtime.session",
            "id": profile.id, "model": profile.model,
        });
        if let Value::Object(own) = own {
            merge(&mut merged, own);
        }
        let session = serde_json::to_string(&merged).ok()?;
        if session.len() > SESSION_BYTES_MAX {
            return None;
        }
        self.session = merged;
        let event_id = actions.event_id();
        Some(format!(
            r#"{{"type":"session.updated","event_id":"{event_id}","session":{session}}}"#
        ))
    }
}

/// Objects are merged key by key; everything else is replaced.
fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updated(view: &mut SessionView, session: &str) -> Value {
        let text = format!(r#"{{"type":"session.update","session":{session}}}"#);
        let answer = view.update(&text, &mut Actions::for_tests()).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    #[test]
    fn what_was_set_before_stays_and_the_sessions_own_name_is_its_own() {
        let mut view = SessionView::default();
        updated(&mut view, r#"{"audio":{"input":{"x":1}},"voice":"a"}"#);
        let event = updated(&mut view, r#"{"audio":{"input":{"y":2}},"id":"mine"}"#);
        assert_eq!(event["type"], "session.updated");
        assert_eq!(event["session"]["audio"]["input"], json!({"x":1,"y":2}));
        assert_eq!(event["session"]["voice"], "a");
        assert_eq!(event["session"]["id"], "sess_1");
    }

    #[test]
    fn what_has_no_session_or_is_too_large_changes_nothing() {
        let mut view = SessionView::default();
        updated(&mut view, r#"{"voice":"a"}"#);
        assert_eq!(view.update("{}", &mut Actions::for_tests()), None);
        let long = "x".repeat(SESSION_BYTES_MAX);
        let text = format!(r#"{{"session":{{"voice":"{long}"}}}}"#);
        assert_eq!(view.update(&text, &mut Actions::for_tests()), None);
        assert_eq!(updated(&mut view, "{}")["session"]["voice"], "a");
    }
}
