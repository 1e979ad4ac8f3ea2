use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result, preadv, pwritev};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    FromFile,
    ToFile,
}

/// A piece of memory that takes part in a transfer: [`IoSlice`] is written to a file, [`IoSliceMut`] filled from one.
///
/// Both are laid out as the kernel's `iovec`, which the standard library promises.
pub(crate) trait Part: Sized {
    const WAY: Way;
    fn len(&self) -> usize;
    fn advance(&mut self, bytes: usize);
    fn transfer(file: BorrowedFd<'_>, parts: &mut [Self], at: u64) -> Result<usize>;
}

impl Part for IoSlice<'_> {
    const WAY: Way = Way::ToFile;
    fn len(&self) -> usize {
        (**self).len()
    }
    fn advance(&mut self, bytes: usize) {
        IoSlice::advance(self, bytes);
    }
    fn transfer(file: BorrowedFd<'_>, parts: &mut [Self], at: u64) -> Result<usize> {
        pwritev(file, parts, at)
    }
}

impl Part for IoSliceMut<'_> {
    const WAY: Way = Way::FromFile;
    fn len(&self) -> usize {
        (**self).len()
    }
    fn advance(&mut self, bytes: usize) {
        IoSliceMut::advance(self, bytes);
    }
    fn transfer(file: BorrowedFd<'_>, parts: &mut [Self], at: u64) -> Result<usize> {
        preadv(file, parts, at)
    }
}

/// Bytes on their way between memory and one file.
#[derive(Debug)]
pub(crate) struct Transfer<'a, P> {
    file: BorrowedFd<'a>,
    at: u64,
    parts: Vec<P>,
    first: usize,
    wanted: u64,
    moved: u64,
    error: Option<Errno>,
}

impl<'a, P: Part> Transfer<'a, P> {
    /// Moves `wanted` bytes between `file` from `at` on and `parts`, which have room for as many at least.
    pub(crate) fn new(file: BorrowedFd<'a>, at: u64, parts: Vec<P>, wanted: u64) -> Self {
        let mut transfer = Self {
            file,
            at,
            parts,
            first: 0,
            wanted,
            moved: 0,
            error: None,
        };
        transfer.skip(0);
        transfer
    }

    /// Does all of it on this thread.
    pub(crate) fn run(&mut self) {
        while !self.is_done() {
            let (file, at) = (self.file, self.position());
            let result = P::transfer(file, self.left(), at);
            self.take(result);
        }
    }

    /// Bytes moved; fewer than wanted if the file has no more.
    pub(crate) fn moved(&self) -> Result<u64> {
        self.error.map_or(Ok(self.moved), Err)
    }

    pub(super) fn is_done(&self) -> bool {
        self.error.is_some() || self.moved >= self.wanted || self.first == self.parts.len()
    }

    pub(super) fn file(&self) -> BorrowedFd<'a> {
        self.file
    }

    pub(super) fn position(&self) -> u64 {
        self.at + self.moved
    }

    /// The memory that is still to be filled or written.
    pub(super) fn left(&mut self) -> &mut [P] {
        &mut self.parts[self.first..]
    }

    /// Notes what one system call did.
    pub(super) fn take(&mut self, result: Result<usize>) {
        match result {
            Ok(0) => match P::WAY {
                // The end of the file.
                Way::FromFile => self.first = self.parts.len(),
                Way::ToFile => self.error = Some(Errno::IO),
            },
            Ok(bytes) => {
                self.moved += bytes as u64;
                self.skip(bytes);
            }
            Err(Errno::INTR) => {}
            Err(error) => self.error = Some(error),
        }
    }

    fn skip(&mut self, mut bytes: usize) {
        while let Some(part) = self.parts.get_mut(self.first) {
            if bytes < part.len() {
                part.advance(bytes);
                break;
            }
            bytes -= part.len();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn empty_parts_are_skipped_and_a_short_file_ends_the_transfer() {
        let file = tempfile::tempfile().unwrap();
        let parts = vec![IoSlice::new(b""), IoSlice::new(b"abc"), IoSlice::new(b"")];
        let mut write = Transfer::new(file.as_fd(), 2, parts, 3);
        write.run();
        assert_eq!(write.moved(), Ok(3));
        let (mut one, mut two) = ([9; 1], [9; 7]);
        let parts = vec![IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        let mut read = Transfer::new(file.as_fd(), 0, parts, 8);
        read.run();
        assert_eq!(read.moved(), Ok(5));
        assert_eq!((one, &two), ([0], b"\0abc\x09\x09\x09"));
    }

    #[test]
    fn nothing_is_left_of_an_empty_transfer() {
        let file = tempfile::tempfile().unwrap();
        let mut write = Transfer::<IoSlice<'_>>::new(file.as_fd(), 0, Vec::new(), 0);
        assert!(write.is_done());
        write.run();
        assert_eq!(write.moved(), Ok(0));
    }
}
