//! What became of every measured datagram of one window and direction.
//!
//! A datagram is delivered when it arrived whole, once, where it belongs and in the window it was
//! sent in. Everything else has a count of its own, and none of it earns the relay anything.

use serde::{Deserialize, Serialize};

use super::payload::{Stamp, Way};

/// Most datagrams that one window may send each way: bounds the ledger to 2 MiB.
pub const WINDOW_DATAGRAMS_MAX: u64 = 1 << 24;

/// The fates of one window's datagrams in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fates {
    /// Given to the kernel by the generator.
    pub sent: u64,
    /// Arrived whole, once, at the right place.
    pub delivered: u64,
    /// Arrived again.
    pub duplicated: u64,
    /// Arrived with a wrong byte, length or header.
    pub corrupt: u64,
    /// Arrived whole at, or attributed to, another client.
    pub misdelivered: u64,
    /// Arrived behind a later datagram of the same client (also counted as delivered).
    pub reordered: u64,
    /// Of an earlier window, or never sent.
    pub stray: u64,
    /// Refused by the kernel when the generator sent them: the generator's fault.
    pub refused: u64,
}

impl Fates {
    /// Sent and never seen.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.delivered)
    }

    /// Whether all that was sent arrived and nothing else did.
    pub fn clean(&self) -> bool {
        self.lost() == 0 && self.wrong() == 0
    }

    /// Arrivals that no correct relay produces.
    pub fn wrong(&self) -> u64 {
        self.duplicated + self.corrupt + self.misdelivered
    }

    /// The sum of two directions or windows.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            delivered: self.delivered + other.delivered,
            duplicated: self.duplicated + other.duplicated,
            corrupt: self.corrupt + other.corrupt,
            misdelivered: self.misdelivered + other.misdelivered,
            reordered: self.reordered + other.reordered,
            stray: self.stray + other.stray,
            refused: self.refused + other.refused,
        }
    }
}

/// Deals out the datagrams of one window and direction, and ticks them off.
#[derive(Debug)]
pub struct Ledger {
    window: u32,
    way: Way,
    clients: u32,
    fates: Fates,
    arrived: Vec<u64>,
    newest: Vec<u64>,
}

impl Ledger {
    /// An empty ledger for windows with `clients` clients.
    pub fn new(way: Way, clients: u32) -> Self {
        let words = (WINDOW_DATAGRAMS_MAX / 64) as usize;
        Self {
            window: 0,
            way,
            clients,
            fates: Fates::default(),
            arrived: vec![0; words],
            newest: vec![0; clients as usize],
        }
    }

    /// Forgets the last window and opens the next.
    pub fn open(&mut self, window: u32) {
        self.window = window;
        self.fates = Fates::default();
        self.arrived.fill(0);
        self.newest.fill(0);
    }

    /// The fates so far.
    pub fn fates(&self) -> Fates {
        self.fates
    }

    /// Sent and not seen yet.
    pub fn outstanding(&self) -> u64 {
        self.fates.lost()
    }

    /// The next datagram to send, clients in turn; `None` when the window is full.
    pub fn deal(&self, intended_ns: u64) -> Option<Stamp> {
        let sequence = self.fates.sent;
        (sequence < WINDOW_DATAGRAMS_MAX).then(|| Stamp {
            client: (sequence % u64::from(self.clients)) as u32,
            window: self.window,
            way: self.way,
            sequence,
            intended_ns,
        })
    }

    /// Notes that the datagram that [`Ledger::deal`] gave was sent, or refused by the kernel.
    /// Either way its number is used: a refused one counts as sent and so, in the end, as lost.
    pub fn sent(&mut self, taken: bool) {
        self.fates.sent += 1;
        self.fates.refused += u64::from(!taken);
    }

