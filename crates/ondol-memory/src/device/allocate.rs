//! Every byte of a file, before anybody needs it.

use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use ondol_catalog::failpoint;
use ondol_shm::{HUGE_PAGE, WriteMapping};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};

use super::base_page_size;

/// Bytes that one call allocates; between calls a failure elsewhere or a signal can stop the work.
const STEP: u64 = 64 << 20;

/// Bytes that one call gives huge pages: each call costs a stop of all processors.
const HUGE_STEP: u64 = 256 << 20;

/// How a file of memory came by its memory.
#[derive(Debug)]
pub(super) struct Filled {
    /// How long it took.
    pub(super) seconds: f64,
    /// What kept the system from giving huge pages where they were asked for.
    pub(super) refused_huge_pages: Option<io::Error>,
}

/// Number of threads to prepare files with.
pub(super) fn workers() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Gives the empty `file` its length and every byte of it a place on disk, or says why there is none.
pub(super) fn allocate(file: BorrowedFd<'_>, len: u64, page_size: u64) -> io::Result<()> {
    ftruncate(file, len)?;
    allocate_missing(file, len, page_size)
}

fn allocate_missing(file: BorrowedFd<'_>, len: u64, page_size: u64) -> io::Result<()> {
    let step = STEP.max(page_size);
    for start in (0..len).step_by(usize::try_from(step).map_err(io::Error::other)?) {
        let part = step.min(len - start);
        rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), start, part))?;
    }
    failpoint!("device.allocate");
    Ok(())
}

/// Gives the empty `file`, which is one of memory, its length and every byte of it memory, or says why there is none: huge
/// pages where the system has them, by `threads` threads.
///
/// Its pages are touched, too. The kernel may leave zeroing to the first touch, which would then be the first write of a
/// client.
pub(super) fn fill(
    file: BorrowedFd<'_>,
    len: u64,
    page_size: u64,
    threads: usize,
) -> io::Result<Filled> {
    let began = Instant::now();
    ftruncate(file, len)?;
    let mapping = match WriteMapping::new(file, len) {
        Ok(mapping) => mapping,
        Err(error) => {
            // Allocated all the same; that is what has to be.
            tracing::debug!(%error, "pages are not touched ahead");
            allocate_missing(file, len, page_size)?;
            return Ok(Filled {
                seconds: began.elapsed().as_secs_f64(),
                refused_huge_pages: None,
            });
        }
    };
    // Before the rest, which would give the file ordinary pages. A file system of huge pages needs no request.
    let may_be_huge = page_size == base_page_size() && len >= HUGE_PAGE as u64;
    let refused_huge_pages = may_be_huge
        .then(|| {
            in_parallel(len, HUGE_STEP, threads, |part| {
                mapping.populate_with_huge_pages(part)
            })
        })
        .and_then(Result::err);
    allocate_missing(file, len, page_size)?;
    let step = STEP.max(page_size);
    if let Err(error) = in_parallel(len, step, threads, |part| mapping.populate(part)) {
        tracing::debug!(%error, "pages are not touched ahead");
    }
    Ok(Filled {
        seconds: began.elapsed().as_secs_f64(),
        refused_huge_pages,
    })
}

/// Does `work` for all parts of `step` bytes of `len`, by `threads` threads at most, until one fails.
fn in_parallel(
    len: u64,
    step: u64,
    threads: usize,
    work: impl Fn(Range<usize>) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let next = AtomicU64::new(0);
    let failure = OnceLock::new();
    let work = || {
        loop {
            let start = next.fetch_add(step, Ordering::Relaxed);
            if start >= len {
                return;
            }
            // Offsets of a mapping that exists.
            let part = start as usize..len.min(start + step) as usize;
            if let Err(error) = work(part) {
                next.store(len, Ordering::Relaxed);
                let _ = failure.set(error);
            }
        }
    };
    let parts = usize::try_from(len.div_ceil(step)).unwrap_or(usize::MAX);
    thread::scope(|scope| {
        for _ in 1..threads.min(parts) {
            scope.spawn(work);
        }
        work();
    });
    failure.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fstat, memfd_create};
    use std::os::fd::AsFd;

    #[test]
    fn every_byte_has_a_place() {
        for len in [4096, STEP, STEP + 4096, HUGE_STEP + HUGE_PAGE as u64 + 4096] {
            let file = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
            fill(file.as_fd(), len, 4096, 2).unwrap();
            let stat = fstat(&file).unwrap();
            assert_eq!(stat.st_size as u64, len);
            assert!(stat.st_blocks as u64 * 512 >= len);
            assert_eq!(untouched(&file), len, "an untouched page");
        }
    }

    /// Where the first page lies that nobody has touched: to the system it is a hole, though one with memory.
    fn untouched(file: impl AsFd) -> u64 {
        rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(0)).unwrap()
    }

    #[test]
    fn all_threads_together_leave_nothing_out() {
        let len = HUGE_STEP + 3 * STEP + 4096;
        let done = AtomicU64::new(0);
        for threads in [1, 2, 7, 100] {
            done.store(0, Ordering::Relaxed);
            let work = |part: Range<usize>| {
                done.fetch_add(part.len() as u64, Ordering::Relaxed);
                Ok(())
            };
            in_parallel(len, STEP, threads, work).unwrap();
            assert_eq!(done.load(Ordering::Relaxed), len, "{threads} threads");
        }
        let fails = |part: Range<usize>| {
            done.fetch_add(1, Ordering::Relaxed);
            match part.start {
                0 => Err(io::Error::other("the first part")),
                _ => Ok(()),
            }
        };
        done.store(0, Ordering::Relaxed);
        let error = in_parallel(len, STEP, 1, fails).unwrap_err();
        assert_eq!(error.to_string(), "the first part");
        assert_eq!(done.load(Ordering::Relaxed), 1, "parts after the failure");
    }

    #[test]
    fn memory_that_is_only_allocated_is_not_taken_for_touched() {
        let file = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
        allocate(file.as_fd(), 8192, 4096).unwrap();
        assert_eq!(untouched(&file), 0);
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
