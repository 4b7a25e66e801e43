//! One worker's sessions: a slab addressed by the session reference.
//!
//! A record of the inner leg names its session by slot and generation, as the relay decoded them
//! from the ufrag, so finding the session is an index and a compare. The shard takes bundles,
//! openings and time, and gives datagrams (through a [`TransmitSink`]), [`ShardEvent`]s and its
//! next deadline.
//!
//! **Containment.** Each step of a session runs under `catch_unwind`. A panic or an error ends that
//! session, is counted, and touches no other.

pub mod counters;
mod deadlines;
mod outlets;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use syrinx_shared::keys::KeyRing;
use syrinx_shared::route::{Now, SessionRef, ShardIndex, Slot, TransceiverId};
use syrinx_shared::wire::encap::{BundleView, Direction, RawHeader, Record};
use syrinx_shared::wire::train::TrainDestination;

use crate::backend::codec::{CodecCommand, CodecOutput};
use crate::backend::link::{LinkCommand, LinkEvent};
use crate::backend::{Addressee, ClientEvent, Input};
use crate::session::{
    EndReason, IceRestart, Lifetimes, Opening, Progress, Refusal, Session, Step, Summary,
    TransmitSink,
};
use counters::{Counters, Fate};
use deadlines::Deadlines;
use outlets::Outlets;

/// Close code of a link whose backend could not say good-bye (RFC 6455, 7.4.1: going away).
const CLOSE_GOING_AWAY: u16 = 1001;

/// What a shard is told once.
#[derive(Debug, Clone, Copy)]
pub struct ShardConfig {
    /// The process it belongs to.
    pub transceiver: TransceiverId,
    /// Which of the process's workers it is.
    pub index: ShardIndex,
    /// How many sessions it can hold: slots 0 to one less.
    pub slots: usize,
    /// When sessions end by themselves.
    pub lifetimes: Lifetimes,
}

/// What a shard tells its owner.
#[derive(Debug)]
pub enum ShardEvent {
    /// The client of a session has come through: media can flow.
    Connected(SessionRef),
    /// A session has ended and its slot is free.
    Ended {
        /// Why.
        reason: EndReason,
        /// Its last state.
        summary: Box<Summary>,
    },
    /// A session that is tapped has said something to its client.
    Said {
        /// Which session.
        session: SessionRef,
        /// The event: JSON text.
        event: String,
        /// How many events before it were left out because nobody fetched them.
        missed: u32,
    },
}

/// Why a session cannot be taken up. The registrar that hands out slots has made a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The reference names another transceiver, another shard, or a slot this shard has not got.
    #[error("the session belongs to another shard")]
    WrongShard,
    /// The slot holds a session.
    #[error("the slot is taken")]
    SlotTaken,
}

/// One worker's sessions; see the module.
pub struct Shard {
    config: ShardConfig,
    keys: Arc<KeyRing>,
    slots: Vec<Option<Box<Session>>>,
    session_count: usize,
    deadlines: Deadlines,
    outlets: Outlets,
    counters: Counters,
}

impl Shard {
    /// An empty shard. `now` is any moment before the first one given later.
    ///
    /// # Panics
    /// When `config.slots` exceeds what a [`Slot`] can number.
    pub fn new(config: ShardConfig, keys: Arc<KeyRing>, now: Instant) -> Self {
        assert!(config.slots <= Slot::MAX as usize + 1, "a slot has 24 bits");
        Self {
            config,
            keys,
            slots: std::iter::repeat_with(|| None).take(config.slots).collect(),
            session_count: 0,
            deadlines: Deadlines::new(config.slots, now),
            outlets: Outlets::default(),
            counters: Counters::default(),
        }
    }

    /// Goes on with these keys. Sessions whose epoch they lack admit no further path.
    pub fn set_keys(&mut self, keys: Arc<KeyRing>) {
        self.keys = keys;
    }

    /// Takes up a session.
    ///
    /// # Errors
    /// [`OpenError`]; the session is dropped, and its slot is as it was.
    pub fn open(
        &mut self,
        now: Now,
        opening: Opening,
        sink: &mut impl TransmitSink,
    ) -> Result<(), OpenError> {
        let slot = self.slot_of(opening.session).ok_or(OpenError::WrongShard);
        let slot = slot.and_then(|slot| match self.slots[slot] {
            Some(_) => Err(OpenError::SlotTaken),
            None => Ok(slot),
        });
        let slot = slot.inspect_err(|_| self.counters.openings_refused += 1)?;
        self.slots[slot] = Some(Box::new(Session::new(opening)));
        self.session_count += 1;
        self.counters.sessions_opened += 1;
        self.step(now, slot, sink, |session, step| ((), session.start(step)));
        Ok(())
    }

