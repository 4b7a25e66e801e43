//! The dialect `media.v1`: audio in binary messages, everything else in small JSON ones.
//!
//! The manual (`backend-links.md`) is its specification. This file is the life of the link: hello
//! each way, agreement, faults, loss and good-bye. [`inward`] is what goes to the backend, and
//! [`outward`] what comes from it.

mod inward;
mod messages;
mod outward;
pub mod wire;

use std::time::{Duration, Instant};

use super::kept::{Kept, KeptEvents};
use super::link::{
    LinkBody, LinkClass, LinkCommand, LinkEvent, LinkMessage, LinkTarget, close_reason,
};
use super::loss::Loss;
use super::session_view::{SESSION_UPDATE, SessionView};
use super::turns::Speech;
use super::{Actions, Addressee, Backend, ClientEvent, EdgeError, Input};
use crate::backend::codec::{CodecOutput, CodecSetup};
use crate::engine::AudioCodec;
use crate::playout::{MARKS_MAX, QUEUE_SAMPLES_MAX};
use crate::session::EndReason;
use crate::session::inbound::Heard;
use inward::Inward;
use messages::{Format, FromBackend, Hello, Limits, SAMPLE_RATES, ToBackend, VERSION};
use outward::{CREDIT_SAMPLES, Outward};

/// The WebSocket subprotocol.
pub const SUBPROTOCOL: &str = "syrinx.media.v1";
/// Largest message that is taken from a backend, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// How long a backend has for its hello.
const HELLO_WAIT: Duration = Duration::from_secs(5);
/// After how many faulty messages a link is given up.
const FAULTS_MAX: u32 = 16;

/// Close codes; see the manual.
const CLOSE_NORMAL: u16 = 1000;
const CLOSE_NO_HELLO: u16 = 4000;
const CLOSE_VERSION: u16 = 4001;
const CLOSE_HELLO: u16 = 4002;
const CLOSE_FAULTS: u16 = 4003;

/// One session's side of the protocol; see the module.
#[derive(Debug)]
pub struct MediaV1 {
    target: LinkTarget,
    /// When the call was offered: zero of the times that are told.
    epoch: Option<Instant>,
    phase: Phase,
    link_count: u16,
    faults: u32,
    kept: Kept,
    kept_events: KeptEvents,
    view: SessionView,
    has_channel: bool,
    can_hear: bool,
    outward: Outward,
}

#[derive(Debug)]
enum Phase {
    /// No link yet, or none again.
    Connecting,
    /// The edge has said hello.
    Greeting { until: Instant },
    /// Both have.
    Agreed(Box<Agreement>),
    /// There will be no link any more.
    Lost(Loss),
    /// Good-bye has been said.
    Closed,
}

/// What the two hellos came to.
#[derive(Debug)]
struct Agreement {
    inward: Inward,
    answers_updates: bool,
    tells_speech: bool,
    flushes_on_speech: bool,
}

/// Why a link cannot go on: a close code, and what to say.
type Fatal = (u16, String);

