use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

use crate::ForkGuard;

/// Bytes of a huge page, where there are any.
pub const HUGE_PAGE: usize = 2 << 20;

/// A file's bytes, shared, at an address that is theirs in the process that made the mapping only, and unmapped there
/// only: in a forked child something else may lie there by then.
#[derive(Debug)]
pub(crate) struct Home {
    first: NonNull<u8>,
    len: usize,
    process: ForkGuard,
}

// SAFETY: it is an address and a length, which no method changes; what may be done to the bytes is for those to say who use
// the address.
unsafe impl Send for Home {}
// SAFETY: as above.
unsafe impl Sync for Home {}

impl Home {
    /// Maps the first `len` bytes of `file`. What is long enough for huge pages begins where one can begin, since
    /// otherwise even a file that consists of them is mapped page by page.
    pub(crate) fn map(file: BorrowedFd<'_>, len: usize, protection: ProtFlags) -> io::Result<Self> {
        let anywhere = || {
            // SAFETY: a new mapping at an address that the system chooses.
            unsafe {
                mmap(
                    ptr::null_mut(),
                    len.max(1),
                    protection,
                    MapFlags::SHARED,
                    file,
                    0,
                )
            }
        };
        let first = if len < HUGE_PAGE {
            anywhere()?
        } else {
            // Files of still larger pages have an idea of their own.
            map_aligned(file, len, protection).or_else(|_| anywhere())?
        };
        let home = Self {
            first: NonNull::new(first.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?,
            len,
            process: ForkGuard::new(),
        };
        home.advise(Advice::LinuxDontFork)?;
        Ok(home)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// A pointer to the word at byte `offset`.
    pub(crate) fn word(&self, offset: usize) -> *const u64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len,
            "word {offset} of {} bytes",
            self.len
        );
        self.as_ptr().wrapping_add(offset).cast_const().cast()
    }

    /// Advice that changes no byte.
    pub(crate) fn advise(&self, advice: Advice) -> io::Result<()> {
        self.advise_part(0..self.len.max(1), advice)
    }

    /// The same for a part that begins with a page of memory.
    pub(crate) fn advise_part(&self, part: Range<usize>, advice: Advice) -> io::Result<()> {
        self.check(&part);
        let first = self.as_ptr().wrapping_add(part.start).cast();
        // SAFETY: the range is in this mapping; callers in this crate give advice that leaves its bytes as they are.
        unsafe { madvise(first, part.len(), advice) }?;
        Ok(())
    }

    /// Has the memory of a part of the file, which begins with a huge page, put together to huge pages, whatever the
    /// system's rule for them is, where at least the first bytes of each have memory.
    pub(crate) fn collapse(&self, part: Range<usize>) -> io::Result<()> {
        self.check(&part);
        let first = self.as_ptr().wrapping_add(part.start).cast();
        // SAFETY: the range is in this mapping; its bytes stay as they are.
        match unsafe { libc::madvise(first, part.len(), libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn check(&self, part: &Range<usize>) {
        assert!(
            part.start <= part.end && part.end <= self.len.max(1),
            "bytes {part:?} of {}",
            self.len
        );
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.process.is_home() {
            unmap(self.as_ptr(), self.len.max(1));
        }
    }
}

/// Maps at a multiple of a huge page's size: reserves more addresses than needed, and takes those in the middle.
fn map_aligned(
    file: BorrowedFd<'_>,
    len: usize,
    protection: ProtFlags,
) -> rustix::io::Result<*mut std::ffi::c_void> {
    let whole = len.next_multiple_of(page_size());
    let reserved = whole
        .checked_add(HUGE_PAGE)
        .ok_or(rustix::io::Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address that the system chooses.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), flags) }?;
    let start = start.cast::<u8>();
    let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
    let first = start.wrapping_add(before);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: replaces a part of the reservation, which nobody else knows of.
    let mapped = unsafe { mmap(first.cast(), len, protection, flags, file, 0) };
    if mapped.is_ok() {
        unmap(start, before);
        unmap(first.wrapping_add(whole), HUGE_PAGE - before);
    } else {
        unmap(start, reserved);
    }
    mapped
}

/// Unmaps what this module mapped and nobody uses any more.
fn unmap(first: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: callers own the range. It can only fail where a mapping would have to be split and the system's limit of
        // them is reached; then addresses are lost, nothing else.
        let _ = unsafe { munmap(first.cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    #[test]
    fn what_can_have_huge_pages_begins_at_one() {
        for len in [
            1,
            4096,
            HUGE_PAGE - 1,
            HUGE_PAGE,
            HUGE_PAGE + 1,
            3 * HUGE_PAGE + 4097,
        ] {
            let file = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, len as u64).unwrap();
            let both = ProtFlags::READ | ProtFlags::WRITE;
            let homes: Vec<_> = (0..3)
                .map(|_| Home::map(file.as_fd(), len, both).unwrap())
                .collect();
            let last = |home: &Home| -> *mut u8 { home.as_ptr().wrapping_add(len - 1) };
            for (number, home) in homes.iter().enumerate() {
                assert!(len < HUGE_PAGE || home.as_ptr().addr().is_multiple_of(HUGE_PAGE));
                // SAFETY: the last byte lies in the mapping, and this thread alone uses it.
                unsafe { *last(home) = number as u8 };
            }
            // SAFETY: as above.
            let seen = homes.iter().map(|home| unsafe { *last(home) });
            assert!(seen.eq([2; 3]), "mappings of one file");
        }
    }
}
