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

mod delivery;
pub mod events;
mod ice;
pub mod inbound;
mod outbound;
mod paths;
mod reception;
mod summary;

use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;
use syrinx_shared::keys::{KeyRing, PASSWORD_CHARS};
use syrinx_shared::route::{Epoch, Now, SessionRef};
use syrinx_shared::wire::demux::{Protocol, classify};
use syrinx_shared::wire::encap::{Control, RawHeader, Record, RecordHeader};
use syrinx_shared::wire::stun::{BindingRequest, Integrity, StunError};
use syrinx_shared::wire::train::TrainDestination;

use crate::backend::link::LinkCommand;
use crate::backend::{Actions, Backend, Input};
use crate::engine::{AudioIn, ChannelId, Engine, Event, Output};
use events::Profile;
use ice::Ice;
use inbound::Inbound;
use paths::{Path, PathIndex, Paths};

pub use delivery::Delivery;
pub use ice::IceRestart;
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
    ice: Ice,
    engine: Engine,
    backend: Box<dyn Backend>,
    actions: Actions,
    paths: Paths,
    channels: Vec<ChannelId>,
    /// How the last check was closed, and so its answer is: by MESSAGE-INTEGRITY-SHA256, or by
    /// MESSAGE-INTEGRITY.
    answers_in_sha256: bool,
    /// Whether the link was asked for and not yet asked to close.
    has_link: bool,
    engine_timeout: Instant,
    offered: Instant,
    /// The last packet that authenticated.
    heard: Instant,
    phases: Phases,
    reception: Reception,
    delivery: Delivery,
    inbound: Inbound,
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
        let format = engine.audio_format();
        let mut actions = Actions::new(opening.profile, opening.event_seed);
        actions.set_client_codec(format.map(|format| format.codec));
        Self {
            session,
            ice: Ice::new(epoch, password),
            engine,
            backend,
            actions,
            paths: Paths::default(),
            channels: Vec::new(),
            answers_in_sha256: false,
            has_link: false,
            engine_timeout: opening.offered,
            offered: opening.offered,
            heard: opening.offered,
            phases: Phases::default(),
            reception: Reception::default(),
            delivery: Delivery::default(),
            inbound: Inbound::default(),
            counts: summary::Counts::default(),
            failure: None,
        }
    }

    /// Whether its client has come through: media can flow.
    pub(crate) fn is_connected(&self) -> bool {
        self.phases.connected.is_some()
    }

    pub(crate) fn reference(&self) -> SessionRef {
        self.session
    }

    /// The first step: drains what the offer left in the engine.
    pub(crate) fn start<S: TransmitSink>(&mut self, step: &mut Step<'_, S>) -> Progress {
        self.tell(step.now.mono, Input::Start);
        self.settle(step, None)
    }

    /// A record that names this session came from a relay's worker.
    pub(crate) fn handle_record<S: TransmitSink>(
        &mut self,
        step: &mut Step<'_, S>,
        relay: TrainDestination,
        record: &Record<'_>,
    ) -> (Result<(), Refusal>, Progress) {
        let is_first = self.phases.first_check.is_none();
        let (path, check) = match self.admit(step, relay, record) {
            Ok(admitted) => admitted,
            Err(refusal) => return (Err(refusal), Progress::Alive),
        };
        let client = self.paths.at(path).client.addr();
        let rewritten = check.map(|check| {
            self.answers_in_sha256 = check.integrity() == Some(Integrity::Sha256);
            self.engine.rewrite(&check, is_first || check.nominates())
        });
        let payload = rewritten.as_deref().unwrap_or(record.payload);
        let taken = self.engine.handle_datagram(step.now.mono, client, payload);
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
        self.hear(now);
        if self.backend.poll_timeout().is_some_and(|at| at <= now) {
            self.tell(now, Input::Timeout);
        }
        if now >= self.engine_timeout
            && let Err(error) = self.engine.handle_timeout(now)
        {
            return self.fail(error.to_string());
        }
        self.settle(step, None)
    }

    /// Something of the link, the codec or the sideband is for the backend.
    pub(crate) fn handle_input<S: TransmitSink>(
        &mut self,
        step: &mut Step<'_, S>,
        input: Input<'_>,
    ) -> Progress {
        self.tell(step.now.mono, input);
        self.settle(step, None)
    }

    /// The client restarts ICE. Nothing but the credentials of its checks changes.
    pub(crate) fn restart(&mut self, restart: IceRestart) {
        self.counts.ice_restarts += 1;
        self.ice.restart(restart, &mut self.engine);
    }

    /// What the backend wants done, for the shard to take the parts that are not the session's.
    pub(crate) fn actions(&mut self) -> &mut Actions {
        &mut self.actions
    }

    /// Notes what passes to the link, and says what has to follow when the session is over: a link
    /// that its backend left open is closed.
    pub(crate) fn note_link(&mut self, command: &LinkCommand) {
        self.has_link = !matches!(command, LinkCommand::Close { .. });
    }

    /// Whether a link is open that nobody has asked to close.
    pub(crate) fn has_link(&self) -> bool {
        self.has_link
    }

    /// When the session next wants [`Session::handle_timeout`].
    pub(crate) fn next_deadline(&self, lifetimes: Lifetimes) -> Instant {
        let own = self.engine_timeout.min(self.life_deadline(lifetimes));
        // What need not wait has been polled, so any moment will do.
        let others = [
            self.backend.poll_timeout(),
            self.inbound.poll_timeout(),
            self.actions.waiting_playout().poll_timeout(self.offered),
        ];
        others.into_iter().flatten().fold(own, Instant::min)
    }

    /// Says good-bye to the client and frees its flows at the relays.
    pub(crate) fn finish<S: TransmitSink>(&mut self, step: &mut Step<'_, S>, reason: EndReason) {
        self.tell(step.now.mono, Input::Closing(reason));
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
            id: self.actions.profile().id.clone(),
            client: self.paths.current().map(|path| path.client),
            age: now.saturating_duration_since(self.offered),
            phases: self.phases,
            moves: self.paths.moves(),
            audio: self.engine.audio_format(),
            reception: self.reception.clone(),
            delivery: self.delivery,
            repairs: self.inbound.repairs(),
            counts: self.counts,
            losses: self.actions.lost(),
            replies_dropped: self.actions.dropped(),
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

    fn progress(&self) -> Progress {
        self.actions
            .closes()
            .map_or(Progress::Alive, Progress::Ended)
    }

    fn fail(&mut self, failure: String) -> Progress {
        self.failure = Some(failure);
        Progress::Ended(match self.is_connected() {
            true => EndReason::EngineFailed,
            false => EndReason::HandshakeFailed,
        })
    }

    /// Judges where a record came from. The path is admitted afterwards; with it comes the check
    /// that the record is, if it is one.
    fn admit<'r, S>(
        &mut self,
        step: &Step<'_, S>,
        relay: TrainDestination,
        record: &Record<'r>,
    ) -> Result<(PathIndex, Option<BindingRequest<'r>>), Refusal> {
        let known = self.paths.find(relay, record.raw_header);
        match classify(record.payload) {
            Some(Protocol::Stun) => {
                let (path, check) = self.admit_check(step, relay, record, known)?;
                Ok((path, Some(check)))
            }
            Some(Protocol::Dtls | Protocol::Rtp) => Ok((known.ok_or(Refusal::Path)?, None)),
            Some(Protocol::InnerLeg) | None => Err(Refusal::Protocol),
        }
    }

    fn admit_check<'r, S>(
        &mut self,
        step: &Step<'_, S>,
        relay: TrainDestination,
        record: &Record<'r>,
        known: Option<PathIndex>,
    ) -> Result<(PathIndex, BindingRequest<'r>), Refusal> {
        let request = BindingRequest::peek(record.payload).map_err(|error| match error {
            StunError::NotBindingRequest => Refusal::NotBindingRequest,
            _ => Refusal::MalformedStun,
        })?;
        if known.is_none() && !self.cookie_matches(step.keys, &record.header) {
            return Err(Refusal::Cookie);
        }
        if !self.ice.verify(&request, &mut self.engine) {
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
        Ok((path, request))
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
        self.ice.epochs().any(|epoch| {
            let keys = keys.epoch(epoch).and_then(|keys| keys.cluster());
            keys.is_some_and(|keys| {
                let expected = keys.cookie(client, endpoint, transport, session);
                expected.0.ct_eq(&cookie.0).into()
            })
        })
    }

    fn tell(&mut self, now: Instant, input: Input<'_>) {
        self.backend.handle(now, input, &mut self.actions);
    }

    /// Drains the engine and does what the backend wants, in turns, until neither has anything.
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
                        Ok(false) => return self.progress(),
                        Err(failure) => return self.fail(failure),
                    }
                }
                Err(error) => return self.fail(error.to_string()),
            }
        }
        Progress::Ended(EndReason::Runaway)
    }

    fn handle_event(&mut self, now: Instant, path: Option<PathIndex>, event: Event) -> Progress {
        let since_offer = now.saturating_duration_since(self.offered);
        match event {
            Event::Connected => {
                self.phases.connected.get_or_insert(since_offer);
                self.heard = now;
                self.actions.playout().release();
                self.tell(now, Input::MediaReady);
            }
            Event::Audio(audio) => {
                self.phases.first_audio.get_or_insert(since_offer);
                self.handle_audio(now, path, audio);
            }
            Event::ChannelOpen { channel, .. } => {
                self.phases.channel.get_or_insert(since_offer);
                if self.channels.len() < CHANNELS_MAX && !self.channels.contains(&channel) {
                    self.channels.push(channel);
                    self.tell(now, Input::ChannelOpen(channel));
                }
            }
            Event::ChannelData { channel, data, .. } => {
                self.heard_media(now, path, false);
                self.handle_message(now, channel, &data);
            }
            Event::ChannelClosed(channel) => self.channels.retain(|&open| open != channel),
            Event::Delivery(report) => {
                let format = self.engine.audio_format();
                let clock_rate_hz = format.map_or(1, |format| format.clock_rate_hz);
                let sent_packets = self.counts.audio_out_packets;
                self.delivery.note(&report, clock_rate_hz, sent_packets);
                self.actions.set_way(self.way());
            }
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

    /// Tells the backend what is known of the caller's line.
    fn hear(&mut self, now: Instant) {
        while let Some(heard) = self.inbound.poll(now) {
            self.tell(now, heard.into());
        }
    }

    fn handle_audio(&mut self, now: Instant, path: Option<PathIndex>, audio: AudioIn) {
        let newest = self.reception.note(&audio, now);
        self.heard_media(now, path, newest);
        self.inbound.push(now, audio);
        self.hear(now);
    }
}
