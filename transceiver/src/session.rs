//! One session: the life of a call between its offer and its end.
//!
//! A session owns the [`Engine`] that speaks WebRTC, the paths to the client, the [`Backend`] that
//! answers, and the deadlines that end it. What it guards:
//!
//! - **Nothing unauthenticated is answered or changes anything.** A datagram that did not come by
//!   an admitted path must be a Binding request with the right cookie and integrity; anything else
//!   is refused before the engine sees it. An engine left alone accepts DTLS and RTP from
//!   anywhere, and a handful of forged DTLS datagrams ends its handshake.
//! - **It ends, once, for a reason.** Set-up has a deadline, and so has silence: liveness counts
//!   from the last packet that authenticated, whatever ICE thinks.
//! - **A step is bounded.** One datagram or one time-out leads to a limited number of outputs.

pub mod events;
mod paths;
mod reception;
mod summary;

use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;
use syrinx_shared::keys::{KeyRing, PASSWORD_CHARS};
use syrinx_shared::route::{Epoch, Now, SessionRef};
use syrinx_shared::wire::demux::{Protocol, classify};
use syrinx_shared::wire::encap::{Control, RawHeader, Record, RecordHeader};
use syrinx_shared::wire::stun::{BindingRequest, StunError};
use syrinx_shared::wire::train::TrainDestination;

use crate::backend::{Backend, Replies};
use crate::engine::{AudioIn, ChannelId, ChannelWrite, Engine, Event, Output, Transmit};
use events::{EventFault, EventIds, Profile};
use paths::{Path, PathIndex, Paths};

pub use reception::Reception;
pub use summary::{EndReason, Phases, Summary};

/// Outputs of one step: the largest message that can be written is about 120 datagrams, and a step
/// that gives ten times as many is not making progress.
const OUTPUTS_MAX: usize = 1_200;
const _: () = assert!(OUTPUTS_MAX > 10 * (crate::engine::CHANNEL_BUFFER_BYTES / 1_150));
/// Data channels that are greeted and answered; the API uses one.
const CHANNELS_MAX: usize = 8;

/// When a session ends by itself.
#[derive(Debug, Clone, Copy)]
pub struct Lifetimes {
    /// From the offer until media can flow.
    pub setup: Duration,
    /// From the last authenticated packet. RFC 7675 (5.1) ends consent after 30 s.
    pub silence: Duration,
}

/// Everything a session starts with. Made by the control thread, sent to the worker.
pub struct Opening {
    /// Where it lives: shard, slot and generation.
    pub session: SessionRef,
    /// Whose keys its ufrag was minted with, and its cookies are made with.
    pub epoch: Epoch,
    /// The ICE password that belongs to the ufrag.
    pub password: [u8; PASSWORD_CHARS],
    /// The engine that answered the offer.
    pub engine: Engine,
    /// Who answers the caller.
    pub backend: Box<dyn Backend>,
    /// What `session.created` says.
    pub profile: Profile,
    /// Random bits that tell its events from other sessions'.
    pub event_seed: u64,
    /// When the offer came.
    pub offered: Instant,
}

/// Takes the datagrams that go back to relays.
pub trait TransmitSink {
    /// Sends `payload` behind `header` to a relay's worker. The header is complete but for the
    /// payload's length.
    fn transmit(&mut self, to: TrainDestination, header: &RawHeader, payload: &[u8]);
}

/// What a step needs from outside.
pub(crate) struct Step<'a, S> {
    pub(crate) now: Now,
    pub(crate) keys: &'a KeyRing,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) sink: &'a mut S,
}

/// Why a record that names a live session was not taken. The session is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No protocol of a WebRTC client.
    Protocol,
    /// STUN, but malformed.
    MalformedStun,
    /// STUN, but no Binding request.
    NotBindingRequest,
    /// The first packet of a path, with the wrong cookie.
    Cookie,
    /// A Binding request made without the session's password.
    Integrity,
    /// DTLS, SRTP or SRTCP from where no check has come.
    Path,
    /// The session has had too many paths.
    PathsExhausted,
    /// The engine could not use it.
    Engine,
}

