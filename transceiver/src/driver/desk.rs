//! The desk: where HTTP and the workers meet.
//!
//! Opens a call and hands its session to the worker that owns the place; ends calls; asks after
//! them; and takes note of every end. The lock is the control thread's own and never held across a
//! wait; no worker takes it.

mod beside;
mod sidebands;
mod view;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use syrinx_shared::clock::Clock;
use syrinx_shared::keys::KeyRing;
use syrinx_shared::route::ShardIndex;
use syrinx_shared::worker::{Mailbox, Undelivered};
use tokio::sync::oneshot;

use super::gate::Gate;
use super::load::Load;
use super::metrics::CallMetrics;
use super::service::ShardMessage;
use crate::session::{EndReason, Phases, Summary};
use crate::shard::ShardEvent;
use crate::signalling::api_keys::KeyId;
use crate::signalling::call_id::CallId;
use crate::signalling::calls::{Calls, OpenError, Randomness, Request};

pub use beside::{RestartError, Sideband};
pub use sidebands::SidebandNews;
use sidebands::Sidebands;
pub use view::CallView;
use view::{rounded_ms, samples_ms};

/// How long a worker may take to say how a session is doing: a pass takes far below a millisecond.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(1);

/// See the module's description.
pub struct Desk {
    book: Mutex<Book>,
    mailboxes: Vec<Mailbox<ShardMessage>>,
    metrics: CallMetrics,
    gate: Arc<Gate>,
    loads: Vec<Load>,
    codec_loads: Vec<Load>,
    busy_percent_max: u32,
}

struct Book {
    calls: Calls,
    sidebands: Sidebands,
    clock: Clock,
}

/// A call that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its name.
    pub call: CallId,
    /// The SDP answer.
    pub sdp: String,
}

/// Why a call was not ended or looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeskError {
    /// There is none of that name.
    #[error("there is no such call")]
    UnknownCall,
    /// The worker takes no messages for the moment.
    #[error("the worker has too much waiting")]
    Busy,
    /// Enough listen to the call.
    #[error("the call has as many sidebands as it may have")]
    Crowded,
}

/// What the desk knows of the whole process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupancy {
    /// Sessions that have a place.
    pub sessions: usize,
    /// Sessions that can have one at once.
    pub capacity: usize,
    /// Whether no further call is opened.
    pub draining: bool,
}

impl Desk {
    /// A desk before these workers, in the order of their shards. The gate knows the keys' names.
    pub fn new(
        calls: Calls,
        mailboxes: Vec<Mailbox<ShardMessage>>,
        metrics: CallMetrics,
        gate: Arc<Gate>,
    ) -> Self {
        let book = Mutex::new(Book {
            calls,
            sidebands: Sidebands::default(),
            clock: Clock::new(),
        });
        Self {
            book,
            mailboxes,
            metrics,
            gate,
            loads: Vec::new(),
            codec_loads: Vec::new(),
            busy_percent_max: 100,
        }
    }

    /// Opens no calls on workers that are busier than this share of a core, in percent, and none
    /// at all while a codec thread is: which of them a call comes to, and whether it needs one, is
    /// known only when it is open.
    #[must_use]
    pub fn with_loads(
        mut self,
        loads: Vec<Load>,
        codec_loads: Vec<Load>,
        busy_percent_max: u32,
    ) -> Self {
        self.loads = loads;
        self.codec_loads = codec_loads;
        self.busy_percent_max = busy_percent_max;
        self
    }

    /// Who may.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // A panic under the lock has been contained to one request; the registrar's own assertions
        // guard what it leaves behind.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a call.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; nothing is left of the call.
    pub fn open(&self, request: Request<'_>) -> Result<Answer, OpenError> {
        let opened = self.open_uncounted(request);
        match &opened {
            Ok(_) => self.metrics.count_opened(),
            Err(error) => self.metrics.count_refused(error),
        }
        opened
    }

    fn open_uncounted(&self, request: Request<'_>) -> Result<Answer, OpenError> {
        let mut book = self.book();
        let now = book.clock.now();
        let keeps_up = |load: &Load| load.percent() <= self.busy_percent_max;
        let codecs_keep_up = self.codec_loads.iter().all(keeps_up);
        for (shard, load) in (0u8..).zip(&self.loads) {
            let has_headroom = codecs_keep_up && keeps_up(load);
            book.calls.set_headroom(ShardIndex(shard), has_headroom);
        }
        let opened = book.calls.open(now, draw(), request)?;
        let session = opened.opening.session;
        let mailbox = &self.mailboxes[usize::from(session.shard.0)];
        if mailbox.send(ShardMessage::Open(opened.opening)).is_err() {
            book.calls.abandon(session);
            return Err(OpenError::Busy);
        }
        Ok(Answer {
            call: opened.call,
            sdp: opened.answer,
        })
    }

