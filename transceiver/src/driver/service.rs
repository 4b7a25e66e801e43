//! One transceiver worker's pass: bundles in, records of the sessions out.
//!
//! What sessions send is copied once, into the trains of the pass, and leaves when the batch has
//! been handled or the trains are full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use syrinx_shared::inner_leg::push_trains;
use syrinx_shared::keys::KeyRing;
use syrinx_shared::route::{Now, SessionRef};
use syrinx_shared::uring::{Batch, IoStats, SendQueue};
use syrinx_shared::wire::encap::RawHeader;
use syrinx_shared::wire::train::{PushError, TrainDestination, Trains};
use syrinx_shared::worker::Service;
use tokio::sync::{mpsc, oneshot};

use super::codec::{Desk, Outputs};
use super::link::Links;
use super::load::LoadMeter;
use super::metrics::ShardMetrics;
use crate::session::{EndReason, IceRestart, Opening, Summary, TransmitSink};
use crate::shard::{Shard, ShardEvent};

/// The worker's only socket.
const INNER_SOCKET: usize = 0;

/// What the control thread tells a worker.
pub enum ShardMessage {
    /// Take up a session.
    Open(Box<Opening>),
    /// End a session; its end is reported like any.
    Close(SessionRef, EndReason),
    /// End every session.
    CloseAll(EndReason),
    /// Give a session further ICE credentials.
    Restart(SessionRef, Box<IceRestart>),
    /// Go on with these keys.
    Keys(Arc<KeyRing>),
    /// Start or stop telling what a session says to its client.
    Tap(SessionRef, bool),
    /// Handle an event as if the session's client had sent it; the text is a checked event. Says
    /// whether the session is there.
    Inject(SessionRef, String, oneshot::Sender<bool>),
    /// Codec work of sessions that is done.
    Codec(Outputs),
    /// Say how a session is doing; `None` when it is not here.
    Inspect(SessionRef, oneshot::Sender<Option<Summary>>),
}

/// When a worker last published its counters, in ms since the process's start: the proof that its
/// loop turns.
#[derive(Debug, Clone)]
pub struct Pulse {
    started: Instant,
    beat_ms: Arc<AtomicU64>,
}

impl Pulse {
    /// A pulse that beats for the first time at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            started: now,
            beat_ms: Arc::new(AtomicU64::new(0)),
        }
    }

    /// Time since the last beat.
    pub fn age(&self, now: Instant) -> std::time::Duration {
        let beat = std::time::Duration::from_millis(self.beat_ms.load(Ordering::Relaxed));
        now.saturating_duration_since(self.started + beat)
    }

    fn beat(&self, now: Instant) {
        let since_start = now.saturating_duration_since(self.started).as_millis();
        self.beat_ms.store(
            u64::try_from(since_start).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }
}

/// Where what a shard gives out goes.
pub struct Ways {
    /// To backends; `None` when no backend has a link.
    pub links: Option<Links>,
    /// To the codec threads.
    pub codec: Desk,
    /// To the control thread.
    pub events: mpsc::Sender<ShardEvent>,
}

/// The service of one worker.
pub struct ShardService {
    shard: Shard,
    trains: Trains,
    oversize_records: u64,
    /// `None` when no backend has any.
    links: Option<Links>,
    codec: Desk,
    events: mpsc::Sender<ShardEvent>,
    pulse: Pulse,
    load: LoadMeter,
    metrics: ShardMetrics,
}

impl ShardService {
    /// A service around `shard` that tells `events` what happens there.
    pub fn new(
        shard: Shard,
        trains: Trains,
        ways: Ways,
        pulse: Pulse,
        load: LoadMeter,
        metrics: ShardMetrics,
    ) -> Self {
        Self {
            shard,
            trains,
            oversize_records: 0,
            links: ways.links,
            codec: ways.codec,
            events: ways.events,
            pulse,
            load,
            metrics,
        }
    }

