//! The pure forwarder of one relay worker: verify, then create; forward unread; free in time.
//!
//! It owns the worker's flows ([`flow_table`]) and decides what becomes of every datagram that the
//! driver received ([`verdict`]). Bytes, sender and [`Now`] go in; verdicts come out; it is asked
//! with [`Forwarder::poll_timeout`] when it wants to be woken. It never does I/O, never reads a
//! clock, and allocates nothing per datagram once built.
//!
//! The rules, in the order in which they apply to a client's datagram:
//!
//! 1. A STUN Binding request whose ufrag and integrity verify creates the flow of its sender,
//!    refreshes it, or points it at another session. Nothing else does any of that.
//! 2. Any other datagram that WebRTC could send follows its sender's flow, unread.
//! 3. The rest is dropped: one counter by reason, no answer, no state.
//!
//! A record from a transceiver goes to the client that it names when it carries the flow's own
//! cookie. A record for a flow that is not there, whose cookie verifies under the cluster's key,
//! brings the flow back ([`Forwarder::handle_bundle`]): a relay that was restarted heals from the
//! sessions' own traffic, without waiting for the clients' next checks.

pub mod admission;
pub mod flow_table;
pub mod routes;
pub mod verdict;

use std::sync::Arc;
use std::time::{Duration, Instant};

use syrinx_shared::keys::KeyRing;
use syrinx_shared::route::{ClientSocket, ClusterId, LocalEndpoint, Now, SessionRef, Transport};
use syrinx_shared::wire::demux::{Protocol, classify};
use syrinx_shared::wire::encap::{
    BundleError, BundleView, Control, Direction, Marks, RawHeader, Record, RecordHeader,
};
use syrinx_shared::wire::stun::{BindingRequest, StunError};
use syrinx_shared::wire::ufrag;

use admission::{Admission, AdmissionOptions};
use flow_table::{Flow, FlowId, FlowKey, FlowTable, Tick, UfragId};
use routes::Routes;
pub use verdict::{ClientVerdict, Counters, DropReason, RecordVerdict, ToClient};

/// How many flows one [`Forwarder::handle_timeout`] frees at most, so that a mass expiry does not
/// hold up packets; the next deadline is then at once.
const EXPIRIES_PER_TIMEOUT_MAX: usize = 1_024;

/// Endpoints from here on were learned by a wildcard socket while running. Below, they are the
/// places of the configuration, which a restarted relay shares with the one before.
pub const LEARNED_ENDPOINTS_FROM: u8 = 128;

/// How thoroughly a Binding request is judged before it may make or move a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// The ufrag and MESSAGE-INTEGRITY: a captured ufrag opens nothing.
    Integrity,
    /// The ufrag only; integrity is left to the transceiver.
    Ufrag,
}

/// What a forwarder is built with.
#[derive(Debug, Clone)]
pub struct ForwarderOptions {
    /// The cluster whose transceivers this relay reaches.
    pub cluster: ClusterId,
    /// How thoroughly requests are judged.
    pub verify: Verify,
    /// The most flows this worker keeps; memory for them is taken at once.
    pub flow_count_max: u32,
    /// A flow is freed this long after the last verified request of its client.
    pub flow_idle: Duration,
    /// How old a ufrag may be: the longest session it could name.
    pub ufrag_lifetime_minutes: u16,
    /// Limits on new flows.
    pub admission: AdmissionOptions,
    /// Secret seed of the hash tables: 64 random bits.
    pub seed: u64,
}

/// One datagram of a client, as a public socket received it.
#[derive(Debug, Clone, Copy)]
pub struct ClientDatagram<'a> {
    /// Who sent it.
    pub client: ClientSocket,
    /// Which of our addresses it came to.
    pub endpoint: LocalEndpoint,
    /// How it came.
    pub transport: Transport,
    /// Its ECN and DSCP.
    pub marks: Marks,
    /// The UDP payload.
    pub payload: &'a [u8],
}

/// The forwarder of one worker. See the module's description.
#[derive(Debug)]
pub struct Forwarder {
    options: ForwarderOptions,
    keys: Arc<KeyRing>,
    routes: Arc<Routes>,
    flows: FlowTable,
    admission: Admission,
    counters: Counters,
    started: Instant,
}

