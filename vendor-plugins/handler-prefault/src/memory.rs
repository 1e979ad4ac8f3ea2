//! Hints to the kernel about memory that is mapped here.
//!
//! None of these calls changes a byte of memory or removes a mapping: they change which pages are present and
//! which may be paged out. That is why they are safe to offer for any slice.

use std::ffi::c_void;
use std::hint::black_box;

use rustix::io::{Errno, Result};
use rustix::mm::{Advice, madvise, mlock, munlock};
use rustix::param::page_size;

/// Whole pages of this process's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pages {
    start: usize,
    len: usize,
}

impl Pages {
    /// The pages that hold `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let page = page_size();
        let first = bytes.as_ptr().addr();
        let start = first - first % page;
        let len = (first - start + bytes.len()).next_multiple_of(page);
        Self { start, len }
    }

    /// Their length in bytes.
    pub(crate) fn len(self) -> u64 {
        self.len as u64
    }

    fn address(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.start)
    }
}

/// Makes the pages that hold `bytes` present.
pub(crate) fn populate(bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let pages = Pages::of(bytes);
    // SAFETY: `bytes` is borrowed, so its pages are mapped throughout; the advice makes pages present as a read
    // would and changes nothing that a program can observe but time.
    match unsafe { madvise(pages.address(), pages.len, Advice::LinuxPopulateRead) } {
        // A kernel or a mapping that does not know the advice.
        Err(Errno::INVAL) => {
            touch(bytes);
            Ok(())
        }
        result => result,
    }
}

/// Locks the pages that hold `bytes` in memory, until [`unlock`] or until they are unmapped.
pub(crate) fn lock(bytes: &[u8]) -> Result<Pages> {
    let pages = Pages::of(bytes);
    // SAFETY: `bytes` is borrowed, so its pages are mapped throughout; the call reads and writes none of them.
    unsafe { mlock(pages.address(), pages.len) }?;
    Ok(pages)
}

/// Undoes [`lock`]. For pages that are not mapped any more, an error; for pages that are mapped anew, the loss of
/// a lock that somebody else may have taken: callers ask first whether the region is still there.
pub(crate) fn unlock(pages: Pages) -> Result<()> {
    // SAFETY: the call reads and writes no memory and removes no mapping, whatever lies at these addresses.
    unsafe { munlock(pages.address(), pages.len) }
}

/// Reads a byte of each page.
fn touch(bytes: &[u8]) {
    let ends = bytes.first().into_iter().chain(bytes.last());
    let steps = bytes.iter().step_by(page_size());
    ends.chain(steps).for_each(|byte| {
        black_box(*byte);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cover_their_bytes_and_no_more() {
        let page = page_size();
        let room = vec![0_u8; 4 * page];
        let first = page - room.as_ptr().addr() % page;
        let whole = Pages::of(&room[first..first + page]);
        assert_eq!((whole.start % page, whole.len), (0, page));
        assert_eq!(Pages::of(&room[first + 1..first + 2]), whole);
        assert_eq!(Pages::of(&room[first..=first + page]).len, 2 * page);
        assert_eq!(
            Pages::of(&room[first + page - 1..first + page + 1]).len,
            2 * page
        );
    }

    #[test]
    fn touching_reaches_every_byte_range_without_leaving_it() {
        for len in [0, 1, page_size(), page_size() + 1] {
            touch(&vec![0; len]);
        }
    }
}
