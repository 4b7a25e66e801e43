//! What a session's half of a link and the link's task share, on one thread: messages out, events
//! in, the wish to leave.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Instant;

use syrinx_shared::route::SessionRef;

use super::counters::BackendCounters;
use super::outbox::Outbox;
use crate::backend::link::{LinkEvent, LinkMessage, LinkTarget};

/// Messages of one link that its session has not been given yet; no more is read meanwhile.
const UNDELIVERED_COUNT_MAX: usize = 64;
/// Bytes of them, exceeded by one message at most.
const UNDELIVERED_BYTES_MAX: usize = 256 << 10;

/// Events of all links of a worker, in the order they came.
pub(super) type Inbox = RefCell<VecDeque<(Rc<Line>, LinkEvent)>>;

/// How a link is to be left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Farewell {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) said: Instant,
}

/// See the module.
pub(super) struct Line {
    pub(super) session: SessionRef,
    pub(super) target: LinkTarget,
    pub(super) outbox: RefCell<Outbox>,
    pub(super) counters: Rc<BackendCounters>,
    inbox: Rc<Inbox>,
    farewell: RefCell<Option<Farewell>>,
    has_overflowed: Cell<bool>,
    undelivered: Cell<(usize, usize)>,
    waker: RefCell<Option<Waker>>,
}

impl Line {
    pub(super) fn new(
        session: SessionRef,
        target: LinkTarget,
        outbox: Outbox,
        counters: Rc<BackendCounters>,
        inbox: Rc<Inbox>,
    ) -> Self {
        Self {
            session,
            target,
            outbox: RefCell::new(outbox),
            counters,
            inbox,
            farewell: RefCell::new(None),
            has_overflowed: Cell::new(false),
            undelivered: Cell::new((0, 0)),
            waker: RefCell::new(None),
        }
    }

    /// The session's: sends a message.
    pub(super) fn send(&self, now: Instant, message: LinkMessage) {
        let pushed = self.outbox.borrow_mut().push(now, message);
        if pushed.is_err() {
            self.has_overflowed.set(true);
        }
        self.wake();
    }

    /// The session's: it will neither send nor hear any more. The first farewell stands.
    pub(super) fn dismiss(&self, farewell: Farewell) {
        self.farewell.borrow_mut().get_or_insert(farewell);
        self.wake();
    }

    /// The session's: an event has been taken out of the inbox.
    pub(super) fn note_delivered(&self, event: &LinkEvent) {
        let was_full = !self.has_room();
        let (count, bytes) = self.undelivered.get();
        self.undelivered.set((count - 1, bytes - length(event)));
        if was_full && self.has_room() {
            self.wake();
        }
    }

    /// The task's: tells the session something, unless it has left.
    pub(super) fn deliver(self: &Rc<Self>, event: LinkEvent) {
        if self.is_dismissed() {
            return;
        }
        let (count, bytes) = self.undelivered.get();
        self.undelivered.set((count + 1, bytes + length(&event)));
        self.inbox.borrow_mut().push_back((Rc::clone(self), event));
    }

    /// The task's: whether the session keeps up with what it is told.
    pub(super) fn has_room(&self) -> bool {
        let (count, bytes) = self.undelivered.get();
        count < UNDELIVERED_COUNT_MAX && bytes < UNDELIVERED_BYTES_MAX
    }

    /// Whether more had to be sent than could wait.
    pub(super) fn has_overflowed(&self) -> bool {
        self.has_overflowed.get()
    }

    pub(super) fn is_dismissed(&self) -> bool {
        self.farewell.borrow().is_some()
    }

    pub(super) fn farewell(&self) -> Option<Farewell> {
        self.farewell.borrow().clone()
    }

    /// The task's: it wants to be woken when the session does something.
    pub(super) fn register(&self, waker: &Waker) {
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }

    /// The task's: completes when the session leaves.
    pub(super) async fn dismissed(&self) {
        poll_fn(|context| {
            self.register(context.waker());
            if self.is_dismissed() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// The connection is gone, and with it what was to be sent on it.
    pub(super) fn forget_unsent(&self) {
        self.outbox.borrow_mut().clear();
        self.has_overflowed.set(false);
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

fn length(event: &LinkEvent) -> usize {
    match event {
        LinkEvent::Text(text) => text.len(),
        LinkEvent::Binary(bytes) => bytes.len(),
        LinkEvent::Up | LinkEvent::Down { .. } => 0,
    }
}