    /// Ends a call that `key` opened. It can be found no more from then on; its place is free when
    /// the worker says so.
    ///
    /// # Errors
    ///
    /// [`DeskError`].
    pub fn end(&self, call: CallId, key: KeyId) -> Result<(), DeskError> {
        let mut book = self.book();
        let session = book.calls.session_of(call, key);
        let session = session.ok_or(DeskError::UnknownCall)?;
        let mailbox = &self.mailboxes[usize::from(session.shard.0)];
        match mailbox.send(ShardMessage::Close(session, EndReason::HungUp)) {
            Ok(()) => {
                book.calls.unlist(call);
                Ok(())
            }
            Err(Undelivered::Full(_) | Undelivered::Stopped(_)) => Err(DeskError::Busy),
        }
    }

    /// How a call that `key` opened is doing.
    ///
    /// # Errors
    ///
    /// [`DeskError`].
    pub async fn view(&self, call: CallId, key: KeyId) -> Result<CallView, DeskError> {
        let (reply, answer) = oneshot::channel();
        {
            let book = self.book();
            let session = book.calls.session_of(call, key);
            let session = session.ok_or(DeskError::UnknownCall)?;
            let mailbox = &self.mailboxes[usize::from(session.shard.0)];
            let asked = mailbox.send(ShardMessage::Inspect(session, reply));
            asked.map_err(|_| DeskError::Busy)?;
        }
        let answer = tokio::time::timeout(INSPECT_TIMEOUT, answer).await;
        let summary = answer
            .map_err(|_| DeskError::Busy)?
            .map_err(|_| DeskError::Busy)?;
        // The session ended while the question was on its way.
        summary
            .map(|summary| CallView::new(&summary))
            .ok_or(DeskError::UnknownCall)
    }

    /// Takes note of what a worker told.
    pub fn handle_event(&self, event: ShardEvent) {
        match event {
            ShardEvent::Connected(session) => self.book().calls.connected(session),
            ShardEvent::Ended { reason, summary } => self.note_end(reason, &summary),
            ShardEvent::Said {
                session,
                event,
                missed,
            } => self.book().sidebands.said(session, &event, missed),
        }
    }

    fn note_end(&self, reason: EndReason, summary: &Summary) {
        self.metrics.record_end(summary);
        let key = {
            let mut book = self.book();
            book.sidebands.ended(summary.session, reason);
            book.calls.end(summary.session)
        };
        let Some(key) = key else {
            tracing::error!(session = %summary.session, "an end of a session nobody had");
            return;
        };
        let access = self.gate.access();
        log_end(reason, summary, access.name_of(key));
    }

    /// Goes on with these keys. Every worker has them before a ufrag is minted with them.
    ///
    /// # Errors
    ///
    /// [`DeskError::Busy`] when a worker takes no message; nothing is minted with them then.
    pub fn set_keys(&self, keys: &Arc<KeyRing>) -> Result<(), DeskError> {
        for mailbox in &self.mailboxes {
            let told = mailbox.send(ShardMessage::Keys(Arc::clone(keys)));
            told.map_err(|_| DeskError::Busy)?;
        }
        self.book().calls.set_keys(Arc::clone(keys));
        Ok(())
    }

    /// Opens no further call.
    pub fn drain(&self) {
        self.book().calls.drain();
    }

    /// Ends every call. Workers that take no message end theirs when they are stopped.
    pub fn end_all(&self) {
        for mailbox in &self.mailboxes {
            let _ = mailbox.send(ShardMessage::CloseAll(EndReason::Drained));
        }
    }

    /// How full the process is.
    pub fn occupancy(&self) -> Occupancy {
        let book = self.book();
        let registrar = book.calls.registrar();
        Occupancy {
            sessions: registrar.session_count(),
            capacity: registrar.capacity(),
            draining: registrar.is_draining(),
        }
    }
}

