//! The backend that sends each caller's audio back: what a link adds to a call is the difference to
//! the echo that is built into the transceiver.
//!
//! Over `media.v1` each packet goes back as it came, flagged `live`; one that a measurement stamped
//! is marked with the time. Over `realtime`, where nothing
//! can be, all that is loud goes back as one long answer; silence does not, so that audio that has
//! piled up is gone by the next pause.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tungstenite::Message;

use super::super::burst::LOUD;
use super::super::clock::monotonic_ns;
use super::super::voice::Stamp;
use super::{Link, Links, media_v1, realtime, say};
use crate::process::edge::Dialect;

/// How often a backend looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Echoes at `listen` until `stop`.
///
/// # Errors
/// When it cannot listen there.
pub fn run(listen: SocketAddr, dialect: Dialect, stop: &AtomicBool) -> anyhow::Result<()> {
    let links = Links::start(listen, serve(dialect))?;
    println!("{}", links.url());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn serve(dialect: Dialect) -> fn(Link) -> anyhow::Result<()> {
    match dialect {
        Dialect::MediaV1 => serve_media_v1,
        Dialect::Realtime => serve_realtime,
    }
}

fn serve_media_v1(mut link: Link) -> anyhow::Result<()> {
    let mut sequence = 0;
    loop {
        match link.read()? {
            Message::Binary(bytes) => {
                if let Some(packet) = media_v1::packet(&bytes) {
                    let mut packet = packet.to_vec();
                    Stamp::mark(&mut packet, monotonic_ns());
                    link.send(media_v1::audio(media_v1::LIVE, 1, sequence, &packet))?;
                    sequence = sequence.wrapping_add(1);
                }
            }
            Message::Text(text) => {
                let message: Value = serde_json::from_str(&text)?;
                if message["type"] == "hello" {
                    say(&mut link, &media_v1::hello())?;
                }
            }
            Message::Close(_) => return Ok(()),
            _ => {}
        }
    }
}

fn serve_realtime(mut link: Link) -> anyhow::Result<()> {
    realtime::greet(&mut link)?;
    realtime::begin(&mut link)?;
    loop {
        match link.read()? {
            Message::Text(text) => {
                let event: Value = serde_json::from_str(&text)?;
                let audio = event["audio"].as_str().unwrap_or_default();
                if realtime::peak(audio)? >= LOUD {
                    say(&mut link, &realtime::delta(audio))?;
                }
            }
            Message::Close(_) => return Ok(()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use serde_json::json;

    use super::*;

    fn dial(dialect: Dialect) -> (Links, Link) {
        let links = Links::start(([127, 0, 0, 1], 0).into(), serve(dialect)).expect("a port");
        let stream = TcpStream::connect(links.address).expect("it listens");
        let (link, _) = tungstenite::client(links.url(), stream).expect("a WebSocket");
        (links, link)
    }

    fn heard(link: &mut Link) -> Value {
        let message = link.read().expect("a message");
        serde_json::from_str(message.to_text().expect("text")).expect("JSON")
    }

    #[test]
    fn media_v1_gives_packets_back_as_they_came_and_no_gaps() {
        let (_links, mut link) = dial(Dialect::MediaV1);
        say(&mut link, &json!({ "type": "hello", "versions": [1] })).expect("said");
        assert_eq!(heard(&mut link)["version"], 1);
        let mut message = vec![0; media_v1::HEADER_BYTES];
        message[0] = media_v1::AUDIO_IN;
        let gap = [&message[..1], &[1], &message[2..], &[0, 4, 0, 0]].concat();
        link.send(Message::binary(gap)).expect("said");
        message.extend([0x78, 7, 8, 9]);
        link.send(Message::binary(message)).expect("said");
        let back = link.read().expect("it echoes").into_data();
        assert_eq!(back[..2], [media_v1::AUDIO_OUT, media_v1::LIVE]);
        assert_eq!(back[media_v1::HEADER_BYTES..], [0x78, 7, 8, 9]);
    }

    #[test]
    fn media_v1_marks_a_stamped_packet_with_the_time() {
        let (_links, mut link) = dial(Dialect::MediaV1);
        let stamp = Stamp {
            call: 1,
            sequence: 2,
            intended_ns: 3,
        };
        let mut message = vec![0; media_v1::HEADER_BYTES];
        message[0] = media_v1::AUDIO_IN;
        message.extend_from_slice(&stamp.write());
        let before = monotonic_ns();
        link.send(Message::binary(message)).expect("said");
        let back = link.read().expect("it echoes").into_data();
        let packet = &back[media_v1::HEADER_BYTES..];
        assert_eq!(Stamp::read(packet), Some(stamp));
        let marked = Stamp::marked_ns(packet).expect("a mark");
        assert!((before..=monotonic_ns()).contains(&marked));
    }

    #[test]
    fn realtime_gives_loud_audio_back_in_an_answer_and_leaves_silence_out() {
        let (_links, mut link) = dial(Dialect::Realtime);
        let begun: Vec<Value> = (0..3).map(|_| heard(&mut link)).collect();
        assert_eq!(begun[0]["type"], "session.created");
        assert_eq!(begun[1]["type"], "response.created");
        for pcm in [[0; 480], [-9_000; 480]] {
            let audio = realtime::encode(&pcm);
            let append = json!({ "type": "input_audio_buffer.append", "audio": audio });
            say(&mut link, &append).expect("said");
        }
        let delta = heard(&mut link);
        assert_eq!(delta["type"], "response.output_audio.delta");
        assert_eq!(delta["response_id"], begun[1]["response"]["id"]);
        let audio = delta["delta"].as_str().expect("audio");
        assert_eq!(realtime::peak(audio).expect("base64"), 9_000);
    }
}
