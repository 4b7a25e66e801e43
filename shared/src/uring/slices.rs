//! A worker's tasks: a glommio executor run in slices inside the worker's own loop.
//!
//! The loop owns the thread; tasks (backend links and other slow work) run when there is something
//! for them to do. What makes that work:
//!
//! - The executor's three io_uring instances are found by listing the process's descriptors before
//!   and after it is built, and put into one epoll descriptor, which the receive model waits on.
//!   They are never polled directly: each slice posts completions from one into another, and would
//!   wake itself for ever.
//! - A slice runs the executor until a run polls no task, [`RUNS_MAX`] times at most, because the
//!   executor submits what its tasks asked for only at the start of a run.
//! - Each task is polled through a guard. It contains panics, which would hang the executor's next
//!   run for ever; counts polls; and gives the task a waker of ours. A wake from outside a run,
//!   from this thread or another, is noted and carried out at the start of the next slice: the
//!   executor's own cross-thread wake-ups do not reach a loop that waits elsewhere.
//! - What is done for every message is no task: a run enters the kernel three times, and residents
//!   ([`super::resident`]) are polled without one.
//! - Timers are ours ([`Slices::sleep_until`]): the next one bounds the loop's wait. The executor's
//!   own timers, `spawn_blocking`, shared channels and latency queues do not work in slices.
//! - A run polls a bounded number of times before wake-ups wait for the next one, so a task that
//!   yields in a loop gets its share and no more.

use super::event::WakeEvent;
use super::readiness::Readiness;
use super::resident::{Resident, Residents};
use super::task_waker::{RunMark, TaskWaker, Wakeups, note_poll};
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement, Task};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::os::fd::{OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{fs, io};
use thiserror::Error;

/// Runs of a slice, at most; packets get their turn before a fourth.
const RUNS_MAX: usize = 3;

/// Runs that settle the executor after its tasks were cancelled.
const SHUTDOWN_RUNS: usize = 3;

/// Rings of a glommio executor: main, latency, poll.
const EXECUTOR_RINGS: usize = 3;

/// The executor's preemption timer. Slices are bounded by [`RUNS_MAX`], so it need never fire.
const PREEMPT_TIMER: Duration = Duration::from_secs(3600);

/// Submissions that the executor queues between two runs.
const RING_DEPTH: usize = 256;

/// Held while io_uring instances are created and closed, so that an executor can tell which
/// descriptors are its own.
static RING_LIFECYCLE: Mutex<()> = Mutex::new(());

/// Keeps other threads from opening and closing io_uring instances.
pub(super) fn ring_lifecycle() -> MutexGuard<'static, ()> {
    RING_LIFECYCLE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// A task could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SpawnError {
    /// As many tasks as the worker allows are running.
    #[error("the worker runs {0} tasks already, its limit")]
    Full(usize),
    /// The worker is stopping.
    #[error("the worker is stopping")]
    Stopped,
}

/// Starts tasks and timers on the worker's own thread. Clones share the executor.
#[derive(Debug, Clone)]
pub struct Slices {
    shared: Rc<Shared>,
}

impl Slices {
    /// Starts a task at the next slice. `name` is for the log, should it panic.
    ///
    /// A panic ends the task and is counted; it harms nothing else.
    /// Errors: [`SpawnError`], with the future dropped.
    pub fn spawn(
        &self,
        name: &'static str,
        future: impl Future<Output = ()> + 'static,
    ) -> Result<TaskHandle, SpawnError> {
        let shared = &self.shared;
        if shared.stopped.get() {
            return Err(SpawnError::Stopped);
        }
        if shared.live.get() >= shared.tasks_max {
            return Err(SpawnError::Full(shared.tasks_max));
        }
        let id = shared.take_id();
        shared.live.set(shared.live.get() + 1);
        let finished = Rc::new(Cell::new(false));
        let waker = TaskWaker::new(&shared.wakeups);
        let guard = Guard {
            id,
            name,
            future: Some(Box::pin(future)),
            own_waker: Waker::from(Arc::clone(&waker)),
            waker,
            finished: Rc::clone(&finished),
            shared: Rc::clone(shared),
        };
        shared
            .requests
            .borrow_mut()
            .push_back(Request::Start(id, Box::pin(guard)));
        shared.wakeups.note_due();
        Ok(TaskHandle {
            id,
            finished,
            shared: Rc::clone(shared),
        })
    }

