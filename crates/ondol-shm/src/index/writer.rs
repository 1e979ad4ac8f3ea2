use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ondol_catalog::failpoint;
use ondol_plugin::Key;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

use super::IndexedObject;
use super::cells::FreeCells;
use super::layout::{
    CURRENT, Geometry, MAGIC, MAX_PROBE, RETIRED, Segment, VERSION, flag, record_cells, word,
};
use super::owner::OwnerMark;
use super::query::{Query, home, slot_word, tag};
use super::{absence, record, version};
use crate::WriteMapping;
use crate::fences::{Fences, Real};
use crate::sync::{AtomicU64, Ordering};

/// The server's name of an object's record within one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordId(pub(super) u32);

/// There is no place for another object: the index is to be replaced by a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index has no place for another object")]
pub struct IndexFull;

/// The one writer of an index.
pub struct IndexWriter {
    file: OwnedFd,
    /// Before the mapping, which is to be there until the mark has gone.
    _owner: OwnerMark,
    mapped: Mapped,
    seed: u64,
    incarnation: u64,
    cells: FreeCells,
    len: u64,
}

#[derive(Debug)]
struct Mapped {
    mapping: WriteMapping,
    geometry: Geometry,
}

impl Mapped {
    fn segment(&self) -> Segment<'_> {
        // SAFETY: the mapping begins at a page, is as long as the geometry says (checked when it was made), lives as
        // long as `self`, and its words are accessed through segments only, here and by readers.
        unsafe { Segment::new(self.mapping.word(0), self.geometry) }
    }
}

impl IndexWriter {
    /// An empty index for about `objects` objects of keys that are `key_bytes` long on average, under the name
    /// `incarnation`, which no other index of this pool has had and which is not 0.
    ///
    /// # Errors
    /// If the system has no memory or descriptor left, or if cells for that many objects cannot be numbered.
    pub fn create(objects: u64, key_bytes: u64, incarnation: u64) -> io::Result<Self> {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        Self::with_seed(objects, key_bytes, incarnation, u64::from_ne_bytes(seed))
    }