impl Backend for MediaV1 {
    fn handle(&mut self, now: Instant, input: Input<'_>, actions: &mut Actions) {
        match input {
            Input::Start => {
                self.epoch = Some(now);
                actions.link(LinkCommand::Open(self.target.clone()));
            }
            Input::MediaReady => {
                self.can_hear = true;
                self.say_ready(now, actions);
            }
            Input::Audio(audio) => self.hear(now, Heard::Audio(audio), actions),
            Input::Gap(gap) => self.hear(now, Heard::Gap(gap), actions),
            Input::Key(key) => self.hear(now, Heard::Key(key), actions),
            Input::ChannelOpen(channel) => {
                self.has_channel = true;
                actions.greet(Addressee::Channel(channel));
                if let Phase::Lost(loss) = &mut self.phase {
                    loss.handle_channel(now);
                }
            }
            Input::ClientEvent(event) => self.handle_client_event(event, actions),
            Input::Link(event) => self.handle_link(now, event, actions),
            Input::Codec(output) => self.handle_codec(now, output, actions),
            Input::Playout(event) => {
                let time_ns = self.time_ns(now);
                let is_agreed = matches!(self.phase, Phase::Agreed(_));
                self.outward
                    .handle_playout(now, time_ns, event, is_agreed, actions);
            }
            Input::Timeout => self.handle_timeout(now, actions),
            Input::Closing(reason) => self.say_goodbye(reason, actions),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let phase = match &self.phase {
            Phase::Greeting { until } => Some(*until),
            Phase::Lost(loss) => Some(loss.close_at()),
            Phase::Connecting | Phase::Agreed(_) | Phase::Closed => None,
        };
        [phase, self.outward.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }
}

impl MediaV1 {
    /// A session that will ask for a link to `target`.
    pub fn new(target: LinkTarget) -> Self {
        Self {
            target: LinkTarget {
                subprotocol: Some(SUBPROTOCOL),
                ..target
            },
            epoch: None,
            phase: Phase::Connecting,
            link_count: 0,
            faults: 0,
            kept: Kept::default(),
            kept_events: KeptEvents::default(),
            view: SessionView::default(),
            has_channel: false,
            can_hear: false,
            outward: Outward::default(),
        }
    }

    fn time_ns(&self, now: Instant) -> u64 {
        let since = self.epoch.map(|epoch| now.saturating_duration_since(epoch));
        u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
    }

    fn hear(&mut self, now: Instant, heard: Heard, actions: &mut Actions) {
        let time_ns = self.time_ns(now);
        match &mut self.phase {
            Phase::Agreed(agreement) => {
                agreement.inward.hear(time_ns, heard, actions);
                self.send_heard(now, actions);
            }
            Phase::Connecting | Phase::Greeting { .. } => {
                actions.losses().unheard_samples += self.kept.push(now, heard);
            }
            Phase::Lost(_) | Phase::Closed => {}
        }
    }

    /// Sends what is decoded of the caller, and acts on it where he starts or stops to speak.
    fn send_heard(&mut self, now: Instant, actions: &mut Actions) {
        while let Phase::Agreed(agreement) = &mut self.phase {
            let Some(speech) = agreement.inward.poll(actions) else {
                return;
            };
            let (state, timestamp) = match speech {
                Speech::Started(at) => ("started", at),
                Speech::Stopped(at) => ("stopped", at),
            };
            if agreement.tells_speech {
                send(&ToBackend::Speech { state, timestamp }, actions);
            }
            if agreement.flushes_on_speech && state == "started" {
                self.outward.flush(now, actions);
            }
        }
    }

    fn handle_client_event(&mut self, event: ClientEvent<'_>, actions: &mut Actions) {
        match &self.phase {
            Phase::Agreed(agreement) => {
                let answers_updates = agreement.answers_updates;
                self.pass_event(event.text, answers_updates, actions);
            }
            Phase::Connecting | Phase::Greeting { .. } => {
                if !self.kept_events.push(event.text) {
                    let error = EdgeError {
                        kind: "server_error",
                        code: "backend_not_ready",
                        message: "The model's server is not ready, and too many events wait.",
                    };
                    actions.say_error(event.from, error);
                }
            }
            Phase::Lost(_) | Phase::Closed => {}
        }
    }

    /// The backend is told every event; the edge answers the one that a client waits for.
    fn pass_event(&mut self, event: &str, answers_updates: bool, actions: &mut Actions) {
        let text = format!(r#"{{"type":"event","event":{event}}}"#);
        send_text(text, actions);
        let is_update = answers_updates && is_session_update(event);
        if is_update && let Some(updated) = self.view.update(event, actions) {
            actions.say(Addressee::Client, updated);
        }
    }

    fn handle_link(&mut self, now: Instant, event: LinkEvent, actions: &mut Actions) {
        if matches!(self.phase, Phase::Lost(_) | Phase::Closed) {
            return;
        }
        match event {
            LinkEvent::Up => self.say_hello(now, actions),
            LinkEvent::Text(text) => {
                if let Err(fatal) = self.handle_text(now, &text, actions) {
                    self.give_up(now, fatal, actions);
                }
            }
            LinkEvent::Binary(message) => {
                if let Err(fatal) = self.handle_binary(now, &message, actions) {
                    self.give_up(now, fatal, actions);
                }
            }
            LinkEvent::Down { will_retry, .. } => {
                self.outward.handle_down(now, actions);
                self.phase = if will_retry {
                    Phase::Connecting
                } else {
                    Phase::Lost(Loss::new(now, self.has_channel, actions))
                };
            }
        }
    }

    fn say_hello(&mut self, now: Instant, actions: &mut Actions) {
        self.link_count = self.link_count.saturating_add(1);
        self.faults = 0;
        let formats: &[_] = match actions.client_codec() {
            Some(AudioCodec::Opus) => &["opus", "pcm16"],
            _ => &["pcm16"],
        };
        let profile = actions.profile().clone();
        let hello = ToBackend::Hello {
            versions: [VERSION],
            call: &profile.id,
            model: profile.model.as_deref(),
            session: &profile.members,
            link: u32::from(self.link_count),
            formats,
            sample_rates: SAMPLE_RATES,
            credit_samples: CREDIT_SAMPLES,
            time_ns: self.time_ns(now),
            limits: Limits {
                message_bytes: MESSAGE_BYTES_MAX,
                queue_samples: QUEUE_SAMPLES_MAX,
                marks: MARKS_MAX,
                faults: FAULTS_MAX,
            },
        };
        send(&hello, actions);
        let until = now + HELLO_WAIT;
        self.phase = Phase::Greeting { until };
    }

    fn handle_text(
        &mut self,
        now: Instant,
        text: &str,
        actions: &mut Actions,
    ) -> Result<(), Fatal> {
        let message = match FromBackend::parse(text) {
            Ok(message) => message,
            Err(fault) => return self.note_fault(fault.code(), &fault.to_string(), actions),
        };
        let is_greeting = matches!(self.phase, Phase::Greeting { .. });
        match message {
            FromBackend::Hello(hello) if is_greeting => self.agree(now, &hello, actions),
            FromBackend::Close { reason } => {
                tracing::info!(call = self.target.call, reason, "the backend ends the call");
                self.phase = Phase::Closed;
                close_link(CLOSE_NORMAL, "", actions);
                actions.close(EndReason::BackendClosed);
                Ok(())
            }
            FromBackend::Hello(_) => self.note_fault("malformed", "one hello is enough", actions),
            _ if is_greeting => self.note_fault("malformed", "hello comes first", actions),
            FromBackend::Event { event } => {
                actions.say(Addressee::Client, event.to_owned());
                Ok(())
            }
            FromBackend::Clock { id } => {
                let time_ns = self.time_ns(now);
                send(&ToBackend::Clock { id, time_ns }, actions);
                Ok(())
            }
            FromBackend::Flush => {
                self.outward.flush(now, actions);
                Ok(())
            }
            FromBackend::EndOfSegment { segment } => {
                let ended = self.outward.end_of_segment(now, segment, actions);
                self.note_outcome(ended, actions)
            }
            FromBackend::Mark { name } => {
                let marked = self.outward.mark(now, name, actions);
                self.note_outcome(marked, actions)
            }
        }
    }

    fn handle_binary(
        &mut self,
        now: Instant,
        message: &[u8],
        actions: &mut Actions,
    ) -> Result<(), Fatal> {
        if !matches!(self.phase, Phase::Agreed(_)) {
            return self.note_fault("malformed", "hello comes first", actions);
        }
        let taken = self.outward.handle_audio(now, message, actions);
        self.note_outcome(taken, actions)
    }

    fn note_outcome(
        &mut self,
        outcome: Result<(), outward::Refusal>,
        actions: &mut Actions,
    ) -> Result<(), Fatal> {
        match outcome {
            Ok(()) => Ok(()),
            Err(refusal) if refusal.is_fault() => {
                self.note_fault(refusal.code(), &refusal.to_string(), actions)
            }
            Err(refusal) => {
                let message = refusal.to_string();
                let code = refusal.code();
                let error = ToBackend::Error {
                    code,
                    message: &message,
                };
                send(&error, actions);
                Ok(())
            }
        }
    }

    /// Tells the backend that a message of its was left out, unless there have been too many.
    fn note_fault(
        &mut self,
        code: &'static str,
        message: &str,
        actions: &mut Actions,
    ) -> Result<(), Fatal> {
        self.faults += 1;
        actions.losses().faults += 1;
        if self.faults >= FAULTS_MAX {
            let reason = format!("too many faulty messages; the last one: {message}");
            return Err((CLOSE_FAULTS, reason));
        }
        send(&ToBackend::Error { code, message }, actions);
        Ok(())
    }

    fn agree(
        &mut self,
        now: Instant,
        hello: &Hello<'_>,
        actions: &mut Actions,
    ) -> Result<(), Fatal> {
        if hello.version != VERSION {
            let reason = format!("version {} was not offered, {VERSION} was", hello.version);
            return Err((CLOSE_VERSION, reason));
        }
        let is_opus = actions.client_codec() == Some(AudioCodec::Opus);
        let usable = |format: &Format| *format != Format::Opus || is_opus;
        let unusable = |field: &str| (CLOSE_HELLO, format!("{field} is no format of the hello's"));
        let audio_in = hello.audio_in.as_format().filter(usable);
        let audio_in = audio_in.ok_or_else(|| unusable("audio_in"))?;
        let audio_out = hello.audio_out.as_format().filter(usable);
        let audio_out = audio_out.ok_or_else(|| unusable("audio_out"))?;
        let answers_updates = match hello.session.as_deref() {
            None | Some("edge") => true,
            Some("backend") => false,
            Some(_) => return Err((CLOSE_HELLO, "session is edge or backend".to_owned())),
        };
        let playout_ms = match hello.playout_ms {
            0 => None,
            ms @ 20..=10_000 => Some(Duration::from_millis(ms)),
            _ => return Err((CLOSE_HELLO, "playout_ms is 0 or 20 to 10000".to_owned())),
        };
        let mut inward = Inward::new(audio_in, hello.speech || hello.flush_on_speech);
        self.open_codec(inward.decode_rate_hz(), audio_out, actions);
        self.outward
            .agree(self.link_count, audio_out, playout_ms, actions);
        while let Some((arrived, heard)) = self.kept.pop() {
            inward.hear(self.time_ns(arrived), heard, actions);
        }
        self.phase = Phase::Agreed(Box::new(Agreement {
            inward,
            answers_updates,
            tells_speech: hello.speech,
            flushes_on_speech: hello.flush_on_speech,
        }));
        self.send_heard(now, actions);
        while let Some(event) = self.kept_events.pop() {
            self.pass_event(&event, answers_updates, actions);
        }
        self.say_ready(now, actions);
        Ok(())
    }

    fn open_codec(&mut self, decode: Option<u32>, audio_out: Format, actions: &mut Actions) {
        let Some(client) = actions.client_codec() else {
            return;
        };
        let encode = match audio_out {
            Format::Pcm16 { rate_hz } => Some(rate_hz),
            Format::None | Format::Opus => None,
        };
        let Some(any) = decode.or(encode) else {
            return;
        };
        let setup = CodecSetup {
            client,
            decode_rate_hz: decode.unwrap_or(any),
            encode_rate_hz: encode.unwrap_or(any),
        };
        self.outward.open_codec(setup, actions);
    }

    fn say_ready(&self, now: Instant, actions: &mut Actions) {
        if self.can_hear && matches!(self.phase, Phase::Agreed(_)) {
            let time_ns = self.time_ns(now);
            send(&ToBackend::Ready { time_ns }, actions);
        }
    }

    fn handle_codec(&mut self, now: Instant, output: CodecOutput, actions: &mut Actions) {
        match output {
            CodecOutput::Pcm {
                at,
                pcm,
                is_concealed,
            } => {
                if let Phase::Agreed(agreement) = &mut self.phase {
                    agreement.inward.handle_pcm(at, pcm, is_concealed);
                    self.send_heard(now, actions);
                }
            }
            encoded => self.outward.handle_codec(now, encoded, actions),
        }
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        match &self.phase {
            Phase::Greeting { until } if *until <= now => {
                let reason = "no hello within five seconds".to_owned();
                self.give_up(now, (CLOSE_NO_HELLO, reason), actions);
            }
            Phase::Lost(loss) => loss.handle_timeout(now, actions),
            _ => {}
        }
        let time_ns = self.time_ns(now);
        let is_agreed = matches!(self.phase, Phase::Agreed(_));
        self.outward
            .handle_timeout(now, time_ns, is_agreed, actions);
    }

    /// Closes a link whose backend does not keep to the protocol; there is no other to be had.
    fn give_up(&mut self, now: Instant, (code, reason): Fatal, actions: &mut Actions) {
        tracing::warn!(
            call = self.target.call,
            code,
            reason,
            "a backend is given up"
        );
        close_link(code, &reason, actions);
        self.outward.handle_down(now, actions);
        self.phase = Phase::Lost(Loss::new(now, self.has_channel, actions));
    }

    fn say_goodbye(&mut self, reason: EndReason, actions: &mut Actions) {
        self.outward.close_codec(actions);
        match std::mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Greeting { .. } | Phase::Agreed(_) => {
                let reason = reason.label();
                send(&ToBackend::Close { reason }, actions);
                close_link(CLOSE_NORMAL, reason, actions);
            }
            Phase::Connecting => close_link(CLOSE_NORMAL, reason.label(), actions),
            Phase::Lost(_) | Phase::Closed => {}
        }
    }
}

fn is_session_update(event: &str) -> bool {
    super::event_type(event).is_some_and(|kind| kind == SESSION_UPDATE)
}

fn send(message: &ToBackend<'_>, actions: &mut Actions) {
    send_text(message.to_text(), actions);
}

fn send_text(text: String, actions: &mut Actions) {
    actions.link(LinkCommand::Send(LinkMessage {
        class: LinkClass::Control,
        body: LinkBody::Text(text),
    }));
}

fn close_link(code: u16, reason: &str, actions: &mut Actions) {
    let reason = close_reason(reason);
    actions.link(LinkCommand::Close { code, reason });
}
