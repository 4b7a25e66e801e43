//! When each session of a shard next wants to be woken.
//!
//! A binary heap with one entry a slot, and a table that says where each slot's entry stands. A
//! session's deadline moves with almost every packet, nearly always to later; that only notes the
//! new time, and the entry is sorted again when it comes to the top. Memory is taken once, and no
//! stale entries build up as they would in a heap of all deadlines ever set.

use std::time::Instant;

/// A slot without an entry in the heap.
const ABSENT: u32 = u32::MAX;

/// The deadlines of a shard's slots.
#[derive(Debug)]
pub(crate) struct Deadlines {
    heap: Vec<Entry>,
    slots: Vec<Place>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Never later than the slot's wanted time.
    at: Instant,
    slot: u32,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    /// Index of the slot's entry in the heap, or [`ABSENT`].
    entry: u32,
    /// Meaningful while there is an entry.
    wanted: Instant,
}

impl Deadlines {
    /// Room for `slots` slots. `epoch` is any moment; it is never looked at.
    pub(crate) fn new(slots: usize, epoch: Instant) -> Self {
        let place = Place {
            entry: ABSENT,
            wanted: epoch,
        };
        Self {
            heap: Vec::with_capacity(slots),
            slots: vec![place; slots],
        }
    }

    /// Wakes `slot` at `wanted`, and no longer at the time set before.
    pub(crate) fn set(&mut self, slot: usize, wanted: Instant) {
        let place = &mut self.slots[slot];
        place.wanted = wanted;
        let entry = place.entry as usize;
        if place.entry == ABSENT {
            let slot = u32::try_from(slot).expect("invariant: a slot has 24 bits");
            self.heap.push(Entry { at: wanted, slot });
            self.slots[slot as usize].entry = self.last();
            self.sift_up(self.heap.len() - 1);
        } else if wanted < self.heap[entry].at {
            self.heap[entry].at = wanted;
            self.sift_up(entry);
        }
    }

    /// Wakes `slot` no more.
    pub(crate) fn clear(&mut self, slot: usize) {
        let entry = self.slots[slot].entry;
        if entry != ABSENT {
            self.remove(entry as usize);
        }
    }

    /// A slot whose time has come at `now`; it wakes no more until it is set again.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<usize> {
        loop {
            let top = *self.heap.first().filter(|top| top.at <= now)?;
            let wanted = self.slots[top.slot as usize].wanted;
            if wanted <= now {
                self.remove(0);
                return Some(top.slot as usize);
            }
            self.heap[0].at = wanted;
            self.sift_down(0);
        }
    }

    /// A moment at which [`Deadlines::pop_due`] may give something, never later than it does.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|top| top.at)
    }

    fn last(&self) -> u32 {
        u32::try_from(self.heap.len() - 1).expect("invariant: one entry a slot of 24 bits")
    }

    fn remove(&mut self, entry: usize) {
        let last = self.heap.len() - 1;
        self.swap(entry, last);
        let removed = self.heap.pop().expect("invariant: the entry exists");
        self.slots[removed.slot as usize].entry = ABSENT;
        if entry < last {
            self.sift_down(entry);
            self.sift_up(entry);
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for entry in [a, b] {
            let slot = self.heap[entry].slot as usize;
            self.slots[slot].entry = u32::try_from(entry).expect("invariant: one entry a slot");
        }
    }

    fn sift_up(&mut self, mut entry: usize) {
        while entry > 0 {
            let parent = (entry - 1) / 2;
            if self.heap[parent].at <= self.heap[entry].at {
                return;
            }
            self.swap(entry, parent);
            entry = parent;
        }
    }

    fn sift_down(&mut self, mut entry: usize) {
        loop {
            let children = (2 * entry + 1)..(2 * entry + 3).min(self.heap.len());
            let Some(earliest) = children.min_by_key(|&child| self.heap[child].at) else {
                return;
            };
            if self.heap[entry].at <= self.heap[earliest].at {
                return;
            }
            self.swap(entry, earliest);
            entry = earliest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    #[derive(Debug, Clone)]
    enum Action {
        Set(usize, u64),
        Clear(usize),
        Advance(u64),
    }

    fn any_action() -> impl Strategy<Value = Action> {
        prop_oneof![
            4 => (0..12usize, 0..100u64).prop_map(|(slot, ms)| Action::Set(slot, ms)),
            1 => (0..12usize).prop_map(Action::Clear),
            2 => (0..40u64).prop_map(Action::Advance),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_map(actions in prop::collection::vec(any_action(), 1..200)) {
            let start = Instant::now();
            let mut now = start;
            let mut deadlines = Deadlines::new(12, start);
            let mut model: BTreeMap<usize, Instant> = BTreeMap::new();
            for action in actions {
                match action {
                    Action::Set(slot, ms) => {
                        deadlines.set(slot, now + Duration::from_millis(ms));
                        model.insert(slot, now + Duration::from_millis(ms));
                    }
                    Action::Clear(slot) => {
                        deadlines.clear(slot);
                        model.remove(&slot);
                    }
                    Action::Advance(ms) => now += Duration::from_millis(ms),
                }
                let mut due: Vec<_> = std::iter::from_fn(|| deadlines.pop_due(now)).collect();
                due.sort_unstable();
                let mut expected = Vec::new();
                model.retain(|&slot, &mut at| {
                    if at <= now {
                        expected.push(slot);
                    }
                    at > now
                });
                prop_assert_eq!(due, expected);
                let earliest = model.values().min().copied();
                prop_assert_eq!(deadlines.next().is_some(), earliest.is_some());
                prop_assert!(deadlines.next() <= earliest);
            }
        }
    }

    #[test]
    fn a_deadline_that_moves_on_for_ever_keeps_one_entry() {
        let start = Instant::now();
        let mut deadlines = Deadlines::new(2, start);
        for ms in 0..10_000u64 {
            deadlines.set(0, start + Duration::from_millis(ms % 100));
            deadlines.set(0, start + Duration::from_millis(ms));
            assert_eq!(deadlines.heap.len(), 1);
        }
        assert_eq!(
            deadlines.pop_due(start + Duration::from_millis(9_998)),
            None
        );
        assert_eq!(
            deadlines.pop_due(start + Duration::from_millis(9_999)),
            Some(0)
        );
    }
}