    /// Completes at `deadline`, or at once if that has passed.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        let id = self.shared.take_id();
        Sleep {
            key: (deadline, id),
            shared: Rc::clone(&self.shared),
        }
    }

    /// Completes with the future's output, or with `None` if `deadline` comes first.
    pub async fn timeout_at<F: Future>(&self, deadline: Instant, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut sleep = pin!(self.sleep_until(deadline));
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            sleep.as_mut().poll(context).map(|()| None)
        })
        .await
    }

    /// Has the loop poll `future` itself, without the executor: for what is done for every message.
    ///
    /// It must use none of the executor's sockets, files or timers, but may wait for a
    /// [`super::Stream`], for [`Slices::sleep_until`], and for any waker. A panic ends it and is
    /// counted; who waits for it is told.
    pub fn reside<T: 'static>(
        &self,
        name: &'static str,
        future: impl Future<Output = T> + 'static,
    ) -> Resident<T> {
        Residents::admit(&self.shared, name, future)
    }

    /// What watches the streams of this thread.
    pub(super) fn readiness(&self) -> &Readiness {
        &self.shared.readiness
    }

    /// Tasks that are running or about to start.
    pub fn task_count(&self) -> usize {
        self.shared.live.get()
    }
}

/// A started task. Dropping the handle lets the task run on.
#[derive(Debug)]
pub struct TaskHandle {
    id: u64,
    finished: Rc<Cell<bool>>,
    shared: Rc<Shared>,
}

impl TaskHandle {
    /// Drops the task's future at the next slice, wherever it waits.
    pub fn cancel(&self) {
        if !self.is_finished() {
            self.shared
                .requests
                .borrow_mut()
                .push_back(Request::Cancel(self.id));
            self.shared.wakeups.note_due();
        }
    }

    /// Whether the task returned, panicked or was cancelled.
    pub fn is_finished(&self) -> bool {
        self.finished.get()
    }
}

/// The future of [`Slices::sleep_until`].
#[derive(Debug)]
pub struct Sleep {
    key: (Instant, u64),
    shared: Rc<Shared>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut timers = self.shared.timers.borrow_mut();
        if Instant::now() >= self.key.0 {
            timers.remove(&self.key);
            return Poll::Ready(());
        }
        timers.insert(self.key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.shared.timers.borrow_mut().remove(&self.key);
    }
}

/// What the handles, the guards and the executor share on the worker's thread.
pub(super) struct Shared {
    pub(super) wakeups: Arc<Wakeups>,
    pub(super) residents: Residents,
    readiness: Readiness,
    tasks_max: usize,
    requests: RefCell<VecDeque<Request>>,
    tasks: RefCell<HashMap<u64, Task<()>>>,
    finished: RefCell<Vec<u64>>,
    timers: RefCell<BTreeMap<(Instant, u64), Waker>>,
    next_id: Cell<u64>,
    live: Cell<usize>,
    polls: Cell<u64>,
    panics: Cell<u64>,
    stopped: Cell<bool>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Shared")
            .field("live", &self.live.get())
            .finish_non_exhaustive()
    }
}

/// What is done at the start of a run, inside the executor.
enum Request {
    Start(u64, Pin<Box<dyn Future<Output = ()>>>),
    Cancel(u64),
}

impl Shared {
    pub(super) fn take_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    pub(super) fn note_poll(&self) {
        self.polls.set(self.polls.get() + 1);
    }

    fn fire_timers(&self, now: Instant) {
        while let Some(waker) = self.take_due_timer(now) {
            waker.wake();
        }
    }

    /// The beginning of every run: starts and cancels tasks, carries out wake-ups.
    fn begin_run(&self) {
        for id in self.finished.borrow_mut().drain(..) {
            self.tasks.borrow_mut().remove(&id);
        }
        loop {
            let request = self.requests.borrow_mut().pop_front();
            match request {
                Some(Request::Start(id, future)) => {
                    let task = glommio::spawn_local(future);
                    self.tasks.borrow_mut().insert(id, task);
                }
                Some(Request::Cancel(id)) => {
                    // Dropping a task cancels it.
                    let task = self.tasks.borrow_mut().remove(&id);
                    drop(task);
                }
                None => break,
            }
        }
        self.wakeups.carry_out();
    }

