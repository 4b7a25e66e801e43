//! A backend that plays a long answer and lets itself be interrupted at once: what is measured is
//! the edge and the way, not how long a model takes to make up its mind.
//!
//! Over `media.v1` it sends Opus packets that are numbered, so that the caller knows what he heard
//! of it; the caller's own are stamped, so that his first word is known for one. Over `realtime` it
//! sends PCM and knows a word by its loudness; since that protocol names no call, the caller's
//! client does, in an event of its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::Message;

use super::super::burst::{LOUD, sound};
use super::super::links::{Link, Links, media_v1, realtime, say};
use super::super::voice::{FRAME, Stamp};
use crate::process::edge::{BackendAt, Dialect};

/// Length of the answer: within the credit that an edge gives at once, and longer than anyone
/// listens.
const ANSWER: Duration = Duration::from_secs(20);
/// Length of a delta of it.
const DELTA: Duration = Duration::from_millis(200);
/// The segment that the answer is.
pub(super) const SEGMENT: u16 = 1;
/// The event by which a client of the Realtime API interrupts.
pub(super) const CLEAR: &str = "output_audio_buffer.clear";
/// The event by which a caller's client tells the backend which call it is.
pub(super) const INTRODUCTION: &str = "syrinx_bench.call";

/// What the edge said it played of each interrupted answer, by call.
#[derive(Debug, Default)]
struct Played(Mutex<HashMap<String, Duration>>);

impl Played {
    fn note(&self, call: &str, played: Duration) {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.insert(call.to_owned(), played);
    }
}

/// A listening backend; it stops listening when dropped.
#[derive(Debug)]
pub(super) struct Backend {
    links: Links,
    dialect: Dialect,
    played: Arc<Played>,
}

impl Backend {
    pub(super) fn start(listen: SocketAddr, dialect: Dialect) -> anyhow::Result<Self> {
        let played = Arc::<Played>::default();
        let theirs = Arc::clone(&played);
        let links = match dialect {
            Dialect::MediaV1 => Links::start(listen, move |link| serve_media_v1(link, &theirs))?,
            Dialect::Realtime => {
                let answer = deltas();
                Links::start(listen, move |link| serve_realtime(link, &answer, &theirs))?
            }
        };
        Ok(Self {
            links,
            dialect,
            played,
        })
    }

    /// Where the edge finds it.
    pub(super) fn at(&self) -> BackendAt {
        BackendAt {
            url: self.links.url(),
            dialect: self.dialect,
        }
    }

    /// What the edge said it played of this call's answer.
    pub(super) fn played(&self, call: &str) -> Option<Duration> {
        let played = self.played.0.lock().unwrap_or_else(PoisonError::into_inner);
        played.get(call).copied()
    }
}

/// One call: says hello, plays when the caller can hear, flushes at his first word or his clear.
fn serve_media_v1(mut link: Link, played: &Played) -> anyhow::Result<()> {
    let mut call = String::new();
    let mut interrupted = false;
    loop {
        match link.read()? {
            Message::Binary(bytes) if is_speech(&bytes) && !interrupted => {
                interrupted = true;
                flush(&mut link)?;
            }
            Message::Text(text) => {
                let message: Value = serde_json::from_str(&text)?;
                match message["type"].as_str().unwrap_or_default() {
                    "hello" => {
                        call = message["call"].as_str().unwrap_or_default().to_owned();
                        say(&mut link, &media_v1::hello())?;
                    }
                    "ready" => answer(&mut link)?,
                    "event" if message["event"]["type"] == CLEAR && !interrupted => {
                        interrupted = true;
                        flush(&mut link)?;
                    }
                    "flushed" => {
                        let samples = message["sent_samples"].as_u64().unwrap_or(0);
                        let nanos = samples * 1_000_000_000 / 48_000;
                        played.note(&call, Duration::from_nanos(nanos));
                    }
                    _ => {}
                }
            }
            Message::Close(_) => return Ok(()),
            _ => {}
        }
    }
}

fn flush(link: &mut Link) -> tungstenite::Result<()> {
    say(link, &json!({ "type": "flush" }))
}

/// All of the answer at once: the edge paces it.
fn answer(link: &mut Link) -> tungstenite::Result<()> {
    let count = (ANSWER.as_millis() / FRAME.as_millis()) as u32;
    for sequence in 0..count {
        let stamp = Stamp {
            call: u32::from(SEGMENT),
            sequence,
            intended_ns: 0,
        };
        link.write(media_v1::audio(0, SEGMENT, sequence, &stamp.write()))?;
    }
    link.flush()
}

/// Whether a message is a packet that a caller of this program said.
fn is_speech(bytes: &[u8]) -> bool {
    media_v1::packet(bytes).is_some_and(|packet| Stamp::read(packet).is_some())
}

/// One call: plays once it knows which call it is, says `speech_started` at the caller's first
/// word, and notes where the edge cuts the answer off.
fn serve_realtime(mut link: Link, answer: &[String], played: &Played) -> anyhow::Result<()> {
    realtime::greet(&mut link)?;
    let mut call = String::new();
    let mut interrupted = false;
    loop {
        match link.read()? {
            Message::Text(text) => {
                let event: Value = serde_json::from_str(&text)?;
                match event["type"].as_str().unwrap_or_default() {
                    INTRODUCTION => {
                        call = event["call"].as_str().unwrap_or_default().to_owned();
                        realtime::begin(&mut link)?;
                        for audio in answer {
                            link.write(Message::text(realtime::delta(audio).to_string()))?;
                        }
                        realtime::end(&mut link)?;
                    }
                    "input_audio_buffer.append" if !interrupted => {
                        let audio = event["audio"].as_str().unwrap_or_default();
                        interrupted = realtime::peak(audio)? >= LOUD;
                        if interrupted {
                            realtime::notice_speech(&mut link)?;
                        }
                    }
                    "conversation.item.truncate" => {
                        let end_ms = event["audio_end_ms"].as_u64().unwrap_or(0);
                        played.note(&call, Duration::from_millis(end_ms));
                    }
                    _ => {}
                }
            }
            Message::Close(_) => return Ok(()),
            _ => {}
        }
    }
}

