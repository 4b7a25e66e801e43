//! What a worker's tasks wait for, in one epoll descriptor that its loop waits on: the executor's
//! rings, and the streams of [`super::stream`].
//!
//! Rings are watched level-triggered: one that has completions stays ready until the executor has
//! taken them. Streams are watched edge-triggered, so a stream that nobody reads costs nothing and
//! none needs to be re-armed (epoll(7)).

use super::syscall::{EpollEvent, epoll, epoll_add, epoll_remove, epoll_take};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::Waker;

/// Events taken in one call; what is left keeps the descriptor ready.
const EVENTS_MAX: usize = 256;
/// What events of the rings carry.
const RINGS: u64 = 0;

/// See the module.
#[derive(Debug)]
pub(super) struct Readiness {
    epoll: Rc<OwnedFd>,
    streams: RefCell<HashMap<u64, Rc<Ready>>>,
    next_token: Cell<u64>,
}

/// What is known of a stream.
#[derive(Debug, Default)]
pub(super) struct Ready {
    readable: Direction,
    writable: Direction,
    /// The other side has ended, or the stream is broken: reads and writes say so at once.
    has_ended: Cell<bool>,
}

/// One direction of a stream.
#[derive(Debug)]
struct Direction {
    is_ready: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Default for Direction {
    /// Ready until the kernel says otherwise.
    fn default() -> Direction {
        Direction {
            is_ready: Cell::new(true),
            waker: RefCell::new(None),
        }
    }
}

impl Direction {
    fn note_ready(&self) {
        self.is_ready.set(true);
        let waker = self.waker.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether it is worth a try; if not, `waker` is called when it is.
    fn check(&self, waker: &Waker) -> bool {
        if self.is_ready.get() {
            return true;
        }
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
        false
    }
}

impl Ready {
    pub(super) fn check_readable(&self, waker: &Waker) -> bool {
        self.readable.check(waker)
    }

    pub(super) fn check_writable(&self, waker: &Waker) -> bool {
        self.writable.check(waker)
    }

    /// All there was has been read: the next edge tells of more. After the other side's end there
    /// is no further edge, and the end is still to be read.
    pub(super) fn note_drained(&self) {
        self.readable.is_ready.set(self.has_ended.get());
    }

    /// A read would wait.
    pub(super) fn note_empty(&self) {
        self.readable.is_ready.set(false);
    }

    /// A write would wait.
    pub(super) fn note_full(&self) {
        self.writable.is_ready.set(false);
    }
}

impl Readiness {
    /// Watches the executor's rings, and no stream yet.
    pub(super) fn new(rings: &[RawFd]) -> io::Result<Readiness> {
        let epoll = epoll()?;
        for &ring in rings {
            epoll_add(epoll.as_fd(), ring, EpollEvent::level_read(RINGS))?;
        }
        Ok(Readiness {
            epoll: Rc::new(epoll),
            streams: RefCell::default(),
            next_token: Cell::new(RINGS + 1),
        })
    }

    /// Readable when something watched is ready.
    pub(super) fn descriptor(&self) -> &Rc<OwnedFd> {
        &self.epoll
    }

    /// Watches a stream until [`Readiness::forget`]. Answers its token.
    ///
    /// Errors: no memory, or a descriptor that cannot be watched.
    pub(super) fn watch(&self, stream: BorrowedFd<'_>) -> io::Result<(u64, Rc<Ready>)> {
        let token = self.next_token.get();
        epoll_add(
            self.epoll.as_fd(),
            stream.as_raw_fd(),
            EpollEvent::edges(token),
        )?;
        self.next_token.set(token + 1);
        let ready = Rc::new(Ready::default());
        self.streams.borrow_mut().insert(token, Rc::clone(&ready));
        Ok((token, ready))
    }

    /// Watches a stream no longer; called before it closes.
    pub(super) fn forget(&self, token: u64, stream: BorrowedFd<'_>) {
        if self.streams.borrow_mut().remove(&token).is_some() {
            epoll_remove(self.epoll.as_fd(), stream);
        }
    }

    /// Wakes who waits for what has become ready. Answers whether the executor's rings have.
    pub(super) fn take(&self) -> io::Result<bool> {
        let mut events = [EpollEvent::default(); EVENTS_MAX];
        let mut has_rings = false;
        for event in epoll_take(self.epoll.as_fd(), &mut events)? {
            if event.token() == RINGS {
                has_rings = true;
                continue;
            }
            let ready = self.streams.borrow().get(&event.token()).cloned();
            let Some(ready) = ready else { continue };
            let has_ended = event.has_ended();
            ready.has_ended.set(ready.has_ended.get() || has_ended);
            if event.is_readable() || has_ended {
                ready.readable.note_ready();
            }
            if event.is_writable() || has_ended {
                ready.writable.note_ready();
            }
        }
        Ok(has_rings)
    }
}
