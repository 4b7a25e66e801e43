//! A worker: one pinned thread that owns its sockets, its service and its loop.
//!
//! ```text
//! loop {
//!   wait for datagrams, messages, tasks and the next deadline, all at once
//!   now = clock, once a pass
//!   messages        before datagrams, so that a session is open before its first check arrives
//!   datagrams       the whole batch through the service, which sends what follows from it
//!   deadline        if the service's came
//!   tasks           a slice, if something is due for them
//!   once a second   counters
//! }
//! ```
//!
//! Nothing is shared between workers. The service is built on the worker's thread and need not be
//! [`Send`]; other threads reach it through the [`Mailbox`]. A panic in the service ends the
//! worker, and is reported by [`WorkerHandle::join`] and the exit hook: losing a worker is never
//! silent.

mod mailbox;
mod options;

pub use mailbox::{Mailbox, Undelivered};
pub use options::{COALESCE_MAX, ExitHook, WorkerError, WorkerFailure, WorkerOptions};

use crate::clock::Clock;
use crate::cores::{CoreId, pin_current_thread};
use crate::route::Now;
use crate::uring::mmsg::Mmsg;
use crate::uring::ring::Ring;
use crate::uring::{
    Batch, IoModel, IoModelChoice, IoStats, Receiver as IoReceiver, ReceiverOptions, SendQueue,
    SliceExecutor, Slices, WakeEvent, WorkerSocket, choose_io_model, require_ring,
};
use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a worker publishes its counters.
const PUBLISH_PERIOD: Duration = Duration::from_secs(1);

/// What runs on a worker. Methods are called in turn on the worker's thread; each may send.
pub trait Service {
    /// What other threads send.
    type Message: Send;

    /// A batch arrived. Payloads may be sent from until the call returns.
    fn handle_datagrams(&mut self, now: Now, batch: &Batch, queue: &mut SendQueue);

    /// A message was taken out of the mailbox.
    fn handle_message(&mut self, now: Now, message: Self::Message, queue: &mut SendQueue);

    /// The moment of [`Service::poll_timeout`] came.
    fn handle_timeout(&mut self, now: Now, queue: &mut SendQueue);

    /// When [`Service::handle_timeout`] wants to be called next. Asked after every pass.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Tasks of this worker were polled, and may have left something for the service.
    fn handle_tasks(&mut self, _now: Now, _queue: &mut SendQueue) {}

    /// A second has passed: publish counters. Called once more after [`Service::handle_stop`].
    fn handle_second(&mut self, now: Now, io: &IoStats);

    /// The worker was asked to stop; nothing but [`Service::handle_second`] follows.
    fn handle_stop(&mut self, now: Now, queue: &mut SendQueue);
}

/// What a service may use of its worker. Given to its constructor.
#[derive(Debug)]
pub struct WorkerContext {
    io_model: IoModel,
    core: Option<CoreId>,
    slices: Option<Slices>,
}

impl WorkerContext {
    /// The model in use: [`IoModel::Ring`] or [`IoModel::Mmsg`].
    pub fn io_model(&self) -> IoModel {
        self.io_model
    }

    /// The core the thread is pinned to.
    pub fn core(&self) -> Option<CoreId> {
        self.core
    }

    /// The worker's tasks; `None` if it was started with `tasks_max` nought.
    pub fn slices(&self) -> Option<&Slices> {
        self.slices.as_ref()
    }
}

/// A running worker.
#[derive(Debug)]
pub struct WorkerHandle<M> {
    name: String,
    choice: IoModelChoice,
    mailbox: Mailbox<M>,
    stop: Arc<AtomicBool>,
    wake: Arc<WakeEvent>,
    thread: JoinHandle<Result<(), WorkerFailure>>,
}

impl<M: Send> WorkerHandle<M> {
    /// The worker's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A mailbox to keep elsewhere.
    pub fn mailbox(&self) -> Mailbox<M> {
        self.mailbox.clone()
    }

    /// Queues a message for the worker; never blocks. Errors: as [`Mailbox::send`].
    pub fn send(&self, message: M) -> Result<(), Undelivered<M>> {
        self.mailbox.send(message)
    }

    /// The model in use: [`IoModel::Ring`] or [`IoModel::Mmsg`].
    pub fn io_model(&self) -> IoModel {
        self.choice.model
    }