    pub(super) fn with_seed(
        objects: u64,
        key_bytes: u64,
        incarnation: u64,
        seed: u64,
    ) -> io::Result<Self> {
        let geometry = Geometry::for_objects(objects, key_bytes).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("an index cannot hold {objects} objects with keys of {key_bytes} bytes"),
            )
        })?;
        let file = memfd_create(
            "ondol-index",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&file, geometry.bytes())?;
        let mapping = WriteMapping::new(file.as_fd(), geometry.bytes())?;
        // Without them every look-up waits for the translation of two addresses, too.
        let _ = mapping.populate_with_huge_pages(0..mapping.len());
        // All of it now: memory that is not there later would kill the writer.
        fallocate(&file, FallocateFlags::empty(), 0, geometry.bytes())?;
        fcntl_add_seals(
            &file,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL,
        )?;
        let mapped = Mapped { mapping, geometry };
        let header = mapped.segment().header;
        for (word, value) in [
            (&header.magic, MAGIC),
            (&header.version, VERSION),
            (&header.buckets, geometry.buckets as u64),
            (&header.cells, geometry.cells as u64),
            (&header.seed, seed),
            (&header.incarnation, incarnation),
            (&header.state, CURRENT),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        // SAFETY: the mapping is dropped after the mark; segments are the only other way to the word.
        let owner = unsafe { OwnerMark::start(&header.owner) }?;
        Ok(Self {
            file,
            _owner: owner,
            mapped,
            seed,
            incarnation,
            cells: FreeCells::new(),
            len: 0,
        })
    }

    /// The name of this index.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The file, for this process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A descriptor of the file that can be mapped for reading only, for a client.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn open_for_reader(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// Makes an object findable; none of its name is. One that is `unverified` is found, but readers are to ask the server
    /// for it; so are they for one whose page no slot can name.
    ///
    /// # Errors
    /// [`IndexFull`]; then nothing has changed.
    pub fn insert(
        &mut self,
        key: &Key,
        object: &IndexedObject,
        unverified: bool,
    ) -> Result<RecordId, IndexFull> {
        let segment = self.mapped.segment();
        let query = Query::new(key, self.seed, segment.buckets.len());
        if self.len >= self.mapped.geometry.max_objects() {
            return Err(IndexFull);
        }
        let (distance, slot) =
            find_slot(segment, query.home, |found| found == 0).ok_or(IndexFull)?;
        let cells = record_cells(query.bytes.len());
        let (cell, record) = self.cells.take(segment, cells).ok_or(IndexFull)?;
        record::write(record, &query, object, unverified);
        failpoint!("index.record_written");
        // Before the slot: who finds that nothing was passed on takes the object for absent.
        for passed in 0..distance {
            change(&segment.bucket(query.home, passed).overflow, 1);
        }
        failpoint!("index.passed_on");
        Real::release();
        slot.store(slot_word(query.tag(), cell), Ordering::Relaxed);
        self.len += 1;
        Ok(RecordId(cell))
    }

    /// Readers need not ask the server for this object any more.
    pub fn set_verified(&mut self, record: RecordId) {
        if let Some(cell) = self.mapped.segment().cells.get(record.0 as usize) {
            let word = &cell[word::KEY_AND_FLAGS];
            let verified = word.load(Ordering::Relaxed) & !flag::UNVERIFIED;
            word.store(verified, Ordering::Relaxed);
        }
    }

    /// Makes an object unfindable: no lease that is published from now on is confirmed. Its page may be reused once
    /// [`SlotTables`](crate::SlotTableView) have been scanned after this.
    pub fn remove(&mut self, record: RecordId) {
        let segment = self.mapped.segment();
        let first = &segment.cells[record.0 as usize];
        let load = |word: usize| first[word].load(Ordering::Relaxed);
        let fingerprint = [load(word::FINGERPRINT), load(word::FINGERPRINT + 1)];
        let key_bytes = load(word::KEY_AND_FLAGS) & flag::KEY_LENGTH;
        version::close::<Real>(&first[word::VERSION], load(word::VERSION));
        failpoint!("index.record_closed");
        let home = home(fingerprint, segment.buckets.len());
        let expected = slot_word(tag(fingerprint), record.0);
        let Some((distance, slot)) = find_slot(segment, home, |found| found == expected) else {
            debug_assert!(false, "record {} was removed before", record.0);
            return;
        };
        slot.store(0, Ordering::Relaxed);
        failpoint!("index.slot_cleared");
        for passed in 0..distance {
            change(&segment.bucket(home, passed).overflow, -1);
        }
        self.cells
            .give_back(segment, record.0, record_cells(key_bytes as usize));
        self.len -= 1;
    }

    /// How many visible objects the index does not hold. While there are any, readers take no absence for an answer.
    pub fn set_unindexed(&mut self, objects: u64) {
        let unindexed = &self.mapped.segment().header.unindexed;
        absence::set_unindexed::<Real>(unindexed, objects);
    }

    /// No reader may rely on this index any more; whoever tries asks the server for another one.
    pub fn retire(&mut self) {
        let state = &self.mapped.segment().header.state;
        state.store(RETIRED, Ordering::Relaxed);
        Real::release();
    }

    /// Number of objects.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of shared memory.
    pub fn bytes(&self) -> u64 {
        self.mapped.geometry.bytes()
    }
}

/// The nearest slot to `home` whose word is wanted, and how many buckets after it.
fn find_slot(
    segment: Segment<'_>,
    home: usize,
    is_wanted: impl Fn(u64) -> bool,
) -> Option<(usize, &AtomicU64)> {
    (0..MAX_PROBE).find_map(|distance| {
        let mut slots = segment.bucket(home, distance).slots.iter();
        let slot = slots.find(|slot| is_wanted(slot.load(Ordering::Relaxed)))?;
        Some((distance, slot))
    })
}

/// There is one writer, so this need not be one step.
fn change(count: &AtomicU64, by: i64) {
    let changed = count.load(Ordering::Relaxed).wrapping_add_signed(by);
    count.store(changed, Ordering::Relaxed);
}

impl fmt::Debug for IndexWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexWriter")
            .field("incarnation", &self.incarnation)
            .field("len", &self.len)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl IndexWriter {
    /// How many objects passed each bucket.
    pub(super) fn overflow(&self) -> Vec<u64> {
        let buckets = self.mapped.segment().buckets.iter();
        buckets
            .map(|bucket| bucket.overflow.load(Ordering::Relaxed))
            .collect()
    }
}
