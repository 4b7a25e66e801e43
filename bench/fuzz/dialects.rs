//! What a backend may do to the edge, as scripts made of bytes: called by the fuzz targets, and by
//! the ordinary test run with every input of the corpus. Each panics when what it promises does
//! not hold.

#![allow(dead_code, unreachable_pub)] // Each target is one program, which uses one function.

use std::time::{Duration, Instant};

use syrinx_transceiver::backend::codec::{CodecCommand, CodecEpoch, CodecOutput};
use syrinx_transceiver::backend::link::{
    BackendId, LinkCause, LinkCommand, LinkDown, LinkEvent, LinkTarget,
};
use syrinx_transceiver::backend::media_v1::MediaV1;
use syrinx_transceiver::backend::media_v1::wire::{Header, MediaType, parse_pcm, push_pcm};
use syrinx_transceiver::backend::realtime::{Realtime, RealtimeOptions};
use syrinx_transceiver::backend::{Actions, Addressee, Backend, ClientEvent, Input};
use syrinx_transceiver::engine::AudioCodec;
use syrinx_transceiver::playout::{Output, QUEUE_SAMPLES_MAX};
use syrinx_transceiver::session::EndReason;
use syrinx_transceiver::session::events::Profile;

/// Opus, 20 ms: the head of a frame whose content nobody decodes here.
const FRAME: [u8; 3] = [31 << 3, 1, 2];

const MEDIA_V1_TEXTS: [&str; 9] = [
    r#"{"type":"hello","version":1}"#,
    r#"{"type":"hello","version":1,"speech":true,"flush_on_speech":true,
        "audio_in":{"format":"pcm16","sample_rate":16000},
        "audio_out":{"format":"pcm16","sample_rate":24000}}"#,
    r#"{"type":"end_of_segment","segment":1}"#,
    r#"{"type":"mark","name":"m"}"#,
    r#"{"type":"flush"}"#,
    r#"{"type":"event","event":{"type":"x"}}"#,
    r#"{"type":"clock","id":1}"#,
    r#"{"type":"close"}"#,
    r#"{"type":"session.update","session":{"a":1}}"#,
];

const REALTIME_TEXTS: [&str; 12] = [
    r#"{"type":"session.created","session":{"type":"realtime"}}"#,
    r#"{"type":"session.updated","session":{"input_audio_format":"g711_ulaw",
        "output_audio_format":"g711_alaw"}}"#,
    r#"{"type":"response.created","response":{"id":"r1"}}"#,
    r#"{"type":"response.created","response":{"id":"r2"}}"#,
    r#"{"type":"response.done",
        "response":{"id":"r1","status_details":{"reason":"turn_detected"}}}"#,
    r#"{"type":"response.done","response":{"id":"r2"}}"#,
    r#"{"type":"response.output_audio.delta","response_id":"r1","item_id":"a",
        "delta":"AAECAwQFBgc="}"#,
    r#"{"type":"response.audio.delta","response_id":"r2","item_id":"b","delta":"AAEC"}"#,
    r#"{"type":"response.output_audio.done","response_id":"r1","item_id":"a"}"#,
    r#"{"type":"input_audio_buffer.speech_started"}"#,
    r#"{"type":"output_audio_buffer.clear"}"#,
    r#"{"type":"response.cancel"}"#,
];

/// What is read of a binary message is written back to the same bytes, and a script of a `media.v1`
/// backend and its client never panics, overfills nothing, and says nothing after good-bye.
pub fn media_v1(data: &[u8]) {
    if let Ok((header, payload)) = Header::parse(data) {
        let mut written = header.to_message(payload.len());
        match parse_pcm(payload) {
            Some(pcm) => push_pcm(&mut written, &pcm),
            None => written.extend_from_slice(payload),
        }
        assert_eq!(written, data);
    }
    play(data, Box::new(MediaV1::new(target())), &MEDIA_V1_TEXTS);
}

/// A script of a Realtime backend and its client never panics, overfills nothing, and says nothing
/// after good-bye.
pub fn realtime(data: &[u8]) {
    let options = RealtimeOptions {
        takes_turns: data.first().is_some_and(|first| first % 2 == 0),
        ..RealtimeOptions::default()
    };
    play(
        data,
        Box::new(Realtime::new(target(), options)),
        &REALTIME_TEXTS,
    );
}

fn target() -> LinkTarget {
    LinkTarget {
        backend: BackendId(0),
        model: None,
        call: "rtc_1".to_owned(),
        subprotocol: None,
    }
}

struct Script<'a> {
    data: &'a [u8],
    texts: &'a [&'static str],
    now: Instant,
    backend: Box<dyn Backend>,
    actions: Actions,
    is_closed: bool,
}

