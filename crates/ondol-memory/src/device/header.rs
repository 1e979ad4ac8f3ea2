//! The header that names the pool in a `dax:` device, whose bytes outlive every file beside it.
//!
//! It fills the device's first 4096 bytes from byte 64 on; the first 64 are left to the header by which Maru knows the
//! device. Numbers are little-endian; positions count from byte 64.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic, `ONDOLDAX` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | length of the state directory's path; 0 for none |
//! | 16 | 16 | pool; zero for one that no log knows |
//! | 32 | 8 | first byte of the device that is used |
//! | 40 | 8 | end of what is used |
//! | 48 | 8 | XXH3-64 of bytes 0 to 47 and the path |
//! | 56 | 8 | reserved, zero |
//! | 64 | up to 3840 | path of the state directory |
//! | 3904 | 64 | a run |
//! | 3968 | 64 | a run |
//!
//! All but the runs is written once, when the pool begins. A run is written to the place of the older one, so that a write
//! that is cut off leaves the other:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | 1 above that of the other one; the higher one counts |
//! | 8 | 8 | run |
//! | 16 | 8 | XXH3-64 of bytes 0 to 15 |
//! | 24 | 40 | reserved, zero |

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ondol_catalog::failpoint;
use ondol_plugin::{RegionId, RegionSpan};
use ondol_shm::{PageBytes, PageId, ReadMapping, WriteMapping, WriteRegion, write_back};
use xxhash_rust::xxh3::Xxh3;

use super::{PoolId, RunId};

/// Bytes at the start of the device that hold Maru's header and this one.
const BLOCK: u64 = 4096;
const START: usize = 64;
const FIXED: usize = 64;
const MAGIC: &[u8; 8] = b"ONDOLDAX";
const VERSION: u32 = 1;

/// Where the two runs stand, and how long each is.
const RUNS: usize = BLOCK as usize - START - 2 * RUN;
const RUN: usize = 64;

/// The longest path of a state directory that fits.
pub(super) const MAX_STATE: usize = RUNS - FIXED;

/// Who a device belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) pool: Option<PoolId>,
    pub(super) usable: Range<u64>,
    pub(super) state: Option<PathBuf>,
}

/// What stands where the header should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Header(Header),
    /// Bytes that no Ondol wrote.
    Nothing,
    /// A header that was only partly written, or overwritten since.
    Damaged,
    /// A header of a version that is not understood here.
    OtherVersion(u32),
}

impl Header {
    /// What stands at the start of a device. Maps the first `mapped` bytes, at least 4096.
    pub(super) fn read(device: BorrowedFd<'_>, mapped: u64) -> io::Result<Found> {
        Ok(Self::parse(&block(device, mapped)?[START..]))
    }

    /// Writes the header and waits until it is durable.
    pub(super) fn write(&self, device: BorrowedFd<'_>, mapped: u64) -> io::Result<()> {
        block(device, mapped)?[START..].copy_from_slice(&self.bytes());
        write_back(&ReadMapping::new(device, mapped)?, 0..BLOCK)?;
        failpoint!("device.header");
        Ok(())
    }

