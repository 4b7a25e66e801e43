//! What a client, or the server that gave it an ephemeral key, asks of a session: the `session`
//! object of the Realtime API.
//!
//! The edge reads the model out of it and passes the rest on as it came: what instructions, tools
//! or voices mean is the backend's business. Pure.

use serde_json::{Map, Value};

/// Longest name of a model, in bytes; those in use are a third of it.
pub const MODEL_BYTES_MAX: usize = 128;

/// Largest session object, in bytes of JSON. An ephemeral key carries it, to the base 64, in one
/// header line of a request, and the largest head a server here takes is 32 KiB.
pub const SESSION_BYTES_MAX: usize = 16 * 1024;

/// Most text that is read for one: laid out for people, JSON is larger than what it says.
pub const SESSION_TEXT_BYTES_MAX: usize = 4 * SESSION_BYTES_MAX;

/// Members that the edge says itself.
const OURS: [&str; 4] = ["type", "object", "id", "client_secret"];

/// A session object that holds nothing but what is passed on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionConfig(Map<String, Value>);

/// Why a session object was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionFault {
    /// Not JSON, or no object.
    #[error("session is a JSON object")]
    NotAnObject,
    /// More than can be carried.
    #[error("session is at most {SESSION_BYTES_MAX} bytes of JSON")]
    TooLarge,
    /// Another kind of session.
    #[error("session.type is \"realtime\"")]
    Type,
    /// A model that is no name.
    #[error("session.model is a name of 1 to {MODEL_BYTES_MAX} bytes")]
    Model,
}

impl SessionConfig {
    /// Reads a session object.
    ///
    /// # Errors
    /// [`SessionFault`].
    pub fn parse(json: &[u8]) -> Result<Self, SessionFault> {
        if json.len() > SESSION_TEXT_BYTES_MAX {
            return Err(SessionFault::TooLarge);
        }
        let value = serde_json::from_slice(json).map_err(|_| SessionFault::NotAnObject)?;
        Self::judge(value)
    }

    /// The session object that `value` is.
    ///
    /// # Errors
    /// [`SessionFault`].
    pub fn judge(value: Value) -> Result<Self, SessionFault> {
        let Value::Object(mut members) = value else {
            return Err(SessionFault::NotAnObject);
        };
        if members.get("type").is_some_and(|kind| kind != "realtime") {
            return Err(SessionFault::Type);
        }
        for ours in OURS {
            members.remove(ours);
        }
        if members.get("model").is_some_and(Value::is_null) {
            members.remove("model");
        }
        let has_model = members.get("model").is_none_or(|model| {
            model
                .as_str()
                .is_some_and(|model| (1..=MODEL_BYTES_MAX).contains(&model.len()))
        });
        if !has_model {
            return Err(SessionFault::Model);
        }
        let config = Self(members);
        if config.to_json().len() > SESSION_BYTES_MAX {
            return Err(SessionFault::TooLarge);
        }
        Ok(config)
    }

    /// A session that asks for a model and nothing else.
    ///
    /// # Errors
    /// [`SessionFault::Model`].
    pub fn of_model(model: &str) -> Result<Self, SessionFault> {
        Self::judge(serde_json::json!({ "model": model }))
    }

    /// The model it names.
    pub fn model(&self) -> Option<&str> {
        self.0.get("model").and_then(Value::as_str)
    }

    /// This session, but where `stronger` has a member, that one.
    pub fn overlaid(mut self, stronger: Self) -> Self {
        self.0.extend(stronger.0);
        self
    }

    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The members, as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.0).expect("invariant: JSON values are written without fail")
    }

    /// The members.
    pub fn members(&self) -> &Map<String, Value> {
        &self.0
    }

    /// The members, without a copy.
    pub fn into_members(self) -> Map<String, Value> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> SessionConfig {
        SessionConfig::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn what_the_edge_says_itself_is_left_out_and_the_rest_is_kept() {
        let session = config(
            r#"{"type":"realtime","object":"x","id":"y","client_secret":{"value":"z"},
                "model":"m","audio":{"output":{"voice":"marin"}}}"#,
        );
        assert_eq!(session.model(), Some("m"));
        assert_eq!(
            session.to_json(),
            r#"{"audio":{"output":{"voice":"marin"}},"model":"m"}"#
        );
        assert!(config("{}").is_empty());
        assert_eq!(config(r#"{"model":null}"#).model(), None);
    }

    #[test]
    fn the_stronger_session_wins_member_by_member() {
        let weak = config(r#"{"model":"cheap","voice":"a"}"#);
        let strong = config(r#"{"model":"dear"}"#);
        let both = weak.overlaid(strong);
        assert_eq!(both.to_json(), r#"{"model":"dear","voice":"a"}"#);
    }

    #[test]
    fn what_is_no_session_is_refused() {
        let long = format!(r#"{{"model":"{}"}}"#, "m".repeat(MODEL_BYTES_MAX + 1));
        let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(SESSION_BYTES_MAX));
        let deep = "[".repeat(10_000);
        for (json, fault) in [
            ("", SessionFault::NotAnObject),
            ("[]", SessionFault::NotAnObject),
            ("{\"a\":}", SessionFault::NotAnObject),
            (&deep, SessionFault::NotAnObject),
            (r#"{"type":"transcription"}"#, SessionFault::Type),
            (r#"{"type":7}"#, SessionFault::Type),
            (r#"{"model":7}"#, SessionFault::Model),
            (r#"{"model":""}"#, SessionFault::Model),
            (&long, SessionFault::Model),
            (&large, SessionFault::TooLarge),
        ] {
            assert_eq!(SessionConfig::parse(json.as_bytes()), Err(fault), "{json}");
        }
    }

    #[test]
    fn a_session_is_measured_as_it_is_written_not_as_it_is_laid_out() {
        let roomy = format!(r#"{{{}"a":1}}"#, " ".repeat(2 * SESSION_BYTES_MAX));
        assert_eq!(config(&roomy).to_json(), r#"{"a":1}"#);
        let floats = format!(r#"{{"a":[{}1]}}"#, "1e9,".repeat(4_000));
        assert!(
            floats.len() < SESSION_BYTES_MAX,
            "it grows when written anew"
        );
        assert_eq!(
            SessionConfig::parse(floats.as_bytes()),
            Err(SessionFault::TooLarge)
        );
        let blank = format!("{{{}}}", " ".repeat(SESSION_TEXT_BYTES_MAX));
        assert_eq!(
            SessionConfig::parse(blank.as_bytes()),
            Err(SessionFault::TooLarge)
        );
    }
}
