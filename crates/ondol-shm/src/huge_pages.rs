//! How much of a file of memory consists of huge pages.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::BorrowedFd;

use rustix::mm::{Advice, ProtFlags};

use crate::home::{HUGE_PAGE, Home};

/// Places that are looked at, at most.
const PLACES: usize = 64;

/// Looks at some places of the first `len` bytes of `file`, evenly spread: at how many of how many a huge page lies. None are
/// looked at of what is shorter than one. A place without memory is given some.
///
/// # Errors
/// If the file cannot be mapped and touched, or `/proc/self/smaps` does not tell.
pub fn sample_huge_pages(file: BorrowedFd<'_>, len: u64) -> io::Result<(usize, usize)> {
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let whole = len / HUGE_PAGE;
    let places = whole.min(PLACES);
    if places == 0 {
        return Ok((0, 0));
    }
    let home = Home::map(file, len, ProtFlags::READ)?;
    for place in 0..places {
        let start = place * whole / places * HUGE_PAGE;
        home.advise_part(start..start + 1, Advice::LinuxPopulateRead)?;
    }
    let smaps = BufReader::new(File::open("/proc/self/smaps")?);
    // A mapping's first line begins with its addresses in hexadecimal, the others with a name and a colon.
    let first = format!("{:x}-", home.as_ptr().addr());
    let mut kib = None;
    for line in smaps.lines() {
        let line = line?;
        let word = line.split_ascii_whitespace().next().unwrap_or_default();
        if !word.ends_with(':') {
            if kib.is_some() {
                break;
            }
            kib = line.starts_with(&first).then_some(0);
        } else if matches!(word, "ShmemPmdMapped:" | "FilePmdMapped:")
            && let Some(kib) = &mut kib
        {
            let figure = line.split_ascii_whitespace().nth(1);
            *kib += figure
                .and_then(|kib| kib.parse::<usize>().ok())
                .unwrap_or(0);
        }
    }
    let kib = kib.ok_or_else(|| io::Error::other("/proc/self/smaps does not list the mapping"))?;
    Ok((kib * 1024 / HUGE_PAGE, places))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WriteMapping;
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    const LEN: usize = 8 * HUGE_PAGE;

    fn file(len: usize) -> std::os::fd::OwnedFd {
        let file = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len as u64).unwrap();
        file
    }

    fn bytes_in_memory(file: impl AsFd) -> u64 {
        fstat(file).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn huge_pages_that_a_file_was_given_are_found_in_another_mapping() {
        let file = file(LEN + 4096);
        let mapping = WriteMapping::new(file.as_fd(), LEN as u64 + 4096).unwrap();
        if let Err(error) = mapping.populate_with_huge_pages(0..mapping.len()) {
            println!("SKIPPED: the system gives no huge pages: {error}");
            return;
        }
        let (found, places) = sample_huge_pages(file.as_fd(), LEN as u64).unwrap();
        assert_eq!((found, places), (8, 8));
        assert!(bytes_in_memory(&file) >= LEN as u64);
    }

    #[test]
    fn ordinary_pages_are_told_from_huge_ones() {
        let file = file(LEN);
        let mapping = WriteMapping::new(file.as_fd(), LEN as u64).unwrap();
        mapping.populate(0..LEN).unwrap();
        assert_eq!(bytes_in_memory(&file), LEN as u64);
        let (found, places) = sample_huge_pages(file.as_fd(), LEN as u64).unwrap();
        if found == 0 {
            assert_eq!(places, 8);
        } else {
            println!("SKIPPED: the system gives huge pages to everybody");
        }
    }

    #[test]
    fn a_part_that_is_populated_leaves_the_rest_without_memory() {
        let file = file(LEN);
        let mapping = WriteMapping::new(file.as_fd(), LEN as u64).unwrap();
        mapping.populate(HUGE_PAGE..HUGE_PAGE + 8192).unwrap();
        let given = bytes_in_memory(&file);
        assert!((8192..=2 * HUGE_PAGE as u64).contains(&given), "{given}");
    }

    #[test]
    fn what_is_too_short_for_a_huge_page_is_not_looked_at() {
        let file = file(HUGE_PAGE - 4096);
        let found = sample_huge_pages(file.as_fd(), HUGE_PAGE as u64 - 4096).unwrap();
        assert_eq!(found, (0, 0));
    }

    #[test]
    #[should_panic(expected = "of 16777216")]
    fn a_part_outside_is_refused() {
        let file = file(LEN);
        let mapping = WriteMapping::new(file.as_fd(), LEN as u64).unwrap();
        let _ = mapping.populate(LEN - 4096..LEN + 4096);
    }
}
