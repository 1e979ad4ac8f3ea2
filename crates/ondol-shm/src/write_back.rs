//! Cached bytes of persistent memory, made durable.

use std::io;
use std::ops::Range;

use crate::ReadMapping;

#[cfg(target_arch = "x86_64")]
const LINE: u64 = 64;

/// Writes what the caches of all processors hold of `range` back to the memory behind a mapping, and waits for it. The
/// system does so for files; for a character device of persistent memory (`dax:`) the program must. Bytes that
/// another process writes meanwhile may or may not be included.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the range does not lie in the mapping, or the mapping is not made of whole cache
/// lines; [`io::ErrorKind::Unsupported`] on a machine that is not x86-64.
#[cfg(target_arch = "x86_64")]
pub fn write_back(mapping: &ReadMapping, range: Range<u64>) -> io::Result<()> {
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};

    let len = mapping.len() as u64;
    if range.start > range.end || range.end > len || !len.is_multiple_of(LINE) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("bytes {range:?} of a mapping of {len} bytes cannot be written back"),
        ));
    }
    // Stores before the call come before the write-back, and the write-back before what follows the call.
    // SAFETY: the instruction is part of every x86-64 processor and touches no memory.
    unsafe { _mm_mfence() };
    for line in (range.start - range.start % LINE..range.end).step_by(LINE as usize) {
        let word = mapping.word(line as usize);
        // SAFETY: the line lies in a live mapping, as `word` checks. The instruction changes no byte and may be used on
        // memory that others write; it is part of every x86-64 processor.
        unsafe { _mm_clflush(word.cast()) };
    }
    // SAFETY: as above.
    unsafe { _mm_mfence() };
    Ok(())
}

/// Writes what the caches of all processors hold of `range` back to the memory behind a mapping, and waits for it. The
/// system does so for files; for a character device of persistent memory (`dax:`) the program must.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] on this machine, which is not x86-64.
#[cfg(not(target_arch = "x86_64"))]
pub fn write_back(_mapping: &ReadMapping, _range: Range<u64>) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "cached bytes of persistent memory can be written back on x86-64 only",
    ))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_range_that_is_written_back_stays_as_it_is() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(8192).collect();
        std::fs::write(
            format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)),
            &bytes,
        )
        .unwrap();
        let mapping = ReadMapping::new(file.as_fd(), 8192).unwrap();
        for range in [0..8192, 1..2, 63..65, 8191..8192, 100..100, 8192..8192] {
            write_back(&mapping, range).unwrap();
        }
        let mut seen = vec![0; 8192];
        rustix::io::pread(&file, &mut seen, 0).unwrap();
        assert_eq!(seen, bytes);
    }

    #[test]
    fn a_range_outside_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mapping = ReadMapping::new(file.as_fd(), 4096).unwrap();
        let backwards = Range { start: 65, end: 64 };
        for range in [0..4097, 4096..8192, backwards] {
            let error = write_back(&mapping, range).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let mapping = ReadMapping::new(file.as_fd(), 100).unwrap();
        assert!(write_back(&mapping, 0..64).is_err());
    }
}
