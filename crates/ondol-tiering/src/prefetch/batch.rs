//! One load of one backend: what is asked of it, and what to think of what comes back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ondol_plugin::Key;
use ondol_plugin::l2::{LoadItem, LoadOutcome, LoadResult, Loaded, ObjectKey, PageMut};
use ondol_shm::ObjectMeta;

use super::controller::{Event, Shared};
use super::held::Held;
use super::inbox::Hear;
use super::room::Room;
use crate::attached::Attached;
use crate::codec::{Codec, Refusal};
use crate::{Memory, Page};

/// A load that is under way. It travels with the task, so that whoever drops it, even unheard, has unlocked what it loads, given
/// back its share of the bytes in flight, and told the controller that nothing came.
#[derive(Debug)]
pub(super) struct Batch {
    shared: Arc<Shared>,
    number: u64,
    held: Held,
    cells: Vec<BatchCell>,
    bytes: u64,
    began: Instant,
}

/// One object of a batch.
#[derive(Debug)]
pub(super) struct BatchCell {
    pub(super) key: Key,
    pub(super) name: ObjectKey,
    pub(super) room: Room,
    pub(super) expected_len: Option<u64>,
}

/// An object that has come and was checked.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) page: Page,
    pub(super) len: u64,
    pub(super) meta: ObjectMeta,
    pub(super) verified: bool,
}

/// Why an object has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It is not there any more.
    Missing,
    /// It could not be read.
    Failed,
    /// It is not what was stored.
    Corrupt,
    /// It is not served, and may be of use to somebody else.
    Foreign,
    /// It is not as long as was expected.
    OtherLength,
    /// Memory has no room for it.
    NoRoom,
    /// It was deleted while it was loaded.
    Deleted,
}

/// What became of each object of a batch.
pub(super) type Outcomes = Vec<Result<Arrival, Failure>>;

/// Memory that an adapter fills, with a number by which it is known again: an adapter that gives pages back in the wrong
/// order must not have one object's bytes admitted under another's key.
#[derive(Debug)]
struct Staged<M> {
    memory: M,
    number: (u64, usize),
}

impl<M: AsRef<[u8]>> AsRef<[u8]> for Staged<M> {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref()
    }
}

impl<M: AsMut<[u8]>> AsMut<[u8]> for Staged<M> {
    fn as_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut()
    }
}

impl Batch {
    /// A load of these objects, with the pages of those that have one.
    pub(super) fn new(
        shared: &Arc<Shared>,
        held: Held,
        objects: Vec<(BatchCell, Option<Page>)>,
    ) -> (Self, Vec<LoadItem>) {
        let number = shared.number();
        let bytes = objects.iter().map(|(cell, _)| cell.room.bytes()).sum();
        shared.loading_bytes.fetch_add(bytes, Ordering::Relaxed);
        let loading = &held.attached().loading_bytes;
        loading.fetch_add(bytes, Ordering::Relaxed);
        let mut cells = Vec::with_capacity(objects.len());
        let mut items = Vec::with_capacity(objects.len());
        for (index, (cell, page)) in objects.into_iter().enumerate() {
            let number = (number, index);
            let page = match (page, cell.room) {
                (Some(memory), Room::Page { trailer, .. }) => {
                    PageMut::with_copy(Staged { memory, number }, trailer, ondol_shm::copy)
                }
                (_, room) => {
                    let memory = vec![0_u8; usize::try_from(room.bytes()).unwrap_or_default()];
                    PageMut::new(Staged { memory, number }, 0)
                }
            };
            items.push(LoadItem {
                key: cell.name.clone(),
                page,
            });
            cells.push(cell);
        }
        let batch = Self {
            shared: Arc::clone(shared),
            number,
            held,
            cells,
            bytes,
            began: Instant::now(),
        };
        (batch, items)
    }

    /// The backend.
    pub(super) fn attached(&self) -> &Arc<Attached> {
        self.held.attached()
    }

    /// When it began.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Bytes that it may fill.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The objects.
    pub(super) fn cells(&self) -> &[BatchCell] {
        &self.cells
    }

    /// Ends the load: unlocks, gives the bytes back, and gives the objects out to be told about.
    pub(super) fn end(mut self) -> Vec<BatchCell> {
        std::mem::take(&mut self.cells)
    }

    /// What became of each object if the whole load failed.
    pub(super) fn all_failed(&self) -> Outcomes {
        self.cells.iter().map(|_| Err(Failure::Failed)).collect()
    }

    /// Checks what was loaded, and decodes it where it is encoded.
    pub(super) fn examine(&self, result: LoadResult) -> Outcomes {
        if result.0.len() != self.cells.len() {
            tracing::error!(
                backend = self.attached().backend.name(),
                expected = self.cells.len(),
                found = result.0.len(),
                "a load has another number of results than objects were asked for; nothing of it is used"
            );
            return self.all_failed();
        }
        let loaded = result.0.into_iter().zip(&self.cells).enumerate();
        loaded
            .map(|(index, (loaded, cell))| self.examine_one(index, cell, loaded))
            .collect()
    }

