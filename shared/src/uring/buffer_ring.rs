//! A provided-buffer ring (`io_uring_register_buf_ring(3)`): slots that the kernel fills by itself.
//!
//! ```text
//! ring     | addr u64 | len u32 | bid u16 | tail u16 (entry 0 only) |  x count, a power of two
//! slots    | recvmsg_out 16 | name 32 | control 88 | payload ..     |  x count
//! ```
//!
//! We write entries and publish them by the tail; the kernel takes them in order and names the slot
//! it filled by its id in the completion. Invariant: a slot is either with the kernel (between its
//! entry's publication and its completion) or leased to a batch, never both. Provided buffers are
//! not charged to RLIMIT_MEMLOCK.

#![allow(unsafe_code)]

use super::region::Region;
use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

/// Most entries of a buffer ring (`io_uring_register_buf_ring(3)`).
const BUFFERS_MAX: u16 = 1 << 15;

/// One group of equal slots.
#[derive(Debug)]
pub(crate) struct BufferRing {
    group: u16,
    count: u16,
    slot_bytes: usize,
    entries: Region,
    slots: Region,
    tail: u16,
    leased_count: u16,
}

impl BufferRing {
    /// Takes the memory of `count` slots of `slot_bytes`.
    ///
    /// Errors: `InvalidInput` unless `count` is a power of two up to 32,768; `ENOMEM`.
    pub(crate) fn new(group: u16, count: u16, slot_bytes: usize) -> io::Result<BufferRing> {
        if !count.is_power_of_two() || count > BUFFERS_MAX {
            let reason = format!("{count} buffers: must be a power of two up to {BUFFERS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let entries = Region::new(usize::from(count) * size_of::<BufRingEntry>())?;
        let slots = Region::new(usize::from(count) * slot_bytes)?;
        Ok(BufferRing {
            group,
            count,
            slot_bytes,
            entries,
            slots,
            tail: 0,
            leased_count: count,
        })
    }

    /// Registers the ring and gives the kernel every slot.
    ///
    /// Errors: what the kernel says, `EINVAL` before Linux 5.19.
    ///
    /// # Safety
    ///
    /// This buffer ring must outlive the io_uring instance of `submitter`, or be unregistered.
    pub(crate) unsafe fn register(&mut self, submitter: &Submitter<'_>) -> io::Result<()> {
        let address = self.entries.base().as_ptr() as u64;
        // SAFETY: the address is page-aligned memory of `count` entries, which the caller keeps
        // until the instance is gone.
        unsafe {
            submitter.register_buf_ring_with_flags(address, self.count, self.group, 0)?;
        }
        for id in 0..self.count {
            self.give(id);
        }
        self.publish();
        Ok(())
    }

    /// The group's id in submissions.
    pub(crate) fn group(&self) -> u16 {
        self.group
    }

    /// Size of a slot in bytes.
    #[inline]
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Notes that the kernel let go of slot `id`, and returns its first byte.
    #[inline]
    pub(crate) fn lease(&mut self, id: u16) -> NonNull<u8> {
        assert!(
            id < self.count,
            "invariant: the kernel names only slots it was given"
        );
        self.leased_count += 1;
        assert!(
            self.leased_count <= self.count,
            "invariant: a slot is leased once at a time"
        );
        self.slots.at(usize::from(id) * self.slot_bytes)
    }

    /// Writes the entry that gives slot `id` back. It counts once [`BufferRing::publish`] is
    /// called.
    #[inline]
    pub(crate) fn give(&mut self, id: u16) {
        assert!(
            id < self.count && self.leased_count > 0,
            "invariant: only leases are given back"
        );
        self.leased_count -= 1;
        let slot = self.slots.at(usize::from(id) * self.slot_bytes);
        let index = usize::from(self.tail & (self.count - 1));
        let base = self.entries.base().cast::<BufRingEntry>();
        // SAFETY: `index` is below `count`, the number of entries in the region, and the kernel
        // does not read an entry past the tail that it was shown.
        let entry = unsafe { base.add(index).as_mut() };
        entry.set_addr(slot.as_ptr() as u64);
        entry.set_len(self.slot_bytes as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel every entry written so far.
    #[inline]
    pub(crate) fn publish(&self) {
        let base = self.entries.base().cast::<BufRingEntry>();
        // SAFETY: the base is the first entry of a live ring, whose tail lies in its last two
        // bytes, aligned for a u16. The kernel reads it with acquire semantics, hence the release
        // store.
        unsafe {
            let tail = BufRingEntry::tail(base.as_ptr()).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_is_no_power_of_two_is_refused() {
        let error = BufferRing::new(0, 3, 64).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("power of two"));
    }

    #[test]
    fn given_slots_are_written_in_order_and_published_by_the_tail() {
        let mut ring = BufferRing::new(7, 4, 64).unwrap();
        for id in [2, 0, 3] {
            ring.give(id);
        }
        ring.publish();
        let entries = ring.entries.base().cast::<BufRingEntry>();
        for (index, id) in [2u16, 0, 3].into_iter().enumerate() {
            // SAFETY: the index is below the four entries of the region, which nobody writes.
            let entry = unsafe { entries.add(index).as_ref() };
            assert_eq!((entry.bid(), entry.len()), (id, 64));
            assert_eq!(
                entry.addr(),
                ring.slots.at(usize::from(id) * 64).as_ptr() as u64
            );
        }
        // SAFETY: as in `publish`.
        assert_eq!(unsafe { *BufRingEntry::tail(entries.as_ptr()) }, 3);
    }

    #[test]
    #[should_panic(expected = "a slot is leased once at a time")]
    fn a_slot_the_kernel_never_had_is_a_bug() {
        let mut ring = BufferRing::new(7, 2, 64).unwrap();
        ring.give(0);
        ring.lease(0);
        ring.lease(0);
    }
}
