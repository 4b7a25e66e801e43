//! A backend that plays a long answer and lets itself be interrupted at once: what is measured is
//! the edge and the way, not how long a model takes to make up its mind.
//!
//! It speaks `media.v1` with Opus both ways. The answer's packets are numbered, so that the caller
//! knows what he heard of it; the caller's own are stamped, so that his first word is known for
//! one.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use super::super::voice::{FRAME, Stamp};

/// Length of the answer: within the credit that an edge gives at once, and longer than anyone
/// listens.
const ANSWER: Duration = Duration::from_secs(20);
/// The header of a binary message.
const HEADER_BYTES: usize = 24;
const AUDIO_IN: u8 = 1;
const AUDIO_OUT: u8 = 2;
/// Flags of a message that is a gap: `lost` and `dtx`.
const GAP: u8 = 0b11;
/// The segment that the answer is.
pub(super) const SEGMENT: u16 = 1;
/// The event by which a client of the Realtime API interrupts.
pub(super) const CLEAR: &str = "output_audio_buffer.clear";

/// What the edge said it played of each interrupted answer, in samples at 48 kHz, by call.
type Played = Mutex<HashMap<String, u64>>;

/// A listening backend; it stops listening when dropped.
#[derive(Debug)]
pub(super) struct Backend {
    address: SocketAddr,
    played: Arc<Played>,
    over: Arc<AtomicBool>,
}

impl Backend {
    pub(super) fn start(listen: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(listen)
            .with_context(|| format!("the backend cannot listen at {listen}"))?;
        let address = listener.local_addr()?;
        let (played, over) = (Arc::<Played>::default(), Arc::<AtomicBool>::default());
        let (theirs, ended) = (Arc::clone(&played), Arc::clone(&over));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), played) = (stream, Arc::clone(&theirs)) else {
                    continue;
                };
                std::thread::spawn(move || {
                    // A link that breaks leaves its call without a figure, which is counted.
                    let _ = serve(stream, &played);
                });
            }
        });
        Ok(Self {
            address,
            played,
            over,
        })
    }

    pub(super) fn url(&self) -> String {
        format!("ws://{}/", self.address)
    }

    /// What the edge said it played of this call's answer.
    pub(super) fn played(&self, call: &str) -> Option<Duration> {
        let played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = played.get(call)?;
        Some(Duration::from_nanos(samples * 1_000_000_000 / 48_000))
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the listener, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}

/// One call: says hello, plays when the caller can hear, flushes at his first word or his clear.
fn serve(stream: TcpStream, played: &Played) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut socket = tungstenite::accept(stream)?;
    let mut call = String::new();
    let mut interrupted = false;
    loop {
        match socket.read()? {
            Message::Binary(bytes) if is_speech(&bytes) && !interrupted => {
                interrupted = true;
                flush(&mut socket)?;
            }
            Message::Text(text) => {
                let message: Value = serde_json::from_str(&text)?;
                match message["type"].as_str().unwrap_or_default() {
                    "hello" => {
                        call = message["call"].as_str().unwrap_or_default().to_owned();
                        say(&mut socket, &hello())?;
                    }
                    "ready" => answer(&mut socket)?,
                    "event" if message["event"]["type"] == CLEAR && !interrupted => {
                        interrupted = true;
                        flush(&mut socket)?;
                    }
                    "flushed" => {
                        let samples = message["sent_samples"].as_u64().unwrap_or(0);
                        let mut played = played.lock().unwrap_or_else(PoisonError::into_inner);
                        played.insert(call.clone(), samples);
                    }
                    _ => {}
                }
            }
            Message::Close(_) => return Ok(()),
            _ => {}
        }
    }
}

fn hello() -> Value {
    json!({
        "type": "hello", "version": 1, "playout_ms": 0,
        "audio_in": { "format": "opus" }, "audio_out": { "format": "opus" },
    })
}

fn say(socket: &mut WebSocket<TcpStream>, message: &Value) -> tungstenite::Result<()> {
    socket.send(Message::text(message.to_string()))
}

fn flush(socket: &mut WebSocket<TcpStream>) -> tungstenite::Result<()> {
    say(socket, &json!({ "type": "flush" }))
}

/// All of the answer at once: the edge paces it.
fn answer(socket: &mut WebSocket<TcpStream>) -> tungstenite::Result<()> {
    let count = (ANSWER.as_millis() / FRAME.as_millis()) as u32;
    for sequence in 0..count {
        let stamp = Stamp {
            call: u32::from(SEGMENT),
            sequence,
            intended_ns: 0,
        };
        let mut message = vec![0; HEADER_BYTES];
        message[0] = AUDIO_OUT;
        message[2..4].copy_from_slice(&SEGMENT.to_le_bytes());
        message[4..8].copy_from_slice(&sequence.to_le_bytes());
        message.extend_from_slice(&stamp.write());
        socket.write(Message::binary(message))?;
    }
    socket.flush()
}

/// Whether a message is a packet that a caller of this program said.
fn is_speech(bytes: &[u8]) -> bool {
    bytes.len() > HEADER_BYTES
        && bytes[0] == AUDIO_IN
        && bytes[1] & GAP == 0
        && Stamp::read(&bytes[HEADER_BYTES..]).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays the edge: reads until the answer has begun, says `interruption`, and takes the flush.
    fn interrupt(interruption: Message) -> (Value, Option<Duration>) {
        let backend = Backend::start(([127, 0, 0, 1], 0).into()).expect("a port");
        let stream = TcpStream::connect(backend.address).expect("it listens");
        let (mut socket, _) = tungstenite::client(backend.url(), stream).expect("a WebSocket");
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
