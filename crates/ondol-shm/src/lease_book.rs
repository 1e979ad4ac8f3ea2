//! The server's own record of one client's leases, which outlives the server's process.
//!
//! A book is a sparse file of fixed length: a 64-byte header and one entry of 32 bytes for each slot of the client's lease
//! table. The server maps it and writes an entry before the client learns of the lease, so that a server which is killed
//! leaves a book that holds every lease a client may rely on, and perhaps some that have ended. Only the server can
//! read it; what a client writes goes to its lease table.
//!
//! # Invariant
//! An entry's sequence is stored as `VACANT` before its other words change, and as the lease's number after they have
//! changed. So a server that is killed anywhere in between leaves "no lease" or the whole lease. Stores of a killed process
//! take effect up to the instruction at which it ended, in the order of its instructions; the fences keep the compiler from
//! another order. A book has one writer, as writing takes `&mut self`.
//!
//! # Damage
//! A lease that a book does not show is a page that is reused under its reader, so a book that was damaged must be seen to
//! be. A lease carries a check over its slot and all its words. The file is used in blocks: before a block's first lease is
//! written all its entries are written as vacant, and then the block's bit is set in the header. So in a block in use
//! every entry is vacant or a lease that fits its check, and bytes that were lost, which read as 0, are neither; in all other
//! blocks there is no lease.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ondol_catalog::{FrozenField, FrozenLayout, LAYOUTS, failpoint, linkme::distributed_slice};
use ondol_plugin::RegionId;
use rustix::fs::{IFlags, OFlags, ioctl_setflags};
use xxhash_rust::xxh3::xxh3_64;

use crate::lease::LeaseRef;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::{Generation, LEASE_SLOTS, Location, PageId, WriteMapping};

const MAGIC: u64 = u64::from_le_bytes(*b"ONDOLBOK");
const VERSION: u32 = 2;

#[repr(C)]
struct Header {
    magic: u64,
    version: u32,
    entries: u32,
    /// One bit for each block in use.
    blocks: u64,
    reserved: [u64; 5],
}

/// One slot's lease.
#[repr(C)]
struct Entry {
    /// [`VACANT`] if there is none, whatever the other fields say.
    sequence: u64,
    region: u64,
    index: u32,
    check: u32,
    generation: u64,
}

/// The sequence of an entry without a lease in a block that is in use.
const VACANT: u64 = u64::MAX;

const HEADER_BYTES: usize = size_of::<Header>();
const ENTRY_BYTES: usize = size_of::<Entry>();
const BOOK_BYTES: u64 = (HEADER_BYTES + LEASE_SLOTS as usize * ENTRY_BYTES) as u64;
const BLOCK_BYTES: usize = 64 << 10;
const BLOCKS: usize = (BOOK_BYTES as usize).div_ceil(BLOCK_BYTES);
const _: () = assert!(HEADER_BYTES == 64 && ENTRY_BYTES == 32 && BLOCKS < 64);

#[distributed_slice(LAYOUTS)]
#[linkme(crate = ondol_catalog::linkme)]
static HEADER_LAYOUT: FrozenLayout = FrozenLayout {
    name: "LeaseBookHeader",
    revision: 2,
    size: HEADER_BYTES,
    align: align_of::<Header>(),
    fields: &[
        FrozenField {
            name: "magic",
            offset: offset_of!(Header, magic),
            size: 8,
        },
        FrozenField {
            name: "version",
            offset: offset_of!(Header, version),
            size: 4,
        },
        FrozenField {
            name: "entries",
            offset: offset_of!(Header, entries),
            size: 4,
        },
        FrozenField {
            name: "blocks",
            offset: offset_of!(Header, blocks),
            size: 8,
        },
        FrozenField {
            name: "reserved",
            offset: offset_of!(Header, reserved),
            size: 40,
        },
    ],
};

