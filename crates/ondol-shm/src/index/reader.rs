use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ondol_plugin::Key;
use rustix::fs::fstat;

use super::IndexedObject;
use super::absence;
use super::layout::{
    CURRENT, Geometry, HEADER_WORDS, MAGIC, MAX_PROBE, Segment, VERSION, record_cells,
};
use super::owner::is_kept;
use super::query::Query;
use super::record::{self, Seen, Sight};
use crate::fences::{Fences, Real};
use crate::prefetch::prefetch;
use crate::sealed::cannot_shrink;
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
        let [magic, version, buckets, cells, seed, incarnation] = header.map(u64::from_ne_bytes);
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
        self.fork.is_home() && is_current(self.segment())
    }

    /// Looks objects up without holding them: `answer` is called once for each key, in order.
    pub fn look(&self, keys: &[Key], mut answer: impl FnMut(usize, Looked<IndexedObject>)) {
        if !self.fork.is_home() {
            return (0..keys.len()).for_each(|at| answer(at, Looked::Ask));
        }
        let segment = self.segment();
        self.find(keys, |at, looked| {
            let looked = match looked {
                Looked::Found(seen) => seen.object(segment).map_or(Looked::Ask, Looked::Found),
                Looked::Absent => Looked::Absent,
                Looked::Ask => Looked::Ask,
            };
            // After the search: until here it was this index that told what there is.
            Real::acquire();
            answer(
                at,
                if self.is_current() {
                    looked
                } else {
                    Looked::Ask
                },
            );
        });
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
        let segment = self.segment();
        let mut published = [const { Looked::Ask }; N];
        let mut publisher = slots.publisher(keys.len(), now);
        self.find(keys, |at, looked| {
            published[at] = match looked {
                Looked::Found(seen) => {
                    let lease = seen.page(segment).and_then(|page| publisher.publish(page));
                    lease.map_or(Looked::Ask, |lease| Looked::Found((seen, lease)))
                }
                Looked::Absent => Looked::Absent,
                Looked::Ask => Looked::Ask,
            };
        });
        hazard::published::<Real>();
        let is_current = is_current(segment) && slots.is_for(self.incarnation);
        for (at, published) in published.into_iter().take(keys.len()).enumerate() {
            let confirmed = match published {
                _ if !is_current => Looked::Ask,
                Looked::Found((seen, lease)) => seen
                    .object(segment)
                    .map_or(Looked::Ask, |object| Looked::Found((object, lease))),
                Looked::Absent => Looked::Absent,
                Looked::Ask => Looked::Ask,
            };
            answer(at, confirmed);
        }
    }

    /// Searches for keys in order. What it says was so at some time between its call and that of `found`.
    #[inline]
    fn find(&self, keys: &[Key], found: impl FnMut(usize, Looked<Seen>)) {
        if let [_] = keys {
            self.find_in_stages::<1, 0>(keys, found);
        } else {
            self.find_in_stages::<64, 16>(keys, found);
        }
    }

    /// Works on a key in three stages, with `APART` other keys in between, so that the memory that a stage needs has time
    /// to arrive. `RING`, a power of two, is more than twice as many.
    #[inline]
    fn find_in_stages<const RING: usize, const APART: usize>(
        &self,
        keys: &[Key],
        mut found: impl FnMut(usize, Looked<Seen>),
    ) {
        const { assert!(RING.is_power_of_two() && RING > 2 * APART) };
        let segment = self.segment();
        // Before the search: an object that is indexed later was counted until then.
        let is_complete = absence::is_complete::<Real>(&segment.header.unindexed);
        let mut queries = [const { Query::NONE }; RING];
        let mut candidates = [0; RING];
        for key in keys.iter().take(APART) {
            prefetch(key.bytes());
        }
        for step in 0..keys.len() + 2 * APART {
            if let Some(key) = keys.get(step) {
                if let Some(key) = keys.get(step + APART) {
                    prefetch(key.bytes());
                }
                let query = Query::new(key, self.seed, segment.buckets.len());
                prefetch(std::slice::from_ref(segment.bucket(query.home, 0)));
                queries[step % RING] = query;
            }
            if step >= APART && step - APART < keys.len() {
                let at = (step - APART) % RING;
                let query = &queries[at];
                candidates[at] = first_candidate(segment, query);
                if let Some(record) =
                    segment.record(candidates[at], record_cells(query.bytes.len()))
                {
                    prefetch(record);
                }
            }
            if step >= 2 * APART {
                let at = step - 2 * APART;
                let looked = match search(segment, &queries[at % RING], candidates[at % RING]) {
                    Looked::Absent if !is_complete => Looked::Ask,
                    looked => looked,
                };
                found(at, looked);
            }
        }
    }
}

#[inline]
fn is_current(segment: Segment<'_>) -> bool {
    hazard::is_still(&segment.header.state, CURRENT) && is_kept(&segment.header.owner)
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
fn search(segment: Segment<'_>, query: &Query<'_>, candidate: u32) -> Looked<Seen> {
    if candidate != 0
        && let Sight::Match(seen) = record::look(segment, candidate, query)
    {
        return Looked::Found(seen);
    }
    search_all(segment, query)
}

fn search_all(segment: Segment<'_>, query: &Query<'_>) -> Looked<Seen> {
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
                    Sight::Match(seen) => return Looked::Found(seen),
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
