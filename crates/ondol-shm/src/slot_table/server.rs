use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use ondol_catalog::failpoint;
use rustix::fs::{
    FallocateFlags, IFlags, MemfdFlags, OFlags, SealFlags, fallocate, fcntl_add_seals,
    ioctl_setflags, memfd_create,
};
use rustix::io::Errno;

use super::HIT_PLACES;
use super::layout::{
    BLOCK, Header, RETURN_BYTES, RETURN_PLACES, Return, SLOT_BYTES, Slot, TABLE_BYTES, check,
    hit_at, identity, return_at, slot_at,
};
use crate::fences::Real;
use crate::return_ring::{self, position_word, word_position};
use crate::{Generation, Grant, PageId, hazard};

/// A page that a client holds by a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPage {
    /// The page.
    pub page: PageId,
    /// When the hold was published, in milliseconds of the monotonic clock.
    pub since: u64,
}

/// The server's side of one client's slot table.
///
/// What it reads was written by the client: a page may be any page, and a grant is to be checked.
#[derive(Debug)]
pub struct SlotTableView {
    file: File,
    /// The position up to which the ring of found objects was read.
    hits_read: u64,
    /// The positions up to which returns were read and written down.
    returns_read: u32,
    returns_taken: u32,
}

const BLOCK_BYTES: usize = BLOCK as usize * SLOT_BYTES;