    fn take_due_timer(&self, now: Instant) -> Option<Waker> {
        let mut timers = self.timers.borrow_mut();
        let first = timers.first_entry()?;
        if first.key().0 <= now {
            Some(first.remove())
        } else {
            None
        }
    }
}

pub(super) fn note_panic(shared: &Shared, task: &str, panic: &(dyn std::any::Any + Send)) {
    shared.panics.set(shared.panics.get() + 1);
    let reason = crate::worker::panic_text(panic);
    tracing::error!(task, reason, "a task panicked and was ended");
}

/// What every task is wrapped in.
struct Guard<F> {
    id: u64,
    name: &'static str,
    /// `None` once the task is over.
    future: Option<Pin<Box<F>>>,
    waker: Arc<TaskWaker>,
    own_waker: Waker,
    finished: Rc<Cell<bool>>,
    shared: Rc<Shared>,
}

impl<F: Future<Output = ()>> Future for Guard<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let guard = &mut *self;
        guard.shared.note_poll();
        note_poll();
        guard.waker.target(context.waker());
        let Some(future) = &mut guard.future else {
            return Poll::Ready(());
        };
        let mut context = Context::from_waker(&guard.own_waker);
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(())) => {}
            Err(panic) => note_panic(&guard.shared, guard.name, &*panic),
        }
        guard.finish();
        Poll::Ready(())
    }
}

impl<F> Guard<F> {
    /// Drops the future, whose destructor is contained like its polls.
    fn finish(&mut self) {
        let Some(future) = self.future.take() else {
            return;
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(future))) {
            note_panic(&self.shared, self.name, &*panic);
        }
        self.waker.untarget();
        self.finished.set(true);
        self.shared.live.set(self.shared.live.get() - 1);
        self.shared.finished.borrow_mut().push(self.id);
    }
}

impl<F> Unpin for Guard<F> {}

impl<F> Drop for Guard<F> {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The executor, its tasks and the descriptor that tells when they are due. Owned by the worker.
pub(crate) struct SliceExecutor {
    /// `None` once shut down.
    executor: Option<LocalExecutor>,
    slices: Slices,
    settled: bool,
    counters: SliceCounters,
}

/// What the executor counted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SliceCounters {
    pub(crate) slices: u64,
    pub(crate) unsettled: u64,
    /// Runs of the executor.
    pub(crate) runs: u64,
    pub(crate) panics: u64,
}

impl SliceExecutor {
    /// Builds the executor on the calling thread, for at most `tasks_max` tasks; `event` is what
    /// other threads wake this one by.
    ///
    /// Errors: io_uring is not permitted; the process is out of descriptors or memory.
    pub(crate) fn new(tasks_max: usize, event: Arc<WakeEvent>) -> io::Result<SliceExecutor> {
        let wakeups = Wakeups::new(event, tasks_max);
        let (executor, rings) = build_executor()?;
        let shared = Rc::new(Shared {
            wakeups,
            residents: Residents::default(),
            readiness: Readiness::new(&rings)?,
            tasks_max,
            requests: RefCell::default(),
            tasks: RefCell::default(),
            finished: RefCell::default(),
            timers: RefCell::default(),
            next_id: Cell::new(0),
            live: Cell::new(0),
            polls: Cell::new(0),
            panics: Cell::new(0),
            stopped: Cell::new(false),
        });
        let mut slices = SliceExecutor {
            executor: Some(executor),
            slices: Slices { shared },
            settled: true,
            counters: SliceCounters::default(),
        };
        // The first run submits what the executor itself waits for.
        slices.run_once();
        Ok(slices)
    }

    /// The handle for services and tasks.
    pub(crate) fn handle(&self) -> &Slices {
        &self.slices
    }

    /// Readable when one of the executor's rings has completions, or a stream is ready.
    pub(crate) fn readiness(&self) -> &Rc<OwnedFd> {
        self.slices.readiness().descriptor()
    }