    /// The model in use and why.
    pub fn io_model_choice(&self) -> &IoModelChoice {
        &self.choice
    }

    /// Asks the worker to end after the messages sent so far. Does not wait.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Whether the worker has ended, asked or not.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the worker's end. Errors: it ended by itself, and why.
    pub fn join(self) -> Result<(), WorkerFailure> {
        let worker = self.name;
        self.thread.join().unwrap_or_else(|panic| {
            let text = panic_text(&*panic).to_owned();
            Err(WorkerFailure::Panicked { worker, text })
        })
    }
}

/// Asks workers to end, and waits for all of them, whatever becomes of each.
///
/// Errors: the first that had ended by itself, and why.
pub fn stop_all<M: Send>(workers: Vec<WorkerHandle<M>>) -> Result<(), WorkerFailure> {
    workers.iter().for_each(WorkerHandle::stop);
    let outcomes: Vec<_> = workers.into_iter().map(WorkerHandle::join).collect();
    outcomes.into_iter().collect()
}

/// Starts a worker. Returns when it is ready to receive.
///
/// `build` runs on the worker's thread. Errors: [`WorkerError`]; nothing is left running then.
pub fn spawn<S, F>(
    options: WorkerOptions,
    build: F,
) -> Result<WorkerHandle<S::Message>, WorkerError>
where
    S: Service + 'static,
    F: FnOnce(&WorkerContext) -> S + Send + 'static,
{
    options.check()?;
    let failed = |step| move |cause| WorkerError::Failed { step, cause };
    let wake = Arc::new(WakeEvent::new().map_err(failed("eventfd"))?);
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, messages) = sync_channel(options.mailbox_capacity);
    let (ready, readiness) = sync_channel(1);
    let name = options.name.clone();
    let mailbox = Mailbox::new(sender, Arc::clone(&wake));
    let inbox = Inbox {
        messages,
        wake: Arc::clone(&wake),
        stop: Arc::clone(&stop),
    };
    let thread = thread::Builder::new()
        .name(name.clone())
        .spawn(move || thread_main(options, inbox, build, ready))
        .map_err(failed("thread"))?;
    match readiness.recv() {
        Ok(Ok(choice)) => {
            tracing::info!(
                worker = name, model = %choice.model, reason = choice.reason, "worker started"
            );
            Ok(WorkerHandle {
                name,
                choice,
                mailbox,
                stop,
                wake,
                thread,
            })
        }
        Ok(Err(error)) => {
            // The thread has nothing left to do; its outcome is the error at hand.
            let _ = thread.join();
            Err(error)
        }
        Err(_) => {
            let outcome = thread.join();
            let text = match outcome {
                Ok(Err(WorkerFailure::Panicked { text, .. })) => text,
                _ => "no reason given".to_owned(),
            };
            Err(WorkerError::Panicked(text))
        }
    }
}

/// What reaches a worker from other threads.
struct Inbox<M> {
    messages: Receiver<M>,
    wake: Arc<WakeEvent>,
    stop: Arc<AtomicBool>,
}

fn thread_main<S, F>(
    mut options: WorkerOptions,
    inbox: Inbox<S::Message>,
    build: F,
    ready: SyncSender<Result<IoModelChoice, WorkerError>>,
) -> Result<(), WorkerFailure>
where
    S: Service,
    F: FnOnce(&WorkerContext) -> S,
{
    let worker = options.name.clone();
    let on_exit = options.on_exit.take();
    let report = Report {
        ready,
        is_started: Cell::new(false),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| run(options, inbox, build, &report)));
    let outcome = match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(cause)) => Err(WorkerFailure::Receive { worker, cause }),
        Err(panic) => Err(WorkerFailure::Panicked {
            worker,
            text: panic_text(&*panic).to_owned(),
        }),
    };
    if report.is_started.get() {
        if let Err(failure) = &outcome {
            tracing::error!(%failure, "a worker is lost");
        }
        if let Some(on_exit) = on_exit {
            on_exit(outcome.as_ref().err());
        }
    }
    outcome
}

/// How the thread tells its spawner whether it started: exactly once, unless it panics first.
struct Report {
    ready: SyncSender<Result<IoModelChoice, WorkerError>>,
    is_started: Cell<bool>,
}

