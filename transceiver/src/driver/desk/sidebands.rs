//! Who listens beside a call, and what they are told.
//!
//! A sideband has a queue of its own. One that does not read loses events, and is told how many,
//! but never the news of the call's end: the queue's last place is kept for that.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use syrinx_shared::route::SessionRef;
use tokio::sync::mpsc;

use crate::session::EndReason;

/// Sidebands of one call: an agent, a recorder, somebody who debugs.
pub(super) const LISTENERS_PER_CALL_MAX: usize = 4;
/// Events that wait for a sideband to be written to: some seconds of a reply's transcript.
const WAITING_MAX: usize = 128;

/// What a sideband is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SidebandNews {
    /// The session has said something to its client.
    Said {
        /// JSON text.
        event: String,
        /// How many events before it were left out because they were not fetched.
        missed: u32,
    },
    /// The call has ended. Nothing follows.
    Ended(EndReason),
}

/// Names a sideband among those of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListenerId(u64);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sidebands {
    next: u64,
    listeners: HashMap<SessionRef, Vec<Listener>>,
}

#[derive(Debug)]
struct Listener {
    id: ListenerId,
    news: mpsc::Sender<SidebandNews>,
    missed: u32,
}

impl Sidebands {
    /// Lets somebody listen to a session; `None` when enough already do.
    pub(super) fn add(
        &mut self,
        session: SessionRef,
    ) -> Option<(ListenerId, mpsc::Receiver<SidebandNews>)> {
        let listeners = self.listeners.entry(session).or_default();
        if listeners.len() >= LISTENERS_PER_CALL_MAX {
            return None;
        }
        let id = ListenerId(self.next);
        self.next += 1;
        let (news, receiver) = mpsc::channel(WAITING_MAX);
        listeners.push(Listener {
            id,
            news,
            missed: 0,
        });
        Some((id, receiver))
    }

    /// Somebody listens no more. Says whether nobody does.
    pub(super) fn remove(&mut self, session: SessionRef, id: ListenerId) -> bool {
        let Entry::Occupied(mut entry) = self.listeners.entry(session) else {
            return false;
        };
        entry.get_mut().retain(|listener| listener.id != id);
        let is_last = entry.get().is_empty();
        if is_last {
            entry.remove();
        }
        is_last
    }

    /// A session has said something, after `missed` things that were left out.
    pub(super) fn said(&mut self, session: SessionRef, event: &str, missed: u32) {
        for listener in self.listeners.get_mut(&session).into_iter().flatten() {
            listener.missed = listener.missed.saturating_add(missed);
            if listener.news.capacity() <= 1 {
                listener.missed = listener.missed.saturating_add(1);
                continue;
            }
            let missed = std::mem::take(&mut listener.missed);
            let event = event.to_owned();
            let _ = listener.news.try_send(SidebandNews::Said { event, missed });
        }
    }

    /// A session has ended.
    pub(super) fn ended(&mut self, session: SessionRef, reason: EndReason) {
        for listener in self.listeners.remove(&session).into_iter().flatten() {
            let _ = listener.news.try_send(SidebandNews::Ended(reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u8) -> SessionRef {
        SessionRef::from_bytes([0, 1, 0, 0, 0, number, 0, 1])
    }

    fn said(event: &str, missed: u32) -> SidebandNews {
        let event = event.to_owned();
        SidebandNews::Said { event, missed }
    }

    #[test]
    fn everybody_who_listens_to_a_call_hears_it_and_its_end() {
        let mut sidebands = Sidebands::default();
        let (_, mut one) = sidebands.add(session(1)).unwrap();
        let (_, mut two) = sidebands.add(session(1)).unwrap();
        let (_, mut other) = sidebands.add(session(2)).unwrap();
        sidebands.said(session(1), "a", 0);
        sidebands.said(session(1), "b", 3);
        sidebands.ended(session(1), EndReason::HungUp);
        for news in [&mut one, &mut two] {
            assert_eq!(news.try_recv(), Ok(said("a", 0)));
            assert_eq!(news.try_recv(), Ok(said("b", 3)));
            assert_eq!(news.try_recv(), Ok(SidebandNews::Ended(EndReason::HungUp)));
            assert_eq!(
                news.try_recv(),
                Err(mpsc::error::TryRecvError::Disconnected)
            );
        }
        assert_eq!(other.try_recv(), Err(mpsc::error::TryRecvError::Empty));
        assert_eq!(sidebands.listeners.len(), 1);
    }

    #[test]
    fn one_that_does_not_read_is_told_how_much_it_missed_and_of_the_end() {
        let mut sidebands = Sidebands::default();
        let (_, mut news) = sidebands.add(session(1)).unwrap();
        for _ in 0..WAITING_MAX + 9 {
            sidebands.said(session(1), "x", 0);
        }
        for _ in 0..2 {
            assert_eq!(news.try_recv(), Ok(said("x", 0)));
        }
        sidebands.said(session(1), "y", 2);
        sidebands.ended(session(1), EndReason::HungUp);
        let rest: Vec<_> = std::iter::from_fn(|| news.try_recv().ok()).collect();
        let [.., last_said, end] = &rest[..] else {
            panic!("{rest:?}");
        };
        assert_eq!(
            *last_said,
            said("y", 12),
            "127 of 137 fitted, and two were missed before"
        );
        assert_eq!(*end, SidebandNews::Ended(EndReason::HungUp));
    }

    #[test]
    fn the_last_to_leave_says_so_and_a_crowd_is_refused() {
        let mut sidebands = Sidebands::default();
        let mut ids = Vec::new();
        let mut kept = Vec::new();
        while let Some((id, news)) = sidebands.add(session(1)) {
            ids.push(id);
            kept.push(news);
        }
        assert_eq!(ids.len(), LISTENERS_PER_CALL_MAX);
        let last = ids.pop().unwrap();
        for id in ids {
            assert!(!sidebands.remove(session(1), id));
        }
        assert!(sidebands.remove(session(1), last));
        assert!(!sidebands.remove(session(1), last));
        assert!(sidebands.listeners.is_empty());
    }
}
