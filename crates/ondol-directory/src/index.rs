//! The index that clients on this host read to find objects by themselves, beside the shards that answer everybody else.
//!
//! It has a fixed capacity. When it is full, a larger one is made, without the writer's lock, and filled step by step, some
//! objects with each commit and each question of a reader, while the first one goes on to serve: what does not fit there is *unindexed*, so that readers
//! ask for what they do not find. Then the first one is retired, and its readers ask for the next.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use ondol_catalog::{EntryId, failpoint};
use ondol_protocol::IndexStats;
use ondol_shm::{IndexFull, IndexWriter, IndexedObject, RecordId};

use crate::entry::Entry;
use crate::ids::Ids;

/// The first index has room for one object in so many bytes of the pool, which takes about a thousandth of its bytes.
const POOL_BYTES_PER_OBJECT: u64 = 256 << 10;
/// The room of a first index at least, and at most where there are no objects yet.
const FIRST_OBJECTS: std::ops::RangeInclusive<u64> = 4096..=1 << 20;
/// How long keys are taken to be before there are any.
const KEY_BYTES: u64 = 100;
/// An index is not replaced before it was asked to take this part of its capacity, or else something that fits nowhere
/// would have it replaced for ever.
const WORN: u64 = 8;
/// Objects that are moved to the next index with each step.
pub(crate) const MOVED_AT_ONCE: usize = 1024;

/// A visible object, and where it stands in the index.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) entry: std::sync::Arc<Entry>,
    pub(crate) place: Place,
}

/// Visible objects, as policies know them.
pub(crate) type Objects = HashMap<EntryId, Shown, Ids>;

/// The records of an object, with the number of the index that each is in: one of the index that serves, one of the index
/// that is being filled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place([Option<(u32, RecordId)>; 2]);

/// One index.
#[derive(Debug)]
struct Volume {
    number: u32,
    /// Which record of a [`Place`] is in this one, if it has this number.
    side: usize,
    writer: IndexWriter,
    capacity: u64,
    /// Whether it had no room for an object.
    is_full: bool,
    /// Objects that it was asked to take.
    offered: u64,
    /// Visible objects that it does not hold.
    missing: u64,
    /// What readers were told of those, and of the objects that are not visible yet.
    told: u64,
}

impl Volume {
    /// Takes in an object, if it has room for it.
    fn insert(&mut self, entry: &Entry, place: &mut Place) -> bool {
        self.offered += 1;
        let object = IndexedObject {
            location: entry.location,
            meta: entry.meta,
        };
        let record = self
            .writer
            .insert(&entry.key, &object, entry.is_unverified());
        match record {
            Ok(record) => place.0[self.side] = Some((self.number, record)),
            Err(IndexFull) => self.is_full = true,
        }
        record.is_ok()
    }

    fn record(&self, place: Place) -> Option<RecordId> {
        let (number, record) = place.0[self.side]?;
        (number == self.number).then_some(record)
    }

    fn remove(&mut self, place: Place) {
        match self.record(place) {
            Some(record) => self.writer.remove(record),
            None => self.missing -= 1,
        }
    }

    fn tell(&mut self, unloaded: u64) {
        let unindexed = self.missing + unloaded;
        if unindexed != self.told {
            self.writer.set_unindexed(unindexed);
            self.told = unindexed;
        }
    }

    /// Whether a larger one is to take its place.
    fn is_worn(&self) -> bool {
        self.is_full && self.offered >= self.capacity / WORN
    }
}

/// An index that is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    capacity: u64,
    key_bytes: u64,
}

impl Plan {
    /// Makes it; all of its memory is taken now, which takes time.
    pub(crate) fn make(self) -> io::Result<IndexWriter> {
        failpoint!("index.make", Err(io::ErrorKind::OutOfMemory.into()));
        let mut name = [0; 8];
        getrandom::fill(&mut name).map_err(io::Error::other)?;
        // A name that no index has had.
        let name = u64::from_le_bytes(name).max(1);
        IndexWriter::create(self.capacity, self.key_bytes, name)
    }
}

/// An index that is being filled.
#[derive(Debug)]
struct Build {
    volume: Volume,
    /// Objects that may have to be moved to it.
    rest: Vec<EntryId>,
}

/// The index, and the one that will take its place.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// Whether there is to be an index.
    is_open: bool,
    current: Option<Volume>,
    next: Option<Build>,
    /// Whether somebody makes one now.
    is_making: bool,
    /// Number of the last one that was made.
    last: u32,
    objects: u64,
    /// Bytes of all keys.
    key_bytes: u64,
    /// Whether it was logged that there is no memory for an index.
    has_complained: bool,
}

impl Shelf {
    /// From now on there is to be an index, for a pool of so many bytes with so many objects.
    pub(crate) fn open(&mut self, pool_bytes: u64, objects: u64) -> Option<Plan> {
        self.is_open = true;
        let (least, most) = FIRST_OBJECTS.into_inner();
        let room = (pool_bytes / POOL_BYTES_PER_OBJECT).clamp(least, most);
        self.want(room.max(objects + objects / 4))
    }

    fn want(&mut self, capacity: u64) -> Option<Plan> {
        if !self.is_open || std::mem::replace(&mut self.is_making, true) {
            return None;
        }
        let key_bytes = match self.objects {
            0 => KEY_BYTES,
            objects => self.key_bytes.div_ceil(objects),
        };
        Some(Plan {
            capacity,
            key_bytes,
        })
    }