impl Report {
    fn send(&self, outcome: Result<IoModelChoice, WorkerError>) {
        self.is_started.set(outcome.is_ok());
        // The spawner waits for this report, and the channel holds one, so it always arrives.
        let _ = self.ready.send(outcome);
    }
}

/// Sets the worker up, reports that, and runs it to its end.
fn run<S, F>(
    options: WorkerOptions,
    inbox: Inbox<S::Message>,
    build: F,
    report: &Report,
) -> io::Result<()>
where
    S: Service,
    F: FnOnce(&WorkerContext) -> S,
{
    let ground = match Ground::prepare(options, &inbox.wake) {
        Ok(ground) => ground,
        Err(error) => {
            report.send(Err(error));
            return Ok(());
        }
    };
    if ground.choice.model == IoModel::Ring {
        let receiver = Ring::new(&ground.receiver);
        serve(receiver, ground, inbox, build, report)
    } else {
        let receiver = Mmsg::new(&ground.receiver);
        serve(receiver, ground, inbox, build, report)
    }
}

fn serve<S, R, F>(
    receiver: io::Result<R>,
    ground: Ground,
    inbox: Inbox<S::Message>,
    build: F,
    report: &Report,
) -> io::Result<()>
where
    S: Service,
    R: IoReceiver,
    F: FnOnce(&WorkerContext) -> S,
{
    match receiver {
        Ok(receiver) => {
            let choice = ground.choice.clone();
            let worker = Worker::new(receiver, ground, inbox, build);
            report.send(Ok(choice));
            worker.run()
        }
        Err(cause) => {
            let step = "receive buffers";
            report.send(Err(WorkerError::Failed { step, cause }));
            Ok(())
        }
    }
}

/// What both models stand on.
struct Ground {
    choice: IoModelChoice,
    core: Option<CoreId>,
    receiver: ReceiverOptions,
    slices: Option<SliceExecutor>,
    mailbox_capacity: usize,
}

impl Ground {
    /// On the worker's thread: pins it, chooses the model and builds the executor.
    fn prepare(options: WorkerOptions, wake: &Arc<WakeEvent>) -> Result<Ground, WorkerError> {
        if let Some(core) = options.core {
            pin_current_thread(core)?;
        }
        let choice = choose_io_model(options.io_model)?;
        let mut slices = None;
        if options.tasks_max > 0 {
            require_ring().map_err(WorkerError::Tasks)?;
            let failed = |cause| WorkerError::Failed {
                step: "task executor",
                cause,
            };
            let executor = SliceExecutor::new(options.tasks_max, Arc::clone(wake));
            slices = Some(executor.map_err(failed)?);
        }
        let tasks = slices.as_ref().map(|slices| Rc::clone(slices.readiness()));
        let receiver = ReceiverOptions {
            sockets: options.sockets.into(),
            client_buffers: options.client_buffers,
            inner_buffers: options.inner_buffers,
            coalesce: options.coalesce,
            spin: options.spin,
            wake: Arc::clone(wake),
            tasks,
        };
        let (core, mailbox_capacity) = (options.core, options.mailbox_capacity);
        Ok(Ground {
            choice,
            core,
            receiver,
            slices,
            mailbox_capacity,
        })
    }
}

/// The loop's state.
struct Worker<S: Service, R> {
    // Dropped in this order: the receive model lets go of the sockets and of the executor's
    // descriptor before they close.
    receiver: R,
    queue: SendQueue,
    service: S,
    slices: Option<SliceExecutor>,
    sockets: Rc<[WorkerSocket]>,
    inbox: Inbox<S::Message>,
    mailbox_capacity: usize,
    clock: Clock,
    next_publish: Instant,
    has_mail_left: bool,
    stats: IoStats,
}