    /// Runs a step of the shard, sends what it transmits and reports what it tells.
    fn step(
        &mut self,
        now: Now,
        queue: &mut SendQueue,
        run: impl FnOnce(&mut Shard, &mut Packing<'_>),
    ) {
        let mut packing = Packing {
            trains: &mut self.trains,
            queue,
            oversize_records: &mut self.oversize_records,
        };
        run(&mut self.shard, &mut packing);
        let (links, codec) = (&mut self.links, &mut self.codec);
        hand_out(now, &mut self.shard, links, codec, &mut packing);
        packing.send();
        self.report();
    }

    /// Events that find the channel full stay with the shard, which bounds them by its sessions,
    /// and are reported within the second.
    fn report(&mut self) {
        while let Ok(permit) = self.events.try_reserve() {
            let Some(event) = self.shard.poll_event() else {
                return;
            };
            permit.send(event);
        }
    }
}

/// Takes out what a step left in the shard for links and codec, and tells sessions at once of work
/// that the codec has no room for.
fn hand_out(
    now: Now,
    shard: &mut Shard,
    links: &mut Option<Links>,
    codec: &mut Desk,
    packing: &mut Packing<'_>,
) {
    loop {
        while let Some((session, command)) = shard.poll_link() {
            // A session that asks for a link has a backend, and then there are links.
            if let Some(links) = links {
                links.handle(now.mono, session, command);
            }
        }
        let Some((session, command)) = shard.poll_codec() else {
            return;
        };
        if let Some(refusal) = codec.handle(session, command) {
            shard.handle_codec(now, session, refusal, packing);
        }
    }
}

/// Packs what sessions transmit into trains.
struct Packing<'a> {
    trains: &'a mut Trains,
    queue: &'a mut SendQueue,
    oversize_records: &'a mut u64,
}

impl Packing<'_> {
    fn send(&mut self) {
        if self.trains.is_empty() {
            return;
        }
        let mut sends = self.queue.begin();
        push_trains(self.trains, INNER_SOCKET, &mut sends);
        // The payloads are borrowed until the sends are done, which their drop sees to.
        drop(sends);
        self.trains.clear();
    }
}

impl TransmitSink for Packing<'_> {
    fn transmit(&mut self, to: TrainDestination, header: &RawHeader, payload: &[u8]) {
        match self.trains.push(to, header, payload) {
            Ok(()) => {}
            Err(PushError::Oversize) => *self.oversize_records += 1,
            Err(PushError::Full) => {
                self.send();
                let pushed = self.trains.push(to, header, payload);
                debug_assert_eq!(pushed, Ok(()), "invariant: empty trains take any record");
            }
        }
    }
}

impl Service for ShardService {
    type Message = ShardMessage;

    fn handle_datagrams(&mut self, now: Now, batch: &Batch, queue: &mut SendQueue) {
        self.step(now, queue, |shard, packing| {
            for received in batch.iter() {
                for bundle in received.datagrams() {
                    shard.handle_bundle(now, received.from, bundle, packing);
                }
            }
        });
    }

    fn handle_message(&mut self, now: Now, message: ShardMessage, queue: &mut SendQueue) {
        self.step(now, queue, |shard, packing| match message {
            ShardMessage::Open(opening) => {
                let session = opening.session;
                if let Err(error) = shard.open(now, *opening, packing) {
                    tracing::error!(%session, %error, "a session could not be taken up");
                }
            }
            ShardMessage::Close(session, reason) => {
                shard.close(now, session, reason, packing);
            }
            ShardMessage::CloseAll(reason) => shard.close_all(now, reason, packing),
            // A session that has ended meanwhile needs none.
            ShardMessage::Restart(session, restart) => {
                shard.restart(session, *restart);
            }
            ShardMessage::Keys(keys) => shard.set_keys(keys),
            ShardMessage::Tap(session, is_tapped) => {
                shard.tap(session, is_tapped);
            }
            ShardMessage::Inject(session, event, reply) => {
                // Whoever asked may have given up by then.
                let _ = reply.send(shard.inject(now, session, &event, packing));
            }
            ShardMessage::Codec(outputs) => {
                for (session, output) in outputs {
                    shard.handle_codec(now, session, output, packing);
                }
            }
            ShardMessage::Inspect(session, reply) => {
                // Whoever asked may have given up by then.
                let _ = reply.send(shard.inspect(now.mono, session));
            }
        });
    }