/// A Binding request that may make or move a flow: all its claims verified.
struct Verified {
    session: SessionRef,
    ufrag: UfragId,
    cookie: syrinx_shared::keys::Cookie,
}

impl Forwarder {
    /// A forwarder without flows. `now` becomes the origin of its coarse clock.
    pub fn new(
        options: ForwarderOptions,
        keys: Arc<KeyRing>,
        routes: Arc<Routes>,
        now: Now,
    ) -> Self {
        Self {
            flows: FlowTable::new(options.flow_count_max, options.seed),
            admission: Admission::new(options.admission, options.seed, now.mono),
            options,
            keys,
            routes,
            counters: Counters::default(),
            started: now.mono,
        }
    }

    /// Judges one datagram of a client.
    pub fn handle_client(&mut self, now: Now, datagram: &ClientDatagram<'_>) -> ClientVerdict {
        self.counters.client_datagrams += 1;
        let verdict = match classify(datagram.payload) {
            Some(Protocol::Stun) => self.handle_stun(now, datagram),
            Some(Protocol::Dtls | Protocol::Rtp) => self.forward_on_flow(datagram),
            Some(Protocol::InnerLeg) => Err(DropReason::NotWebrtc),
            None if datagram.payload.is_empty() => Err(DropReason::Empty),
            None => Err(DropReason::NotWebrtc),
        };
        match verdict {
            Ok((session, header)) => match self.routes.destination(session) {
                Ok(to) => {
                    self.counters.forwarded_to_transceiver += 1;
                    ClientVerdict::Forward { to, header }
                }
                Err(reason) => self.drop(reason),
            },
            Err(reason) => self.drop(reason),
        }
    }

    /// Judges every record of one bundle from the inner leg, and calls `take` with each verdict,
    /// in the order of the records.
    ///
    /// A record whose flow is unknown is not lost: its cookie proves that a holder of the cluster
    /// keys made that flow once, so the flow is made again. The relay therefore sends only to
    /// addresses that a transceiver answers, and to nobody on a client's word alone.
    pub fn handle_bundle<'a>(
        &mut self,
        now: Now,
        datagram: &'a [u8],
        mut take: impl FnMut(RecordVerdict<'a>),
    ) {
        self.counters.inner_datagrams += 1;
        let bundle = match BundleView::parse(datagram) {
            Ok(bundle) => bundle,
            Err(error) => {
                let truncated = error == BundleError::Truncated;
                let reason = if truncated {
                    DropReason::BundleTruncated
                } else {
                    DropReason::NotBundle
                };
                self.counters.drops.add(reason, 1);
                return;
            }
        };
        self.counters.bundles += 1;
        for record in bundle.records() {
            self.counters.records += 1;
            let outcome = match &record {
                Ok(record) => self.handle_record(now, record),
                Err(_) => Err(DropReason::RecordReserved),
            };
            match outcome {
                Ok(Some(_)) => self.counters.forwarded_to_client += 1,
                Ok(None) => self.counters.control_records += 1,
                Err(reason) => self.counters.drops.add(reason, 1),
            }
            take(RecordVerdict {
                header: record.ok().map(|record| record.header),
                outcome,
            });
        }
    }

    /// Frees what has been idle too long.
    pub fn handle_timeout(&mut self, now: Now) {
        let now_tick = self.tick(now);
        let idle = self.idle_ticks();
        for _ in 0..EXPIRIES_PER_TIMEOUT_MAX {
            let Some((id, active)) = self.flows.longest_idle() else {
                break;
            };
            if now_tick.since(active) < idle {
                break;
            }
            self.flows.remove(id);
            self.counters.flows_expired += 1;
        }
    }