    fn bytes(&self) -> Vec<u8> {
        let state = self.state.as_deref().unwrap_or(Path::new(""));
        let state = state.as_os_str().as_bytes();
        let mut bytes = Vec::with_capacity(BLOCK as usize - START);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((state.len() as u32).to_le_bytes());
        bytes.extend(self.pool.map_or([0; 16], |pool| pool.0));
        bytes.extend(self.usable.start.to_le_bytes());
        bytes.extend(self.usable.end.to_le_bytes());
        bytes.extend(checksum(&bytes, state).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(state);
        bytes.resize(BLOCK as usize - START, 0);
        bytes
    }

    fn parse(bytes: &[u8]) -> Found {
        if !bytes.starts_with(MAGIC) {
            return Found::Nothing;
        }
        let number = |at| number(bytes, at);
        let (version, state_len) = (number(8) as u32, (number(8) >> 32) as usize);
        if version != VERSION {
            return Found::OtherVersion(version);
        }
        let Some(state) = bytes[FIXED..RUNS].get(..state_len) else {
            return Found::Damaged;
        };
        if number(48) != checksum(&bytes[..48], state) {
            return Found::Damaged;
        }
        let mut pool = [0; 16];
        pool.copy_from_slice(&bytes[16..32]);
        Found::Header(Self {
            pool: (pool != [0; 16]).then_some(PoolId(pool)),
            usable: number(32)..number(40),
            state: (state_len != 0).then(|| PathBuf::from(OsStr::from_bytes(state))),
        })
    }
}

/// The run in which the device was used last; `None` if none was written since its pool began.
pub(super) fn read_run(device: BorrowedFd<'_>, mapped: u64) -> io::Result<Option<RunId>> {
    let last = last_run(&block(device, mapped)?[START..]);
    Ok(last.map(|(_, run)| run))
}

/// Writes that the device is used in `run` from now on, and waits until that is durable.
pub(super) fn write_run(device: BorrowedFd<'_>, mapped: u64, run: RunId) -> io::Result<()> {
    let mut block = block(device, mapped)?;
    let number = last_run(&block[START..]).map_or(0, |(number, _)| number) + 1;
    let at = START + RUNS + RUN * (number % 2) as usize;
    block[at..at + RUN].copy_from_slice(&run_bytes(number, run));
    write_back(&ReadMapping::new(device, mapped)?, 0..BLOCK)
}

/// The later one of the two runs that is whole, and its number.
fn last_run(bytes: &[u8]) -> Option<(u64, RunId)> {
    let runs = bytes[RUNS..].chunks_exact(RUN).filter_map(|bytes| {
        let (count, run) = (number(bytes, 0), RunId(number(bytes, 8)));
        (*bytes == run_bytes(count, run)).then_some((count, run))
    });
    runs.max()
}

fn run_bytes(count: u64, run: RunId) -> [u8; RUN] {
    let mut bytes = [0; RUN];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..16].copy_from_slice(&run.0.to_le_bytes());
    let sum = checksum(&bytes[..16], &[]);
    bytes[16..24].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn checksum(fixed: &[u8], state: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(fixed);
    hash.update(state);
    hash.digest()
}

/// The first block of a device. A character device cannot be read, only mapped.
fn block(device: BorrowedFd<'_>, mapped: u64) -> io::Result<PageBytes> {
    let page = PageId {
        region: RegionId(0),
        index: 0,
    };
    let span = RegionSpan {
        region_id: page.region,
        offset: 0,
        length: BLOCK,
    };
    let mapping = Arc::new(WriteMapping::new(device.as_fd(), mapped)?);
    let region = WriteRegion::new(mapping, span, BLOCK).map_err(io::Error::other)?;
    Arc::new(region)
        .claim(page, BLOCK)
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            pool: Some(PoolId(*b"0123456789abcdef")),
            usable: 2 << 20..16 << 20,
            state: Some(PathBuf::from("/var/lib/ondol")),
        }
    }

    #[test]
    fn a_header_reads_back_and_leaves_the_first_64_bytes_alone() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert_eq!(Header::read(file.as_fd(), 4096).unwrap(), Found::Nothing);
        rustix::io::pwrite(&file, b"MARUDEV\0", 0).unwrap();
        let plain = Header {
            pool: None,
            state: None,
            ..header()
        };
        let long = Header {
            state: Some(PathBuf::from("x".repeat(MAX_STATE))),
            ..header()
        };
        for header in [header(), long, plain] {
            header.write(file.as_fd(), 4096).unwrap();
            let found = Header::read(file.as_fd(), 4096).unwrap();
            assert_eq!(found, Found::Header(header));
        }
        let mut seen = [1; 8192];
        rustix::io::pread(&file, &mut seen, 0).unwrap();
        assert_eq!(&seen[..8], b"MARUDEV\0");
        assert!(
            seen[8..64]
                .iter()
                .chain(&seen[4096..])
                .all(|byte| *byte == 0)
        );
    }

    #[test]
    fn the_layout_is_the_one_that_is_drawn() {
        let bytes = header().bytes();
        assert_eq!(bytes.len(), 4032);
        assert_eq!(&bytes[..16], b"ONDOLDAX\x01\0\0\0\x0e\0\0\0");
        assert_eq!(&bytes[16..32], b"0123456789abcdef");
        assert_eq!(
            bytes[32..48],
            [0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
        );
        let mut covered = bytes[..48].to_vec();
        covered.extend(b"/var/lib/ondol");
        let sum = xxhash_rust::xxh3::xxh3_64(&covered);
        assert_eq!(bytes[48..56], sum.to_le_bytes());
        assert_eq!(&bytes[56..78], b"\0\0\0\0\0\0\0\0/var/lib/ondol");
    }

    #[test]
    fn the_last_run_that_was_written_whole_counts() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let (read, write) = (
            || read_run(file.as_fd(), 4096).unwrap(),
            |run| write_run(file.as_fd(), 4096, RunId(run)).unwrap(),
        );
        header().write(file.as_fd(), 4096).unwrap();
        assert_eq!(read(), None);
        let mut before = None;
        for run in [7, 9, 7, 0, u64::MAX] {
            let mut old = [0; 4096];
            rustix::io::pread(&file, &mut old, 0).unwrap();
            write(run);
            assert_eq!(read(), Some(RunId(run)));
            let mut new = [0; 4096];
            rustix::io::pread(&file, &mut new, 0).unwrap();
            // Cut off anywhere, the one before is still there.
            let changed: Vec<_> = (0..4096).filter(|at| old[*at] != new[*at]).collect();
            let mut torn = old;
            for at in &changed[..changed.len() - 1] {
                torn[*at] = new[*at];
                assert_eq!(last_run(&torn[START..]).map(|(_, run)| run), before);
            }
            before = Some(RunId(run));
        }
        assert_eq!(
            Header::read(file.as_fd(), 4096).unwrap(),
            Found::Header(header())
        );
        // A new pool has none.
        header().write(file.as_fd(), 4096).unwrap();
        assert_eq!(read(), None);
    }

    #[test]
    fn every_changed_byte_is_seen() {
        let bytes = header().bytes();
        for at in (0..56).chain(64..78) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            let found = Header::parse(&bytes);
            assert!(!matches!(found, Found::Header(_)), "byte {at}: {found:?}");
        }
    }
}