#[distributed_slice(LAYOUTS)]
#[linkme(crate = ondol_catalog::linkme)]
static ENTRY_LAYOUT: FrozenLayout = FrozenLayout {
    name: "LeaseBookEntry",
    revision: 2,
    size: ENTRY_BYTES,
    align: align_of::<Entry>(),
    fields: &[
        FrozenField {
            name: "sequence",
            offset: offset_of!(Entry, sequence),
            size: 8,
        },
        FrozenField {
            name: "region",
            offset: offset_of!(Entry, region),
            size: 8,
        },
        FrozenField {
            name: "index",
            offset: offset_of!(Entry, index),
            size: 4,
        },
        FrozenField {
            name: "check",
            offset: offset_of!(Entry, check),
            size: 4,
        },
        FrozenField {
            name: "generation",
            offset: offset_of!(Entry, generation),
            size: 8,
        },
    ],
};

/// A lease that a book holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BookedLease {
    /// The slot of the client's table and the number that ends the lease.
    pub lease: LeaseRef,
    /// The page that it protects.
    pub page: PageId,
    /// The page's generation when the lease was granted.
    pub generation: Generation,
}

/// Why a lease book cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseBookError {
    /// The file could not be opened, read or mapped.
    #[error("lease book {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is not a lease book of this version, or not a whole one, or damaged.
    #[error(
        "lease book {}: found {found}; expected {BOOK_BYTES} bytes of version {VERSION} with {LEASE_SLOTS} entries. Without \
         it the pages that its client reads are not known: let the client end before the file is deleted",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is there.
        found: String,
    },
}

/// The server's record of one client's leases; see the module.
#[derive(Debug)]
pub struct LeaseBook {
    file: File,
    mapping: WriteMapping,
    /// The blocks in use, as in the header.
    blocks: u64,
}

