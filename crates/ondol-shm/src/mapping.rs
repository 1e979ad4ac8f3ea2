//! Shared mappings of the pool's files.
//!
//! # Invariant
//! Bytes of a mapping change only through a [`PageBytes`](crate::PageBytes), of which there is at most one per
//! page, in the process that holds the page's grant; a page is granted only while no lease on it exists. So a
//! slice handed out under a lease is not written while it lives, and a slice handed out under a grant is neither
//! read nor written by anyone else. Processes that were given the pool's descriptors are trusted with it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::mm::{Advice, ProtFlags};

use crate::home::{HUGE_PAGE, Home};

/// A read-only mapping of a whole file: a stray write through it faults.
#[derive(Debug)]
pub struct ReadMapping(Home);

/// A writable mapping of a whole file.
#[derive(Debug)]
pub struct WriteMapping(Home);

impl ReadMapping {
    /// Maps the first `len` bytes of `file`. The mapping is not inherited by forked children.
    ///
    /// # Errors
    /// If the file is shorter than `len` (a later access would kill the process) or cannot be mapped.
    pub fn new(file: BorrowedFd<'_>, len: u64) -> io::Result<Self> {
        let len = checked_len(file, len)?;
        Ok(Self(Home::map(file, len, ProtFlags::READ)?))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The address of the first byte, for those who register memory with a device.
    pub fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Whether the mapping has no byte.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The bytes `start..start + len`, which the caller has checked to lie inside.
    ///
    /// # Safety
    /// The range lies inside the mapping, and a lease protects it for as long as the slice lives.
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &[u8] {
        // SAFETY: the caller vouches for the range.
        let first = unsafe { self.0.as_ptr().add(start) };
        // SAFETY: the range lies in a live mapping; by the module's invariant nobody writes it under a lease.
        unsafe { std::slice::from_raw_parts(first, len) }
    }

    /// A pointer to the word at byte `offset`.
    pub(crate) fn word(&self, offset: usize) -> *const u64 {
        self.0.word(offset)
    }
}

impl WriteMapping {
    /// Maps the first `len` bytes of `file`. The mapping is not inherited by forked children.
    ///
    /// # Errors
    /// If the file is shorter than `len` (a later access would kill the process) or cannot be mapped.
    pub fn new(file: BorrowedFd<'_>, len: u64) -> io::Result<Self> {
        let len = checked_len(file, len)?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        Ok(Self(Home::map(file, len, both)?))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The address of the first byte, for those who register memory with a device.
    pub fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Whether the mapping has no byte.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Gives every page of `part` its memory now, so that a first access later costs nothing more. The part begins with a
    /// page.
    ///
    /// # Errors
    /// If the file has no room, or the system is older than Linux 5.14.
    ///
    /// # Panics
    /// If the part does not lie in the mapping.
    pub fn populate(&self, part: Range<usize>) -> io::Result<()> {
        self.0.advise_part(part, Advice::LinuxPopulateWrite)
    }

    /// Gives `part` of a file of memory, which has none there yet, huge pages, as far as it is long enough, also where the
    /// system gives them to nobody of its own accord. About as fast as filling it with ordinary pages, and many times faster
    /// than to do so and change them for huge ones afterwards. The part begins with a [`HUGE_PAGE`]; one call for much is
    /// faster than many for little.
    ///
    /// # Errors
    /// If the system has none to give, or is older than Linux 6.1. What is missing then has ordinary pages, or none.
    ///
    /// # Panics
    /// If the part does not lie in the mapping.
    pub fn populate_with_huge_pages(&self, part: Range<usize>) -> io::Result<()> {
        let _ = self.0.advise_part(part.clone(), Advice::LinuxHugepage);
        for start in part.clone().step_by(HUGE_PAGE) {
            self.populate(start..start + 1)?;
        }
        self.0.collapse(part)
    }

    /// # Safety
    /// The range lies inside the mapping, and the caller holds the only claim to it.
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &[u8] {
        // SAFETY: the caller vouches for the range.
        let first = unsafe { self.0.as_ptr().add(start) };
        // SAFETY: the range lies in a live mapping and nobody else writes it while the claim is held.
        unsafe { std::slice::from_raw_parts(first, len) }
    }

    /// # Safety
    /// The range lies inside the mapping, and the caller holds the only claim to it, mutably borrowed.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusivity comes from the claim, not from the mapping"
    )]
    pub(crate) unsafe fn slice_mut(&self, start: usize, len: usize) -> &mut [u8] {
        // SAFETY: the caller vouches for the range.
        let first = unsafe { self.0.as_ptr().add(start) };
        // SAFETY: the range lies in a live mapping and the claim, which is borrowed mutably, is the only one.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    /// A pointer to the word at byte `offset`.
    pub(crate) fn word(&self, offset: usize) -> *const u64 {
        self.0.word(offset)
    }
}

fn checked_len(file: BorrowedFd<'_>, len: u64) -> io::Result<usize> {
    let stat = rustix::fs::fstat(file.as_fd())?;
    let is_device =
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice;
    if !is_device && (stat.st_size as u64) < len {
        return Err(io::Error::other(format!(
            "the file has {} bytes; expected at least {len}: it was shrunk or is not the pool's",
            stat.st_size
        )));
    }
    usize::try_from(len).map_err(io::Error::other)
}
