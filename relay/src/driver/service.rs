//! One relay worker's pass: received batch in, verdicts of the forwarder, trains and datagrams out.
//!
//! Sockets 0 to n-1 are the public ones, in the order of the configuration; socket n is the inner
//! one. Payloads for clients are sent from the very buffers they were received into; payloads for
//! transceivers are copied once, into the train that carries them.

use std::sync::Arc;
use std::time::Instant;

use syrinx_shared::inner_leg::push_trains;
use syrinx_shared::keys::KeyRing;
use syrinx_shared::route::{ClientSocket, Now, Transport};
use syrinx_shared::uring::{Batch, IoStats, Received, Send, SendQueue, Sends};
use syrinx_shared::wire::encap::{Marks, RawHeader};
use syrinx_shared::wire::train::{PushError, TrainDestination, Trains};
use syrinx_shared::worker::Service;

use super::endpoints::Endpoints;
use super::metrics::RelayMetrics;
use super::trace::Trace;
use crate::forwarder::routes::Routes;
use crate::forwarder::{ClientDatagram, ClientVerdict, DropReason, Forwarder, ToClient};

/// What the control thread tells a worker.
#[derive(Debug, Clone)]
pub enum RelayMessage {
    /// The key file was read again.
    Keys(Arc<KeyRing>),
    /// The route table was read again.
    Routes(Arc<Routes>),
    /// An operator wants to see verdicts. Replaces the trace before it.
    Trace(Trace),
}

/// The service of one worker.
#[derive(Debug)]
pub struct RelayService {
    forwarder: Forwarder,
    trains: Trains,
    endpoints: Endpoints,
    inner_socket: usize,
    failures: SendFailures,
    metrics: RelayMetrics,
    trace: Option<Trace>,
}

/// A record that found all trains in use: it is packed once they have been sent.
struct Held<'a> {
    to: TrainDestination,
    header: RawHeader,
    payload: &'a [u8],
}

impl RelayService {
    /// A service over `public_count` public sockets and the inner one behind them.
    pub fn new(
        forwarder: Forwarder,
        trains: Trains,
        public_count: usize,
        metrics: RelayMetrics,
    ) -> Self {
        Self {
            forwarder,
            trains,
            endpoints: Endpoints::new(public_count),
            inner_socket: public_count,
            failures: SendFailures::default(),
            metrics,
            trace: None,
        }
    }

    /// Handles datagrams until the batch ends or the trains are full.
    fn fill<'s, 'b: 's>(
        &mut self,
        now: Now,
        received: &mut impl Iterator<Item = Received<'b>>,
        sends: &mut Sends<'s>,
    ) -> Option<Held<'b>> {
        for datagram in received {
            if datagram.socket == self.inner_socket {
                for bundle in datagram.datagrams() {
                    self.handle_bundle(now, bundle, sends);
                }
            } else if let Some(held) = self.handle_client(now, &datagram) {
                return Some(held);
            }
        }
        None
    }

    fn handle_client<'a>(&mut self, now: Now, received: &Received<'a>) -> Option<Held<'a>> {
        if received.truncated {
            self.forwarder.count_undeliverable(DropReason::Truncated);
            return None;
        }
        let Some(endpoint) = self.endpoints.of(received.socket, received.local_ip) else {
            self.forwarder
                .count_undeliverable(DropReason::EndpointLimit);
            return None;
        };
        let datagram = ClientDatagram {
            client: ClientSocket::new(received.from),
            endpoint,
            transport: Transport::Udp,
            marks: Marks::from_traffic_class(received.traffic_class),
            payload: received.payload,
        };
        let verdict = self.forwarder.handle_client(now, &datagram);
        if let Some(trace) = &mut self.trace {
            trace.note_client(&datagram, &verdict);
        }
        match verdict {
            ClientVerdict::Forward { to, header } => self.pack(Held {
                to,
                header,
                payload: received.payload,
            }),
            ClientVerdict::Drop(_) => None,
        }
    }

    /// Packs a record, and gives it back when the trains are full.
    fn pack<'a>(&mut self, held: Held<'a>) -> Option<Held<'a>> {
        match self.trains.push(held.to, &held.header, held.payload) {
            Ok(()) => None,
            Err(PushError::Full) => Some(held),
            Err(PushError::Oversize) => {
                self.forwarder.reclassify(DropReason::Oversize, 1);
                None
            }
        }
    }

    fn handle_bundle<'a>(&mut self, now: Now, bundle: &'a [u8], sends: &mut Sends<'a>) {
        let endpoints = &self.endpoints;
        let mut unknown_endpoints = 0;
        let trace = &mut self.trace;
        self.forwarder.handle_bundle(now, bundle, |verdict| {
            if let Some(trace) = trace {
                trace.note_record(&verdict);
            }
            if let Ok(Some(to_client)) = verdict.outcome {
                match reply(endpoints, &to_client) {
                    Some(send) => sends.push(send),
                    None => unknown_endpoints += 1,
                }
            }
        });
        if unknown_endpoints > 0 {
            self.forwarder
                .reclassify(DropReason::UnknownEndpoint, unknown_endpoints);
        }
    }
}

