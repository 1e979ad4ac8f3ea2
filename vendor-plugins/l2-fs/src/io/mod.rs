//! Moving bytes between memory and files.

#[allow(
    unsafe_code,
    reason = "the kernel works on memory by address; the module states why each use is sound"
)]
mod ring;
mod transfer;

use std::io;
use std::os::fd::BorrowedFd;

use parking_lot::Mutex;

use self::ring::Ring;
pub(crate) use self::transfer::{Part, Transfer};

/// Boundary on which memory, offsets and lengths of direct transfers lie. Devices ask for 512 or 4096.
pub(crate) const BLOCK: usize = 4096;

/// Objects that one thread has in the hands of the kernel at once.
const RING_GROUP: usize = 16;

/// How bytes are moved.
pub(crate) enum Engine {
    /// One system call after the other, on the thread that asks.
    Threads,
    /// Many at once, through a ring that a thread borrows.
    IoUring(Mutex<Vec<Ring>>),
}

impl Engine {
    /// Moves bytes by `io_uring`.
    ///
    /// # Errors
    /// If the kernel does not allow it.
    pub(crate) fn io_uring() -> io::Result<Self> {
        Ok(Self::IoUring(Mutex::new(vec![Ring::new()?])))
    }

    /// Its name in figures.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::IoUring(_) => "io_uring",
        }
    }

    /// How many transfers to ask for at once.
    pub(crate) fn group(&self) -> usize {
        match self {
            Self::Threads => 1,
            Self::IoUring(_) => RING_GROUP,
        }
    }

    /// Does all of these, and returns when the kernel is done with the memory of each.
    pub(crate) fn run<P: Part>(&self, transfers: &mut [Transfer<'_, P>]) {
        let done = self.with_ring(|ring| ring.run(transfers));
        if done.is_none() {
            transfers.iter_mut().for_each(Transfer::run);
        }
    }

    /// Writes files through to the disk: their bytes, and with `all` what else is known of them.
    pub(crate) fn sync(&self, files: &[BorrowedFd<'_>], all: bool) -> Vec<rustix::io::Result<()>> {
        let done = self.with_ring(|ring| ring.sync(files, all));
        done.unwrap_or_else(|| {
            let sync = |file: &BorrowedFd<'_>| {
                if all {
                    rustix::fs::fsync(file)
                } else {
                    rustix::fs::fdatasync(file)
                }
            };
            files.iter().map(sync).collect()
        })
    }

    /// Runs `work` with a ring; `None` where there is none.
    fn with_ring<T>(&self, work: impl FnOnce(&mut Ring) -> T) -> Option<T> {
        let Self::IoUring(idle) = self else {
            return None;
        };
        let borrowed = idle.lock().pop();
        // There are as many as threads work at once; a new one fails only for want of descriptors or memory.
        let mut ring = match borrowed {
            Some(ring) => ring,
            None => Ring::new().ok()?,
        };
        let done = work(&mut ring);
        idle.lock().push(ring);
        Some(done)
    }
}
