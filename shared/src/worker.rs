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
//! [`Send`]; other threads reach it through the [`Mailbox`]. A panic in the service ends the worker,
//! and is reported by [`WorkerHandle::join`] and the exit hook: losing a worker is never silent.

mod mailbox;

pub use mailbox::{Mailbox, Undelivered};

use crate::clock::Clock;
use crate::cores::{CoreError, CoreId, pin_current_thread};
use crate::route::Now;
use crate::uring::mmsg::Mmsg;
use crate::uring::ring::Ring;
use crate::uring::{
    Batch, IoModel, IoModelChoice, IoModelError, IoStats, Receiver as IoReceiver, ReceiverOptions,
    SOCKETS_MAX, SendQueue, SliceExecutor, Slices, WakeEvent, WorkerSocket, choose_io_model,
    require_ring,
};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};
use thiserror::Error;

/// Longest wait for company of a first datagram.
pub const COALESCE_MAX: Duration = Duration::from_micros(100);

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

/// Called on the worker's thread when it ends: without a failure if it was asked to.
pub type ExitHook = Box<dyn FnOnce(Option<&WorkerFailure>) + Send>;

/// What a worker is started with.
pub struct WorkerOptions {
    /// Names the thread, in the log and in `top`; 15 bytes are shown.
    pub name: String,
    /// The core to pin to; `None` leaves the thread to the scheduler.
    pub core: Option<CoreId>,
    /// How to receive.
    pub io_model: IoModel,
    /// Wait this long for company of a first datagram when traffic is light, saving wake-ups.
    /// Nought switches it off; at most [`COALESCE_MAX`].
    pub coalesce: Duration,
    /// Never sleep: poll for completions, at the price of the whole core.
    pub spin: bool,
    /// Buffers for datagrams; a power of two.
    pub client_buffers: u16,
    /// Buffers for trains of 64 KiB; a power of two. Only taken if a socket is `large`.
    pub inner_buffers: u16,
    /// The sockets; their index is their name in [`Batch`] and [`SendQueue`].
    pub sockets: Vec<WorkerSocket>,
    /// Messages that the mailbox holds.
    pub mailbox_capacity: usize,
    /// Tasks that may run at once; nought is a worker without an executor.
    pub tasks_max: usize,
    /// Told when the worker ends.
    pub on_exit: Option<ExitHook>,
}

impl WorkerOptions {
    /// Defaults: unpinned, model found by probing, 50 µs of coalescing, 1,024 datagram and 64 train
    /// buffers, 1,024 messages, no tasks.
    pub fn new(name: impl Into<String>, sockets: Vec<WorkerSocket>) -> WorkerOptions {
        WorkerOptions {
            name: name.into(),
            core: None,
            io_model: IoModel::Auto,
            coalesce: Duration::from_micros(50),
            spin: false,
            client_buffers: 1024,
            inner_buffers: 64,
            sockets,
            mailbox_capacity: 1024,
            tasks_max: 0,
            on_exit: None,
        }
    }

    fn check(&self) -> Result<(), WorkerError> {
        if self.sockets.len() > SOCKETS_MAX {
            return Err(WorkerError::TooManySockets(self.sockets.len()));
        }
        if self.coalesce > COALESCE_MAX {
            return Err(WorkerError::CoalesceTooLong(self.coalesce));
        }
        for count in [self.client_buffers, self.inner_buffers] {
            if !count.is_power_of_two() || count > 1 << 15 {
                return Err(WorkerError::BufferCount(count));
            }
        }
        Ok(())
    }
}

/// Why a worker did not start.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The sockets exceed what one ring is set up for.
    #[error("{0} sockets for one worker; at most {SOCKETS_MAX}")]
    TooManySockets(usize),
    /// Coalescing would be felt.
    #[error("coalescing for {0:?}; at most {COALESCE_MAX:?}")]
    CoalesceTooLong(Duration),
    /// The kernel takes only powers of two.
    #[error("{0} buffers: must be a power of two up to 32768")]
    BufferCount(u16),
    /// Pinning failed.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// io_uring was asked for, or is needed for tasks, and cannot be had.
    #[error(transparent)]
    IoModel(#[from] IoModelError),
    /// The task executor cannot work here.
    #[error("the worker's tasks need io_uring: {0}")]
    Tasks(IoModelError),
    /// A call failed otherwise.
    #[error("{step}: {source}")]
    Failed {
        /// What was being set up.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The service's constructor panicked.
    #[error("the worker panicked while starting: {0}")]
    Panicked(String),
}

/// Why a running worker ended without being asked to.
#[derive(Debug, Error)]
pub enum WorkerFailure {
    /// The service panicked, with this text.
    #[error("worker {worker} panicked: {text}")]
    Panicked {
        /// The worker's name.
        worker: String,
        /// The panic's message.
        text: String,
    },
    /// The kernel refused to go on.
    #[error("worker {worker}: receiving failed: {source}")]
    Receive {
        /// The worker's name.
        worker: String,
        /// What the kernel said.
        source: io::Error,
    },
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
    let failed = |step| move |source| WorkerError::Failed { step, source };
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
        .spawn(move || thread_main(options, inbox, build, &ready))
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
    ready: &SyncSender<Result<IoModelChoice, WorkerError>>,
) -> Result<(), WorkerFailure>
where
    S: Service,
    F: FnOnce(&WorkerContext) -> S,
{
    let worker = options.name.clone();
    let on_exit = options.on_exit.take();
    let outcome = catch_unwind(AssertUnwindSafe(|| run(options, inbox, build, ready)));
    let outcome = match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(source)) => Err(WorkerFailure::Receive { worker, source }),
        Err(panic) => Err(WorkerFailure::Panicked {
            worker,
            text: panic_text(&*panic).to_owned(),
        }),
    };
    if let Err(failure) = &outcome {
        tracing::error!(%failure, "a worker is lost");
    }
    if let Some(on_exit) = on_exit {
        on_exit(outcome.as_ref().err());
    }
    outcome
}