    /// What is to be made, if a larger index is needed than there is; [`begin`](Self::begin) is to follow.
    pub(crate) fn plan(&mut self) -> Option<Plan> {
        let next = self.next.as_ref().map(|build| &build.volume);
        let volume = next.or(self.current.as_ref())?;
        if !volume.is_worn() {
            return None;
        }
        // If it held few objects, it was full of records of other lengths than those that came.
        let larger = if next.is_some() {
            2 * volume.capacity
        } else {
            volume.capacity
        };
        self.want(larger.max(2 * self.objects))
    }

    /// What is to be made if there is none, as there was no memory for it.
    pub(crate) fn plan_again(&mut self, unloaded: u64) -> Option<Plan> {
        if self.current.is_some() || self.next.is_some() {
            return None;
        }
        let objects = self.objects + unloaded;
        self.want((2 * objects).max(*FIRST_OBJECTS.start()))
    }

    /// What was planned is made, or there is no memory for it.
    pub(crate) fn begin(&mut self, plan: Plan, made: io::Result<IndexWriter>, objects: &Objects) {
        self.is_making = false;
        if !self.is_open {
            return;
        }
        let Plan {
            capacity,
            key_bytes,
        } = plan;
        let writer = match made {
            Ok(writer) => writer,
            Err(error) => {
                if !std::mem::replace(&mut self.has_complained, true) {
                    tracing::warn!(
                        %error, objects = capacity,
                        "no memory for an index that clients can read: they ask for what they do not find in it"
                    );
                }
                self.next = None;
                if let Some(current) = &mut self.current {
                    // To be tried again, but not with every commit.
                    current.offered = 0;
                }
                return;
            }
        };
        self.last += 1;
        tracing::debug!(capacity, key_bytes, number = self.last, "an index is made");
        self.next = Some(Build {
            volume: Volume {
                number: self.last,
                side: self.current.as_ref().map_or(0, |current| 1 - current.side),
                writer,
                capacity,
                is_full: false,
                offered: 0,
                missing: objects.len() as u64,
                told: 0,
            },
            rest: objects.keys().copied().collect(),
        });
    }

    /// Takes in an object that becomes visible, before it is.
    pub(crate) fn insert(&mut self, entry: &Entry) -> Place {
        let mut place = Place::default();
        self.objects += 1;
        self.key_bytes += entry.key.bytes().len() as u64;
        if let Some(Build { volume, .. }) = &mut self.next {
            if !volume.insert(entry, &mut place) {
                volume.missing += 1;
            }
            if let Some(current) = &mut self.current {
                current.missing += 1;
            }
        } else if let Some(current) = &mut self.current
            && !current.insert(entry, &mut place)
        {
            current.missing += 1;
        }
        place
    }

    /// Makes an object unfindable. Its page may be reused once the clients' slots were scanned after this.
    pub(crate) fn remove(&mut self, entry: &Entry, place: Place) {
        self.objects -= 1;
        self.key_bytes -= entry.key.bytes().len() as u64;
        let next = self.next.as_mut().map(|build| &mut build.volume);
        let volumes = self.current.iter_mut().chain(next);
        volumes.for_each(|volume| volume.remove(place));
    }

    /// Readers need not ask for this object any more.
    pub(crate) fn set_verified(&mut self, place: Place) {
        let next = self.next.as_mut().map(|build| &mut build.volume);
        for volume in self.current.iter_mut().chain(next) {
            if let Some(record) = volume.record(place) {
                volume.writer.set_verified(record);
            }
        }
    }

    /// Tells readers how much the index does not hold, with `unloaded` objects that are not even visible yet. To be called
    /// before an object is visible that it does not hold, and after it was given one.
    pub(crate) fn tell(&mut self, unloaded: u64) {
        if let Some(current) = &mut self.current {
            current.tell(unloaded);
        }
    }

    /// Moves some objects to the next index, and puts it in the place of the other once it is complete: then it is
    /// answered with its name.
    pub(crate) fn build(
        &mut self,
        objects: &mut Objects,
        count: usize,
        unloaded: u64,
    ) -> Option<u64> {
        let Build { volume, rest } = self.next.as_mut()?;
        for _ in 0..count {
            let Some(id) = rest.pop() else { break };
            let Some(shown) = objects.get_mut(&id) else {
                continue;
            };
            if volume.insert(&shown.entry, &mut shown.place) {
                volume.missing -= 1;
            }
        }
        rest.is_empty().then(|| self.replace(unloaded)).flatten()
    }

    /// Whether there is one that is not complete yet.
    pub(crate) fn is_filling(&self) -> bool {
        self.next.is_some()
    }

    fn replace(&mut self, unloaded: u64) -> Option<u64> {
        let Build { mut volume, .. } = self.next.take()?;
        volume.tell(unloaded);
        failpoint!("index.built");
        let name = volume.writer.incarnation();
        tracing::debug!(
            number = volume.number,
            objects = volume.writer.len(),
            bytes = volume.writer.bytes(),
            "an index is complete"
        );
        if let Some(mut earlier) = self.current.replace(volume) {
            earlier.writer.retire();
            failpoint!("index.retired");
        }
        Some(name)
    }

    /// From now on there is none.
    pub(crate) fn close(&mut self) {
        self.is_open = false;
        self.next = None;
        if let Some(mut current) = self.current.take() {
            current.writer.retire();
        }
    }

    /// The name of the index, and a descriptor for a reader.
    pub(crate) fn open_for_reader(&self) -> Option<(u64, io::Result<OwnedFd>)> {
        let writer = &self.current.as_ref()?.writer;
        Some((writer.incarnation(), writer.open_for_reader()))
    }

    pub(crate) fn stats(&self) -> Option<IndexStats> {
        let current = self.current.as_ref()?;
        Some(IndexStats {
            generation: current.number.into(),
            objects: current.writer.len(),
            unindexed: current.told,
            bytes: current.writer.bytes(),
        })
    }
}
