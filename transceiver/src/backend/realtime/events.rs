//! The Realtime protocol's events, as far as they are read and written here.
//!
//! What is read borrows from the message, and what is not needed is not kept: an audio delta of a
//! megabyte costs its own length and nothing more.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::backend::g711::Law;
use crate::backend::turns::Speech;

/// What audio is on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AudioFormat {
    /// Mono, signed 16 bit, little endian, at this rate in Hz: 8,000, 12,000, 16,000, 24,000 or
    /// 48,000. The protocol's own is 24,000.
    Pcm16 {
        /// The rate.
        rate_hz: u32,
    },
    /// G.711 at 8 kHz.
    G711(Law),
}

/// An audio delta, and the event that ends them.
#[derive(Debug, Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    pub(super) response_id: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) item_id: Cow<'a, str>,
    #[serde(default)]
    pub(super) content_index: u32,
    #[serde(borrow, default)]
    pub(super) delta: Cow<'a, str>,
}

/// `response.created`, `response.done`.
#[derive(Debug, Deserialize)]
pub(super) struct ResponseEvent<'a> {
    #[serde(borrow)]
    pub(super) response: Response<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Response<'a> {
    #[serde(borrow, default)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow, default)]
    status_details: Option<StatusDetails<'a>>,
}

#[derive(Debug, Deserialize)]
struct StatusDetails<'a> {
    #[serde(borrow, default)]
    reason: Option<Cow<'a, str>>,
}

/// `error`.
#[derive(Debug, Deserialize)]
pub(super) struct ErrorEvent<'a> {
    #[serde(borrow)]
    error: ErrorBody<'a>,
}

#[derive(Debug, Deserialize)]
struct ErrorBody<'a> {
    #[serde(borrow, default)]
    event_id: Option<Cow<'a, str>>,
}

/// `response.cancel` of the client.
#[derive(Debug, Deserialize)]
pub(super) struct Cancel<'a> {
    #[serde(borrow, default)]
    pub(super) response_id: Option<Cow<'a, str>>,
}

/// `session.created`, `session.updated`.
#[derive(Debug, Deserialize)]
struct SessionEvent {
    session: Map<String, Value>,
}

/// What a session of the backend says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionInfo {
    /// Whether it is written as the beta did.
    pub(super) is_beta: bool,
    pub(super) input: Option<AudioFormat>,
    pub(super) output: Option<AudioFormat>,
    /// Whether the caller's speech ends an answer.
    pub(super) interrupts: bool,
}

impl ResponseEvent<'_> {
    /// Whether the caller's speech has ended it.
    pub(super) fn is_interrupted(&self) -> bool {
        let details = self.response.status_details.as_ref();
        details.and_then(|details| details.reason.as_deref()) == Some("turn_detected")
    }
}

impl ErrorEvent<'_> {
    /// Which of our events it is about.
    pub(super) fn event_id(&self) -> Option<&str> {
        self.error.event_id.as_deref()
    }
}

impl SessionInfo {
    /// Reads `session.created` or `session.updated`, with the session itself; `pcm_rate_hz` is
    /// what `pcm16` means where no rate is said.
    pub(super) fn parse(text: &str, pcm_rate_hz: u32) -> Option<(Self, Map<String, Value>)> {
        let SessionEvent { session } = serde_json::from_str(text).ok()?;
        let audio = |way: &str| session.get("audio").and_then(|audio| audio.get(way));
        let is_beta = session.contains_key("input_audio_format");
        let format = |way: &str| match session.get(&format!("{way}_audio_format")) {
            Some(name) => format_of(name.as_str()?, pcm_rate_hz),
            None => {
                let format = audio(way)?.get("format")?;
                let rate_hz = format.get("rate").and_then(Value::as_u64);
                let rate_hz = rate_hz.and_then(|rate_hz| u32::try_from(rate_hz).ok());
                format_of(
                    format.get("type")?.as_str()?,
                    rate_hz.unwrap_or(pcm_rate_hz),
                )
            }
        };
        let turns = session.get("turn_detection");
        let turns = turns.or_else(|| audio("input")?.get("turn_detection"));
        let interrupts = turns.and_then(|turns| turns.get("interrupt_response"));
        let info = Self {
            is_beta,
            input: format("input"),
            output: format("output"),
            interrupts: interrupts.and_then(Value::as_bool).unwrap_or(true),
        };
        Some((info, session))
    }
}

impl AudioFormat {
    /// The rate of its samples, in Hz.
    pub(super) fn rate_hz(self) -> u32 {
        match self {
            Self::Pcm16 { rate_hz } => rate_hz,
            Self::G711(_) => 8_000,
        }
    }