/// Whether a session goes on after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub(crate) enum Progress {
    Alive,
    Ended(EndReason),
}

/// One session; see the module.
pub(crate) struct Session {
    session: SessionRef,
    epoch: Epoch,
    password: [u8; PASSWORD_CHARS],
    engine: Engine,
    backend: Box<dyn Backend>,
    profile: Profile,
    event_ids: EventIds,
    paths: Paths,
    channels: Vec<ChannelId>,
    replies: Replies,
    engine_timeout: Instant,
    offered: Instant,
    /// The last packet that authenticated.
    heard: Instant,
    phases: Phases,
    reception: Reception,
    counts: summary::Counts,
    failure: Option<String>,
}

impl Session {
    pub(crate) fn new(opening: Opening) -> Self {
        let Opening {
            session,
            epoch,
            password,
            engine,
            backend,
            ..
        } = opening;
        Self {
            session,
            epoch,
            password,
            engine,
            backend,
            profile: opening.profile,
            event_ids: EventIds::new(opening.event_seed),
            paths: Paths::default(),
            channels: Vec::new(),
            replies: Replies::default(),
            engine_timeout: opening.offered,
            offered: opening.offered,
            heard: opening.offered,
            phases: Phases::default(),
            reception: Reception::default(),
            counts: summary::Counts::default(),
            failure: None,
        }
    }

    pub(crate) fn reference(&self) -> SessionRef {
        self.session
    }

    /// The first step: drains what the offer left in the engine.
    pub(crate) fn start<S: TransmitSink>(&mut self, step: &mut Step<'_, S>) -> Progress {
        self.settle(step, None)
    }

    /// A record that names this session came from a relay's worker.
    pub(crate) fn handle_record<S: TransmitSink>(
        &mut self,
        step: &mut Step<'_, S>,
        relay: TrainDestination,
        record: &Record<'_>,
    ) -> (Result<(), Refusal>, Progress) {
        let path = match self.admit(step, relay, record) {
            Ok(path) => path,
            Err(refusal) => return (Err(refusal), Progress::Alive),
        };
        let client = self.paths.at(path).client.addr();
        let taken = self
            .engine
            .handle_datagram(step.now.mono, client, record.payload);
        self.counts.datagrams_in += 1;
        // A datagram that the engine refuses can still have moved it, so what it has is drained.
        let progress = self.settle(step, Some(path));
        (taken.map_err(|_| Refusal::Engine), progress)
    }

    /// Time has come to [`Session::next_deadline`].
    pub(crate) fn handle_timeout<S: TransmitSink>(&mut self, step: &mut Step<'_, S>) -> Progress {
        let now = step.now.mono;
        if now >= self.life_deadline(step.lifetimes) {
            return Progress::Ended(self.expiry());
        }
        if now < self.engine_timeout {
            return Progress::Alive;
        }
        if let Err(error) = self.engine.handle_timeout(now) {
            return self.fail(error.to_string());
        }
        self.settle(step, None)
    }

    /// When the session next wants [`Session::handle_timeout`].
    pub(crate) fn next_deadline(&self, lifetimes: Lifetimes) -> Instant {
        self.engine_timeout.min(self.life_deadline(lifetimes))
    }

    /// Says good-bye to the client and frees its flows at the relays.
    pub(crate) fn finish<S: TransmitSink>(&mut self, step: &mut Step<'_, S>, reason: EndReason) {
        if reason.says_goodbye() && self.engine.is_alive() {
            self.engine.close();
            for _ in 0..OUTPUTS_MAX {
                match self.engine.poll() {
                    Ok(Output::Transmit(transmit)) => self.transmit(step, None, &transmit),
                    Ok(Output::Event(_)) => {}
                    Ok(Output::Timeout(_)) | Err(_) => break,
                }
            }
        }
        let closed = Control::FlowClosed.to_bytes();
        for path in self.paths.iter() {
            step.sink.transmit(path.relay, &path.control(), &closed);
        }
    }