impl LeaseBook {
    /// Makes an empty book at `path`, mode 0600, in the place of whatever file is there: that of a client whose arrival
    /// was not recorded any more.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn create(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        // Where a file system writes every change to a new place, even a block that has room can run out of it. Others
        // do not know the flag.
        let _ = ioctl_setflags(&file, IFlags::NOCOW);
        file.set_len(BOOK_BYTES)?;
        failpoint!("lease.book_made");
        let mut header = [0; 16];
        header[..8].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..].copy_from_slice(&LEASE_SLOTS.to_le_bytes());
        file.write_all_at(&header, 0)?;
        Self::map(file, 0)
    }

    /// Opens a book that another server left, with every lease that stands in it, by slot.
    ///
    /// # Errors
    /// [`LeaseBookError`] if it is not one.
    pub fn open(path: &Path) -> Result<(Self, Vec<BookedLease>), LeaseBookError> {
        let failed = |source| LeaseBookError::Io {
            path: path.to_owned(),
            source,
        };
        let foreign = |found| LeaseBookError::Foreign {
            path: path.to_owned(),
            found,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(path)
            .map_err(failed)?;
        let stat = file.metadata().map_err(failed)?;
        if !stat.is_file() || stat.len() != BOOK_BYTES {
            return Err(foreign(format!("{} bytes", stat.len())));
        }
        // Read, not mapped: to look at a hole of a memory file through a mapping would fill it.
        let mut bytes = vec![0; BOOK_BYTES as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let (header, entries) = bytes.split_at(HEADER_BYTES);
        let word = |bytes: &[u8], at: usize| {
            let word = bytes[at..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(word)
        };
        let (magic, counts) = (word(header, 0), word(header, 8));
        if magic != MAGIC || counts != u64::from(VERSION) | u64::from(LEASE_SLOTS) << 32 {
            return Err(foreign(format!(
                "magic {magic:#x}, version {}, {} entries",
                counts as u32,
                counts >> 32
            )));
        }
        let blocks = word(header, offset_of!(Header, blocks));
        if blocks >> BLOCKS != 0 {
            return Err(foreign(format!("blocks {blocks:#x} in use of {BLOCKS}")));
        }
        let mut leases = Vec::new();
        for (slot, entry) in (0..LEASE_SLOTS).zip(entries.chunks_exact(ENTRY_BYTES)) {
            let sequence = word(entry, offset_of!(Entry, sequence));
            let is_in_use = blocks & block_bit(slot) != 0;
            // A server that was killed may have begun to make a block ready.
            if sequence == VACANT || sequence == 0 && !is_in_use {
                continue;
            }
            let index = word(entry, offset_of!(Entry, index));
            let booked = BookedLease {
                lease: LeaseRef { slot, sequence },
                page: PageId {
                    region: RegionId(word(entry, offset_of!(Entry, region))),
                    index: index as u32,
                },
                generation: Generation(word(entry, offset_of!(Entry, generation))),
            };
            if !is_in_use || sequence == 0 || booked.index_word() != index {
                return Err(foreign(format!("damage in the entry of slot {slot}")));
            }
            leases.push(booked);
        }
        Ok((Self::map(file, blocks).map_err(failed)?, leases))
    }

    fn map(file: File, blocks: u64) -> io::Result<Self> {
        let mapping = WriteMapping::new(file.as_fd(), BOOK_BYTES)?;
        Ok(Self {
            file,
            mapping,
            blocks,
        })
    }

    /// Writes a lease down; what stood in its slot is gone. The slot is below [`LEASE_SLOTS`].
    ///
    /// # Errors
    /// If the file system has no room, or the lease's number is one that no client counts to; the book then holds what it
    /// held.
    pub(crate) fn write(&mut self, lease: LeaseRef, location: &Location) -> io::Result<()> {
        failpoint!("lease.book", Err(rustix::io::Errno::NOSPC.into()));
        if matches!(lease.sequence, 0 | VACANT) {
            return Err(io::Error::other(format!(
                "the lease has number {}; expected 1 to {}",
                lease.sequence,
                VACANT - 1
            )));
        }
        self.make_ready(lease.slot)?;
        let booked = BookedLease {
            lease,
            page: location.page,
            generation: location.generation,
        };
        let [sequence, region, index, generation] = self.entry(lease.slot);
        sequence.store(VACANT, Ordering::Relaxed);
        fence(Ordering::Release);
        failpoint!("lease.entry_open");
        region.store(location.page.region.0, Ordering::Relaxed);
        index.store(booked.index_word(), Ordering::Relaxed);
        generation.store(location.generation.0, Ordering::Relaxed);
        failpoint!("lease.entry_filled");
        sequence.store(lease.sequence, Ordering::Release);
        failpoint!("lease.booked");
        Ok(())
    }

    /// Strikes out the lease of a slot that was written or that [`open`](Self::open) found.
    pub(crate) fn erase(&mut self, slot: u32) {
        self.entry(slot)[0].store(VACANT, Ordering::Release);
    }

    /// Takes the slot's block into use. A store to the entry needs nothing of a full file system then, where it would kill
    /// the process.
    fn make_ready(&mut self, slot: u32) -> io::Result<()> {
        let bit = block_bit(slot);
        if self.blocks & bit != 0 {
            return Ok(());
        }
        let start = entry_offset(slot) / BLOCK_BYTES * BLOCK_BYTES;
        let end = (start + BLOCK_BYTES).min(BOOK_BYTES as usize);
        let start = start.max(HEADER_BYTES);
        let mut vacant = [0; ENTRY_BYTES];
        vacant[..8].copy_from_slice(&VACANT.to_le_bytes());
        let entries = vacant.repeat((end - start) / ENTRY_BYTES);
        self.file.write_all_at(&entries, start as u64)?;
        failpoint!("lease.block_made");
        self.blocks |= bit;
        // Before the first lease, which is stored in this order, too.
        self.word(offset_of!(Header, blocks))
            .store(self.blocks, Ordering::Release);
        Ok(())
    }

    fn entry(&self, slot: u32) -> [&AtomicU64; 4] {
        let start = entry_offset(slot);
        [0, 8, 16, 24].map(|at| self.word(start + at))
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the word lies inside the mapping (checked), is aligned, lives as long as `self`, and is only accessed
        // atomically while it is mapped, but for entries of blocks that are not in use. The mapping was made writable.
        unsafe { &*self.mapping.word(offset).cast() }
    }
}

impl BookedLease {
    /// The entry's word with the page's index and the check: the lower half of XXH3 over slot, index and the other words.
    fn index_word(&self) -> u64 {
        let Self {
            lease: LeaseRef { slot, sequence },
            page: PageId { region, index },
            generation,
        } = *self;
        let place = u64::from(slot) | u64::from(index) << 32;
        let mut bytes = [0; 32];
        let words = [place, sequence, region.0, generation.0];
        for (part, word) in bytes.chunks_exact_mut(8).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        u64::from(index) | xxh3_64(&bytes) << 32
    }
}

/// An entry lies in one block, as its length divides those of a block and of the header.
fn block_bit(slot: u32) -> u64 {
    1 << (entry_offset(slot) / BLOCK_BYTES)
}

fn entry_offset(slot: u32) -> usize {
    HEADER_BYTES + slot as usize * ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LeaseLedger, LeaseRefusal, LeaseSlots, create_lease_table};
    use std::env;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    /// Set for a child process: the book that it writes.
    const BOOK: &str = "ONDOL_TEST_BOOK";

    fn location(number: u64) -> Location {
        Location {
            page: PageId {
                region: RegionId(number),
                index: number as u32,
            },
            generation: Generation(number),
            len: 1,
        }
    }

    fn lease(slot: u32, sequence: u64) -> LeaseRef {
        LeaseRef { slot, sequence }
    }

    fn book() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        (dir, path)
    }

    #[test]
    fn a_new_book_is_empty_and_takes_the_place_of_an_old_one() {
        let (_dir, path) = book();
        let mut old = LeaseBook::create(&path).unwrap();
        old.write(lease(5, 1), &location(1)).unwrap();
        LeaseBook::create(&path).unwrap();
        assert_eq!(LeaseBook::open(&path).unwrap().1, []);
    }

    #[test]
    fn a_book_takes_the_room_of_the_slots_that_were_used() {
        let (_dir, path) = book();
        let mut book = LeaseBook::create(&path).unwrap();
        for slot in [0, 1, LEASE_SLOTS - 1] {
            book.write(lease(slot, 1), &location(9)).unwrap();
        }
        let stat = fs::metadata(&path).unwrap();
        assert_eq!(stat.len(), BOOK_BYTES);
        // The blocks of the first and of the last slot, and some for the file system itself.
        let taken = stat.blocks() * 512;
        assert!(taken < BOOK_BYTES / 4, "{taken} bytes");
        let slots = LeaseBook::open(&path).unwrap().1;
        let slots: Vec<_> = slots.iter().map(|entry| entry.lease.slot).collect();
        assert_eq!(slots, [0, 1, LEASE_SLOTS - 1]);
    }

    #[test]
    fn an_opened_book_can_be_written_on() {
        let (_dir, path) = book();
        let mut first = LeaseBook::create(&path).unwrap();
        first.write(lease(0, 1), &location(1)).unwrap();
        first.write(lease(1, 1), &location(2)).unwrap();
        drop(first);
        let (mut second, leases) = LeaseBook::open(&path).unwrap();
        assert_eq!(leases.len(), 2);
        second.erase(0);
        second.write(lease(2, 7), &location(3)).unwrap();
        let leases = LeaseBook::open(&path).unwrap().1;
        let expected = [(1, 1, 2), (2, 7, 3)].map(|(slot, sequence, number)| BookedLease {
            lease: lease(slot, sequence),
            page: location(number).page,
            generation: Generation(number),
        });
        assert_eq!(leases, expected);
    }

    #[test]
    fn what_is_no_whole_book_is_refused_and_named() {
        let (_dir, path) = book();
        assert!(matches!(
            LeaseBook::open(&path),
            Err(LeaseBookError::Io { .. })
        ));
        let write = |change: &dyn Fn(&mut Vec<u8>)| {
            drop(LeaseBook::create(&path).unwrap());
            let mut bytes = fs::read(&path).unwrap();
            change(&mut bytes);
            fs::write(&path, bytes).unwrap();
            LeaseBook::open(&path).map(drop)
        };
        write(&|_| {}).unwrap();
        type Change = dyn Fn(&mut Vec<u8>);
        let changes: [&Change; 6] = [
            &Vec::clear,
            &|bytes| bytes.truncate(HEADER_BYTES),
            &|bytes| bytes.push(0),
            &|bytes| bytes[0] ^= 1,
            &|bytes| bytes[8] = 1,
            // A lease where none was written.
            &|bytes| bytes[HEADER_BYTES..HEADER_BYTES + ENTRY_BYTES].fill(0xfe),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let error = write(change).unwrap_err();
            assert!(
                matches!(error, LeaseBookError::Foreign { .. }),
                "{number}: {error:?}"
            );
            let text = error.to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        LeaseBook::open(&path).unwrap_err();
    }

    #[test]
    fn a_book_with_a_damaged_entry_is_refused() {
        let (_dir, path) = book();
        let mut book = LeaseBook::create(&path).unwrap();
        for slot in 0..4 {
            book.write(lease(slot, 1), &location(9)).unwrap();
        }
        book.write(lease(3000, 7), &location(3)).unwrap();
        book.erase(3);
        drop(book);
        let leases = LeaseBook::open(&path).unwrap().1;
        assert_eq!(leases.len(), 4);
        let whole = fs::read(&path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let assert_refused = |start: usize, bytes: &[u8]| {
            file.write_all_at(bytes, start as u64).unwrap();
            let opened = LeaseBook::open(&path);
            let before = &whole[start..start + bytes.len()];
            file.write_all_at(before, start as u64).unwrap();
            assert!(
                matches!(opened, Err(LeaseBookError::Foreign { .. })),
                "{} bytes at {start}: {opened:?}",
                bytes.len()
            );
        };
        // Each bit of leases, of the number of one that has ended and of one that never was, and of the header's word.
        let held = [0, 3000].map(|slot| entry_offset(slot)..entry_offset(slot + 1));
        let vacant = [3, 700].map(|slot| entry_offset(slot)..entry_offset(slot) + 8);
        let blocks = offset_of!(Header, blocks)..offset_of!(Header, reserved);
        for at in held.into_iter().chain(vacant).chain([blocks]).flatten() {
            for bit in 0..8 {
                assert_refused(at, &[whole[at] ^ 1 << bit]);
            }
        }
        for start in (HEADER_BYTES..entry_offset(3000)).step_by(4096) {
            assert_refused(start, &[0; 4096]);
        }
        let first = &whole[entry_offset(0)..entry_offset(1)];
        assert_refused(entry_offset(1), first);
        assert_eq!(LeaseBook::open(&path).unwrap().1, leases);
    }

    #[test]
    fn a_lease_with_a_number_that_means_none_is_not_booked() {
        let (_dir, path) = book();
        let mut book = LeaseBook::create(&path).unwrap();
        for number in [0, u64::MAX] {
            book.write(lease(0, number), &location(1)).unwrap_err();
        }
        assert_eq!(LeaseBook::open(&path).unwrap().1, []);
    }

    #[test]
    fn a_lease_that_cannot_be_booked_is_not_granted() {
        let (_dir, path) = book();
        let table = create_lease_table().unwrap();
        let slots = LeaseSlots::open(table.as_fd()).unwrap();
        let mut book = LeaseBook::create(&path).unwrap();
        book.write(lease(1, 1), &location(1)).unwrap();
        book.erase(1);
        // From now on no block can be given room; that of the first slots has it already.
        book.file = File::open(&path).unwrap();
        let mut ledger = LeaseLedger::open(table.as_fd(), Some(book)).unwrap();
        let near = slots.propose().unwrap();
        ledger
            .grant(near.reference(), &location(2), "near", drop)
            .unwrap();
        let refused = ledger
            .grant(lease(LEASE_SLOTS - 1, 1), &location(3), "far", drop)
            .unwrap_err();
        assert_eq!(refused.protects, "far");
        assert!(matches!(refused.reason, LeaseRefusal::NotBooked(_)));
        assert_eq!(ledger.len(), 1);
        assert_eq!(LeaseBook::open(&path).unwrap().1.len(), 1);
    }

    /// What this binary does as a child of the tests below.
    #[test]
    fn writing_child() {
        let Some(path) = env::var_os(BOOK) else {
            return;
        };
        let path = Path::new(&path);
        let mut book = LeaseBook::create(path).unwrap();
        if env::var_os("ONDOL_TEST_FILL").is_some() {
            let filled = (0..LEASE_SLOTS).find_map(|slot| {
                let error = book.write(lease(slot, 1), &location(9)).err()?;
                Some((slot, error.raw_os_error()))
            });
            let (slot, error) = filled.expect("the file system is smaller than the book");
            assert!(slot > 0, "not even the first lease had room");
            assert_eq!(error, Some(libc::ENOSPC));
            // What was written is there, and room that comes back is used.
            assert_eq!(LeaseBook::open(path).unwrap().1.len(), slot as usize);
            fs::remove_file(path.with_extension("ballast")).unwrap();
            book.write(lease(slot, 1), &location(9)).unwrap();
            println!("\nfilled at {slot}");
            return;
        }
        if let Some(place) = env::var_os("ONDOL_TEST_PLACE") {
            let order = format!("{}=kill@2", place.to_str().unwrap());
            ondol_catalog::arm_failpoints(&order).unwrap();
            book.write(lease(0, 1), &location(1)).unwrap();
            book.write(lease(0, 2), &location(2)).unwrap();
            book.write(lease(3000, 3), &location(3)).unwrap();
            panic!("no lease ended this process");
        }
        for number in 1.. {
            for slot in 0..4 {
                book.write(lease(slot, number), &location(number)).unwrap();
            }
            book.erase(number as u32 % 4);
        }
    }

    fn child(path: &Path) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "lease_book::tests::writing_child", "--nocapture"])
            .env(BOOK, path)
            .stdout(Stdio::null());
        command
    }

    #[test]
    fn a_server_that_is_killed_leaves_whole_entries_or_none() {
        let (_dir, path) = book();
        let mut whole = 0;
        for round in 0..20 {
            let mut child = child(&path).spawn().unwrap();
            while !LeaseBook::open(&path).is_ok_and(|(_, leases)| leases.len() >= 3) {
                assert!(child.try_wait().unwrap().is_none(), "the child ended");
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(137 * round));
            child.kill().unwrap();
            child.wait().unwrap();
            let (_, leases) = LeaseBook::open(&path).unwrap();
            for BookedLease {
                lease,
                page,
                generation,
            } in &leases
            {
                let number = lease.sequence;
                assert_eq!(*page, location(number).page, "{leases:?}");
                assert_eq!(*generation, Generation(number), "{leases:?}");
            }
            assert!((2..=4).contains(&leases.len()), "{leases:?}");
            whole += leases.len();
            fs::remove_file(&path).unwrap();
        }
        assert!(whole > 0);
    }

    #[test]
    fn a_server_that_is_killed_between_two_stores_leaves_no_mixture() {
        for (place, expected) in [
            ("lease.entry_open", None),
            ("lease.entry_filled", None),
            ("lease.booked", Some(2)),
            // In the block of the third one.
            ("lease.block_made", Some(2)),
        ] {
            let (_dir, path) = book();
            let status = child(&path)
                .env("ONDOL_TEST_PLACE", place)
                .status()
                .unwrap();
            assert_eq!(status.signal(), Some(libc::SIGKILL), "{place}");
            let leases = LeaseBook::open(&path).unwrap().1;
            let expected = expected.map(|number| BookedLease {
                lease: lease(0, number),
                page: location(number).page,
                generation: Generation(number),
            });
            assert_eq!(leases, Vec::from_iter(expected), "{place}");
        }
    }

    #[test]
    fn a_full_file_system_refuses_a_lease_and_kills_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        let script = "mount -t tmpfs -o size=256k ondol-test \"$1\" || exit 77
            head -c 131072 /dev/zero > \"$1/7.ballast\"; shift; exec \"$@\"";
        let inner = child(&path);
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(dir.path())
            .arg(inner.get_program())
            .args(inner.get_args())
            .env(BOOK, &path)
            .env("ONDOL_TEST_FILL", "1")
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let text = String::from_utf8_lossy(&output.stdout);
                assert!(text.contains("filled at"), "{text}");
            }
            Ok(output) if matches!(output.status.code(), Some(1 | 77)) && !is_root() => {
                eprintln!("SKIPPED: a file system can be mounted by root only");
            }
            other => panic!("{other:?}"),
        }
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }
}