    /// PCM as bytes of the format.
    pub(super) fn encode(self, pcm: &[i16]) -> Vec<u8> {
        match self {
            Self::Pcm16 { .. } => pcm.iter().flat_map(|sample| sample.to_le_bytes()).collect(),
            Self::G711(law) => pcm.iter().map(|&sample| law.encode(sample)).collect(),
        }
    }

    /// Bytes of the format as PCM. The odd byte that may end a delta goes to `rest`, and before the
    /// next one.
    pub(super) fn decode(self, rest: &mut Option<u8>, bytes: &[u8]) -> Vec<i16> {
        match self {
            Self::G711(law) => bytes.iter().map(|&byte| law.decode(byte)).collect(),
            Self::Pcm16 { .. } => {
                let mut pcm = Vec::with_capacity(bytes.len().div_ceil(2));
                let mut bytes = bytes;
                if let (Some(low), Some((&high, behind))) = (*rest, bytes.split_first()) {
                    pcm.push(i16::from_le_bytes([low, high]));
                    *rest = None;
                    bytes = behind;
                }
                let (samples, odd) = bytes.as_chunks::<2>();
                pcm.extend(samples.iter().map(|&sample| i16::from_le_bytes(sample)));
                *rest = odd.first().copied().or(*rest);
                pcm
            }
        }
    }

    fn as_json(self, is_beta: bool) -> Value {
        match (self, is_beta) {
            (Self::Pcm16 { .. }, true) => json!("pcm16"),
            (Self::G711(Law::Mu), true) => json!("g711_ulaw"),
            (Self::G711(Law::A), true) => json!("g711_alaw"),
            (Self::Pcm16 { rate_hz }, false) => json!({"type": "audio/pcm", "rate": rate_hz}),
            (Self::G711(Law::Mu), false) => json!({"type": "audio/pcmu"}),
            (Self::G711(Law::A), false) => json!({"type": "audio/pcma"}),
        }
    }
}

fn format_of(name: &str, rate_hz: u32) -> Option<AudioFormat> {
    match name {
        "audio/pcm" | "pcm16" => {
            let is_known = [8_000, 12_000, 16_000, 24_000, 48_000].contains(&rate_hz);
            is_known.then_some(AudioFormat::Pcm16 { rate_hz })
        }
        "audio/pcmu" | "g711_ulaw" => Some(AudioFormat::G711(Law::Mu)),
        "audio/pcma" | "g711_alaw" => Some(AudioFormat::G711(Law::A)),
        _ => None,
    }
}

/// `input_audio_buffer.append`.
pub(super) fn append(audio: &[u8]) -> String {
    const HEAD: &str = r#"{"type":"input_audio_buffer.append","audio":""#;
    let mut text = String::with_capacity(HEAD.len() + audio.len().div_ceil(3) * 4 + 2);
    text.push_str(HEAD);
    STANDARD.encode_string(audio, &mut text);
    text.push_str("\"}");
    text
}

/// The bytes of a delta; `None` when it is no base64.
pub(super) fn decode_base64(delta: &str) -> Option<Vec<u8>> {
    STANDARD.decode(delta).ok()
}

/// `conversation.item.truncate`.
pub(super) fn truncate(event_id: &str, item: &str, content_index: u32, end_ms: u64) -> String {
    json!({
        "type": "conversation.item.truncate", "event_id": event_id,
        "item_id": item, "content_index": content_index, "audio_end_ms": end_ms,
    })
    .to_string()
}

/// `response.cancel`.
pub(super) fn cancel(event_id: &str, response: &str) -> String {
    let mut event = json!({"type": "response.cancel", "event_id": event_id});
    if !response.is_empty() {
        event["response_id"] = json!(response);
    }
    event.to_string()
}

/// `output_audio_buffer.started`, `.stopped` or `.cleared`.
pub(super) fn output_buffer(what: &str, event_id: &str, response: &str) -> String {
    json!({
        "type": format!("output_audio_buffer.{what}"), "event_id": event_id,
        "response_id": response,
    })
    .to_string()
}

/// `input_audio_buffer.speech_started` or `.speech_stopped`, as the edge hears it.
pub(super) fn speech(event_id: &str, speech: Speech) -> String {
    let (kind, field, at) = match speech {
        Speech::Started(at) => ("speech_started", "audio_start_ms", at),
        Speech::Stopped(at) => ("speech_stopped", "audio_end_ms", at),
    };
    json!({
        "type": format!("input_audio_buffer.{kind}"), "event_id": event_id, field: at / 48,
        "item_id": "",
    })
    .to_string()
}

/// An event without anything but its name.
pub(super) fn bare(kind: &str, event_id: &str) -> String {
    json!({"type": kind, "event_id": event_id}).to_string()
}

/// `input_audio_buffer.dtmf_event_received`.
pub(super) fn key_pressed(event_id: &str, key: char) -> String {
    json!({
        "type": "input_audio_buffer.dtmf_event_received", "event_id": event_id, "event": key,
    })
    .to_string()
}

