//! Janus' own signalling: a session and a handle for each call, the offer as a message to EchoTest,
//! the answer as an event that a long poll brings.

use serde_json::{Value, json};

use crate::calls::failure::{Cause, Failure};
use crate::calls::signalling::{Expected, Http, Opened, Signalling};
use crate::calls::stand::Need;

/// Events that may come before the answer: acknowledgements and keep-alives.
const EVENTS_MAX: usize = 16;
const PLUGIN: &str = "janus.plugin.echotest";

/// How calls to Janus are opened.
pub struct Signals {
    http: Http,
    url: String,
    expected: Expected,
}

impl Signals {
    /// For the Janus at `url`.
    ///
    /// # Errors
    /// When HTTP cannot be set up.
    pub fn new(url: &str, need: &Need) -> anyhow::Result<Self> {
        Ok(Self {
            http: Http::new(need.http_timeout, need.diallers, None)?,
            url: url.to_owned(),
            expected: Expected {
                session: false,
                ..need.expected
            },
        })
    }

    /// Posts one request and reads Janus' JSON.
    fn ask(&self, url: &str, mut request: Value) -> Result<Value, Failure> {
        request["transaction"] = json!("bench");
        let agent = self.http.agent();
        let sent = agent
            .post(url)
            .header("content-type", "application/json")
            .send(request.to_string());
        parsed(&self.http.read(sent)?.body)
    }

    /// Waits for the event that carries the answer.
    fn answer(&self, session: &str) -> Result<String, Failure> {
        for _ in 0..EVENTS_MAX {
            let event = self.http.agent().get(format!("{session}?maxev=1")).call();
            let event = parsed(&self.http.read(event)?.body)?;
            if let Some(sdp) = event["jsep"]["sdp"].as_str() {
                return Ok(sdp.to_owned());
            }
            if let Some(reason) = event["plugindata"]["data"]["error"].as_str() {
                return Err(Failure::new(Cause::HttpError, reason));
            }
        }
        Err(Failure::new(Cause::HttpTimeout, "no event had an answer"))
    }

    fn negotiate(&self, session: &str, offer: &str) -> Result<String, Failure> {
        let attach = json!({ "janus": "attach", "plugin": PLUGIN });
        let handle = id(&self.ask(session, attach)?)?;
        let message = json!({
            "janus": "message",
            "body": { "audio": true, "video": false },
            "jsep": { "type": "offer", "sdp": offer },
        });
        self.ask(&format!("{session}/{handle}"), message)?;
        self.answer(session)
    }
}

impl Signalling for Signals {
    fn open(&self, offer: &str) -> Result<Opened, Failure> {
        let created = self.ask(&self.url, json!({ "janus": "create" }))?;
        let session = format!("{}/{}", self.url, id(&created)?);
        match self.negotiate(&session, offer) {
            Ok(answer) => Ok(Opened {
                answer,
                call: Some(session),
            }),
            Err(failure) => {
                self.hang_up(&session);
                Err(failure)
            }
        }
    }

    fn hang_up(&self, call: &str) {
        // Janus may have ended the session itself.
        let _ = self.ask(call, json!({ "janus": "destroy" }));
    }

    fn needs_hang_up(&self) -> bool {
        true
    }

    fn expected(&self) -> Expected {
        self.expected
    }
}

/// Janus answers errors with 200 and says so inside.
fn parsed(body: &str) -> Result<Value, Failure> {
    let value: Value = serde_json::from_str(body)
        .map_err(|error| Failure::new(Cause::HttpBroken, format!("no JSON of Janus': {error}")))?;
    if value["janus"] == "error" {
        let reason = value["error"]["reason"].as_str().unwrap_or("no reason");
        return Err(Failure::new(Cause::HttpError, reason));
    }
    Ok(value)
}

/// The number of a session or handle that was made.
fn id(answer: &Value) -> Result<u64, Failure> {
    let id = answer["data"]["id"].as_u64();
    id.ok_or_else(|| Failure::new(Cause::HttpBroken, format!("no id in {answer}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_within_an_answer_of_200_is_an_error() {
        let failure =
            parsed(r#"{"janus":"error","error":{"code":458,"reason":"No such session"}}"#);
        let failure = failure.expect_err("an error");
        assert_eq!(failure.cause, Cause::HttpError);
        assert!(failure.words.contains("No such session"), "{failure}");
        assert_eq!(
            parsed("<html>").expect_err("no JSON").cause,
            Cause::HttpBroken
        );
    }

    #[test]
    fn ids_are_read_whole() {
        let made = parsed(r#"{"janus":"success","data":{"id":7411279538063457}}"#);
        assert_eq!(id(&made.expect("success")), Ok(7_411_279_538_063_457));
        assert!(id(&json!({ "janus": "success" })).is_err());
    }
}