    fn examine_one(
        &self,
        index: usize,
        cell: &BatchCell,
        loaded: Loaded,
    ) -> Result<Arrival, Failure> {
        let attached = self.attached();
        let log = |what: &'static str, reason: &dyn std::fmt::Display| {
            if let Some(unwritten) = attached.complaints.of(what, Instant::now()) {
                tracing::warn!(backend = attached.backend.name(), key = %cell.name, %reason, unwritten, "{what}");
            }
        };
        let filled = match loaded.outcome {
            LoadOutcome::Found(filled) => filled,
            LoadOutcome::Missing => return Err(Failure::Missing),
            LoadOutcome::Corrupt(reason) => {
                log("a stored object is corrupt", &reason);
                return Err(Failure::Corrupt);
            }
            LoadOutcome::Failed(reason) => {
                log("a stored object could not be read", &reason);
                return Err(Failure::Failed);
            }
        };
        let Some(page) = loaded
            .page
            .filter(|page| usize::try_from(filled).is_ok_and(|filled| filled <= page.room()))
        else {
            log(
                "a load found an object and gave no page that holds it",
                &filled,
            );
            return Err(Failure::Failed);
        };
        let codec = &attached.codec;
        let number = (self.number, index);
        let arrival = match cell.room {
            Room::Page { .. } => check(&self.shared.memory, codec, cell, page, filled, number),
            Room::Buffer { .. } => {
                let taken = page.into_memory::<Staged<Vec<u8>>>().ok();
                match taken.filter(|(staged, _)| staged.number == number) {
                    Some((staged, _)) => {
                        let stored = &staged.memory[..filled as usize];
                        decode(&self.shared.memory, codec, cell, stored)
                    }
                    None => Err(Unusable::NotOurPage),
                }
            }
        };
        let arrival = arrival.map_err(|unusable| match unusable {
            Unusable::Refused(Refusal::Corrupt(error)) => {
                log("a stored object is not what was stored", &error);
                Failure::Corrupt
            }
            Unusable::Refused(Refusal::Foreign(error)) => {
                log("something in the place of an object is not served", &error);
                Failure::Foreign
            }
            Unusable::NotOurPage => {
                log("a load gave back a page of another object", &cell.key);
                Failure::Failed
            }
            Unusable::NoRoom => Failure::NoRoom,
        })?;
        match cell.expected_len {
            Some(expected) if expected != arrival.len => Err(Failure::OtherLength),
            _ => Ok(arrival),
        }
    }
}

/// Why what was loaded is not used.
enum Unusable {
    Refused(Refusal),
    NotOurPage,
    NoRoom,
}

/// Checks an object that lies in its page.
fn check(
    memory: &Memory,
    codec: &Codec,
    cell: &BatchCell,
    page: PageMut,
    filled: u64,
    number: (u64, usize),
) -> Result<Arrival, Unusable> {
    let checked = codec
        .check(&cell.key, &cell.name, &page, filled)
        .map_err(Unusable::Refused)?;
    let taken = page.into_memory::<Staged<Page>>().ok();
    let taken = taken.filter(|(staged, _)| staged.number == number);
    let (staged, trailer) = taken.ok_or(Unusable::NotOurPage)?;
    let page = staged.memory;
    if checked.in_place && checked.len <= page.as_ref().len() as u64 {
        return Ok(Arrival {
            page,
            len: checked.len,
            meta: checked.meta,
            verified: checked.verified,
        });
    }
    let mut stored = [page.as_ref(), &trailer[..]].concat();
    stored.truncate(filled as usize);
    // Its room is wanted for the page of the right length.
    drop(page);
    decode(memory, codec, cell, &stored)
}

/// Makes an object of stored bytes, in a page of its own.
fn decode(
    memory: &Memory,
    codec: &Codec,
    cell: &BatchCell,
    stored: &[u8],
) -> Result<Arrival, Unusable> {
    // Not what was expected: an expectation that is wrong must not make a sound object count as corrupt.
    let limit = memory.capacity_bytes();
    let decoded = codec
        .decode(&cell.key, &cell.name, stored, limit)
        .map_err(Unusable::Refused)?;
    let reserved = memory.reserve(&[decoded.len]).into_iter().next().flatten();
    let mut page = reserved.ok_or(Unusable::NoRoom)?;
    let room = page.as_mut().get_mut(..decoded.bytes.len());
    ondol_shm::copy(room.ok_or(Unusable::NoRoom)?, &decoded.bytes);
    Ok(Arrival {
        page,
        len: decoded.len,
        meta: decoded.meta,
        verified: decoded.verified,
    })
}

impl Drop for Batch {
    fn drop(&mut self) {
        let loading = &self.shared.loading_bytes;
        loading.fetch_sub(self.bytes, Ordering::Relaxed);
        let loading = &self.held.attached().loading_bytes;
        loading.fetch_sub(self.bytes, Ordering::Relaxed);
        if !self.cells.is_empty() {
            let lost = self.cells.drain(..).map(|cell| cell.key).collect();
            // Without a controller there is nobody left to tell.
            let event = Event::Lost {
                backend: self.held.attached().id,
                keys: lost,
            };
            let _ = self.shared.inbox.tell(event, Hear::Apart);
        }
    }
}
