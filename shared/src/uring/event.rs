//! Waking a worker from another thread: an eventfd, written at most once a sleep.
//!
//! Whoever has something for the worker publishes it first and calls [`WakeEvent::wake`] second.
//! The worker acknowledges first and looks second. A flag beside the descriptor saves the system
//! call while a wake-up is under way already; both sides change it by a swap, so a publisher that
//! finds the flag raised is seen by the acknowledgement that lowers it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// An eventfd with its flag. Shared behind an `Arc`.
#[derive(Debug)]
pub struct WakeEvent {
    descriptor: OwnedFd,
    raised: AtomicBool,
}

impl WakeEvent {
    /// Opens the eventfd. Errors: the process is out of descriptors.
    pub fn new() -> io::Result<WakeEvent> {
        let descriptor = super::syscall::eventfd()?;
        Ok(WakeEvent {
            descriptor,
            raised: AtomicBool::new(false),
        })
    }

    /// Wakes the worker, or does nothing while an earlier wake-up is not acknowledged.
    pub fn wake(&self) {
        if !self.raised.swap(true, Ordering::SeqCst) {
            super::syscall::eventfd_write(self.descriptor.as_fd());
        }
    }

    /// Lowers the flag: the worker is about to look at everything there is.
    #[inline]
    pub(crate) fn acknowledge(&self) {
        if self.raised.load(Ordering::Relaxed) {
            self.raised.swap(false, Ordering::SeqCst);
        }
    }

    /// Takes the count out of the descriptor, which must be readable, so that it no longer is.
    pub(crate) fn drain(&self) {
        super::syscall::eventfd_read(self.descriptor.as_fd());
    }
}

impl AsFd for WakeEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for WakeEvent {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uring::syscall::{Interest, poll};
    use std::time::Duration;

    fn is_readable(event: &WakeEvent) -> bool {
        let mut interests = [Interest::read(event.as_fd())];
        poll(&mut interests, Some(Duration::ZERO)).unwrap();
        interests[0].is_ready()
    }

    #[test]
    fn a_wake_makes_it_readable_until_drained() {
        let event = WakeEvent::new().unwrap();
        assert!(!is_readable(&event));
        event.wake();
        assert!(is_readable(&event));
        event.acknowledge();
        event.drain();
        assert!(!is_readable(&event));
    }

    #[test]
    fn a_second_wake_before_the_acknowledgement_writes_nothing() {
        let event = WakeEvent::new().unwrap();
        event.wake();
        event.drain();
        event.wake();
        assert!(!is_readable(&event));
        event.acknowledge();
        event.wake();
        assert!(is_readable(&event));
    }
}
