//! Page-aligned anonymous memory that the kernel may write into while Rust holds no reference.
//!
//! Taken whole at start-up and given back on drop. Who calls: the buffer rings and the `recvmmsg`
//! model. The owner hands out raw pointers only; references to a part are made by [`super::batch`]
//! for exactly the slots that the kernel has let go of.

#![allow(unsafe_code)]

use std::io;
use std::ptr::{self, NonNull};

/// One anonymous mapping, zeroed and populated.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    length_bytes: usize,
}

impl Region {
    /// Maps `length_bytes` (rounded up to whole pages by the kernel).
    ///
    /// Errors: `ENOMEM`, or `InvalidInput` for a length of nought.
    pub(crate) fn new(length_bytes: usize) -> io::Result<Region> {
        if length_bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no
        // memory that anyone else holds.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_ANONYMOUS | libc::MAP_PRIVATE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base: NonNull<u8> =
            NonNull::new(base.cast()).expect("invariant: mmap never maps page nought");
        // Huge pages first, so that populating takes them. Both are hints: without them (before
        // Linux 5.14 for the second) pages come as they are touched.
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE] {
            // SAFETY: the range is the mapping made above, which holds nothing yet.
            unsafe { libc::madvise(base.as_ptr().cast(), length_bytes, advice) };
        }
        Ok(Region { base, length_bytes })
    }

    /// The first byte. Valid for reads and writes of the whole length until the region is dropped.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The address of the byte at `offset`.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(
            offset < self.length_bytes,
            "invariant: offset inside the region"
        );
        // SAFETY: the assertion keeps the result inside the mapping.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length and is unmapped once, here.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_page_aligned_zeroed_and_writable_to_its_end() {
        let region = Region::new(3 * 4096 + 7).unwrap();
        assert_eq!(region.base().as_ptr() as usize % 4096, 0);
        let last = region.at(3 * 4096 + 6);
        // SAFETY: the byte lies inside the region, which nobody else uses.
        unsafe {
            assert_eq!(last.read(), 0);
            last.write(9);
            assert_eq!(last.read(), 9);
        }
    }

    #[test]
    fn an_empty_region_is_refused() {
        assert_eq!(
            Region::new(0).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    #[should_panic(expected = "offset inside the region")]
    fn an_offset_past_the_end_is_a_bug() {
        Region::new(4096).unwrap().at(4096);
    }
}