impl<S: Service, R: IoReceiver> Worker<S, R> {
    fn new<F>(receiver: R, ground: Ground, inbox: Inbox<S::Message>, build: F) -> Worker<S, R>
    where
        F: FnOnce(&WorkerContext) -> S,
    {
        let context = WorkerContext {
            io_model: ground.choice.model,
            core: ground.core,
            slices: ground.slices.as_ref().map(|slices| slices.handle().clone()),
        };
        let sockets = ground.receiver.sockets;
        Worker {
            receiver,
            queue: SendQueue::new(&sockets),
            service: build(&context),
            slices: ground.slices,
            stats: IoStats::new(sockets.len()),
            sockets,
            inbox,
            mailbox_capacity: ground.mailbox_capacity,
            clock: Clock::new(),
            next_publish: Instant::now() + PUBLISH_PERIOD,
            has_mail_left: false,
        }
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            let timeout = self.timeout();
            let tasks_ready = self.receiver.wait(timeout)?;
            let now = self.clock.now();
            self.stats.passes += 1;
            let stop = self.handle_messages(now);
            self.handle_datagrams(now);
            self.handle_timeout(now);
            self.handle_tasks(now, tasks_ready);
            if stop {
                self.service.handle_stop(now, &mut self.queue);
                self.publish(now);
                return Ok(());
            }
            if now.mono >= self.next_publish {
                self.publish(now);
                self.next_publish = now.mono + PUBLISH_PERIOD;
            }
        }
    }

    /// How long the loop may sleep.
    fn timeout(&self) -> Duration {
        let now = Instant::now();
        if self.has_mail_left
            || self
                .slices
                .as_ref()
                .is_some_and(|slices| slices.is_due(now))
        {
            return Duration::ZERO;
        }
        let task_deadline = self.slices.as_ref().and_then(SliceExecutor::next_deadline);
        let deadlines = [self.service.poll_timeout(), task_deadline];
        let next = deadlines
            .into_iter()
            .flatten()
            .fold(self.next_publish, Instant::min);
        next.saturating_duration_since(now)
    }

    /// Takes messages, one mailbox full at most. Answers whether to stop.
    fn handle_messages(&mut self, now: Now) -> bool {
        self.inbox.wake.acknowledge();
        // Read first: what was sent before the request to stop is in the mailbox by then.
        let stop = self.inbox.stop.load(Ordering::Acquire);
        let mut count = 0;
        while count < self.mailbox_capacity {
            let Ok(message) = self.inbox.messages.try_recv() else {
                break;
            };
            self.service.handle_message(now, message, &mut self.queue);
            count += 1;
        }
        self.has_mail_left = count == self.mailbox_capacity;
        self.stats.messages += count as u64;
        stop
    }

    fn handle_datagrams(&mut self, now: Now) {
        let batch = self.receiver.batch();
        if !batch.is_empty() {
            self.stats.batches += 1;
            self.service.handle_datagrams(now, batch, &mut self.queue);
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if self
            .service
            .poll_timeout()
            .is_some_and(|deadline| deadline <= now.mono)
        {
            self.stats.timeouts += 1;
            self.service.handle_timeout(now, &mut self.queue);
        }
    }

    fn handle_tasks(&mut self, now: Now, ready: bool) {
        let Some(slices) = &mut self.slices else {
            return;
        };
        if (ready || slices.is_due(now.mono)) && slices.slice(ready) {
            self.service.handle_tasks(now, &mut self.queue);
        }
    }

    fn publish(&mut self, now: Now) {
        self.receiver.publish(&mut self.stats);
        for (index, socket) in self.stats.sockets.iter_mut().enumerate() {
            socket.sends = self.queue.stats(index);
            socket.kernel_dropped = self.sockets[index].socket.dropped_datagrams();
        }
        if let Some(slices) = &self.slices {
            let counters = slices.counters();
            self.stats.slices = counters.slices;
            self.stats.slices_unsettled = counters.unsettled;
            self.stats.task_panics = counters.panics;
        }
        self.service.handle_second(now, &self.stats);
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "a panic without a message"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::available_cores;
    use crate::uring::{IoModelError, UdpOptions, open_udp, without_io_uring};
    use std::net::{Ipv4Addr, UdpSocket as Peer};

    /// Echoes, and nothing else.
    struct Echo;

    impl Service for Echo {
        type Message = ();

        fn handle_datagrams(&mut self, _now: Now, batch: &Batch, queue: &mut SendQueue) {
            let mut sends = queue.begin();
            for received in batch.iter() {
                sends.push(crate::uring::Send {
                    socket: received.socket,
                    to: received.from,
                    from_ip: None,
                    traffic_class: 0,
                    segment_bytes: None,
                    item_count: 1,
                    payload: received.payload,
                });
            }
        }

        fn handle_message(&mut self, _now: Now, (): (), _queue: &mut SendQueue) {}

        fn handle_timeout(&mut self, _now: Now, _queue: &mut SendQueue) {}

        fn poll_timeout(&self) -> Option<Instant> {
            None
        }

        fn handle_second(&mut self, _now: Now, _io: &IoStats) {}

        fn handle_stop(&mut self, _now: Now, _queue: &mut SendQueue) {}
    }

    fn options() -> WorkerOptions {
        let socket = open_udp(&UdpOptions::new((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
        WorkerOptions::new(
            "echo",
            vec![WorkerSocket {
                socket,
                large: false,
            }],
        )
    }

    #[test]
    fn a_worker_serves_by_mmsg_and_says_why_where_io_uring_is_filtered() {
        without_io_uring(libc::EPERM, || {
            let options = options();
            let address = options.sockets[0].socket.local_addr();
            let handle = spawn(options, |_| Echo).unwrap();
            assert_eq!(handle.io_model(), IoModel::Mmsg);
            let reason = &handle.io_model_choice().reason;
            assert!(reason.contains("SystemCallFilter"), "{reason}");
            let peer = Peer::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            peer.send_to(b"still here", address).unwrap();
            assert_eq!(peer.recv(&mut [0; 16]).unwrap(), 10);
            handle.stop();
            handle.join().unwrap();
        });
    }

    #[test]
    fn a_worker_that_must_have_the_ring_does_not_start_where_it_is_filtered() {
        without_io_uring(libc::EPERM, || {
            let mut options = options();
            options.io_model = IoModel::Ring;
            let error = spawn(options, |_| Echo).unwrap_err();
            let is_named = matches!(error, WorkerError::IoModel(IoModelError::NotPermitted(_)));
            assert!(is_named, "{error}");
        });
    }

    #[test]
    fn tasks_without_io_uring_are_refused_with_the_remedy() {
        without_io_uring(libc::EPERM, || {
            let mut options = options();
            options.tasks_max = 4;
            let error = spawn(options, |_| Echo).unwrap_err().to_string();
            assert!(error.contains("tasks need io_uring"), "{error}");
            assert!(error.contains("kernel.io_uring_disabled"), "{error}");
        });
    }

    #[test]
    fn options_that_cannot_work_are_refused_by_name() {
        let refusal = |prepare: fn(&mut WorkerOptions)| {
            let mut options = options();
            prepare(&mut options);
            options.on_exit = Some(Box::new(|_| panic!("it never started")));
            spawn(options, |_| Echo).unwrap_err()
        };
        let error = refusal(|options| options.client_buffers = 100);
        assert!(matches!(error, WorkerError::BufferCount(100)), "{error}");
        let error = refusal(|options| options.mailbox_capacity = 0);
        assert!(matches!(error, WorkerError::NoMailbox), "{error}");
        let error = refusal(|options| options.coalesce = Duration::from_millis(1));
        assert!(matches!(error, WorkerError::CoalesceTooLong(_)), "{error}");
        let error = refusal(|options| options.core = Some(CoreId(4_000)));
        assert!(error.to_string().contains("core 4000"), "{error}");
        let error = refusal(|options| {
            options.sockets = (0..63).flat_map(|_| self::options().sockets).collect();
        });
        assert!(matches!(error, WorkerError::TooManySockets(63)), "{error}");
    }

    #[test]
    fn a_service_that_panics_while_it_is_built_is_an_error_of_the_start() {
        let build = |_: &WorkerContext| -> Echo { panic!("no such backend") };
        let error = spawn(options(), build).unwrap_err();
        assert!(error.to_string().contains("no such backend"), "{error}");
    }

    #[test]
    fn a_pinned_worker_runs_on_its_core() {
        let core = available_cores().unwrap()[0];
        let (cores, seen) = sync_channel(1);
        let mut options = options();
        options.core = Some(core);
        let handle = spawn(options, move |context: &WorkerContext| {
            cores
                .send((context.core(), available_cores().unwrap()))
                .unwrap();
            Echo
        });
        let handle = handle.unwrap();
        assert_eq!(seen.recv().unwrap(), (Some(core), vec![core]));
        handle.stop();
        handle.join().unwrap();
    }

    #[test]
    fn the_text_of_a_panic_is_found_in_both_forms() {
        assert_eq!(panic_text(&"literal"), "literal");
        assert_eq!(panic_text(&String::from("formatted")), "formatted");
        assert_eq!(panic_text(&7), "a panic without a message");
    }
}
