//! What is said when the backend is gone, and how long the call lasts so that it is heard.

use std::time::{Duration, Instant};

use super::{Actions, Addressee, EdgeError};
use crate::session::EndReason;

/// From the `error` event to the end of the call: long enough to cross the worst network.
const LINGER: Duration = Duration::from_secs(1);
/// How long a client that has no channel yet is given to open one and be told.
const CHANNEL_WAIT: Duration = Duration::from_secs(10);

/// A backend that is gone for good.
#[derive(Debug)]
pub(super) struct Loss {
    close_at: Instant,
}

impl Loss {
    /// Tells the client once; `has_channel` says whether it can be told already.
    pub(super) fn new(now: Instant, has_channel: bool, actions: &mut Actions) -> Self {
        let error = EdgeError {
            kind: "server_error",
            code: "backend_unavailable",
            message: "The model's server cannot be reached. The call ends.",
        };
        actions.say_error(Addressee::Client, error);
        let wait = if has_channel { LINGER } else { CHANNEL_WAIT };
        let close_at = now + wait;
        Self { close_at }
    }

    /// The client can be told from here on.
    pub(super) fn handle_channel(&mut self, now: Instant) {
        self.close_at = self.close_at.min(now + LINGER);
    }

    /// Ends the call when it is time.
    pub(super) fn handle_timeout(&self, now: Instant, actions: &mut Actions) {
        if now >= self.close_at {
            actions.close(EndReason::BackendLost);
        }
    }

    /// When it is time.
    pub(super) fn close_at(&self) -> Instant {
        self.close_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_told_once_and_the_call_ends_when_it_can_have_heard() {
        let now = Instant::now();
        let mut actions = Actions::for_tests();
        let mut loss = Loss::new(now, false, &mut actions);
        let (_, event) = actions.pop_event().unwrap();
        assert!(event.contains("backend_unavailable"), "{event}");
        loss.handle_timeout(now + LINGER, &mut actions);
        assert_eq!(actions.closes(), None, "there is no channel yet");
        loss.handle_channel(now + LINGER);
        assert_eq!(loss.close_at(), now + LINGER * 2);
        loss.handle_timeout(loss.close_at(), &mut actions);
        assert_eq!(actions.closes(), Some(EndReason::BackendLost));
        assert_eq!(actions.pop_event(), None);
    }
}
