//! Memory files whose bytes nobody can pull away under whoever maps them.

use std::os::fd::BorrowedFd;

use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};

/// What a memory file of ordinary pages says of its file system. One of huge pages can kill who reads its holes.
const TMPFS: u64 = 0x0102_1994;

/// Whether the file is a memory file that can be mapped without danger, whoever made it.
pub(crate) fn cannot_shrink(file: BorrowedFd<'_>) -> bool {
    let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    let is_tmpfs = fstatfs(file).is_ok_and(|system| system.f_type as u64 == TMPFS);
    seals.contains(SealFlags::SHRINK) && is_tmpfs
}
