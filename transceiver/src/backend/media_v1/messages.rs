//! The text messages of `media.v1`: JSON objects with a `type`.
//!
//! A message is read in two steps: its type, and then what belongs to it. What an event holds is
//! never looked at: it is passed on as the text it was.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The version of the protocol that is spoken here.
pub(super) const VERSION: u32 = 1;
/// Rates of PCM that can be had, in Hz: those Opus can be decoded to.
pub(super) const SAMPLE_RATES: [u32; 5] = [8_000, 12_000, 16_000, 24_000, 48_000];
/// Longest name of a mark, in bytes.
const MARK_BYTES_MAX: usize = 256;

/// What a backend says.
#[derive(Debug)]
pub(super) enum FromBackend<'a> {
    Hello(Box<Hello<'a>>),
    EndOfSegment { segment: u16 },
    Mark { name: String },
    Flush,
    Event { event: &'a str },
    Clock { id: u64 },
    Close { reason: String },
}

/// The backend's first message.
#[derive(Debug, Deserialize)]
pub(super) struct Hello<'a> {
    pub(super) version: u32,
    #[serde(borrow, default = "Audio::opus")]
    pub(super) audio_in: Audio<'a>,
    #[serde(borrow, default = "Audio::opus")]
    pub(super) audio_out: Audio<'a>,
    #[serde(default = "default_playout_ms")]
    pub(super) playout_ms: u64,
    #[serde(borrow, default)]
    pub(super) session: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) speech: bool,
    #[serde(default)]
    pub(super) flush_on_speech: bool,
}

/// What audio is exchanged as, as a hello says it.
#[derive(Debug, Deserialize)]
pub(super) struct Audio<'a> {
    #[serde(borrow)]
    format: Cow<'a, str>,
    sample_rate: Option<u32>,
}

/// What audio is exchanged as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    None,
    Opus,
    Pcm16 { rate_hz: u32 },
}

/// Why a text message is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("a text message is a JSON object with a \"type\"")]
    NotAMessage,
    #[error("\"{0}\" is no type of message that this version knows")]
    UnknownType(String),
    #[error("a \"{kind}\" message: {reason}")]
    Malformed { kind: &'static str, reason: String },
}

/// What the edge says.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ToBackend<'a> {
    Hello {
        versions: [u32; 1],
        call: &'a str,
        model: Option<&'a str>,
        session: &'a Map<String, Value>,
        link: u32,
        formats: &'a [&'static str],
        sample_rates: [u32; 5],
        credit_samples: u64,
        time_ns: u64,
        limits: Limits,
    },
    Credit {
        credit_samples: u64,
    },
    Playout {
        segment: u16,
        state: &'static str,
        sent_samples: u64,
        heard_samples: Option<u64>,
        rtt_ms: Option<f64>,
        jitter_ms: Option<f64>,
        loss: Option<f64>,
        time_ns: u64,
    },
    Mark {
        name: &'a str,
        flushed: bool,
    },
    Flushed {
        segment: Option<u16>,
        sent_samples: u64,
        heard_samples: Option<u64>,
        dropped_samples: u64,
    },
    Dtmf {
        digit: char,
        timestamp: u64,
    },
    Speech {
        state: &'static str,
        timestamp: u64,
    },
    Ready {
        time_ns: u64,
    },
    Clock {
        id: u64,
        time_ns: u64,
    },
    Error {
        code: &'static str,
        message: &'a str,
    },
    Close {
        reason: &'a str,
    },
}

/// What a backend must keep to.
#[derive(Debug, Serialize)]
pub(super) struct Limits {
    pub(super) message_bytes: usize,
    pub(super) queue_samples: u64,
    pub(super) marks: usize,
    pub(super) faults: u32,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
struct EndOfSegment {
    segment: u16,
}

#[derive(Deserialize)]
struct Mark {
    name: String,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    event: &'a RawValue,
}

#[derive(Deserialize)]
struct Clock {
    id: u64,
}

#[derive(Deserialize)]
struct Close {
    #[serde(default)]
    reason: String,
}

impl<'a> FromBackend<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, Fault> {
        let head: Head<'_> = serde_json::from_str(text).map_err(|_| Fault::NotAMessage)?;
        Ok(match &*head.kind {
            "hello" => Self::Hello(Box::new(body("hello", text)?)),
            "end_of_segment" => {
                let EndOfSegment { segment } = body("end_of_segment", text)?;
                Self::EndOfSegment { segment }
            }
            "mark" => {
                let Mark { name } = body("mark", text)?;
                if name.len() > MARK_BYTES_MAX {
                    return Err(malformed("mark", "its name has more than 256 bytes"));
                }
                Self::Mark { name }
            }
            "flush" => Self::Flush,
            "event" => {
                let Event { event } = body("event", text)?;
                let inner: Result<Head<'_>, _> = serde_json::from_str(event.get());
                inner.map_err(|_| malformed("event", "\"event\" is no object with a \"type\""))?;
                Self::Event { event: event.get() }
            }
            "clock" => {
                let Clock { id } = body("clock", text)?;
                Self::Clock { id }
            }
            "close" => {
                let Close { reason } = body("close", text)?;
                Self::Close { reason }
            }
            unknown => {
                let shown = unknown.chars().take(40).collect();
                return Err(Fault::UnknownType(shown));
            }
        })
    }
}

