//! The dialect `realtime`: client of the OpenAI Realtime protocol over a WebSocket.
//!
//! The caller's audio is appended ([`listening`]); audio deltas of answers are taken off and
//! played; every other event passes both ways as it is, those that nobody here knows included.
//! What a WebSocket client of the protocol has to do for itself and a WebRTC client is spared is
//! done here: `output_audio_buffer.*` tells what is played, and when the caller interrupts, what
//! waits is thrown away and the backend is told the milliseconds that were really sent
//! ([`bookkeeping`]).

mod answering;
mod bookkeeping;
mod events;
mod listening;
mod names;
mod session;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::codec::{CodecOutput, CodecSetup};
use super::kept::{Kept, KeptEvents};
use super::link::{LinkBody, LinkClass, LinkCommand, LinkEvent, LinkMessage, LinkTarget};
use super::loss::Loss;
use super::voice::Voice;
use super::{Actions, Addressee, Backend, ClientEvent, EdgeError, Input, event_type};
use crate::playout::SegmentId;
use crate::session::EndReason;
use crate::session::inbound::Heard;
use bookkeeping::Answers;
use events::{Cancel, ErrorEvent, ResponseEvent, SessionInfo};
use listening::Listening;
use names::{FromBackend, FromClient};
use session::Session;

pub use events::AudioFormat;

/// How much of an answer can wait to be played, in samples at 48 kHz: five minutes, which is 14 MB
/// of PCM at 24 kHz and more than any answer lasts.
const ANSWER_SAMPLES_MAX: u64 = 5 * 60 * 48_000;
/// How long an open link waits for `session.created` before audio flows without it.
const CREATED_WAIT: Duration = Duration::from_secs(1);
/// After how many messages that make no sense a link is given up.
const FAULTS_MAX: u32 = 64;
/// How many of the edge's own events are remembered, to know errors about them.
const OWN_EVENTS_MAX: usize = 32;

/// Close codes (RFC 6455, 7.4.1): normal, and data that makes no sense.
const CLOSE_NORMAL: u16 = 1000;
const CLOSE_NONSENSE: u16 = 1007;

/// How a backend is to be spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RealtimeOptions {
    /// What the audio on the link should be. The protocol's own is PCM16 at 24 kHz.
    pub audio: AudioFormat,
    /// Whether the edge finds out when the caller speaks, for a backend that does not: it says
    /// `speech_started` and `speech_stopped`, commits what was said, and asks for an answer.
    pub takes_turns: bool,
    /// Whether an answer is silenced as soon as the edge hears the caller speak, a round trip
    /// before the backend says so.
    pub flushes_on_speech: bool,
}

impl Default for RealtimeOptions {
    fn default() -> Self {
        Self {
            audio: AudioFormat::Pcm16 { rate_hz: 24_000 },
            takes_turns: false,
            flushes_on_speech: false,
        }
    }
}

/// One session's side of the protocol; see the module.
#[derive(Debug)]
pub struct Realtime {
    target: LinkTarget,
    options: RealtimeOptions,
    phase: Phase,
    link_count: u32,
    faults: u32,
    kept: Kept,
    kept_events: KeptEvents,
    session: Session,
    has_channel: bool,
    listening: Listening,
    /// What audio deltas are, and the odd byte that ended the last one.
    output: AudioFormat,
    odd: Option<u8>,
    newest: Option<SegmentId>,
    interrupts: bool,
    answers: Answers,
    voice: Voice,
    own_events: VecDeque<String>,
}

#[derive(Debug)]
enum Phase {
    /// No link yet, or none again.
    Connecting,
    /// The link is up, and the backend's session is not known yet.
    Waiting {
        until: Instant,
    },
    Ready,
    /// There will be no link any more.
    Lost(Loss),
}