    /// Notes an arrival at, or attributed to, client `at`, and returns its stamp when it counts.
    pub fn arrive(&mut self, at: Option<u32>, payload: &[u8]) -> Option<Stamp> {
        let Some(stamp) = Stamp::read(payload) else {
            self.fates.corrupt += 1;
            return None;
        };
        if stamp.window != self.window || stamp.sequence >= self.fates.sent {
            self.fates.stray += 1;
            return None;
        }
        let dealt_to = (stamp.sequence % u64::from(self.clients)) as u32;
        if stamp.way != self.way || stamp.client != dealt_to || at != Some(stamp.client) {
            self.fates.misdelivered += 1;
            return None;
        }
        let (word, bit) = ((stamp.sequence / 64) as usize, 1 << (stamp.sequence % 64));
        if self.arrived[word] & bit != 0 {
            self.fates.duplicated += 1;
            return None;
        }
        self.arrived[word] |= bit;
        self.fates.delivered += 1;
        let newest = &mut self.newest[stamp.client as usize];
        self.fates.reordered += u64::from(stamp.sequence < *newest);
        *newest = stamp.sequence.max(*newest);
        Some(stamp)
    }

    /// Notes an arrival whose header was wrong, so that its payload is not looked at.
    pub fn arrive_malformed(&mut self) {
        self.fates.corrupt += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::payload::PAYLOAD_BYTES_MAX;

    fn deal(ledger: &mut Ledger) -> (u32, Vec<u8>) {
        let stamp = ledger.deal(5).expect("room in the window");
        let mut bytes = vec![0; PAYLOAD_BYTES_MAX];
        let length = stamp.write(&mut bytes);
        bytes.truncate(length);
        ledger.sent(true);
        (stamp.client, bytes)
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(Way::Up, 2);
        ledger.open(9);
        ledger
    }

    #[test]
    fn counts_each_datagram_once() {
        let mut ledger = ledger();
        let (client, bytes) = deal(&mut ledger);
        assert!(ledger.arrive(Some(client), &bytes).is_some());
        assert!(ledger.arrive(Some(client), &bytes).is_none());
        let expected = Fates {
            sent: 1,
            delivered: 1,
            duplicated: 1,
            ..Fates::default()
        };
        assert_eq!(ledger.fates(), expected);
        assert!(!ledger.fates().clean());
    }

    #[test]
    fn counts_what_never_came_as_lost() {
        let mut ledger = ledger();
        deal(&mut ledger);
        ledger.sent(false);
        assert_eq!((ledger.fates().lost(), ledger.fates().refused), (2, 1));
    }

    #[test]
    fn tells_corruption_from_misdelivery() {
        let mut ledger = ledger();
        let (client, mut bytes) = deal(&mut ledger);
        assert!(ledger.arrive(Some(client + 1), &bytes).is_none());
        assert!(ledger.arrive(None, &bytes).is_none());
        bytes[60] ^= 1;
        assert!(ledger.arrive(Some(client), &bytes).is_none());
        let expected = Fates {
            sent: 1,
            misdelivered: 2,
            corrupt: 1,
            ..Fates::default()
        };
        assert_eq!(ledger.fates(), expected);
    }

    #[test]
    fn counts_overtaking_within_a_client_only() {
        let mut ledger = ledger();
        let dealt: Vec<_> = (0..4).map(|_| deal(&mut ledger)).collect();
        for at in [1, 0, 2, 3] {
            ledger.arrive(Some(dealt[at].0), &dealt[at].1);
        }
        assert_eq!(ledger.fates().reordered, 0);
        let (first, second) = (deal(&mut ledger), deal(&mut ledger));
        let third = deal(&mut ledger);
        for (client, bytes) in [third, second, first] {
            ledger.arrive(Some(client), &bytes);
        }
        assert_eq!((ledger.fates().reordered, ledger.fates().delivered), (1, 7));
    }

    #[test]
    fn sets_stragglers_of_an_earlier_window_aside() {
        let mut ledger = ledger();
        let (client, bytes) = deal(&mut ledger);
        ledger.open(10);
        deal(&mut ledger);
        assert!(ledger.arrive(Some(client), &bytes).is_none());
        assert_eq!((ledger.fates().stray, ledger.fates().lost()), (1, 1));
    }
}