/// Random bits of a call.
///
/// # Panics
///
/// When the operating system has none, which on Linux happens only before its generator is seeded
/// at boot.
fn draw() -> Randomness {
    let mut bytes = [0; 26];
    getrandom::fill(&mut bytes).expect("the operating system's generator is seeded");
    let (call, rest) = bytes
        .split_first_chunk::<16>()
        .expect("invariant: 26 bytes");
    let (ufrag, rest) = rest.split_first_chunk::<2>().expect("invariant: 10 bytes");
    let events = rest.first_chunk::<8>().expect("invariant: 8 bytes");
    Randomness {
        call: *call,
        ufrag: u16::from_ne_bytes(*ufrag),
        events: u64::from_ne_bytes(*events),
    }
}

/// One line that says everything about a call that has ended.
fn log_end(reason: EndReason, summary: &Summary, key: Option<&str>) {
    let ms = |took: Option<Duration>| took.map(rounded_ms);
    let Phases {
        first_check,
        connected,
        channel,
        first_audio,
    } = summary.phases;
    tracing::info!(
        call = summary.id,
        reason = reason.label(),
        key,
        session = %summary.session,
        client = summary.client.map(tracing::field::display),
        age_s = summary.age.as_secs_f64(),
        first_check_ms = ms(first_check),
        connected_ms = ms(connected),
        channel_ms = ms(channel),
        first_audio_ms = ms(first_audio),
        moves = summary.moves,
        ice_restarts = summary.counts.ice_restarts,
        codec = summary.audio.map(|format| format.codec.name()),
        round_trip_ms = ms(summary.delivery.round_trip),
        round_trip_min_ms = ms(summary.delivery.round_trip_min),
        audio_in_packets = summary.reception.packets,
        audio_in_lost_packets = summary.reception.lost(),
        audio_in_late_packets = summary.repairs.late,
        audio_in_jumps = summary.repairs.jumps,
        audio_in_lost_ms = samples_ms(summary.repairs.lost_samples),
        audio_in_silent_ms = samples_ms(summary.repairs.silent_samples),
        audio_in_jitter_ms = summary.reception.jitter_ms,
        keys_pressed = summary.repairs.keys,
        audio_out_packets = summary.counts.audio_out_packets,
        audio_out_lost_packets = summary.delivery.lost_packets,
        audio_out_jitter_ms = summary.delivery.jitter_ms,
        messages_in = summary.counts.messages_in,
        messages_out = summary.counts.messages_out,
        replies_dropped = summary.replies_dropped,
        failure = summary.failure,
        "call ended"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    use syrinx_shared::keys::MasterSecret;
    use syrinx_shared::route::{ClusterId, Epoch, Generation, Now, TransceiverId};
    use syrinx_shared::uring::{Batch, IoStats, SendQueue};
    use syrinx_shared::worker::{Service, WorkerHandle, WorkerOptions, spawn};

    use crate::driver::load::LoadMeter;
    use crate::driver::metrics::AccessMetrics;
    use crate::engine::Template;
    use crate::signalling::access::Access;
    use crate::signalling::calls::tests::{LIMITS, OFFER};
    use crate::signalling::registrar::{Refusal, Registrar};

    /// A worker that takes its first message and then hangs until it is let go.
    struct Stuck {
        taken: Sender<()>,
        let_go: Receiver<()>,
    }

    impl Service for Stuck {
        type Message = ShardMessage;

        fn handle_message(&mut self, _: Now, _: ShardMessage, _: &mut SendQueue) {
            let _ = self.taken.send(());
            let _ = self.let_go.recv();
        }

        fn handle_datagrams(&mut self, _: Now, _: &Batch, _: &mut SendQueue) {}
        fn handle_timeout(&mut self, _: Now, _: &mut SendQueue) {}
        fn poll_timeout(&self) -> Option<Instant> {
            None
        }
        fn handle_second(&mut self, _: Now, _: &IoStats) {}
        fn handle_stop(&mut self, _: Now, _: &mut SendQueue) {}
    }

    /// A desk before a worker that hangs over the opening of a call, with one more message waiting,
    /// which is all its mailbox takes.
    fn desk_before_a_stuck_worker() -> (Desk, [CallId; 2], Sender<()>, WorkerHandle<ShardMessage>) {
        let (taken, is_taken) = channel();
        let (free, let_go) = channel();
        let mut options = WorkerOptions::new("stuck", Vec::new());
        options.mailbox_capacity = 1;
        let worker = spawn(options, move |_| Stuck { taken, let_go }).unwrap();
        let keys = KeyRing::single(Epoch::new(0).unwrap(), &MasterSecret::new([7; 32]));
        let registrar = Registrar::new(TransceiverId(1), 1, 8, Generation(0));
        let template = Template::new(&["192.0.2.1:3478".parse().unwrap()]).unwrap();
        let keys = Arc::new(keys);
        let access = Access::new(Arc::clone(&keys), None);
        let gate = Arc::new(Gate::new(access, AccessMetrics::register()));
        let calls = Calls::new(registrar, LIMITS, template, keys, ClusterId(1));
        let mailboxes = vec![worker.mailbox()];
        let desk = Desk::new(calls, mailboxes, CallMetrics::register(), gate);
        let first = desk.open(request()).unwrap().call;
        is_taken.recv().unwrap();
        let second = desk.open(request()).unwrap().call;
        (desk, [first, second], free, worker)
    }

    fn request() -> Request<'static> {
        Request {
            offer: OFFER.as_bytes(),
            ..Request::default()
        }
    }

    #[test]
    fn no_call_is_opened_while_a_codec_thread_cannot_keep_up() {
        let (desk, _, free, worker) = desk_before_a_stuck_worker();
        let (idle, overdone) = (Load::default(), Load::default());
        let mut meter = LoadMeter::new(overdone.clone());
        let start = Instant::now();
        let work = |meter: &mut LoadMeter, seconds: u64| {
            meter.note(
                start + Duration::from_secs(seconds),
                seconds * 1_000_000_000,
            );
        };
        (0..5).for_each(|seconds| work(&mut meter, seconds));
        let desk = desk.with_loads(vec![idle.clone()], vec![idle, overdone], 85);
        let refused = desk.open(request());
        assert_eq!(refused, Err(OpenError::Refused(Refusal::NoHeadroom)));
        // Ten idle seconds later it has caught up, and only the worker is in the way.
        (5..15).for_each(|second| meter.note(start + Duration::from_secs(second), 4_000_000_000));
        assert_eq!(desk.open(request()), Err(OpenError::Busy));
        drop(free);
        worker.stop();
        worker.join().unwrap();
    }

    #[tokio::test]
    async fn a_worker_with_too_much_waiting_makes_everything_busy_and_nothing_is_lost() {
        let (desk, [first, second], free, worker) = desk_before_a_stuck_worker();
        assert_eq!(desk.open(request()), Err(OpenError::Busy));
        assert_eq!(
            desk.occupancy().sessions,
            2,
            "the refused call took no place"
        );
        assert_eq!(desk.end(first, KeyId::ANONYMOUS), Err(DeskError::Busy));
        assert_eq!(
            desk.view(second, KeyId::ANONYMOUS).await.err(),
            Some(DeskError::Busy)
        );
        assert_eq!(
            desk.end(first, KeyId::ANONYMOUS),
            Err(DeskError::Busy),
            "the call is still known"
        );
        assert_eq!(
            desk.occupancy(),
            Occupancy {
                sessions: 2,
                capacity: 8,
                draining: false
            }
        );
        drop(free);
        worker.stop();
        worker.join().unwrap();
        assert_eq!(
            desk.end(first, KeyId::ANONYMOUS),
            Err(DeskError::Busy),
            "a worker that has ended takes nothing"
        );
    }

    #[tokio::test]
    async fn a_call_nobody_opened_is_unknown() {
        let (desk, _, free, worker) = desk_before_a_stuck_worker();
        let stranger = CallId::new([9; 16]);
        assert_eq!(
            desk.end(stranger, KeyId::ANONYMOUS),
            Err(DeskError::UnknownCall)
        );
        assert_eq!(
            desk.view(stranger, KeyId::ANONYMOUS).await.err(),
            Some(DeskError::UnknownCall)
        );
        drop(free);
        worker.stop();
        worker.join().unwrap();
    }

    #[test]
    fn keys_that_a_worker_has_not_been_given_mint_nothing() {
        let (desk, _, free, worker) = desk_before_a_stuck_worker();
        let keys = KeyRing::single(Epoch::new(1).unwrap(), &MasterSecret::new([8; 32]));
        assert_eq!(desk.set_keys(&Arc::new(keys)), Err(DeskError::Busy));
        drop(free);
        worker.stop();
        worker.join().unwrap();
    }

    #[test]
    fn random_bits_differ_from_call_to_call() {
        let (one, other) = (draw(), draw());
        assert_ne!(one.call, other.call);
        assert_ne!(one.events, other.events);
    }
}