/// Sets the worker up, reports that, and runs it to its end.
fn run<S, F>(
    options: WorkerOptions,
    inbox: Inbox<S::Message>,
    build: F,
    ready: &SyncSender<Result<IoModelChoice, WorkerError>>,
) -> io::Result<()>
where
    S: Service,
    F: FnOnce(&WorkerContext) -> S,
{
    // The spawner waits for exactly one report, so sending it cannot fail.
    let report = |outcome| {
        let _ = ready.send(outcome);
    };
    let ground = match Ground::prepare(&options, &inbox) {
        Ok(ground) => ground,
        Err(error) => {
            report(Err(error));
            return Ok(());
        }
    };
    let receiver_options = ReceiverOptions {
        sockets: options.sockets.into(),
        client_buffers: options.client_buffers,
        inner_buffers: options.inner_buffers,
        coalesce: options.coalesce,
        spin: options.spin,
        wake: Arc::clone(&inbox.wake),
        tasks: ground
            .slices
            .as_ref()
            .map(|slices| Rc::clone(slices.readiness())),
    };
    let sockets = Rc::clone(&receiver_options.sockets);
    let failed = |source| WorkerError::Failed {
        step: "receive buffers",
        source,
    };
    let choice = ground.choice.clone();
    if choice.model == IoModel::Ring {
        match Ring::new(&receiver_options) {
            Ok(receiver) => {
                let worker = Worker::new(receiver, sockets, ground, inbox, &options.core, build);
                report(Ok(choice));
                worker.run(options.mailbox_capacity)
            }
            Err(error) => Ok(report(Err(failed(error)))),
        }
    } else {
        match Mmsg::new(&receiver_options) {
            Ok(receiver) => {
                let worker = Worker::new(receiver, sockets, ground, inbox, &options.core, build);
                report(Ok(choice));
                worker.run(options.mailbox_capacity)
            }
            Err(error) => Ok(report(Err(failed(error)))),
        }
    }
}

/// What both models stand on.
struct Ground {
    choice: IoModelChoice,
    slices: Option<SliceExecutor>,
}

impl Ground {
    fn prepare<M>(options: &WorkerOptions, inbox: &Inbox<M>) -> Result<Ground, WorkerError> {
        if let Some(core) = options.core {
            pin_current_thread(core)?;
        }
        let choice = choose_io_model(options.io_model)?;
        let mut slices = None;
        if options.tasks_max > 0 {
            require_ring().map_err(WorkerError::Tasks)?;
            let executor = SliceExecutor::new(options.tasks_max, Arc::clone(&inbox.wake));
            let failed = |source| WorkerError::Failed {
                step: "task executor",
                source,
            };
            slices = Some(executor.map_err(failed)?);
        }
        Ok(Ground { choice, slices })
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
    clock: Clock,
    next_publish: Instant,
    has_mail_left: bool,
    stats: IoStats,
}

impl<S: Service, R: IoReceiver> Worker<S, R> {
    fn new<F>(
        receiver: R,
        sockets: Rc<[WorkerSocket]>,
        ground: Ground,
        inbox: Inbox<S::Message>,
        core: &Option<CoreId>,
        build: F,
    ) -> Worker<S, R>
    where
        F: FnOnce(&WorkerContext) -> S,
    {
        let context = WorkerContext {
            io_model: ground.choice.model,
            core: *core,
            slices: ground.slices.as_ref().map(|slices| slices.handle().clone()),
        };
        let mut clock = Clock::new();
        Worker {
            receiver,
            queue: SendQueue::new(&sockets),
            service: build(&context),
            slices: ground.slices,
            stats: IoStats::new(sockets.len()),
            sockets,
            inbox,
            next_publish: clock.now().mono + PUBLISH_PERIOD,
            clock,
            has_mail_left: false,
        }
    }

    fn run(mut self, mailbox_capacity: usize) -> io::Result<()> {
        loop {
            let timeout = self.timeout();
            let tasks_ready = self.receiver.wait(timeout)?;
            let now = self.clock.now();
            self.stats.passes += 1;
            let stop = self.handle_messages(now, mailbox_capacity);
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
    fn handle_messages(&mut self, now: Now, mailbox_capacity: usize) -> bool {
        self.inbox.wake.acknowledge();
        // Read first: what was sent before the request to stop is in the mailbox by then.
        let stop = self.inbox.stop.load(Ordering::Acquire);
        let mut count = 0;
        while count < mailbox_capacity {
            let Ok(message) = self.inbox.messages.try_recv() else {
                break;
            };
            self.service.handle_message(now, message, &mut self.queue);
            count += 1;
        }
        self.has_mail_left = count == mailbox_capacity;
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
        if (ready || slices.is_due(now.mono)) && slices.slice() {
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

impl fmt::Debug for WorkerOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WorkerOptions")
            .field("name", &self.name)
            .field("core", &self.core)
            .field("io_model", &self.io_model)
            .field("sockets", &self.sockets)
            .finish_non_exhaustive()
    }
}