/// The answer's sound, in pieces.
fn deltas() -> Vec<String> {
    let samples = realtime::RATE_HZ * DELTA.as_millis() as u32 / 1_000;
    let count = (ANSWER.as_millis() / DELTA.as_millis()) as u32;
    let pieces = (0..count).map(|piece| sound(realtime::RATE_HZ, piece * samples, samples));
    pieces.map(|pcm| realtime::encode(&pcm)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::super::super::links::media_v1::{AUDIO_IN, AUDIO_OUT, HEADER_BYTES};
    use super::*;

    fn dial(dialect: Dialect) -> (Backend, Link) {
        let backend = Backend::start(([127, 0, 0, 1], 0).into(), dialect).expect("a port");
        let url = backend.at().url;
        let address = url.trim_start_matches("ws://").trim_end_matches('/');
        let stream = TcpStream::connect(address).expect("it listens");
        let (link, _) = tungstenite::client(&url, stream).expect("a WebSocket");
        (backend, link)
    }

    fn event(link: &mut Link) -> Value {
        let message = link.read().expect("an event");
        serde_json::from_str(message.to_text().expect("text")).expect("JSON")
    }

    #[test]
    fn over_realtime_it_plays_all_at_once_and_stops_for_a_loud_word_only() {
        let (backend, mut link) = dial(Dialect::Realtime);
        assert_eq!(event(&mut link)["type"], "session.created");
        say(&mut link, &json!({ "type": INTRODUCTION, "call": "rtc_2" })).expect("said");
        let mut deltas = 0;
        loop {
            match event(&mut link)["type"].as_str() {
                Some("response.output_audio.delta") => deltas += 1,
                Some("response.done") => break,
                _ => {}
            }
        }
        assert_eq!(DELTA * deltas, ANSWER);
        for pcm in [[0; 480], [8_000; 480], [8_000; 480]] {
            let audio = realtime::encode(&pcm);
            let append = json!({ "type": "input_audio_buffer.append", "audio": audio });
            say(&mut link, &append).expect("said");
        }
        assert_eq!(
            event(&mut link)["type"],
            "input_audio_buffer.speech_started"
        );
        let truncate = json!({ "type": "conversation.item.truncate", "audio_end_ms": 640 });
        say(&mut link, &truncate).expect("said");
        link.close(None).expect("closed");
        // Nothing is said for the second word, and everything was read before the link is gone.
        assert!(!link.read().is_ok_and(|message| message.is_text()));
        while link.read().is_ok() {}
        assert_eq!(backend.played("rtc_2"), Some(Duration::from_millis(640)));
    }

    /// Plays the edge: reads until the answer has begun, says `interruption`, and takes the flush.
    fn interrupt(interruption: Message) -> (Value, Option<Duration>) {
        let (backend, mut socket) = dial(Dialect::MediaV1);
        let hello = json!({ "type": "hello", "versions": [1], "call": "rtc_1" });
        say(&mut socket, &hello).expect("said");
        let answer = socket.read().expect("a hello");
        let answer: Value = serde_json::from_str(answer.to_text().expect("text")).expect("JSON");
        say(&mut socket, &json!({ "type": "ready" })).expect("said");
        let first = socket.read().expect("audio").into_data();
        assert_eq!((first[0], first[2]), (AUDIO_OUT, 1));
        assert!(Stamp::read(&first[HEADER_BYTES..]).is_some());
        socket.send(interruption).expect("said");
        while !socket.read().expect("the rest").is_text() {}
        let flushed = json!({ "type": "flushed", "segment": 1, "sent_samples": 48_960 });
        say(&mut socket, &flushed).expect("said");
        socket.close(None).expect("closed");
        // The backend has read everything before the close when it answers that.
        while socket.read().is_ok() {}
        (answer, backend.played("rtc_1"))
    }

    #[test]
    fn flushes_at_the_callers_first_word_and_keeps_what_was_played() {
        let mut word = vec![0; HEADER_BYTES];
        word[0] = AUDIO_IN;
        let stamp = Stamp {
            call: 9,
            sequence: 0,
            intended_ns: 1,
        };
        word.extend_from_slice(&stamp.write());
        let (hello, played) = interrupt(Message::binary(word));
        assert_eq!(hello["audio_out"]["format"], "opus");
        assert_eq!(played, Some(Duration::from_millis(1_020)));
    }

    #[test]
    fn flushes_at_the_clients_clear() {
        let event = json!({ "type": "event", "event": { "type": CLEAR } });
        let (_, played) = interrupt(Message::text(event.to_string()));
        assert_eq!(played, Some(Duration::from_millis(1_020)));
    }

    #[test]
    fn a_gap_or_foreign_audio_is_no_word() {
        let mut gap = vec![0; HEADER_BYTES + 4];
        (gap[0], gap[1]) = (AUDIO_IN, 0b10);
        assert!(!is_speech(&gap) && !is_speech(&[]));
        let mut foreign = vec![0; HEADER_BYTES];
        foreign[0] = AUDIO_IN;
        foreign.extend([0x78, 1, 2, 3]);
        assert!(!is_speech(&foreign));
    }
}
