//! Futures that the worker's loop polls itself, between two runs of the executor.
//!
//! A run of the executor enters the kernel three times, and a wake-up takes two or three runs to
//! settle. That is nothing for what happens once a session, and most of the cost of a message that
//! comes every 20 ms. So a task hands the part of its work that is done for every message to
//! [`super::Slices::reside`], and waits for its end.

use super::slices::{Shared, note_panic};
use super::task_waker::ResidentWaker;
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use thiserror::Error;

/// The future panicked, or the worker is stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("it was ended by a fault or by the worker's end")]
pub struct Evicted;

/// The future of [`super::Slices::reside`]. Dropping it drops what it stands for.
#[must_use = "dropping it ends what it stands for"]
pub struct Resident<T> {
    id: u64,
    outcome: Rc<Outcome<T>>,
    shared: Rc<Shared>,
}

impl<T> Future for Resident<T> {
    type Output = Result<T, Evicted>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(value) = self.outcome.value.borrow_mut().take() {
            return Poll::Ready(value);
        }
        *self.outcome.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Resident<T> {
    fn drop(&mut self) {
        self.shared.residents.evict(self.id, &self.shared);
    }
}

/// What a resident came to, and who waits for it.
struct Outcome<T> {
    value: RefCell<Option<Result<T, Evicted>>>,
    waker: RefCell<Option<Waker>>,
}

impl<T> Outcome<T> {
    fn set(&self, value: Result<T, Evicted>) {
        self.value.borrow_mut().get_or_insert(value);
        let waker = self.waker.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Goes with the future, however that ends.
struct Finish<T>(Rc<Outcome<T>>);

impl<T> Drop for Finish<T> {
    fn drop(&mut self) {
        // The first value stands.
        self.0.set(Err(Evicted));
    }
}

/// All residents of a worker.
#[derive(Default)]
pub(super) struct Residents {
    tenants: RefCell<HashMap<u64, Tenant>>,
}

struct Tenant {
    name: &'static str,
    waker: Arc<ResidentWaker>,
    /// `None` while it is being polled.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Residents {
    /// Takes in a future, to be polled at the next slice.
    pub(super) fn admit<T: 'static>(
        shared: &Rc<Shared>,
        name: &'static str,
        future: impl Future<Output = T> + 'static,
    ) -> Resident<T> {
        let id = shared.take_id();
        let outcome = Rc::new(Outcome {
            value: RefCell::new(None),
            waker: RefCell::new(None),
        });
        let finish = Finish(Rc::clone(&outcome));
        let future = async move {
            let finish = finish;
            let value = future.await;
            finish.0.set(Ok(value));
        };
        let waker = ResidentWaker::new(&shared.wakeups, id);
        let tenant = Tenant {
            name,
            waker: Arc::clone(&waker),
            future: Some(Box::pin(future)),
        };
        shared.residents.tenants.borrow_mut().insert(id, tenant);
        Waker::from(waker).wake();
        let shared = Rc::clone(shared);
        Resident {
            id,
            outcome,
            shared,
        }
    }

    /// Polls those that were woken, each once.
    pub(super) fn poll_woken(&self, shared: &Shared) {
        shared.wakeups.take_residents(|id| {
            let found = self.tenants.borrow_mut().get_mut(&id).and_then(|tenant| {
                let future = tenant.future.take()?;
                Some((future, tenant.name, Waker::from(Arc::clone(&tenant.waker))))
            });
            let Some((mut future, name, waker)) = found else {
                return;
            };
            shared.note_poll();
            let mut context = Context::from_waker(&waker);
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
            match polled {
                Ok(Poll::Pending) => {
                    if let Some(tenant) = self.tenants.borrow_mut().get_mut(&id) {
                        tenant.future = Some(future);
                        return;
                    }
                }
                Ok(Poll::Ready(())) => {}
                Err(panic) => note_panic(shared, name, &*panic),
            }
            self.tenants.borrow_mut().remove(&id);
            discard(shared, name, future);
        });
    }

    /// Drops every future.
    pub(super) fn evict_all(&self, shared: &Shared) {
        let ids: Vec<u64> = self.tenants.borrow().keys().copied().collect();
        ids.into_iter().for_each(|id| self.evict(id, shared));
    }

    fn evict(&self, id: u64, shared: &Shared) {
        let tenant = self.tenants.borrow_mut().remove(&id);
        // One that is being polled is dropped when it returns.
        if let Some(tenant) = tenant
            && let Some(future) = tenant.future
        {
            discard(shared, tenant.name, future);
        }
    }
}

/// Drops a future, whose destructor is contained like its polls.
fn discard(shared: &Shared, name: &'static str, future: Pin<Box<dyn Future<Output = ()>>>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(future))) {
        note_panic(shared, name, &*panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uring::test_loop::Loop;
    use futures_lite::future::yield_now;
    use std::cell::Cell;
    use std::future::{pending, poll_fn};
    use std::time::{Duration, Instant};

    /// Runs a task that waits for a resident, and gives what that came to.
    fn outcome_of<T: 'static>(worker: &mut Loop, resident: Resident<T>) -> Result<T, Evicted> {
        let outcome = Rc::new(RefCell::new(None));
        let kept = Rc::clone(&outcome);
        let task = async move { *kept.borrow_mut() = Some(resident.await) };
        let task = worker.handle().spawn("waits", task).unwrap();
        worker.until(|| task.is_finished());
        outcome.borrow_mut().take().unwrap()
    }

    #[test]
    fn a_resident_sleeps_wakes_and_gives_its_value_to_the_task_that_waits() {
        let mut worker = Loop::new(4);
        let handle = worker.handle();
        let resident = worker.handle().reside("sleeps", async move {
            let deadline = Instant::now() + Duration::from_millis(20);
            handle.sleep_until(deadline).await;
            assert!(Instant::now() >= deadline);
            7
        });
        assert_eq!(outcome_of(&mut worker, resident), Ok(7));
        assert_eq!(worker.slices.next_deadline(), None);
    }

    #[test]
    fn a_wake_up_polls_a_resident_once_and_runs_no_task() {
        let mut worker = Loop::new(4);
        let slot = Rc::new(RefCell::new(None::<Waker>));
        let polls = Rc::new(Cell::new(0));
        let (inner, mark) = (Rc::clone(&slot), Rc::clone(&polls));
        let _resident = worker.handle().reside(
            "counts",
            poll_fn(move |context| {
                mark.set(mark.get() + 1);
                *inner.borrow_mut() = Some(context.waker().clone());
                Poll::<()>::Pending
            }),
        );
        worker.until(|| polls.get() == 1);
        let waker = slot.borrow().clone().unwrap();
        for round in 2..10 {
            waker.wake_by_ref();
            waker.wake_by_ref();
            assert!(worker.slices.is_due(Instant::now()));
            let runs = worker.slices.counters().runs;
            worker.pass(Duration::ZERO);
            assert_eq!(polls.get(), round);
            assert_eq!(worker.slices.counters().runs, runs);
            assert!(!worker.slices.is_due(Instant::now()));
        }
        let other = std::thread::spawn(move || waker.wake());
        worker.until(|| polls.get() == 10);
        other.join().unwrap();
    }

    #[test]
    fn a_resident_that_yields_for_ever_shares_the_thread() {
        let mut worker = Loop::new(4);
        let polls = Rc::new(Cell::new(0));
        let mark = Rc::clone(&polls);
        let resident = worker.handle().reside("greedy", async move {
            loop {
                mark.set(mark.get() + 1);
                yield_now().await;
            }
        });
        let other = worker.handle().reside("modest", async { 1 });
        assert_eq!(outcome_of(&mut worker, other), Ok(1));
        let before = polls.get();
        worker.pass(Duration::ZERO);
        assert_eq!(polls.get(), before + 1, "once a pass");
        drop::<Resident<()>>(resident);
        worker.pass(Duration::ZERO);
        assert_eq!(polls.get(), before + 1);
    }

    #[test]
    fn a_panic_is_counted_and_told_and_leaves_nothing() {
        let mut worker = Loop::new(4);
        let held = Rc::new(());
        let hold = Rc::clone(&held);
        let resident: Resident<()> = worker.handle().reside("victim", async move {
            let _hold = hold;
            yield_now().await;
            panic!("on purpose");
        });
        assert_eq!(outcome_of(&mut worker, resident), Err(Evicted));
        assert_eq!(worker.slices.counters().panics, 1);
        assert_eq!(Rc::strong_count(&held), 1);
    }

    #[test]
    fn a_resident_nobody_waits_for_and_one_whose_worker_ends_are_dropped() {
        let mut worker = Loop::new(4);
        let held = Rc::new(());
        let reside = |worker: &Loop| {
            let hold = Rc::clone(&held);
            worker.handle().reside("holds", async move {
                let _hold = hold;
                pending::<()>().await;
            })
        };
        let (dropped, kept) = (reside(&worker), reside(&worker));
        worker.pass(Duration::ZERO);
        assert_eq!(Rc::strong_count(&held), 3);
        drop(dropped);
        assert_eq!(Rc::strong_count(&held), 2);
        drop(worker);
        assert_eq!(Rc::strong_count(&held), 1);
        drop(kept);
    }
}
