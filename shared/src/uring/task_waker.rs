//! Waking a task of a worker from anywhere: from its executor, its thread or another thread.
//!
//! Inside a run a wake-up goes straight to the executor. Outside one, and from other threads, it is
//! noted on a list that the next run carries out first, and other threads write the worker's
//! eventfd. A task is on the list at most once, so the list is bounded by the number of tasks.
//!
//! A resident (see [`super::resident`]) is woken onto a list of its own, which the loop takes up
//! without a run.
//!
//! A run that has polled [`RUN_POLLS_MAX`] times notes further wake-ups for the next run, too. So
//! tasks that wake themselves or each other without end share the thread instead of owning it.

use super::event::WakeEvent;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// Numbers the executors of the process; nought is none.
static NEXT_EXECUTOR: AtomicU64 = AtomicU64::new(1);

/// Polls of a run after which wake-ups wait for the next: as many tasks as a batch has datagrams.
const RUN_POLLS_MAX: u32 = 256;

thread_local! {
    static HERE: Cell<Here> = const { Cell::new(Here { executor: 0, polls_left: 0 }) };
}

/// The executor that lives on a thread.
#[derive(Debug, Clone, Copy)]
struct Here {
    executor: u64,
    /// Nought outside a run.
    polls_left: u32,
}

/// Counts a poll of a task against its run.
pub(crate) fn note_poll() {
    let here = HERE.get();
    HERE.set(Here {
        polls_left: here.polls_left.saturating_sub(1),
        ..here
    });
}

/// The wake-ups of one executor.
#[derive(Debug)]
pub(crate) struct Wakeups {
    executor: u64,
    event: Arc<WakeEvent>,
    due: AtomicBool,
    woken: Mutex<VecDeque<Arc<TaskWaker>>>,
    /// Residents are no tasks of the executor: their wake-ups need no run.
    has_residents: AtomicBool,
    residents: Mutex<VecDeque<Arc<ResidentWaker>>>,
}

impl Wakeups {
    /// For an executor on the calling thread, with at most `tasks_max` tasks.
    pub(crate) fn new(event: Arc<WakeEvent>, tasks_max: usize) -> Arc<Wakeups> {
        let executor = NEXT_EXECUTOR.fetch_add(1, Ordering::Relaxed);
        HERE.set(Here {
            executor,
            polls_left: 0,
        });
        Arc::new(Wakeups {
            executor,
            event,
            due: AtomicBool::new(false),
            woken: Mutex::new(VecDeque::with_capacity(tasks_max)),
            has_residents: AtomicBool::new(false),
            residents: Mutex::new(VecDeque::with_capacity(tasks_max)),
        })
    }

    /// Notes that a slice has something to do. For the worker's own thread.
    pub(crate) fn note_due(&self) {
        self.due.store(true, Ordering::Release);
    }

    /// Whether something was noted for the executor since the last run.
    #[inline]
    pub(crate) fn is_run_due(&self) -> bool {
        self.due.load(Ordering::Acquire)
    }

    /// Whether a slice has something to do.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.is_run_due() || self.has_residents.load(Ordering::Acquire)
    }

    /// Calls `poll` with each resident that was woken before this call.
    pub(crate) fn take_residents(&self, mut poll: impl FnMut(u64)) {
        if !self.has_residents.swap(false, Ordering::AcqRel) {
            return;
        }
        let count = self.residents().len();
        for _ in 0..count {
            let Some(waker) = self.residents().pop_front() else {
                break;
            };
            waker.queued.store(false, Ordering::Release);
            poll(waker.id);
        }
    }

    /// Wakes the noted tasks, inside a run.
    pub(crate) fn carry_out(&self) {
        if !self.due.swap(false, Ordering::AcqRel) {
            return;
        }
        // Taken one by one, without the lock while waking; what is noted meanwhile waits for the
        // next run, so that no other thread can hold this one here.
        let count = self.woken().len();
        for _ in 0..count {
            let Some(task) = self.woken().pop_front() else {
                break;
            };
            task.queued.store(false, Ordering::Release);
            task.wake_target();
        }
    }

    fn residents(&self) -> MutexGuard<'_, VecDeque<Arc<ResidentWaker>>> {
        self.residents
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn woken(&self) -> MutexGuard<'_, VecDeque<Arc<TaskWaker>>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While it lives, the executor of this thread is running.
pub(crate) struct RunMark {
    executor: u64,
}

impl RunMark {
    /// Marks the beginning of a run on the thread that the executor was built on.
    pub(crate) fn new(wakeups: &Wakeups) -> RunMark {
        HERE.set(Here {
            executor: wakeups.executor,
            polls_left: RUN_POLLS_MAX,
        });
        RunMark {
            executor: wakeups.executor,
        }
    }
}

impl Drop for RunMark {
    fn drop(&mut self) {
        HERE.set(Here {
            executor: self.executor,
            polls_left: 0,
        });
    }
}

/// The waker that a guarded task hands out.
#[derive(Debug)]
pub(crate) struct TaskWaker {
    wakeups: Arc<Wakeups>,
    queued: AtomicBool,
    target: Mutex<Option<Waker>>,
}

impl TaskWaker {
    pub(crate) fn new(wakeups: &Arc<Wakeups>) -> Arc<TaskWaker> {
        Arc::new(TaskWaker {
            wakeups: Arc::clone(wakeups),
            queued: AtomicBool::new(false),
            target: Mutex::new(None),
        })
    }

    /// Sets the executor's own waker, which wake-ups end at.
    pub(crate) fn target(&self, waker: &Waker) {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        if !target
            .as_ref()
            .is_some_and(|target| target.will_wake(waker))
        {
            *target = Some(waker.clone());
        }
    }

    /// Forgets the executor's waker: the task is over.
    pub(crate) fn untarget(&self) {
        let target = self
            .target
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(target);
    }

    fn wake_target(&self) {
        let target = self
            .target
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(target) = target {
            target.wake();
        }
    }
}

/// The waker of a resident, which the loop polls.
#[derive(Debug)]
pub(crate) struct ResidentWaker {
    wakeups: Arc<Wakeups>,
    id: u64,
    queued: AtomicBool,
}

impl ResidentWaker {
    pub(crate) fn new(wakeups: &Arc<Wakeups>, id: u64) -> Arc<ResidentWaker> {
        Arc::new(ResidentWaker {
            wakeups: Arc::clone(wakeups),
            id,
            queued: AtomicBool::new(false),
        })
    }
}

impl Wake for ResidentWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let wakeups = &self.wakeups;
        wakeups.residents().push_back(Arc::clone(self));
        wakeups.has_residents.store(true, Ordering::Release);
        if here().executor != wakeups.executor {
            wakeups.event.wake();
        }
    }
}

/// Whose thread this is. One that is being torn down has no executor any more.
fn here() -> Here {
    HERE.try_with(Cell::get).unwrap_or(Here {
        executor: 0,
        polls_left: 0,
    })
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let here = here();
        let is_here = here.executor == self.wakeups.executor;
        if is_here && here.polls_left > 0 {
            self.wake_target();
            return;
        }
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let wakeups = &self.wakeups;
        wakeups.woken().push_back(Arc::clone(self));
        wakeups.due.store(true, Ordering::Release);
        if !is_here {
            wakeups.event.wake();
        }
    }
}