fn play(data: &[u8], backend: Box<dyn Backend>, texts: &[&'static str]) {
    let profile = Profile {
        id: "rtc_1".to_owned(),
        model: None,
        members: Default::default(),
    };
    let mut actions = Actions::new(profile, 1);
    actions.set_client_codec(Some(AudioCodec::Opus));
    let mut script = Script {
        data,
        texts,
        now: Instant::now(),
        backend,
        actions,
        is_closed: false,
    };
    script.tell(Input::Start);
    while let Some(step) = script.byte() {
        script.step(step);
        if script.actions.closes().is_some() {
            break;
        }
    }
    script.tell(Input::Closing(EndReason::HungUp));
}

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.data.split_first()?;
        self.data = rest;
        Some(*first)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte().unwrap_or(0)).min(self.data.len());
        let (head, rest) = self.data.split_at(length);
        self.data = rest;
        head.to_vec()
    }

    fn known_text(&mut self) -> String {
        let index = usize::from(self.byte().unwrap_or(0)) % self.texts.len();
        self.texts[index].to_owned()
    }

    fn step(&mut self, step: u8) {
        match step % 12 {
            0 => self.link(LinkEvent::Up),
            1 => {
                let text = self.known_text();
                self.link(LinkEvent::Text(text));
            }
            2 => {
                let text = String::from_utf8_lossy(&self.bytes()).into_owned();
                self.link(LinkEvent::Text(text));
            }
            3 => {
                let bytes = self.bytes();
                self.link(LinkEvent::Binary(bytes));
            }
            4 | 5 => {
                let (segment, flags) = (self.byte().unwrap_or(0), self.byte().unwrap_or(0));
                self.audio(u16::from(segment), flags, step % 12 == 4);
            }
            6 => {
                let text = self.known_text();
                let (from, text) = (Addressee::Client, text.as_str());
                self.tell(Input::ClientEvent(ClientEvent { from, text }));
            }
            7 => {
                self.actions.playout().release();
                self.tell(Input::MediaReady);
            }
            8 => {
                let will_retry = self.byte().unwrap_or(0) < 250;
                let reason = LinkDown {
                    cause: LinkCause::Reset,
                    detail: String::new(),
                };
                self.link(LinkEvent::Down { reason, will_retry });
            }
            9 => {
                let pcm = vec![i16::from(step); 320];
                let (at, is_concealed) = (u64::from(step), false);
                self.tell(Input::Codec(CodecOutput::Pcm {
                    at,
                    pcm,
                    is_concealed,
                }));
            }
            _ => {
                let ms = u64::from(self.byte().unwrap_or(0)) * 10;
                self.pass(Duration::from_millis(ms));
            }
        }
    }

    fn audio(&mut self, segment: u16, flags: u8, is_opus: bool) {
        let header = Header {
            media: MediaType::AudioOut,
            flags,
            segment,
            sequence: 0,
            timestamp: 0,
            time_ns: 0,
        };
        let payload = if is_opus {
            FRAME.to_vec()
        } else {
            vec![flags; 960]
        };
        let mut message = header.to_message(payload.len());
        message.extend_from_slice(&payload);
        self.link(LinkEvent::Binary(message));
    }

    fn link(&mut self, event: LinkEvent) {
        if !self.is_closed {
            self.tell(Input::Link(event));
        }
    }

    /// Lets time pass, and does what a session does meanwhile.
    fn pass(&mut self, span: Duration) {
        self.now += span;
        if self.backend.poll_timeout().is_some_and(|at| at <= self.now) {
            self.tell(Input::Timeout);
        }
        for _ in 0..1_000 {
            match self.actions.playout().poll(self.now) {
                Some(Output::Event(event)) => self.tell(Input::Playout(event)),
                Some(Output::Packet(packet)) => assert!(!packet.payload.is_empty()),
                None => return,
            }
        }
    }

    fn tell(&mut self, input: Input<'_>) {
        self.backend.handle(self.now, input, &mut self.actions);
        let mut encoded = Vec::new();
        while let Some(command) = self.actions.pop_codec() {
            encoded.extend(run_codec(command));
        }
        while let Some(command) = self.actions.pop_link() {
            assert!(!self.is_closed, "nothing comes after good-bye: {command:?}");
            self.is_closed = matches!(command, LinkCommand::Close { .. });
        }
        while self.actions.pop_event().is_some() {}
        assert!(self.actions.waiting_playout().queued_samples() <= QUEUE_SAMPLES_MAX);
        for output in encoded {
            self.tell(Input::Codec(output));
        }
    }
}

/// Encodes as a codec that gives a frame for each job.
fn run_codec(command: CodecCommand) -> Option<CodecOutput> {
    let frame = |epoch: CodecEpoch, content: u32| CodecOutput::Frame {
        epoch,
        payload: FRAME.as_slice().into(),
        samples: 960,
        content,
    };
    match command {
        CodecCommand::Encode { epoch, pcm } => Some(frame(epoch, (pcm.len() as u32 * 2).min(960))),
        CodecCommand::EndEncode { epoch } => Some(CodecOutput::Ended { epoch }),
        _ => None,
    }
}