    /// When [`Forwarder::handle_timeout`] next has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (_, active) = self.flows.longest_idle()?;
        Some(self.started + active.offset() + self.idle_ticks().offset())
    }

    /// Takes another key ring: new epochs become readable, missing ones are retired. Flows that
    /// exist are untouched.
    pub fn set_keys(&mut self, keys: Arc<KeyRing>) {
        self.keys = keys;
    }

    /// Takes another route table. Flows follow their session's transceiver to its new address;
    /// those of a transceiver that is gone are dropped by reason until they expire.
    pub fn set_routes(&mut self, routes: Arc<Routes>) {
        self.routes = routes;
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many flows there are.
    pub fn flow_count(&self) -> u32 {
        self.flows.len()
    }

    /// Counts a client's datagram that the driver could not even hand over: truncated by the
    /// kernel, larger than a record can carry.
    pub fn count_undeliverable(&mut self, reason: DropReason) {
        self.counters.client_datagrams += 1;
        self.drop(reason);
    }

    /// Moves `count` datagrams from *forwarded* to a drop: the driver or the kernel refused them
    /// after the verdict.
    pub fn reclassify(&mut self, reason: DropReason, count: u64) {
        let forwarded = match reason.side() {
            verdict::Side::Client => &mut self.counters.forwarded_to_transceiver,
            verdict::Side::Transceiver => &mut self.counters.forwarded_to_client,
        };
        *forwarded = forwarded.saturating_sub(count);
        self.counters.drops.add(reason, count);
    }

    fn drop(&mut self, reason: DropReason) -> ClientVerdict {
        self.counters.drops.add(reason, 1);
        ClientVerdict::Drop(reason)
    }

    fn forward_on_flow(
        &self,
        datagram: &ClientDatagram<'_>,
    ) -> Result<(SessionRef, RawHeader), DropReason> {
        let id = self
            .flows
            .find(&key_of(datagram))
            .ok_or(DropReason::NoFlow)?;
        Ok(self.header(datagram, self.flows.flow(id)))
    }

    fn handle_stun(
        &mut self,
        now: Now,
        datagram: &ClientDatagram<'_>,
    ) -> Result<(SessionRef, RawHeader), DropReason> {
        let request = match BindingRequest::peek(datagram.payload) {
            Ok(request) => request,
            // Indications and responses are part of a client's traffic, not of ours to judge.
            Err(StunError::NotBindingRequest) => return self.forward_on_flow(datagram),
            Err(StunError::Username) => return Err(DropReason::StunUsername),
            Err(_) => return Err(DropReason::StunMalformed),
        };
        let key = key_of(datagram);
        let verified = self.verify(now, datagram, &request)?;
        let id = match self.flows.find(&key) {
            Some(id) => self.follow(now, id, &verified)?,
            None => self.create(now, key, &verified)?,
        };
        Ok(self.header(datagram, self.flows.flow(id)))
    }

    fn verify(
        &self,
        now: Now,
        datagram: &ClientDatagram<'_>,
        request: &BindingRequest<'_>,
    ) -> Result<Verified, DropReason> {
        let lifetime = self.options.ufrag_lifetime_minutes;
        let name = request.server_ufrag();
        let decoded = ufrag::decode(&self.keys, name, now.wall, lifetime)?;
        if decoded.cluster != self.options.cluster {
            return Err(DropReason::ForeignCluster);
        }
        self.routes.destination(decoded.session)?;
        let keys = self
            .keys
            .epoch(decoded.epoch)
            .and_then(|epoch| epoch.cluster())
            .ok_or(DropReason::UfragEdgeOnly)?;
        if self.options.verify == Verify::Integrity && !request.verify(&keys.password(name)) {
            return Err(DropReason::Integrity);
        }
        let ClientDatagram {
            client,
            endpoint,
            transport,
            ..
        } = *datagram;
        Ok(Verified {
            session: decoded.session,
            ufrag: UfragId::of(name),
            cookie: keys.cookie(client, endpoint, transport, decoded.session),
        })
    }

    /// What a verified request does to the flow that its sender already has.
    fn follow(&mut self, now: Now, id: FlowId, verified: &Verified) -> Result<FlowId, DropReason> {
        let tick = self.tick(now);
        let idle = self.idle_ticks();
        let flow = self.flows.flow_mut(id);
        if flow.session() == verified.session {
            flow.set_ufrag(verified.ufrag);
        } else if flow.is_superseded(verified.ufrag, tick, idle) {
            return Err(DropReason::SupersededUfrag);
        } else {
            flow.repoint(verified.session, verified.cookie, verified.ufrag, tick);
            self.flows.set_answered(id, false, tick);
            self.counters.flows_repointed += 1;
        }
        self.flows.touch(id, tick);
        Ok(id)
    }

    fn create(
        &mut self,
        now: Now,
        key: FlowKey,
        verified: &Verified,
    ) -> Result<FlowId, DropReason> {
        self.admission.admit(key.client, now.mono)?;
        let tick = self.tick(now);
        let flow = Flow::new(key, verified.session, verified.cookie, verified.ufrag, tick);
        self.insert(flow)
    }

    fn insert(&mut self, flow: Flow) -> Result<FlowId, DropReason> {
        if self.flows.is_full() {
            let victim = self
                .flows
                .unanswered_victim()
                .ok_or(DropReason::TableFull)?;
            self.flows.remove(victim);
            self.counters.flows_evicted += 1;
        }
        self.counters.flows_created += 1;
        Ok(self.flows.insert(flow))
    }

    fn handle_record<'a>(
        &mut self,
        now: Now,
        record: &Record<'a>,
    ) -> Result<Option<ToClient<'a>>, DropReason> {
        let RecordHeader {
            direction,
            marks,
            client,
            endpoint,
            transport,
            ..
        } = record.header;
        if direction == Direction::ToTransceiver {
            return Err(DropReason::WrongDirection);
        }
        let key = FlowKey {
            client,
            endpoint,
            transport,
        };
        let found = self.flows.find(&key);
        if direction == Direction::Control {
            return self.handle_control(found, record).map(|()| None);
        }
        let id = match found {
            Some(id) if self.flows.flow(id).cookie() == record.header.cookie => id,
            Some(_) => return Err(DropReason::BadCookie),
            None => self.heal(now, key, &record.header)?,
        };
        self.flows.set_answered(id, true, self.tick(now));
        Ok(Some(ToClient {
            client,
            endpoint,
            transport,
            marks,
            payload: record.payload,
        }))
    }

    fn handle_control(
        &mut self,
        found: Option<FlowId>,
        record: &Record<'_>,
    ) -> Result<(), DropReason> {
        let message = Control::parse(record.payload).map_err(|_| DropReason::UnknownControl)?;
        let id = found.ok_or(DropReason::UnknownFlow)?;
        if self.flows.flow(id).cookie() != record.header.cookie {
            return Err(DropReason::BadCookie);
        }
        match message {
            Control::FlowClosed => {
                self.flows.remove(id);
                self.counters.flows_closed += 1;
            }
        }
        Ok(())
    }

    /// Makes a flow again from a record that proves it existed: its cookie verifies under a live
    /// epoch, its session's transceiver is one that we know, and its endpoint means the same to
    /// us as to the process that made it.
    fn heal(
        &mut self,
        now: Now,
        key: FlowKey,
        header: &RecordHeader,
    ) -> Result<FlowId, DropReason> {
        let RecordHeader {
            client,
            endpoint,
            transport,
            session,
            cookie,
            ..
        } = *header;
        if endpoint.0 >= LEARNED_ENDPOINTS_FROM {
            return Err(DropReason::UnknownFlow);
        }
        let proven = self.keys.live().any(|epoch| {
            self.keys
                .epoch(epoch)
                .and_then(|keys| keys.cluster())
                .is_some_and(|keys| keys.cookie(client, endpoint, transport, session) == cookie)
        });
        if !proven {
            return Err(DropReason::UnknownFlow);
        }
        self.routes
            .destination(session)
            .map_err(|_| DropReason::UnknownReturnRoute)?;
        let tick = self.tick(now);
        let id = self
            .insert(Flow::new(key, session, cookie, UfragId::UNKNOWN, tick))
            .map_err(|_| DropReason::ReturnTableFull)?;
        self.counters.flows_healed += 1;
        Ok(id)
    }

    fn header(&self, datagram: &ClientDatagram<'_>, flow: &Flow) -> (SessionRef, RawHeader) {
        let header = RecordHeader {
            direction: Direction::ToTransceiver,
            marks: datagram.marks,
            transport: datagram.transport,
            endpoint: datagram.endpoint,
            client: datagram.client,
            session: flow.session(),
            cookie: flow.cookie(),
        };
        (flow.session(), header.to_raw())
    }

    fn tick(&self, now: Now) -> Tick {
        Tick::at(now.mono.saturating_duration_since(self.started))
    }

    fn idle_ticks(&self) -> Tick {
        Tick::at(self.options.flow_idle)
    }
}

fn key_of(datagram: &ClientDatagram<'_>) -> FlowKey {
    let ClientDatagram {
        client,
        endpoint,
        transport,
        ..
    } = *datagram;
    FlowKey {
        client,
        endpoint,
        transport,
    }
}