    /// What there is to say of the session at `now`.
    pub(crate) fn summary(&self, now: Instant) -> Summary {
        Summary {
            session: self.session,
            id: self.profile.id.clone(),
            client: self.paths.current().map(|path| path.client),
            age: now.saturating_duration_since(self.offered),
            phases: self.phases,
            moves: self.paths.moves(),
            reception: self.reception.clone(),
            counts: self.counts,
            replies_dropped: self.replies.dropped(),
            failure: self.failure.clone(),
        }
    }

    fn life_deadline(&self, lifetimes: Lifetimes) -> Instant {
        if self.phases.connected.is_none() {
            self.offered + lifetimes.setup
        } else {
            self.heard + lifetimes.silence
        }
    }

    fn expiry(&self) -> EndReason {
        if self.phases.connected.is_none() {
            EndReason::SetupTimeout
        } else {
            EndReason::ClientSilent
        }
    }

    fn fail(&mut self, failure: String) -> Progress {
        self.failure = Some(failure);
        Progress::Ended(EndReason::EngineFailed)
    }

    /// Judges where a record came from. The path is admitted afterwards.
    fn admit<S>(
        &mut self,
        step: &Step<'_, S>,
        relay: TrainDestination,
        record: &Record<'_>,
    ) -> Result<PathIndex, Refusal> {
        let known = self.paths.find(relay, record.raw_header);
        match classify(record.payload) {
            Some(Protocol::Stun) => self.admit_check(step, relay, record, known),
            Some(Protocol::Dtls | Protocol::Rtp) => known.ok_or(Refusal::Path),
            Some(Protocol::InnerLeg) | None => Err(Refusal::Protocol),
        }
    }

    fn admit_check<S>(
        &mut self,
        step: &Step<'_, S>,
        relay: TrainDestination,
        record: &Record<'_>,
        known: Option<PathIndex>,
    ) -> Result<PathIndex, Refusal> {
        let request = BindingRequest::peek(record.payload).map_err(|error| match error {
            StunError::NotBindingRequest => Refusal::NotBindingRequest,
            _ => Refusal::MalformedStun,
        })?;
        if known.is_none() && !self.cookie_matches(step.keys, &record.header) {
            return Err(Refusal::Cookie);
        }
        if !request.verify(&self.password) {
            return Err(Refusal::Integrity);
        }
        let now = step.now.mono;
        let path = match known {
            Some(path) => path,
            None => {
                let path = Path::new(relay, record.header.client, record.raw_header, now);
                self.paths
                    .admit(path)
                    .map_err(|_| Refusal::PathsExhausted)?
            }
        };
        self.heard = now;
        self.phases
            .first_check
            .get_or_insert(now.saturating_duration_since(self.offered));
        self.paths.heard_check(path, request.nominates(), now);
        Ok(path)
    }

    fn cookie_matches(&self, keys: &KeyRing, header: &RecordHeader) -> bool {
        let RecordHeader {
            client,
            endpoint,
            transport,
            session,
            cookie,
            ..
        } = *header;
        let keys = keys.epoch(self.epoch).and_then(|keys| keys.cluster());
        keys.is_some_and(|keys| {
            let expected = keys.cookie(client, endpoint, transport, session);
            expected.0.ct_eq(&cookie.0).into()
        })
    }

    /// Drains the engine and sends the replies, in turns, until neither has anything.
    fn settle<S: TransmitSink>(
        &mut self,
        step: &mut Step<'_, S>,
        path: Option<PathIndex>,
    ) -> Progress {
        for _ in 0..OUTPUTS_MAX {
            match self.engine.poll() {
                Ok(Output::Transmit(transmit)) => self.transmit(step, path, &transmit),
                Ok(Output::Event(event)) => {
                    let progress = self.handle_event(step.now.mono, path, event);
                    if progress != Progress::Alive {
                        return progress;
                    }
                }
                Ok(Output::Timeout(at)) => {
                    self.engine_timeout = at;
                    if !self.engine.is_alive() {
                        return self.fail("the engine closed by itself".to_owned());
                    }
                    match self.write_reply(step.now.mono) {
                        Ok(true) => {}
                        Ok(false) => return Progress::Alive,
                        Err(failure) => return self.fail(failure),
                    }
                }
                Err(error) => return self.fail(error.to_string()),
            }
        }
        Progress::Ended(EndReason::Runaway)
    }

