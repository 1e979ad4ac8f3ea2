use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ondol_plugin::Key;
use rustix::fs::fstat;

use super::IndexedObject;
use super::layout::{
    CURRENT, Geometry, HEADER_WORDS, MAGIC, MAX_PROBE, Segment, VERSION, record_cells,
};
use super::owner::is_kept;
use super::query::Query;
use super::record::{self, Sight, Snapshot};
use crate::fences::{Fences, Real};
use crate::prefetch::prefetch;
use crate::sealed::cannot_shrink;
use crate::slot_table::Publisher;
use crate::sync::Ordering;
use crate::{ForkGuard, ReadMapping, SlotLease, SlotTable, hazard, monotonic_ms};

/// Why a file is no index that can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The file could not be mapped.
    #[error("index: {0}")]
    Io(#[from] io::Error),
    /// The file is not an index of this version, or not a whole one.
    #[error(
        "index: found magic {magic:#x}, version {version}, {bytes} bytes with {buckets} buckets and {cells} cells; expected \
         magic {MAGIC:#x}, version {VERSION} and as many bytes as these take: server and client are to be of one version"
    )]
    Foreign {
        /// Magic found.
        magic: u64,
        /// Version found.
        version: u64,
        /// Number of buckets found.
        buckets: u64,
        /// Number of cells found.
        cells: u64,
        /// Length of the file.
        bytes: u64,
    },
    /// The file's owner could pull its bytes away under whoever maps it.
    #[error(
        "index: the file is no memory file that is sealed against shrinking; pass the descriptor that the server gave"
    )]
    Unsealed,
}

/// What the index says to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked<T> {
    /// There is an object.
    Found(T),
    /// There is none.
    Absent,
    /// The index cannot tell; the server can.
    Ask,
}

/// A client's view of an index. Readers never wait for the writer, and trust nothing that they read to lie inside.
///
/// A forked child of the client has the value but not the index: there the answer is always [`Looked::Ask`].
#[derive(Debug)]
pub struct IndexReader {
    mapping: ReadMapping,
    geometry: Geometry,
    seed: u64,
    incarnation: u64,
    fork: ForkGuard,
}

/// So often a reader looks again at a record that is being written.
const RETRIES: u32 = 64;

impl IndexReader {
    /// So many keys are looked up with one fence.
    pub const BATCH: usize = 256;

    /// Maps an index.
    ///
    /// # Errors
    /// [`IndexError`] if it is none of this version, not sealed, or cannot be mapped.
    pub fn open(file: BorrowedFd<'_>) -> Result<Self, IndexError> {
        if !cannot_shrink(file) {
            return Err(IndexError::Unsealed);
        }
        let mut header = [[0; 8]; HEADER_WORDS];
        let read =
            rustix::io::pread(file, header.as_flattened_mut(), 0).map_err(io::Error::from)?;
        let [magic, version, buckets, cells, seed, incarnation] = header.map(u64::from_le_bytes);
        let bytes = fstat(file).map_err(io::Error::from)?.st_size as u64;
        let geometry = Geometry::new(buckets, cells).filter(|geometry| {
            let is_whole = read == size_of_val(&header) && geometry.bytes() == bytes;
            is_whole && (magic, version) == (MAGIC, VERSION)
        });
        let Some(geometry) = geometry else {
            return Err(IndexError::Foreign {
                magic,
                version,
                buckets,
                cells,
                bytes,
            });
        };
        Ok(Self {
            mapping: ReadMapping::new(file, bytes)?,
            geometry,
            seed,
            incarnation,
            fork: ForkGuard::new(),
        })
    }