impl SlotTableView {
    /// A new table at `path`, mode 0600, for a client that may outlive this server.
    ///
    /// # Errors
    /// If there is a file, or no room for one; nothing is left of what was begun.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)?;
        // Where a file system writes every change to a new place, even a file that has room can run out of it. Others do
        // not know the flag.
        let _ = ioctl_setflags(&file, IFlags::NOCOW);
        match Self::fill(file) {
            Ok(view) => {
                failpoint!("slots.table_made");
                Ok(view)
            }
            Err(error) => Err(match fs::remove_file(path) {
                Ok(()) => error,
                Err(left) => io::Error::other(format!(
                    "{error}; and the unfinished file cannot be deleted: {left}"
                )),
            }),
        }
    }

    /// A new table in memory, for a client that ends with this server.
    ///
    /// # Errors
    /// If the system has no memory or descriptor left.
    pub fn create_anonymous() -> io::Result<Self> {
        let file = memfd_create(
            "ondol-slots",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        let view = Self::fill(file.into())?;
        fcntl_add_seals(
            &view.file,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )?;
        Ok(view)
    }

    /// Makes an empty file an empty table that has all its room, so that no store to it can find none.
    fn fill(file: File) -> io::Result<Self> {
        failpoint!("slots.table_room", Err(Errno::NOSPC.into()));
        match fallocate(&file, FallocateFlags::empty(), 0, TABLE_BYTES) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                file.write_all_at(&vec![0; TABLE_BYTES as usize], 0)?;
            }
            other => other?,
        }
        let none = position_word(0).to_le_bytes();
        file.write_all_at(&none, offset_of!(Header, server.returns_taken) as u64)?;
        file.write_all_at(&none, offset_of!(Header, returned) as u64)?;
        file.write_all_at(&identity(), 0)?;
        Ok(Self {
            file,
            hits_read: 0,
            returns_read: 0,
            returns_taken: 0,
        })
    }

    /// The table of a client of the last run. From here on no lease is confirmed under the last server's index, and what
    /// was given back and not written down is drained again.
    ///
    /// # Errors
    /// If it is none; then it is not known what its client holds.
    pub fn adopt(path: &Path) -> io::Result<Self> {
        let mut view = Self::open(path, true)?;
        view.set_incarnation(0)?;
        failpoint!("slots.adopted");
        view.hits_read = view.read_word(offset_of!(Header, found))?;
        let taken = view.taken()?;
        view.returns_read = taken;
        view.returns_taken = taken;
        Ok(view)
    }

    /// Looks whether there is a table that could be adopted, and changes nothing.
    ///
    /// # Errors
    /// Why it could not.
    pub fn inspect(path: &Path) -> io::Result<()> {
        Self::open(path, false)?.taken().map(drop)
    }

    fn open(path: &Path, write: bool) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(path)?;
        check(file.as_fd())?;
        Ok(Self {
            file,
            hits_read: 0,
            returns_read: 0,
            returns_taken: 0,
        })
    }

    /// The position of the last return that was taken.
    fn taken(&self) -> io::Result<u32> {
        let taken = self.read_word(offset_of!(Header, server.returns_taken))?;
        word_position(taken).ok_or_else(|| {
            io::Error::other(format!(
                "found {taken:#x} as the position of the last return that was taken; expected one whose upper half \
                 is the complement of the lower"
            ))
        })
    }

    /// A descriptor for the client, which shares no flags or offset with this one.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn open_for_client(&self) -> io::Result<OwnedFd> {
        // This name stands for the open file, whether or not it has another one.
        let name = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(name)?;
        Ok(file.into())
    }

    /// Lets the client use the index of this name, and no other; 0 for none.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_incarnation(&self, incarnation: u64) -> io::Result<()> {
        failpoint!("slots.incarnation", Err(Errno::IO.into()));
        let at = offset_of!(Header, server.incarnation);
        self.file
            .write_all_at(&incarnation.to_le_bytes(), at as u64)
    }

    /// Calls `held` with every page that the client holds. Begins with the fence that must stand between making an
    /// object unfindable and this. A page that is not named here and cannot be found any more is not read.
    ///
    /// # Errors
    /// If the table cannot be read: then nothing is known about what the client holds.
    pub fn scan(&self, mut held: impl FnMut(HeldPage)) -> io::Result<()> {
        failpoint!("slots.scan", Err(Errno::IO.into()));
        hazard::made_unfindable::<Real>();
        let mut blocks = self.read_word(offset_of!(Header, blocks))?;
        let mut bytes = [0; BLOCK_BYTES];
        while blocks != 0 {
            let block = blocks.trailing_zeros();
            blocks &= blocks - 1;
            self.read(&mut bytes, slot_at(block * BLOCK))?;
            for slot in bytes.chunks_exact(SLOT_BYTES) {
                if let Some(page) = PageId::from_word(word(slot, offset_of!(Slot, page))) {
                    let since = word(slot, offset_of!(Slot, since));
                    held(HeldPage { page, since });
                }
            }
        }
        hazard::scanned::<Real>();
        Ok(())
    }

    /// Calls `hit` with the pages of objects that the client found since the last time, the oldest first: the last `most`
    /// of them, and not more than [`HIT_PLACES`].
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn drain_hits(&mut self, most: u32, mut hit: impl FnMut(PageId)) -> io::Result<()> {
        let found = self.read_word(offset_of!(Header, found))?;
        // More than the ring holds, or a position that went back: the client has written all of it since, or writes
        // nonsense.
        let new = found
            .wrapping_sub(self.hits_read)
            .min(u64::from(most.min(HIT_PLACES)));
        let mut bytes = [0; 4096];
        let mut position = found.wrapping_sub(new);
        while position != found {
            let to_end = u64::from(HIT_PLACES) - position % u64::from(HIT_PLACES);
            let count = found.wrapping_sub(position).min(to_end).min(512);
            let bytes = &mut bytes[..count as usize * 8];
            self.read(bytes, hit_at(position))?;
            bytes
                .chunks_exact(8)
                .filter_map(|place| PageId::from_word(word(place, 0)))
                .for_each(&mut hit);
            position = position.wrapping_add(count);
        }
        self.hits_read = found;
        Ok(())
    }

    /// Calls `returned` with the pages that the client gave back since the last time. They are the client's until
    /// [`returns_done`](Self::returns_done) is called.
    ///
    /// # Errors
    /// If the table cannot be read, or says that more was given back than it has room for.
    pub fn drain_returns(&mut self, mut returned: impl FnMut(Grant)) -> io::Result<()> {
        let end = self.read_word(offset_of!(Header, returned))?;
        return_ring::acquire_places::<Real>();
        let end = word_position(end)
            .filter(|end| {
                let kept = end.wrapping_sub(self.returns_taken);
                kept <= RETURN_PLACES && end.wrapping_sub(self.returns_read) <= kept
            })
            .ok_or_else(|| {
                io::Error::other(format!(
                    "the slot table's ring of returns ends at {end:#x}; expected at most {RETURN_PLACES} after {:#x}",
                    self.returns_taken
                ))
            })?;
        let mut bytes = [0; 4096];
        while self.returns_read != end {
            let to_end = RETURN_PLACES - self.returns_read % RETURN_PLACES;
            let count = end.wrapping_sub(self.returns_read).min(to_end).min(256);
            let bytes = &mut bytes[..count as usize * RETURN_BYTES];
            self.read(bytes, return_at(self.returns_read))?;
            for place in bytes.chunks_exact(RETURN_BYTES) {
                if let Some(page) = PageId::from_word(word(place, offset_of!(Return, page))) {
                    let generation = Generation(word(place, offset_of!(Return, generation)));
                    returned(Grant { page, generation });
                }
            }
            self.returns_read = self.returns_read.wrapping_add(count);
        }
        Ok(())
    }

    /// Frees the ring's places of what was drained, which the caller has written down.
    ///
    /// # Errors
    /// If it cannot be written; what was drained is then not drained again by this server.
    pub fn returns_done(&mut self) -> io::Result<()> {
        if self.returns_taken == self.returns_read {
            return Ok(());
        }
        failpoint!("slots.returns_done", Err(Errno::IO.into()));
        return_ring::release_places::<Real>();
        let taken = position_word(self.returns_read).to_le_bytes();
        let at = offset_of!(Header, server.returns_taken);
        self.file.write_all_at(&taken, at as u64)?;
        self.returns_taken = self.returns_read;
        Ok(())
    }

    /// What the client counted: hits and misses.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn counts(&self) -> io::Result<(u64, u64)> {
        let mut bytes = [0; 16];
        self.read(&mut bytes, offset_of!(Header, counts))?;
        Ok((word(&bytes, 0), word(&bytes, 8)))
    }

    fn read_word(&self, offset: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(&mut bytes, offset)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn read(&self, bytes: &mut [u8], offset: usize) -> io::Result<()> {
        debug_assert!(offset >= 64 && offset + bytes.len() <= TABLE_BYTES as usize);
        self.file
            .read_exact_at(bytes, offset as u64)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::other(format!(
                    "the slot table ends before byte {}; its client cut it short",
                    offset + bytes.len()
                )),
                _ => error,
            })
    }
}

/// The word at a place of some bytes.
fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u64::from_le_bytes(bytes.copied().unwrap_or_default())
}