    /// STUN answers go back by the path of the request; all else goes by the current one, whatever
    /// address the engine has in mind.
    fn transmit<S: TransmitSink>(
        &mut self,
        step: &mut Step<'_, S>,
        path: Option<PathIndex>,
        transmit: &Transmit,
    ) {
        let answers_check = classify(&transmit.bytes) == Some(Protocol::Stun);
        let by = match path.filter(|_| answers_check) {
            Some(path) => Some(self.paths.at(path)),
            None => self.paths.current(),
        };
        if let Some(by) = by {
            self.counts.datagrams_out += 1;
            step.sink.transmit(by.relay, &by.back, &transmit.bytes);
        }
    }

    fn handle_event(&mut self, now: Instant, path: Option<PathIndex>, event: Event) -> Progress {
        let since_offer = now.saturating_duration_since(self.offered);
        match event {
            Event::Connected => {
                self.phases.connected.get_or_insert(since_offer);
                self.heard = now;
            }
            Event::Audio(audio) => {
                self.phases.first_audio.get_or_insert(since_offer);
                self.handle_audio(now, path, audio);
            }
            Event::ChannelOpen { channel, .. } => {
                self.phases.channel.get_or_insert(since_offer);
                if self.channels.len() < CHANNELS_MAX && !self.channels.contains(&channel) {
                    self.channels.push(channel);
                    let created = events::created(&mut self.event_ids, &self.profile);
                    self.replies.push_event(channel, created);
                }
            }
            Event::ChannelData { channel, data, .. } => {
                self.heard_media(now, path, false);
                self.handle_message(channel, &data);
            }
            Event::ChannelClosed(channel) => self.channels.retain(|&open| open != channel),
            Event::Closed => return Progress::Ended(EndReason::ClientClosed),
        }
        Progress::Alive
    }

    fn heard_media(&mut self, now: Instant, path: Option<PathIndex>, newest_audio: bool) {
        self.heard = now;
        if let Some(path) = path {
            self.paths.heard_media(path, newest_audio, now);
        }
    }

    fn handle_audio(&mut self, now: Instant, path: Option<PathIndex>, audio: AudioIn) {
        let newest = self.reception.note(&audio, now);
        self.heard_media(now, path, newest);
        self.backend.handle_audio(audio, &mut self.replies);
    }

    fn handle_message(&mut self, channel: ChannelId, message: &[u8]) {
        if !self.channels.contains(&channel) {
            return;
        }
        self.counts.messages_in += 1;
        match events::check(message) {
            Ok(event) => self.backend.handle_event(channel, event, &mut self.replies),
            Err(fault) => self.say_error(channel, fault),
        }
    }

    fn say_error(&mut self, channel: ChannelId, fault: EventFault) {
        let error = events::error(&mut self.event_ids, fault);
        self.replies.push_event(channel, error);
    }

    /// Sends one reply, if one can be sent, and says whether the engine has something to drain.
    fn write_reply(&mut self, now: Instant) -> Result<bool, String> {
        if let Some(audio) = self.replies.pop_audio() {
            let bytes = audio.payload.len() as u64;
            if self.engine.write_audio(now, audio) {
                self.counts.audio_out_packets += 1;
                self.counts.audio_out_bytes += bytes;
            }
            self.engine
                .handle_timeout(now)
                .map_err(|error| error.to_string())?;
            return Ok(true);
        }
        let Some((channel, event)) = self.replies.first_event() else {
            return Ok(false);
        };
        let channel = *channel;
        match self
            .engine
            .write_channel(channel, event)
            .map_err(|error| error.to_string())?
        {
            ChannelWrite::Taken => self.counts.messages_out += 1,
            // What the client acknowledges comes as a datagram, and that step tries again.
            ChannelWrite::Full => return Ok(false),
            ChannelWrite::Closed => {}
            ChannelWrite::TooLarge => self.say_error(channel, EventFault::TooLarge),
        }
        self.replies.pop_event();
        self.engine
            .handle_timeout(now)
            .map_err(|error| error.to_string())?;
        Ok(true)
    }
}