    /// The next timer.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.slices
            .shared
            .timers
            .borrow()
            .first_key_value()
            .map(|(key, _)| key.0)
    }

    /// Whether a slice is due without its rings having said so: a wake-up, a start or cancellation,
    /// a timer, or a slice that was cut short.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        !self.settled
            || self.slices.shared.wakeups.is_due()
            || self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Polls the residents that were woken, and runs the executor's tasks, if any is due, until
    /// they rest, or [`RUNS_MAX`] times. `is_ready` says that the descriptor is readable. Answers
    /// whether anything was polled.
    pub(crate) fn slice(&mut self, is_ready: bool) -> bool {
        let shared = Rc::clone(&self.slices.shared);
        let before = shared.polls.get();
        self.counters.slices += 1;
        // A descriptor that cannot be read is one that only a run can find out about.
        let has_completions = is_ready && shared.readiness.take().unwrap_or(true);
        shared.fire_timers(Instant::now());
        shared.residents.poll_woken(&shared);
        if has_completions || !self.settled || shared.wakeups.is_run_due() {
            self.run(&shared);
        }
        shared.polls.get() != before
    }

    fn run(&mut self, shared: &Shared) {
        self.settled = false;
        for _ in 0..RUNS_MAX {
            let polls = shared.polls.get();
            self.counters.runs += 1;
            self.run_once();
            if shared.polls.get() == polls {
                self.settled = true;
                break;
            }
        }
        self.counters.unsettled += u64::from(!self.settled);
    }

    /// Counters since the start.
    pub(crate) fn counters(&self) -> SliceCounters {
        SliceCounters {
            panics: self.slices.shared.panics.get(),
            ..self.counters
        }
    }

    fn run_once(&mut self) {
        let Some(executor) = &self.executor else {
            return;
        };
        let shared = Rc::clone(&self.slices.shared);
        let _mark = RunMark::new(&shared.wakeups);
        executor.run(async move {
            shared.begin_run();
            glommio::executor().yield_task_queue_now().await;
        });
    }

    /// Cancels every task and takes the executor down; nothing of it stays open.
    fn shut_down(&mut self) {
        let shared = Rc::clone(&self.slices.shared);
        shared.stopped.set(true);
        shared.requests.borrow_mut().clear();
        let tasks: Vec<Task<()>> = shared
            .tasks
            .borrow_mut()
            .drain()
            .map(|(_, task)| task)
            .collect();
        if let Some(executor) = &self.executor {
            let _mark = RunMark::new(&shared.wakeups);
            executor.run(async move {
                for task in tasks {
                    task.cancel().await;
                }
            });
        }
        for _ in 0..SHUTDOWN_RUNS {
            self.run_once();
        }
        shared.residents.evict_all(&shared);
        let _closing = ring_lifecycle();
        self.executor = None;
    }
}

impl Drop for SliceExecutor {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Builds an executor and finds its rings.
fn build_executor() -> io::Result<(LocalExecutor, Vec<RawFd>)> {
    let _creation = ring_lifecycle();
    let before = ring_descriptors()?;
    let executor = LocalExecutorBuilder::new(Placement::Unbound)
        .io_memory(0)
        .ring_depth(RING_DEPTH)
        .preempt_timer(PREEMPT_TIMER)
        .make()
        .map_err(|error| io::Error::other(format!("glommio: {error}")))?;
    let rings: Vec<RawFd> = ring_descriptors()?.difference(&before).copied().collect();
    if rings.len() != EXECUTOR_RINGS {
        let found = rings.len();
        return Err(io::Error::other(format!(
            "glommio opened {found} rings instead of {EXECUTOR_RINGS}: its tasks could not be woken"
        )));
    }
    Ok((executor, rings))
}

/// The io_uring descriptors of this process.
fn ring_descriptors() -> io::Result<BTreeSet<RawFd>> {
    let mut rings = BTreeSet::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // A descriptor that another thread closed meanwhile is no ring of ours.
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        if target.to_string_lossy().contains("[io_uring]") {
            rings.extend(
                entry
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse::<RawFd>().ok()),
            );
        }
    }
    Ok(rings)
}

#[cfg(test)]
mod tests;
