//! The one policy of coming back: when a link is tried again, how soon, and how often.
//!
//! What another attempt can mend is tried again: an address that cannot be reached, a connection
//! that broke off, a server that is restarting. What it cannot mend is final: a refusal, a breach
//! of the protocol, a backend that said good-bye. Pure: time and chance are arguments.

use std::time::{Duration, Instant};

use crate::backend::link::{LinkCause, LinkDown};

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A link that was up this long has proven itself: attempts are counted anew.
const PROVEN: Duration = Duration::from_secs(60);

/// Why a link is gone, and whether another attempt could mend it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) down: LinkDown,
    pub(super) is_final: bool,
}

impl Loss {
    /// With the usual judgement of its cause.
    pub(super) fn new(cause: LinkCause, detail: impl Into<String>) -> Self {
        let is_final = match cause {
            LinkCause::Unreachable
            | LinkCause::TimedOut
            | LinkCause::Reset
            | LinkCause::Unresponsive
            | LinkCause::Unavailable => false,
            LinkCause::Tls
            | LinkCause::Refused
            | LinkCause::Closed
            | LinkCause::Overflow
            | LinkCause::Protocol => true,
        };
        let detail = detail.into();
        Self {
            down: LinkDown { cause, detail },
            is_final,
        }
    }

    /// The backend answered the handshake with an HTTP status. 408, 429 and 5xx speak of the
    /// moment, others of the request (RFC 9110, 15).
    pub(super) fn refused(status: u16) -> Self {
        let is_final = !(matches!(status, 408 | 429) || (500..600).contains(&status));
        let detail = format!("answered the handshake with HTTP status {status}");
        Self {
            is_final,
            ..Self::new(LinkCause::Refused, detail)
        }
    }

    /// The backend closed the WebSocket. 1001 and 1012 to 1014 are those of servers that go away,
    /// restart or are overloaded (RFC 6455, 7.4.1, and its IANA registry).
    pub(super) fn closed(code: Option<u16>, reason: &str) -> Self {
        let is_final = !matches!(code, Some(1001 | 1012..=1014));
        let code = code.map_or("no code".to_owned(), |code| format!("code {code}"));
        let detail = match reason {
            "" => format!("closed with {code}"),
            reason => format!("closed with {code}: {reason}"),
        };
        Self {
            is_final,
            ..Self::new(LinkCause::Closed, detail)
        }
    }
}

/// The attempts of one link.
#[derive(Debug)]
pub(super) struct Retries {
    count_max: u32,
    first_pause: Duration,
    count: u32,
    up_since: Option<Instant>,
}

impl Retries {
    /// None made yet.
    pub(super) fn new(count_max: u32, first_pause: Duration) -> Self {
        Self {
            count_max,
            first_pause,
            count: 0,
            up_since: None,
        }
    }

    /// The link is up, and the backend has said something on it.
    pub(super) fn note_up(&mut self, now: Instant) {
        self.up_since = Some(now);
    }

    /// How long to wait before the next attempt; `None` when there is none. `chance` is uniform in
    /// [0, 1).
    pub(super) fn next(&mut self, now: Instant, loss: &Loss, chance: f64) -> Option<Duration> {
        let was_up = self.up_since.take();
        if was_up.is_some_and(|since| now.saturating_duration_since(since) >= PROVEN) {
            self.count = 0;
        }
        if loss.is_final || self.count >= self.count_max {
            return None;
        }
        let doubled = self.first_pause.saturating_mul(1 << self.count.min(16));
        self.count += 1;
        // From half of the pause to one and a half.
        Some(doubled.min(PAUSE_MAX).mul_f64(0.5 + chance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(250);

    fn reset() -> Loss {
        Loss::new(LinkCause::Reset, "broke off")
    }

    #[test]
    fn pauses_double_vary_by_half_and_come_to_an_end() {
        let now = Instant::now();
        let mut retries = Retries::new(3, PAUSE);
        let mut next = |chance| retries.next(now, &reset(), chance);
        assert_eq!(next(0.0), Some(PAUSE / 2));
        assert_eq!(next(0.5), Some(PAUSE * 2));
        assert_eq!(next(0.0), Some(PAUSE * 2));
        assert_eq!(next(0.5), None);
        let mut retries = Retries::new(20, PAUSE);
        let pauses = (0..20).map_while(|_| retries.next(now, &reset(), 0.5));
        assert_eq!(pauses.max(), Some(PAUSE_MAX));
    }

    #[test]
    fn what_another_attempt_cannot_mend_is_final() {
        let now = Instant::now();
        for (loss, is_tried_again) in [
            (Loss::closed(Some(1000), ""), false),
            (Loss::closed(Some(1001), ""), true),
            (Loss::closed(Some(1011), "out of memory"), false),
            (Loss::closed(Some(1012), ""), true),
            (Loss::closed(None, ""), false),
            (Loss::refused(401), false),
            (Loss::refused(404), false),
            (Loss::refused(429), true),
            (Loss::refused(503), true),
            (Loss::new(LinkCause::Tls, "wrong name"), false),
            (Loss::new(LinkCause::TimedOut, "connecting"), true),
        ] {
            let pause = Retries::new(1, PAUSE).next(now, &loss, 0.5);
            assert_eq!(pause.is_some(), is_tried_again, "{loss:?}");
        }
    }

    #[test]
    fn a_link_that_proved_itself_has_all_its_attempts_again() {
        let start = Instant::now();
        let mut retries = Retries::new(1, PAUSE);
        assert!(retries.next(start, &reset(), 0.5).is_some());
        retries.note_up(start);
        assert!(
            retries.next(start + PROVEN / 2, &reset(), 0.5).is_none(),
            "one that breaks off again and again has not"
        );
        retries.note_up(start);
        assert!(retries.next(start + PROVEN, &reset(), 0.5).is_some());
    }

    #[test]
    fn the_backends_own_words_are_told() {
        let loss = Loss::closed(Some(1011), "out of memory");
        assert_eq!(loss.down.detail, "closed with code 1011: out of memory");
        assert_eq!(Loss::closed(None, "").down.detail, "closed with no code");
    }
}
