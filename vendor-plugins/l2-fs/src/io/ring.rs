//! `io_uring`: many transfers handed to the kernel at once.
//!
//! The invariant that all of this module rests on: **no function here returns, nor unwinds, while the kernel may still
//! touch memory or use a descriptor that the function was lent.** Memory is borrowed for the length of the call, so it
//! stays where it is, and nobody else uses it, until the kernel has said that it is done.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode};
use rustix::io::Errno;

use super::transfer::{Part, Transfer, Way};

/// Entries of a ring; at most so many requests are with the kernel.
const DEPTH: u32 = 32;

/// Most pieces of memory that one request names; the kernel's limit is 1024.
const MOST_PARTS: usize = 1024;

/// A ring of one thread at a time.
pub(crate) struct Ring(IoUring);

impl Ring {
    /// A ring that works: one request has gone through it.
    ///
    /// # Errors
    /// If the kernel does not allow it.
    pub(crate) fn new() -> io::Result<Self> {
        let mut ring = Self(IoUring::new(DEPTH)?);
        let mut results = [None];
        ring.round(
            &mut results,
            |_| Some(opcode::Nop::new().build()),
            |slot, result| {
                *slot = Some(result);
                true
            },
        );
        match results {
            [Some(Ok(_))] => Ok(ring),
            [Some(Err(error))] => Err(error.into()),
            [None] => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Does all of these transfers.
    pub(crate) fn run<P: Part>(&mut self, transfers: &mut [Transfer<'_, P>]) {
        self.round(
            transfers,
            |transfer| {
                if transfer.is_done() {
                    return None;
                }
                let (file, at) = (Fd(transfer.file().as_raw_fd()), transfer.position());
                let parts = transfer.left();
                let count = parts.len().min(MOST_PARTS) as u32;
                // `IoSlice` and `IoSliceMut`, the only parts there are, are laid out as `iovec`.
                let parts = parts.as_mut_ptr();
                Some(match P::WAY {
                    Way::FromFile => opcode::Readv::new(file, parts.cast(), count)
                        .offset(at)
                        .build(),
                    Way::ToFile => opcode::Writev::new(file, parts.cast(), count)
                        .offset(at)
                        .build(),
                })
            },
            |transfer, result| {
                transfer.take(result);
                transfer.is_done()
            },
        );
    }

    /// Writes files through to the disk: their bytes, and with `all` what else is known of them.
    pub(crate) fn sync(&mut self, files: &[BorrowedFd<'_>], all: bool) -> Vec<Result<(), Errno>> {
        let flags = if all {
            FsyncFlags::empty()
        } else {
            FsyncFlags::DATASYNC
        };
        let mut results: Vec<_> = files.iter().map(|file| (file, Ok(()))).collect();
        self.round(
            &mut results,
            |(file, _)| {
                let request = opcode::Fsync::new(Fd(file.as_raw_fd())).flags(flags);
                Some(request.build())
            },
            |(_, synced), result| {
                *synced = result.map(drop);
                result != Err(Errno::INTR)
            },
        );
        results.into_iter().map(|(_, synced)| synced).collect()
    }

    /// Sends the request that `ask` makes of each item, if it makes one, and again until `answered` says that the item is done
    /// with.
    ///
    /// Requests name memory and descriptors that `items` borrows and nothing else; `ask` and `answered` do not panic.
    fn round<T>(
        &mut self,
        items: &mut [T],
        mut ask: impl FnMut(&mut T) -> Option<Entry>,
        mut answered: impl FnMut(&mut T, Result<usize, Errno>) -> bool,
    ) {
        let mut waiting: VecDeque<usize> = (0..items.len()).collect();
        let mut with_kernel = 0;
        while with_kernel > 0 || !waiting.is_empty() {
            while with_kernel < DEPTH as usize
                && let Some(index) = waiting.pop_front()
            {
                let Some(request) = ask(&mut items[index]) else {
                    continue;
                };
                let request = request.user_data(index as u64);
                // SAFETY: what the request names is borrowed by `items` for the whole of this function, and the function ends
                // only when the kernel has answered every request (`with_kernel` is 0). An item is not looked at between its
                // request and its answer.
                let pushed = unsafe { self.0.submission().push(&request) };
                match pushed {
                    Ok(()) => with_kernel += 1,
                    Err(_) => {
                        waiting.push_front(index);
                        break;
                    }
                }
            }
            if with_kernel == 0 {
                // Nobody had anything to ask, so there is no answer to wait for.
                continue;
            }
            if let Err(error) = self.0.submit_and_wait(1)
                && error.kind() != io::ErrorKind::Interrupted
            {
                // Memory is lent, so there is no way back but through the kernel, which asks to be left alone for a while.
                thread::sleep(Duration::from_millis(1));
            }
            for answer in self.0.completion() {
                let index = answer.user_data() as usize;
                let Some(item) = items.get_mut(index) else {
                    continue;
                };
                with_kernel -= 1;
                let result = answer.result();
                let result = usize::try_from(result)
                    .map_err(|_| Errno::from_raw_os_error(result.wrapping_neg()));
                if !answered(item, result) {
                    waiting.push_back(index);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
    use std::os::fd::AsFd;

    use super::*;

    fn ring() -> Option<Ring> {
        Ring::new()
            .inspect_err(|error| println!("SKIPPED: no io_uring here: {error}"))
            .ok()
    }

    #[test]
    fn more_transfers_than_entries_all_arrive() {
        let Some(mut ring) = ring() else { return };
        let files: Vec<_> = (0..100).map(|_| tempfile::tempfile().unwrap()).collect();
        let bytes: Vec<Vec<u8>> = (0..100).map(|n| vec![n as u8; 1000 * n]).collect();
        let mut writes: Vec<_> = files
            .iter()
            .zip(&bytes)
            .map(|(file, bytes)| {
                let (a, b) = bytes.split_at(bytes.len() / 3);
                let parts = vec![IoSlice::new(a), IoSlice::new(b)];
                Transfer::new(file.as_fd(), 0, parts, bytes.len() as u64)
            })
            .collect();
        ring.run(&mut writes);
        let synced = ring.sync(&files.iter().map(AsFd::as_fd).collect::<Vec<_>>(), false);
        assert!(synced.iter().all(Result::is_ok));
        let mut read: Vec<_> = bytes.iter().map(|bytes| vec![0; bytes.len() + 7]).collect();
        let mut reads: Vec<_> = files
            .iter()
            .zip(&mut read)
            .map(|(file, into)| {
                let wanted = into.len() as u64;
                Transfer::new(file.as_fd(), 0, vec![IoSliceMut::new(into)], wanted)
            })
            .collect();
        ring.run(&mut reads);
        for (index, (read, bytes)) in reads.iter().zip(&bytes).enumerate() {
            assert_eq!(read.moved(), Ok(bytes.len() as u64), "{index}");
        }
        drop(reads);
        for (read, bytes) in read.iter().zip(&bytes) {
            assert_eq!(&read[..bytes.len()], &bytes[..]);
        }
    }

    #[test]
    fn who_has_nothing_to_transfer_does_not_wait() {
        let Some(mut ring) = ring() else { return };
        let file = tempfile::tempfile().unwrap();
        let mut writes: [Transfer<'_, IoSlice<'_>>; 2] =
            [0, 1].map(|_| Transfer::new(file.as_fd(), 0, Vec::new(), 0));
        ring.run(&mut writes);
        ring.run::<IoSlice<'_>>(&mut []);
        assert!(writes.iter().all(|write| write.moved() == Ok(0)));
    }

    #[test]
    fn an_error_is_the_one_of_its_own_transfer() {
        let Some(mut ring) = ring() else { return };
        let mut good = tempfile::tempfile().unwrap();
        let read_only = std::fs::File::open("/dev/null").unwrap();
        let mut writes = [&good, &read_only]
            .map(|file| Transfer::new(file.as_fd(), 0, vec![IoSlice::new(b"bytes")], 5));
        ring.run(&mut writes);
        assert_eq!(writes.map(|write| write.moved()), [Ok(5), Err(Errno::BADF)]);
        let mut text = String::new();
        good.rewind().unwrap();
        good.read_to_string(&mut text).unwrap();
        assert_eq!(text, "bytes");
        good.flush().unwrap();
    }
}