    /// Ends a session, if it is still there, telling the client. Says whether it was.
    pub fn close(
        &mut self,
        now: Now,
        session: SessionRef,
        reason: EndReason,
        sink: &mut impl TransmitSink,
    ) -> bool {
        let Ok(slot) = self.tenant(session) else {
            return false;
        };
        self.end(now, slot, reason, sink);
        true
    }

    /// Gives a session further ICE credentials, if it is still there. Says whether it was.
    pub fn restart(&mut self, session: SessionRef, restart: IceRestart) -> bool {
        let Ok(slot) = self.tenant(session) else {
            return false;
        };
        if let Some(session) = &mut self.slots[slot] {
            session.restart(restart);
        }
        true
    }

    /// Ends every session, telling the clients.
    pub fn close_all(&mut self, now: Now, reason: EndReason, sink: &mut impl TransmitSink) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                self.end(now, slot, reason, sink);
            }
        }
    }

    /// The state of a session, if it is there.
    pub fn inspect(&self, now: Instant, session: SessionRef) -> Option<Summary> {
        let slot = self.tenant(session).ok()?;
        self.slots[slot]
            .as_ref()
            .map(|session| session.summary(now))
    }

    /// A datagram came on the inner port: a bundle of records, each of which ends in one counter.
    pub fn handle_bundle(
        &mut self,
        now: Now,
        from: SocketAddr,
        datagram: &[u8],
        sink: &mut impl TransmitSink,
    ) {
        let Ok(bundle) = BundleView::parse(datagram) else {
            self.counters.bad_bundles += 1;
            return;
        };
        self.counters.bundles += 1;
        let relay = TrainDestination {
            addr: from,
            shard: bundle.preamble().source,
        };
        for record in bundle.records() {
            let fate = match record {
                Ok(record) => self.handle_record(now, relay, &record, sink),
                Err(_) => Fate::Reserved,
            };
            self.counters.count_record(fate);
        }
    }

    /// Wakes every session whose time has come.
    pub fn handle_timeout(&mut self, now: Now, sink: &mut impl TransmitSink) {
        // A session that always wants to be woken at once must not hold the worker.
        for _ in 0..self.slots.len() {
            let Some(slot) = self.deadlines.pop_due(now.mono) else {
                return;
            };
            self.step(now, slot, sink, |session, step| {
                ((), session.handle_timeout(step))
            });
        }
    }

    /// When [`Shard::handle_timeout`] next has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// The link of a session has something to tell. Says whether the session is there.
    pub fn handle_link(
        &mut self,
        now: Now,
        session: SessionRef,
        event: LinkEvent,
        sink: &mut impl TransmitSink,
    ) -> bool {
        self.handle_input(now, session, Input::Link(event), sink)
    }

    /// The codec has done something for a session. Says whether the session is there.
    pub fn handle_codec(
        &mut self,
        now: Now,
        session: SessionRef,
        output: CodecOutput,
        sink: &mut impl TransmitSink,
    ) -> bool {
        self.handle_input(now, session, Input::Codec(output), sink)
    }

    /// The sideband sends an event as if the client had: JSON text with a `type`, already checked.
    /// Says whether the session is there.
    pub fn inject(
        &mut self,
        now: Now,
        session: SessionRef,
        event: &str,
        sink: &mut impl TransmitSink,
    ) -> bool {
        let event = ClientEvent {
            from: Addressee::Sideband,
            text: event,
        };
        self.handle_input(now, session, Input::ClientEvent(event), sink)
    }

    /// Starts or stops giving what a session says to its client as [`ShardEvent::Said`] too. Says
    /// whether the session is there.
    pub fn tap(&mut self, session: SessionRef, is_tapped: bool) -> bool {
        let Ok(slot) = self.tenant(session) else {
            return false;
        };
        let tenant = self.slots[slot].as_mut();
        let tenant = tenant.expect("invariant: a tenant was found");
        tenant.actions().set_tap(is_tapped);
        true
    }

    /// What there is to tell, oldest first. Waiting events are bounded by the sessions there were,
    /// each of which is told of twice at most, and by what may wait for sidebands.
    pub fn poll_event(&mut self) -> Option<ShardEvent> {
        self.outlets.pop_event()
    }

    /// What a session wants of its link, oldest first. Drained after each step, which bounds it.
    pub fn poll_link(&mut self) -> Option<(SessionRef, LinkCommand)> {
        self.outlets.pop_link()
    }

    /// What a session wants of its codec, oldest first. Drained after each step, which bounds it.
    pub fn poll_codec(&mut self) -> Option<(SessionRef, CodecCommand)> {
        self.outlets.pop_codec()
    }

    /// The shard's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many sessions there are.
    pub fn session_count(&self) -> usize {
        self.session_count
    }

    fn handle_input(
        &mut self,
        now: Now,
        session: SessionRef,
        input: Input<'_>,
        sink: &mut impl TransmitSink,
    ) -> bool {
        let Ok(slot) = self.tenant(session) else {
            return false;
        };
        self.step(now, slot, sink, |session, step| {
            ((), session.handle_input(step, input))
        });
        true
    }

    fn handle_record(
        &mut self,
        now: Now,
        relay: TrainDestination,
        record: &Record<'_>,
        sink: &mut impl TransmitSink,
    ) -> Fate {
        if record.header.direction != Direction::ToTransceiver {
            return Fate::Direction;
        }
        let slot = match self.tenant(record.header.session) {
            Ok(slot) => slot,
            Err(fate) => return fate,
        };
        let taken = self.step(now, slot, sink, |session, step| {
            session.handle_record(step, relay, record)
        });
        match taken {
            // The record that made a session panic was taken by it.
            None | Some(Ok(())) => Fate::Taken,
            Some(Err(refusal)) => Refusal::into(refusal),
        }
    }

    /// The slot of `session` if it is ours at all.
    fn slot_of(&self, session: SessionRef) -> Option<usize> {
        let SessionRef {
            transceiver,
            shard,
            slot,
            ..
        } = session;
        let ours = transceiver == self.config.transceiver && shard == self.config.index;
        (ours && slot.index() < self.slots.len()).then_some(slot.index())
    }

    /// The slot in which `session` lives.
    fn tenant(&self, session: SessionRef) -> Result<usize, Fate> {
        let SessionRef {
            transceiver,
            shard,
            slot,
            generation,
        } = session;
        if transceiver != self.config.transceiver || shard != self.config.index {
            return Err(Fate::WrongShard);
        }
        let tenant = self.slots.get(slot.index()).and_then(Option::as_ref);
        let tenant = tenant.ok_or(Fate::UnknownSlot)?.reference();
        if tenant.generation != generation {
            return Err(Fate::StaleGeneration);
        }
        Ok(slot.index())
    }

    /// Runs one step of the session in `slot`, contained, and does what it leads to. `None` when
    /// the step panicked.
    fn step<S: TransmitSink, T>(
        &mut self,
        now: Now,
        slot: usize,
        sink: &mut S,
        run: impl FnOnce(&mut Session, &mut Step<'_, Counting<'_, S>>) -> (T, Progress),
    ) -> Option<T> {
        let session = self.slots[slot]
            .as_mut()
            .expect("invariant: the caller found a tenant");
        let was_connected = session.is_connected();
        let lifetimes = self.config.lifetimes;
        let mut counting = Counting {
            sink,
            records_out: &mut self.counters.records_out,
        };
        let mut step = Step {
            now,
            keys: &self.keys,
            lifetimes,
            sink: &mut counting,
        };
        let (value, progress) = match catch_unwind(AssertUnwindSafe(|| run(session, &mut step))) {
            Ok((value, progress)) => (Some(value), progress),
            Err(_) => (None, Progress::Ended(EndReason::Panicked)),
        };
        if session.is_connected() && !was_connected {
            let connected = ShardEvent::Connected(session.reference());
            self.outlets.push_event(connected);
        }
        match progress {
            Progress::Alive => {
                self.deadlines.set(slot, session.next_deadline(lifetimes));
                self.outlets.collect(session);
            }
            Progress::Ended(reason) => self.end(now, slot, reason, sink),
        }
        value
    }

    fn end<S: TransmitSink>(&mut self, now: Now, slot: usize, reason: EndReason, sink: &mut S) {
        let mut session = self.slots[slot]
            .take()
            .expect("invariant: the caller found a tenant");
        self.session_count -= 1;
        self.deadlines.clear(slot);
        self.counters.count_end(reason);
        let summary = Box::new(session.summary(now.mono));
        let lifetimes = self.config.lifetimes;
        let mut counting = Counting {
            sink,
            records_out: &mut self.counters.records_out,
        };
        let mut step = Step {
            now,
            keys: &self.keys,
            lifetimes,
            sink: &mut counting,
        };
        // The farewell of a broken session, and its drop, are contained like any step.
        let _ = catch_unwind(AssertUnwindSafe(|| session.finish(&mut step, reason)));
        self.outlets.collect(&mut session);
        if session.has_link() {
            let close = LinkCommand::Close {
                code: CLOSE_GOING_AWAY,
                reason: reason.label().to_owned(),
            };
            self.outlets.push_link(session.reference(), close);
        }
        let _ = catch_unwind(AssertUnwindSafe(|| drop(session)));
        self.outlets
            .push_event(ShardEvent::Ended { reason, summary });
    }
}

/// A sink that counts what passes it.
struct Counting<'a, S> {
    sink: &'a mut S,
    records_out: &'a mut u64,
}

impl<S: TransmitSink> TransmitSink for Counting<'_, S> {
    fn transmit(&mut self, to: TrainDestination, header: &RawHeader, payload: &[u8]) {
        *self.records_out += 1;
        self.sink.transmit(to, header, payload);
    }
}
