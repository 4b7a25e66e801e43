//! A worker's loop without sockets and service, for the tests of tasks, residents and streams.

use super::event::WakeEvent;
use super::slices::{SliceExecutor, Slices};
use super::syscall::{Interest, poll};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The part of a worker's loop that concerns tasks.
pub(super) struct Loop {
    pub(super) slices: SliceExecutor,
    event: Arc<WakeEvent>,
}

impl Loop {
    pub(super) fn new(tasks_max: usize) -> Loop {
        let event = Arc::new(WakeEvent::new().unwrap());
        let slices = SliceExecutor::new(tasks_max, Arc::clone(&event)).unwrap();
        Loop { slices, event }
    }

    /// One pass: waits no longer than `longest`.
    pub(super) fn pass(&mut self, longest: Duration) {
        let now = Instant::now();
        let timer = self.slices.next_deadline();
        let timer = timer.map_or(longest, |at| at.saturating_duration_since(now));
        let due = self.slices.is_due(now);
        let timeout = if due {
            Duration::ZERO
        } else {
            timer.min(longest)
        };
        let readiness = Rc::clone(self.slices.readiness());
        let mut interests = [
            Interest::read(readiness.as_fd()),
            Interest::read(self.event.as_fd()),
        ];
        poll(&mut interests, Some(timeout)).unwrap();
        let (ready, woken) = (interests[0].is_ready(), interests[1].is_ready());
        self.event.acknowledge();
        if woken {
            self.event.drain();
        }
        if ready || self.slices.is_due(Instant::now()) {
            self.slices.slice(ready);
        }
    }

    pub(super) fn until(&mut self, done: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !done() {
            assert!(Instant::now() < deadline, "it never came to pass");
            self.pass(Duration::from_secs(1));
        }
    }

    pub(super) fn handle(&self) -> Slices {
        self.slices.handle().clone()
    }
}