/// `session.update` with what was asked of the session before the link was up, and the format of
/// the audio on the link where it is not the backend's own.
pub(super) fn configure(
    event_id: &str,
    asked: &Map<String, Value>,
    format: Option<AudioFormat>,
    is_beta: bool,
) -> String {
    let mut session = asked.clone();
    if !is_beta {
        session.insert("type".to_owned(), json!("realtime"));
    }
    if let Some(format) = format {
        let value = format.as_json(is_beta);
        if is_beta {
            session.insert("input_audio_format".to_owned(), value.clone());
            session.insert("output_audio_format".to_owned(), value);
        } else {
            let audio = session.entry("audio").or_insert_with(|| json!({}));
            for way in ["input", "output"] {
                if !audio[way].is_object() {
                    audio[way] = json!({});
                }
                audio[way]["format"] = value.clone();
            }
        }
    }
    json!({"type": "session.update", "event_id": event_id, "session": session}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PCM: AudioFormat = AudioFormat::Pcm16 { rate_hz: 24_000 };

    fn info(session: Value) -> SessionInfo {
        let text = json!({"type": "session.created", "session": session}).to_string();
        SessionInfo::parse(&text, 24_000).unwrap().0
    }

    #[test]
    fn a_session_is_read_in_either_spelling() {
        let current = info(json!({"type":"realtime","audio":{
            "input":{"format":{"type":"audio/pcm","rate":16000},
                     "turn_detection":{"type":"server_vad","interrupt_response":false}},
            "output":{"format":{"type":"audio/pcmu"}}}}));
        let expected = SessionInfo {
            is_beta: false,
            input: Some(AudioFormat::Pcm16 { rate_hz: 16_000 }),
            output: Some(AudioFormat::G711(Law::Mu)),
            interrupts: false,
        };
        assert_eq!(current, expected);
        let beta = info(
            json!({"input_audio_format":"g711_alaw","output_audio_format":"pcm16",
            "turn_detection":{"type":"server_vad"}}),
        );
        let expected = SessionInfo {
            is_beta: true,
            input: Some(AudioFormat::G711(Law::A)),
            output: Some(PCM),
            interrupts: true,
        };
        assert_eq!(beta, expected);
        assert_eq!(info(json!({})).input, None);
        assert_eq!(info(json!({"audio":7,"turn_detection":null})).output, None);
    }

    #[test]
    fn what_configures_says_the_format_in_the_backends_spelling() {
        let asked = json!({"voice":"a","audio":{"output":{"voice":"b"}}});
        let Value::Object(asked) = asked else {
            panic!()
        };
        let law = Some(AudioFormat::G711(Law::Mu));
        let read = |text: String| serde_json::from_str::<Value>(&text).unwrap()["session"].take();
        assert_eq!(
            read(configure("e", &asked, law, false)),
            json!({"type":"realtime","voice":"a","audio":{
                "input":{"format":{"type":"audio/pcmu"}},
                "output":{"voice":"b","format":{"type":"audio/pcmu"}}}})
        );
        let beta = read(configure("e", &asked, law, true));
        assert_eq!(beta["input_audio_format"], "g711_ulaw");
        assert_eq!(beta.get("type"), None);
    }

    #[test]
    fn an_odd_byte_belongs_to_the_next_delta() {
        let mut rest = None;
        assert_eq!(PCM.decode(&mut rest, &[1, 0, 2]), [1]);
        assert_eq!(PCM.decode(&mut rest, &[]), [0i16; 0]);
        assert_eq!(PCM.decode(&mut rest, &[0, 3, 0, 4]), [2, 3]);
        assert_eq!(PCM.decode(&mut rest, &[0]), [4]);
        assert_eq!(rest, None);
    }

    proptest! {
        #[test]
        fn audio_survives_the_way_there(pcm in prop::collection::vec(any::<i16>(), 0..200)) {
            let text = append(&PCM.encode(&pcm));
            let event: Value = serde_json::from_str(&text).unwrap();
            let bytes = decode_base64(event["audio"].as_str().unwrap()).unwrap();
            prop_assert_eq!(PCM.decode(&mut None, &bytes), pcm);
        }

        #[test]
        fn deltas_cut_anywhere_are_one_stream(
            pcm in prop::collection::vec(any::<i16>(), 1..100),
            cuts in prop::collection::vec(0usize..200, 0..6),
        ) {
            let bytes = PCM.encode(&pcm);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % bytes.len()).collect();
            cuts.sort_unstable();
            let (mut rest, mut from, mut decoded) = (None, 0, Vec::new());
            for cut in cuts.into_iter().chain([bytes.len()]) {
                decoded.extend(PCM.decode(&mut rest, &bytes[from..cut]));
                from = cut;
            }
            prop_assert_eq!(decoded, pcm);
        }
    }
}