fn reply<'a>(endpoints: &Endpoints, to_client: &ToClient<'a>) -> Option<Send<'a>> {
    let address = endpoints.address(to_client.endpoint)?;
    Some(Send {
        socket: address.socket,
        to: to_client.client.addr(),
        from_ip: address.ip,
        traffic_class: to_client.marks.traffic_class(),
        segment_bytes: None,
        item_count: 1,
        payload: to_client.payload,
    })
}

impl Service for RelayService {
    type Message = RelayMessage;

    fn handle_datagrams(&mut self, now: Now, batch: &Batch, queue: &mut SendQueue) {
        let mut received = batch.iter();
        loop {
            let mut sends = queue.begin();
            let held = self.fill(now, &mut received, &mut sends);
            push_trains(&self.trains, self.inner_socket, &mut sends);
            drop(sends);
            self.trains.clear();
            let Some(held) = held else { break };
            let repacked = self.pack(held);
            debug_assert!(
                repacked.is_none(),
                "invariant: empty trains take any record"
            );
        }
    }

    fn handle_message(&mut self, _: Now, message: RelayMessage, _: &mut SendQueue) {
        match message {
            RelayMessage::Keys(keys) => self.forwarder.set_keys(keys),
            RelayMessage::Routes(routes) => self.forwarder.set_routes(routes),
            RelayMessage::Trace(trace) => self.trace = Some(trace),
        }
    }

    fn handle_timeout(&mut self, now: Now, _: &mut SendQueue) {
        self.forwarder.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.forwarder.poll_timeout()
    }

    fn handle_second(&mut self, _: Now, io: &IoStats) {
        self.failures
            .charge(io, self.inner_socket, &mut self.forwarder);
        self.trace.take_if(|trace| trace.is_over());
        debug_assert!(self.forwarder.counters().balance());
        self.metrics
            .publish(self.forwarder.counters(), self.forwarder.flow_count(), io);
    }

    fn handle_stop(&mut self, _: Now, _: &mut SendQueue) {}
}

/// What the kernel refused to send, as far as it has been charged to the forwarder's counters.
#[derive(Debug, Default)]
struct SendFailures {
    to_transceiver: Charged,
    to_client: Charged,
}

#[derive(Debug, Default)]
struct Charged {
    blocked: u64,
    failed: u64,
}

impl SendFailures {
    /// Moves what was refused since the last call from *forwarded* to its drop reason.
    fn charge(&mut self, io: &IoStats, inner_socket: usize, forwarder: &mut Forwarder) {
        let mut blocked = [0; 2];
        let mut failed = [0; 2];
        for (index, socket) in io.sockets.iter().enumerate() {
            let side = usize::from(index != inner_socket);
            blocked[side] += socket.sends.items_blocked;
            failed[side] += socket.sends.items_failed;
        }
        let [inner_blocked, client_blocked] = blocked;
        let [inner_failed, client_failed] = failed;
        for (seen, total, reason) in [
            (
                &mut self.to_transceiver.blocked,
                inner_blocked,
                DropReason::InnerSendBlocked,
            ),
            (
                &mut self.to_transceiver.failed,
                inner_failed,
                DropReason::InnerSendFailed,
            ),
            (
                &mut self.to_client.blocked,
                client_blocked,
                DropReason::ClientSendBlocked,
            ),
            (
                &mut self.to_client.failed,
                client_failed,
                DropReason::ClientSendFailed,
            ),
        ] {
            forwarder.reclassify(reason, total - std::mem::replace(seen, total));
        }
    }
}
