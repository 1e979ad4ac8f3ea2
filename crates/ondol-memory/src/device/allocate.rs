//! Every byte of a file, before anybody needs it.

use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use memmap2::{Advice, MmapOptions};
use ondol_catalog::failpoint;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};

/// Bytes that one call allocates; between calls a failure elsewhere or a signal can stop the work.
const STEP: u64 = 64 << 20;

/// Number of threads to prepare files with.
pub(super) fn workers() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Gives the empty `file` its length and every byte of it a place in memory or on disk, or says why there is none.
pub(super) fn allocate(file: BorrowedFd<'_>, len: u64, page_size: u64) -> io::Result<()> {
    ftruncate(file, len)?;
    let step = STEP.max(page_size);
    for start in (0..len).step_by(usize::try_from(step).map_err(io::Error::other)?) {
        let part = step.min(len - start);
        rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), start, part))?;
    }
    failpoint!("device.allocate");
    Ok(())
}

/// Touches every page of an allocated file of memory, in parallel. The kernel may leave zeroing to the first touch,
/// which would then be the first write of a client.
pub(super) fn populate(file: BorrowedFd<'_>, len: u64, page_size: u64) {
    let step = STEP.max(page_size);
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let start = next.fetch_add(step, Ordering::Relaxed);
            if start >= len {
                return;
            }
            let part = step.min(len - start);
            let touched = usize::try_from(part)
                .map_err(io::Error::other)
                .and_then(|part| {
                    let map = MmapOptions::new()
                        .offset(start)
                        .len(part)
                        .map_raw(&file.as_fd())?;
                    map.advise(Advice::PopulateWrite)
                });
            if let Err(error) = touched {
                tracing::debug!(%error, start, "pages are not touched ahead");
                next.store(len, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..workers() {
            scope.spawn(work);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fstat, memfd_create};

    #[test]
    fn every_byte_has_a_place() {
        for len in [4096, STEP, STEP + 4096] {
            let file = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
            allocate(file.as_fd(), len, 4096).unwrap();
            populate(file.as_fd(), len, 4096);
            let stat = fstat(&file).unwrap();
            assert_eq!(stat.st_size as u64, len);
            assert!(stat.st_blocks as u64 * 512 >= len);
        }
    }

    #[test]
    fn want_of_room_is_an_error() {
        // Huge pages are the one thing that a machine can be known to have none of.
        let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        let has_none = |name| {
            std::fs::read_to_string(format!("{pool}/{name}")).is_ok_and(|text| text.trim() == "0")
        };
        if !has_none("nr_hugepages") || !has_none("nr_overcommit_hugepages") {
            println!("SKIPPED: {pool} does not say that there is no huge page");
            return;
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = memfd_create("ondol-test", flags).unwrap();
        let error = allocate(file.as_fd(), 1 << 30, 2 << 20).unwrap_err();
        let expected = [io::ErrorKind::StorageFull, io::ErrorKind::OutOfMemory];
        assert!(expected.contains(&error.kind()), "{error:?}");
    }
}