impl Audio<'_> {
    fn opus() -> Self {
        Audio {
            format: Cow::Borrowed("opus"),
            sample_rate: None,
        }
    }

    /// The format it names, if there is one of that name and rate.
    pub(super) fn as_format(&self) -> Option<Format> {
        match (&*self.format, self.sample_rate) {
            ("none", _) => Some(Format::None),
            ("opus", None | Some(48_000)) => Some(Format::Opus),
            ("pcm16", Some(rate_hz)) if SAMPLE_RATES.contains(&rate_hz) => {
                Some(Format::Pcm16 { rate_hz })
            }
            _ => None,
        }
    }
}

impl Fault {
    /// The `code` of the `error` that answers it.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::UnknownType(_) => "unknown_type",
            Self::NotAMessage | Self::Malformed { .. } => "malformed",
        }
    }
}

impl ToBackend<'_> {
    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("invariant: strings and numbers serialize")
    }
}

fn default_playout_ms() -> u64 {
    200
}

fn body<'a, T: Deserialize<'a>>(kind: &'static str, text: &'a str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| malformed(kind, &error.to_string()))
}

fn malformed(kind: &'static str, reason: &str) -> Fault {
    Fault::Malformed {
        kind,
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_event_is_passed_on_as_the_text_it_was() {
        let text = r#"{"type":"event", "event": { "type":"x",  "n": 1.50, "é":"\u00e9" } }"#;
        let FromBackend::Event { event } = FromBackend::parse(text).unwrap() else {
            panic!("an event");
        };
        assert_eq!(event, r#"{ "type":"x",  "n": 1.50, "é":"\u00e9" }"#);
    }

    #[test]
    fn a_hello_has_defaults_and_knows_formats_and_rates() {
        let FromBackend::Hello(hello) =
            FromBackend::parse(r#"{"type":"hello","version":1}"#).unwrap()
        else {
            panic!("a hello");
        };
        assert_eq!(hello.audio_in.as_format(), Some(Format::Opus));
        assert_eq!(hello.playout_ms, 200);
        assert!(hello.session.is_none() && !hello.speech && !hello.flush_on_speech);
        for (format, expected) in [
            (r#"{"format":"none"}"#, Some(Format::None)),
            (r#"{"format":"pcm16"}"#, None),
            (r#"{"format":"pcm16","sample_rate":44100}"#, None),
            (r#"{"format":"mp3"}"#, None),
            (
                r#"{"format":"pcm16","sample_rate":24000}"#,
                Some(Format::Pcm16 { rate_hz: 24_000 }),
            ),
        ] {
            let audio: Audio<'_> = serde_json::from_str(format).unwrap();
            assert_eq!(audio.as_format(), expected, "{format}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let fault = |text: &str| FromBackend::parse(text).unwrap_err();
        assert_eq!(fault("{"), Fault::NotAMessage);
        assert_eq!(fault("[]").code(), "malformed");
        assert_eq!(fault(r#"{"type":"dance"}"#).code(), "unknown_type");
        let event = fault(r#"{"type":"event","event":[1]}"#);
        assert!(event.to_string().contains("no object with a \"type\""));
        let segment = fault(r#"{"type":"end_of_segment","segment":65536}"#);
        assert!(segment.to_string().contains("end_of_segment"), "{segment}");
        let name = "x".repeat(257);
        assert_eq!(
            fault(&format!(r#"{{"type":"mark","name":"{name}"}}"#)).code(),
            "malformed"
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = FromBackend::parse(&text);
        }

        #[test]
        fn no_fields_make_a_message_panic(
            kind in "hello|mark|event|clock|close|end_of_segment|flush", rest in ".{0,60}",
        ) {
            let _ = FromBackend::parse(&format!(r#"{{"type":"{kind}",{rest}}}"#));
        }
    }
}