impl Backend for Realtime {
    fn handle(&mut self, now: Instant, input: Input<'_>, actions: &mut Actions) {
        match input {
            Input::Start => actions.link(LinkCommand::Open(self.target.clone())),
            Input::MediaReady => {}
            Input::Audio(audio) => self.hear(now, Heard::Audio(audio), actions),
            Input::Gap(gap) => self.hear(now, Heard::Gap(gap), actions),
            Input::Key(key) => self.hear(now, Heard::Key(key), actions),
            Input::ChannelOpen(channel) => {
                self.has_channel = true;
                self.session.handle_channel(now, channel, actions);
                if let Phase::Lost(loss) = &mut self.phase {
                    loss.handle_channel(now);
                }
            }
            Input::ClientEvent(event) => self.handle_client_event(now, event, actions),
            Input::Link(event) => self.handle_link(now, event, actions),
            Input::Codec(CodecOutput::Pcm {
                at,
                pcm,
                is_concealed,
            }) => {
                self.listening.handle_pcm(at, pcm, is_concealed, actions);
                self.take_turns(actions);
            }
            Input::Codec(encoded) => {
                self.voice.handle_codec(encoded, actions);
                self.voice.feed(now, actions);
            }
            Input::Playout(event) => self.handle_playout(event, actions),
            Input::Timeout => self.handle_timeout(now, actions),
            Input::Closing(reason) => self.say_goodbye(reason, actions),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let phase = match &self.phase {
            Phase::Waiting { until } => Some(*until),
            Phase::Lost(loss) => Some(loss.close_at()),
            Phase::Ready => self.listening.poll_timeout(),
            Phase::Connecting => None,
        };
        [
            phase,
            self.session.poll_timeout(),
            self.voice.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

impl Realtime {
    /// A session that will ask for a link to `target`.
    pub fn new(target: LinkTarget, options: RealtimeOptions) -> Self {
        let with_turns = options.takes_turns || options.flushes_on_speech;
        Self {
            target,
            options,
            phase: Phase::Connecting,
            link_count: 0,
            faults: 0,
            kept: Kept::default(),
            kept_events: KeptEvents::default(),
            session: Session::default(),
            has_channel: false,
            listening: Listening::new(options.audio, with_turns),
            output: options.audio,
            odd: None,
            newest: None,
            interrupts: true,
            answers: Answers::default(),
            voice: Voice::new(ANSWER_SAMPLES_MAX),
            own_events: VecDeque::new(),
        }
    }

    fn hear(&mut self, now: Instant, heard: Heard, actions: &mut Actions) {
        match &self.phase {
            Phase::Ready => self.listen(now, heard, actions),
            Phase::Connecting | Phase::Waiting { .. } => {
                actions.losses().unheard_samples += self.kept.push(now, heard);
            }
            Phase::Lost(_) => {}
        }
    }

    fn listen(&mut self, now: Instant, heard: Heard, actions: &mut Actions) {
        match heard {
            Heard::Audio(audio) => {
                self.listening.hear_audio(now, audio, actions);
                self.take_turns(actions);
            }
            Heard::Gap(gap) => {
                self.listening.hear_gap(gap, actions);
                self.take_turns(actions);
            }
            Heard::Key(key) => {
                let event_id = actions.event_id();
                let event = events::key_pressed(&event_id, key.key);
                actions.say(Addressee::Client, event);
            }
        }
    }

    fn handle_client_event(&mut self, now: Instant, event: ClientEvent<'_>, actions: &mut Actions) {
        match &self.phase {
            Phase::Ready => self.pass_event(now, event.text, actions),
            Phase::Connecting | Phase::Waiting { .. } => {
                if !self.kept_events.push(event.text) {
                    let error = EdgeError {
                        kind: "server_error",
                        code: "backend_not_ready",
                        message: "The model's server is not ready, and too many events wait.",
                    };
                    actions.say_error(event.from, error);
                }
            }
            Phase::Lost(_) => {}
        }
    }

    /// Passes an event of the client on, but for the one that is meant for the edge.
    fn pass_event(&mut self, now: Instant, text: &str, actions: &mut Actions) {
        let kind = event_type(text);
        match kind.as_deref().and_then(FromClient::parse) {
            Some(FromClient::OutputClear) => {
                self.stop(actions);
                return;
            }
            Some(FromClient::SessionUpdate) => self.session.handle_update(now, text),
            Some(FromClient::ResponseCancel) => {
                let cancel: Option<Cancel<'_>> = serde_json::from_str(text).ok();
                let response = cancel.and_then(|cancel| cancel.response_id);
                self.answers.handle_cancel(response.as_deref());
            }
            None => {}
        }
        send(text.to_owned(), actions);
    }

    fn handle_link(&mut self, now: Instant, event: LinkEvent, actions: &mut Actions) {
        if matches!(self.phase, Phase::Lost(_)) {
            return;
        }
        match event {
            LinkEvent::Up => {
                self.link_count += 1;
                self.faults = 0;
                let until = now + CREATED_WAIT;
                self.phase = Phase::Waiting { until };
            }
            LinkEvent::Text(text) => {
                if !self.handle_text(now, text, actions) {
                    self.note_fault(now, actions);
                }
            }
            LinkEvent::Binary(_) => self.note_fault(now, actions),
            LinkEvent::Down { will_retry, .. } => {
                self.let_go(now, actions);
                self.phase = if will_retry {
                    Phase::Connecting
                } else {
                    Phase::Lost(Loss::new(now, self.has_channel, actions))
                };
            }
        }
    }

    /// Handles an event of the backend; whether it made sense.
    fn handle_text(&mut self, now: Instant, text: String, actions: &mut Actions) -> bool {
        let Some(kind) = event_type(&text) else {
            return false;
        };
        match FromBackend::parse(&kind) {
            None => {}
            Some(FromBackend::AudioDelta) => return self.handle_delta(now, &text, actions),
            Some(FromBackend::AudioDone) => self.handle_audio_done(now, &text, actions),
            Some(FromBackend::SpeechStarted) => {
                actions.say(Addressee::Client, text);
                if self.interrupts {
                    self.interrupt(actions);
                }
                return true;
            }
            Some(FromBackend::ResponseCreated) => {
                let Some(event) = parse::<ResponseEvent<'_>>(&text) else {
                    return false;
                };
                self.answers.handle_created(&event.response.id);
            }
            Some(FromBackend::ResponseDone) => return self.handle_done(now, text, actions),
            Some(FromBackend::SessionCreated) => {
                return self.handle_created(now, text, actions);
            }
            Some(FromBackend::SessionUpdated) => {
                self.adopt(&text, actions);
                if !self.session.handle_updated() {
                    return true;
                }
            }
            Some(FromBackend::Error) => {
                let about = parse::<ErrorEvent<'_>>(&text);
                if let Some(about) = about.as_ref().and_then(ErrorEvent::event_id) {
                    if self.own_events.iter().any(|own| own == about) {
                        tracing::debug!(call = self.target.call, text, "an error of our own");
                        return true;
                    }
                    self.session.handle_refused(about);
                }
            }
        }
        actions.say(Addressee::Client, text);
        true
    }

    fn handle_created(&mut self, now: Instant, text: String, actions: &mut Actions) -> bool {
        let Some(info) = self.adopt(&text, actions) else {
            return false;
        };
        if matches!(self.phase, Phase::Waiting { .. }) {
            self.begin(now, Some(&info), actions);
        }
        if self.link_count == 1 {
            self.session.handle_created(text, actions);
        } else {
            let error = EdgeError {
                kind: "server_error",
                code: "backend_restarted",
                message: "The model's server was lost and found again. It has forgotten the talk.",
            };
            actions.say_error(Addressee::Client, error);
        }
        true
    }

    /// Takes note of what the backend says its session is.
    fn adopt(&mut self, text: &str, actions: &mut Actions) -> Option<SessionInfo> {
        let pcm_rate_hz = match self.options.audio {
            AudioFormat::Pcm16 { rate_hz } => rate_hz,
            AudioFormat::G711(_) => 24_000,
        };
        let (info, session) = SessionInfo::parse(text, pcm_rate_hz)?;
        self.session.set_view(session);
        self.interrupts = info.interrupts;
        if let Some(input) = info.input {
            self.listening.set_format(input);
        }
        if let Some(output) = info.output.filter(|output| *output != self.output) {
            self.output = output;
            self.odd = None;
        }
        if matches!(self.phase, Phase::Ready) {
            self.open_codec(info.input.unwrap_or(self.options.audio), actions);
        }
        Some(info)
    }

    /// The backend listens: it is told what it must know, and then what has been kept for it.
    fn begin(&mut self, now: Instant, info: Option<&SessionInfo>, actions: &mut Actions) {
        self.phase = Phase::Ready;
        let input = info
            .and_then(|info| info.input)
            .unwrap_or(self.options.audio);
        self.open_codec(input, actions);
        for text in self
            .session
            .configure(now, info, self.options.audio, actions)
        {
            send(text, actions);
        }
        while let Some(event) = self.kept_events.pop() {
            self.pass_event(now, &event, actions);
        }
        while let Some((arrived, heard)) = self.kept.pop() {
            self.listen(arrived, heard, actions);
        }
    }

    fn open_codec(&mut self, input: AudioFormat, actions: &mut Actions) {
        if let Some(client) = actions.client_codec() {
            let setup = CodecSetup {
                client,
                decode_rate_hz: input.rate_hz(),
                encode_rate_hz: self.output.rate_hz(),
            };
            self.voice.open(setup, actions);
        }
    }

    fn handle_timeout(&mut self, now: Instant, actions: &mut Actions) {
        match &self.phase {
            Phase::Waiting { until } if *until <= now => self.begin(now, None, actions),
            Phase::Ready => {
                self.listening.handle_timeout(now, actions);
                self.take_turns(actions);
            }
            Phase::Lost(loss) => loss.handle_timeout(now, actions),
            Phase::Waiting { .. } | Phase::Connecting => {}
        }
        self.session.handle_timeout(now, actions);
        if self.voice.poll_timeout().is_some_and(|at| at <= now) {
            self.voice.feed(now, actions);
        }
    }

    /// A message made no sense. It is left out; a backend that gives too many is given up.
    fn note_fault(&mut self, now: Instant, actions: &mut Actions) {
        self.faults += 1;
        actions.losses().faults += 1;
        if self.faults == FAULTS_MAX {
            let reason = "too many messages that are no events".to_owned();
            let code = CLOSE_NONSENSE;
            actions.link(LinkCommand::Close { code, reason });
            self.let_go(now, actions);
            self.phase = Phase::Lost(Loss::new(now, self.has_channel, actions));
        }
    }

    /// The link is gone: what was said plays on, and nothing is added to it.
    fn let_go(&mut self, now: Instant, actions: &mut Actions) {
        let segments = self.answers.handle_down();
        self.end_segments(now, segments, actions);
        self.session.handle_down();
        self.say_stopped(actions);
    }

    fn say_goodbye(&mut self, reason: EndReason, actions: &mut Actions) {
        self.voice.close(actions);
        if !matches!(self.phase, Phase::Lost(_)) {
            let (code, reason) = (CLOSE_NORMAL, reason.label().to_owned());
            actions.link(LinkCommand::Close { code, reason });
        }
    }

    fn own_event_id(&mut self, actions: &mut Actions) -> String {
        let event_id = actions.event_id();
        if self.own_events.len() == OWN_EVENTS_MAX {
            self.own_events.pop_front();
        }
        self.own_events.push_back(event_id.clone());
        event_id
    }
}

fn parse<'a, T: serde::Deserialize<'a>>(text: &'a str) -> Option<T> {
    serde_json::from_str(text).ok()
}

fn say_buffer(what: &str, response: &str, actions: &mut Actions) {
    let event_id = actions.event_id();
    let event = events::output_buffer(what, &event_id, response);
    actions.say(Addressee::Client, event);
}

fn send(text: String, actions: &mut Actions) {
    actions.link(LinkCommand::Send(LinkMessage {
        class: LinkClass::Control,
        body: LinkBody::Text(text),
    }));
}