    fn handle_timeout(&mut self, now: Now, queue: &mut SendQueue) {
        self.step(now, queue, |shard, packing| {
            shard.handle_timeout(now, packing)
        });
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.shard.poll_timeout()
    }

    fn handle_tasks(&mut self, now: Now, queue: &mut SendQueue) {
        let Some(links) = &mut self.links else {
            return;
        };
        let mut packing = Packing {
            trains: &mut self.trains,
            queue,
            oversize_records: &mut self.oversize_records,
        };
        while let Some((session, event)) = links.poll_event() {
            self.shard.handle_link(now, session, event, &mut packing);
        }
        hand_out(
            now,
            &mut self.shard,
            &mut self.links,
            &mut self.codec,
            &mut packing,
        );
        packing.send();
        self.report();
    }

    fn handle_second(&mut self, now: Now, io: &IoStats) {
        self.report();
        if let Some(links) = &self.links {
            links.publish();
        }
        self.codec.hand_on();
        self.codec.publish();
        let busy = self.load.measure(now.mono);
        self.metrics
            .publish(&self.shard, self.oversize_records, busy, io);
        self.pulse.beat(now.mono);
    }

    fn handle_stop(&mut self, now: Now, queue: &mut SendQueue) {
        self.step(now, queue, |shard, packing| {
            shard.close_all(now, EndReason::Drained, packing)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::time::Duration;

    use syrinx_shared::route::ShardIndex;
    use syrinx_shared::uring::{UdpOptions, WorkerSocket, open_udp};
    use syrinx_shared::wire::encap::{BundleView, PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES};

    fn receiver() -> (std::net::UdpSocket, TrainDestination) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        let destination = TrainDestination {
            addr: socket.local_addr().unwrap(),
            shard: ShardIndex(5),
        };
        (socket, destination)
    }

    fn payload_received(socket: &std::net::UdpSocket) -> Vec<u8> {
        let mut bytes = [0; 2048];
        let length = socket.recv(&mut bytes).unwrap();
        let bundle = BundleView::parse(&bytes[..length]).unwrap();
        assert_eq!(bundle.preamble().destination, ShardIndex(5));
        bundle.records().next().unwrap().unwrap().payload.to_vec()
    }

    #[test]
    fn more_destinations_than_trains_are_all_served_and_an_oversize_record_is_counted() {
        let socket = open_udp(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let sockets: Rc<[WorkerSocket]> = Rc::new([WorkerSocket {
            socket,
            large: true,
        }]);
        let mut queue = SendQueue::new(&sockets);
        let mut trains = Trains::new(ShardIndex(1), 7, 1_472, 1);
        let mut oversize_records = 0;
        let mut packing = Packing {
            trains: &mut trains,
            queue: &mut queue,
            oversize_records: &mut oversize_records,
        };
        let (first, to_first) = receiver();
        let (second, to_second) = receiver();
        let header = [0; RECORD_HEADER_BYTES];
        packing.transmit(to_first, &header, b"to the first");
        packing.transmit(to_second, &header, &vec![0; PAYLOAD_BYTES_MAX + 1]);
        packing.transmit(to_second, &header, b"to the second");
        packing.send();
        assert_eq!(payload_received(&first), b"to the first");
        assert_eq!(payload_received(&second), b"to the second");
        assert_eq!(oversize_records, 1);
    }

    #[test]
    fn a_pulse_ages_until_the_loop_turns_again() {
        let start = Instant::now();
        let pulse = Pulse::new(start);
        let later = start + Duration::from_secs(7);
        assert_eq!(pulse.age(later), Duration::from_secs(7));
        pulse.beat(later);
        assert_eq!(pulse.age(later), Duration::ZERO);
        assert_eq!(
            pulse.age(start),
            Duration::ZERO,
            "clocks of two threads may differ a little"
        );
    }
}