    fn segment(&self) -> Segment<'_> {
        // SAFETY: the mapping begins at a page, is as long as the geometry says (checked when it was made), lives as
        // long as `self`, and its words are accessed through segments only; readers do not store.
        unsafe { Segment::new(self.mapping.word(0), self.geometry) }
    }

    /// The name of this index.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether a living server keeps this index up to date; if not, there is or will be another one.
    pub fn is_current(&self) -> bool {
        if !self.fork.is_home() {
            return false;
        }
        let header = self.segment().header;
        hazard::is_still(&header.state, CURRENT) && is_kept(&header.owner)
    }

    /// Looks objects up without holding them: `answer` is called once for each key, in order.
    pub fn look(&self, keys: &[Key], mut answer: impl FnMut(usize, Looked<IndexedObject>)) {
        if !self.fork.is_home() {
            return (0..keys.len()).for_each(|at| answer(at, Looked::Ask));
        }
        let mut first = 0;
        for keys in keys.chunks(Self::BATCH) {
            let mut answer = |at, looked| answer(first + at, looked);
            match keys.len() {
                1 => self.look_batch::<1>(keys, &mut answer),
                2..=16 => self.look_batch::<16>(keys, &mut answer),
                _ => self.look_batch::<{ Self::BATCH }>(keys, &mut answer),
            }
            first += keys.len();
        }
    }

    fn look_batch<const N: usize>(
        &self,
        keys: &[Key],
        answer: &mut impl FnMut(usize, Looked<IndexedObject>),
    ) {
        let mut found = [const { Looked::Ask }; N];
        self.find::<N>(keys, |at, looked| {
            found[at] = match looked {
                Looked::Found(snapshot) => snapshot.object.map_or(Looked::Ask, Looked::Found),
                Looked::Absent => Looked::Absent,
                Looked::Ask => Looked::Ask,
            };
        });
        // After the search: until here it was this index that told what there is.
        Real::acquire();
        let is_current = self.is_current();
        for (at, looked) in found.into_iter().take(keys.len()).enumerate() {
            answer(at, if is_current { looked } else { Looked::Ask });
        }
    }

    /// Finds and leases objects: `answer` is called once for each key, in order. All leases of a call were confirmed
    /// after the last of up to [`BATCH`](Self::BATCH) was published. Where slots run out the answer is [`Looked::Ask`].
    pub fn lease(
        &self,
        slots: &Arc<SlotTable>,
        keys: &[Key],
        mut answer: impl FnMut(usize, Looked<(IndexedObject, SlotLease)>),
    ) {
        if !self.fork.is_home() {
            return (0..keys.len()).for_each(|at| answer(at, Looked::Ask));
        }
        let now = monotonic_ms();
        let mut first = 0;
        for keys in keys.chunks(Self::BATCH) {
            let mut answer = |at, looked| answer(first + at, looked);
            match keys.len() {
                1 => self.lease_batch::<1>(slots, now, keys, &mut answer),
                2..=16 => self.lease_batch::<16>(slots, now, keys, &mut answer),
                _ => self.lease_batch::<{ Self::BATCH }>(slots, now, keys, &mut answer),
            }
            first += keys.len();
        }
    }

    fn lease_batch<const N: usize>(
        &self,
        slots: &Arc<SlotTable>,
        now: u64,
        keys: &[Key],
        answer: &mut impl FnMut(usize, Looked<(IndexedObject, SlotLease)>),
    ) {
        let mut published = [const { Looked::Ask }; N];
        let mut publisher = slots.publisher(keys.len(), now);
        self.find::<N>(keys, |at, looked| {
            published[at] = match looked {
                Looked::Found(snapshot) => publish(&mut publisher, snapshot),
                Looked::Absent => Looked::Absent,
                Looked::Ask => Looked::Ask,
            };
        });
        hazard::published::<Real>();
        let segment = self.segment();
        let is_current = self.is_current() && slots.is_for(self.incarnation);
        for (at, published) in published.into_iter().take(keys.len()).enumerate() {
            let confirmed = match published {
                _ if !is_current => Looked::Ask,
                Looked::Found((snapshot, object, lease)) => {
                    if record::is_unchanged(segment, &snapshot) {
                        Looked::Found((object, lease))
                    } else {
                        Looked::Ask
                    }
                }
                Looked::Absent => Looked::Absent,
                Looked::Ask => Looked::Ask,
            };
            answer(at, confirmed);
        }
    }

    /// Searches for up to `N` keys, one stage after the other, so that the memory of one key is on its way while others
    /// are worked on.
    #[inline]
    fn find<const N: usize>(&self, keys: &[Key], mut found: impl FnMut(usize, Looked<Snapshot>)) {
        let segment = self.segment();
        // Before the search: an object that is indexed later was counted until then.
        let is_complete = segment.header.unindexed.load(Ordering::Relaxed) == 0;
        Real::acquire();
        let mut queries = [const { Query::NONE }; N];
        let mut hints = [0; N];
        for key in keys {
            prefetch(key.bytes());
        }
        for (query, key) in queries.iter_mut().zip(keys) {
            *query = Query::new(key, self.seed, segment.buckets.len());
            prefetch(std::slice::from_ref(segment.bucket(query.home, 0)));
        }
        for (hint, query) in hints.iter_mut().zip(&queries[..keys.len()]) {
            *hint = first_candidate(segment, query);
            if let Some(record) = segment.record(*hint, record_cells(query.bytes.len())) {
                prefetch(record);
            }
        }
        for (at, (query, hint)) in queries[..keys.len()].iter().zip(hints).enumerate() {
            let looked = match search(segment, query, hint) {
                Looked::Absent if !is_complete => Looked::Ask,
                looked => looked,
            };
            found(at, looked);
        }
    }
}

fn publish(
    publisher: &mut Publisher<'_>,
    snapshot: Snapshot,
) -> Looked<(Snapshot, IndexedObject, SlotLease)> {
    let Some(object) = snapshot.object else {
        return Looked::Ask;
    };
    publisher
        .publish(object.location.page)
        .map_or(Looked::Ask, |lease| {
            Looked::Found((snapshot, object, lease))
        })
}

/// The first cell of the record in the home bucket that is likely the key's; 0 if there is none.
#[inline]
fn first_candidate(segment: Segment<'_>, query: &Query<'_>) -> u32 {
    let slots = &segment.bucket(query.home, 0).slots;
    let mut words = slots.iter().map(|slot| slot.load(Ordering::Relaxed));
    words
        .find(|word| query.has_tag(*word))
        .map_or(0, |word| word as u32)
}

#[inline]
fn search(segment: Segment<'_>, query: &Query<'_>, hint: u32) -> Looked<Snapshot> {
    if hint != 0
        && let Sight::Match(snapshot) = record::look(segment, hint, query)
    {
        return Looked::Found(snapshot);
    }
    search_all(segment, query)
}

fn search_all(segment: Segment<'_>, query: &Query<'_>) -> Looked<Snapshot> {
    let mut retries = RETRIES;
    for distance in 0..MAX_PROBE {
        let bucket = segment.bucket(query.home, distance);
        for slot in &bucket.slots {
            loop {
                let word = slot.load(Ordering::Relaxed);
                if !query.has_tag(word) {
                    break;
                }
                Real::acquire();
                match record::look(segment, word as u32, query) {
                    Sight::Match(snapshot) => return Looked::Found(snapshot),
                    Sight::Other => break,
                    Sight::Unstable if retries == 0 => return Looked::Ask,
                    Sight::Unstable => {
                        retries -= 1;
                        std::hint::spin_loop();
                    }
                }
            }
        }
        if bucket.overflow.load(Ordering::Relaxed) == 0 {
            return Looked::Absent;
        }
    }
    Looked::Absent
}
