//! How objects are looked up: in the index, and by asking the engine for what the index cannot tell.

use std::time::{Duration, Instant};

use ondol_plugin::{Key, RegionId};
use ondol_protocol::{ControlError, Hit, Retrieve, Retrieved};
use ondol_shm::{
    Hold, IndexReader, IndexedObject, LEASE_SLOTS, Lease, Looked, PageId, SLOTS, SlotLease,
    SlotTable,
};

use crate::index::Index;
use crate::line::Line;
use crate::regions::RegionsView;
use crate::{Expect, HandlerError};

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) keys: &'a [Key],
    /// Every `group` keys in a row are found all or not at all; at least 1.
    pub(crate) group: u32,
    /// Whether nothing is wanted behind the first group that is not there whole.
    pub(crate) prefix: bool,
    pub(crate) expect: Expect,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found<T> {
    /// One answer for each key, in order.
    pub(crate) hits: Vec<Option<T>>,
    /// How many objects were there under another layout.
    pub(crate) mismatches: u32,
}

impl Line {
    /// Finds and leases objects; `make` makes of each what the caller wants.
    pub(crate) fn find<T>(
        &self,
        wanted: Wanted<'_>,
        mut make: impl FnMut(&mut RegionsView<'_>, Hit, Hold) -> Result<T, HandlerError>,
    ) -> Result<Found<T>, HandlerError> {
        if wanted.keys.is_empty() {
            return Ok(Found {
                hits: Vec::new(),
                mismatches: 0,
            });
        }
        let mut regions = self.regions.view(&*self.plane);
        let mut make = |hit, hold| make(&mut regions, hit, hold);
        match &*self.index.get(&*self.plane)? {
            Some(index) => self.find_in(index, wanted, &mut make),
            None => self.ask(wanted, wanted.keys.to_vec(), &mut make),
        }
    }

    /// Asks the engine for those groups only that the index cannot tell about, or that are to be waited for.
    fn find_in<T>(
        &self,
        index: &Index,
        wanted: Wanted<'_>,
        make: &mut impl FnMut(Hit, Hold) -> Result<T, HandlerError>,
    ) -> Result<Found<T>, HandlerError> {
        let (count, group) = (wanted.keys.len(), wanted.group as usize);
        let mut search = Search::new(wanted);
        let mut used = Used::new(index.slots());
        // Whole groups at a time, so that little is leased behind the end of a prefix.
        let at_once = group.saturating_mul((IndexReader::BATCH / group).max(1));
        for keys in wanted.keys.chunks(at_once) {
            index.lease(keys, |_, looked| search.take(looked, &mut used, make));
            if search.has_ended {
                break;
            }
        }
        used.tell();
        let Search {
            mut hits,
            open,
            failed,
            ..
        } = search;
        if let Some(error) = failed {
            return Err(error);
        }
        hits.resize_with(count, || None);
        if open.is_empty() {
            let found = hits.iter().flatten().count();
            index.slots().count(found as u64, (count - found) as u64);
            return Ok(Found {
                hits,
                mismatches: 0,
            });
        }
        let places: Vec<usize> = match open[..] {
            // All that follows it depends on it.
            [first, ..] if wanted.prefix => (first..count).collect(),
            _ => {
                let whole = |first: usize| first..(first + group).min(count);
                open.into_iter().flat_map(whole).collect()
            }
        };
        let keys: Vec<_> = places.iter().map(|at| wanted.keys[*at].clone()).collect();
        // Held until the engine has answered, so that it does not give up meanwhile what is there of these groups.
        let held: Vec<_> = places.iter().map(|at| hits[*at].take()).collect();
        // The engine counts what it is asked for.
        let found = hits.iter().flatten().count();
        let missed = count - keys.len() - found;
        index.slots().count(found as u64, missed as u64);
        let answer = self.ask(wanted, keys, make)?;
        drop(held);
        for (at, hit) in places.into_iter().zip(answer.hits) {
            hits[at] = hit;
        }
        Ok(Found {
            hits,
            mismatches: answer.mismatches,
        })
    }

    /// Has the engine find and lease the objects of these keys, which are some of the wanted. A lease that comes with a hit
    /// is booked there; all others end here. A wait that is longer than an answer may take is made of several.
    fn ask<T>(
        &self,
        wanted: Wanted<'_>,
        keys: Vec<Key>,
        make: &mut impl FnMut(Hit, Hold) -> Result<T, HandlerError>,
    ) -> Result<Found<T>, HandlerError> {
        let mut request = Retrieve {
            keys,
            leases: Vec::new(),
            group: wanted.group,
            prefix: wanted.prefix,
            expect: wanted.expect.layout,
            wait_ms: 0,
            expected_len: wanted.expect.object_bytes.unwrap_or(0),
        };
        let begun = Instant::now();
        loop {
            let left = wanted.expect.wait.saturating_sub(begun.elapsed());
            let wait = left.min(self.plane.longest_wait());
            request.wait_ms = milliseconds(wait);
            let asked = Instant::now();
            let (answer, leases) = self.ask_once(&mut request)?;
            // One that does not wait although it was asked to is not asked again and again.
            let is_over = left <= wait || asked.elapsed() < wait / 2;
            if !answer.pending || is_over {
                let hits = answer.hits.into_iter().zip(leases);
                let hits = hits.map(|(hit, lease)| hit.map(|hit| make(hit, lease.into())));
                return Ok(Found {
                    hits: hits.map(Option::transpose).collect::<Result<_, _>>()?,
                    mismatches: answer.mismatches,
                });
            }
        }
    }

    fn ask_once(&self, request: &mut Retrieve) -> Result<(Retrieved, Vec<Lease>), HandlerError> {
        let count = request.keys.len();
        let mut leases: Vec<Lease> = Vec::with_capacity(count);
        for _ in 0..count {
            let lease = self.leases.propose();
            leases.push(lease.ok_or_else(|| self.too_many(count, leases.len()))?);
        }
        request.leases = leases.iter().map(Lease::reference).collect();
        ondol_catalog::failpoint!("client.retrieve.leased");
        let answer = self.plane.retrieve(request)?;
        ondol_catalog::failpoint!("client.retrieve.answered");
        if answer.hits.len() != count {
            let found = answer.hits.len();
            return Err(ControlError::Protocol(format!("{found} answers to {count} keys")).into());
        }
        Ok((answer, leases))
    }

    fn too_many(&self, asked: usize, proposed: usize) -> HandlerError {
        let slots = self.index.slots().map_or(0, |_| SLOTS);
        HandlerError::TooManyLeases {
            held: self.leases_in_use().saturating_sub(proposed) as u64,
            asked: asked as u64,
            limit: u64::from(LEASE_SLOTS) + u64::from(slots),
        }
    }

    /// Whether there are objects of these keys, one answer for each, in order.
    pub(crate) fn exist(&self, keys: &[Key]) -> Result<Vec<bool>, HandlerError> {
        if let Some(index) = &*self.index.get(&*self.plane)? {
            let mut found = Vec::with_capacity(keys.len());
            let mut open = Vec::new();
            index.look(keys, |at, looked| {
                found.push(matches!(looked, Looked::Found(_)));
                if matches!(looked, Looked::Ask) {
                    open.push(at);
                }
            });
            if index.is_current() {
                if !open.is_empty() {
                    let keys: Vec<_> = open.iter().map(|at| keys[*at].clone()).collect();
                    for (at, hit) in open.into_iter().zip(self.plane.locate(&keys)?) {
                        found[at] = hit.is_some();
                    }
                }
                return Ok(found);
            }
        }
        let located = self.plane.locate(keys)?;
        Ok(located.into_iter().map(|hit| hit.is_some()).collect())
    }
}

/// What is found in the index, key by key.
struct Search<'a, T> {
    wanted: Wanted<'a>,
    hits: Vec<Option<T>>,
    /// First key of the group that the last one belongs to.
    group: usize,
    /// Whether that group is not there whole.
    is_broken: bool,
    /// Whether nothing is wanted of the keys that are left.
    has_ended: bool,
    /// First keys of the groups that the engine is to be asked for.
    open: Vec<usize>,
    failed: Option<HandlerError>,
}

impl<'a, T> Search<'a, T> {
    fn new(wanted: Wanted<'a>) -> Self {
        Self {
            hits: Vec::with_capacity(wanted.keys.len()),
            wanted,
            group: 0,
            is_broken: false,
            has_ended: false,
            open: Vec::new(),
            failed: None,
        }
    }

    /// Takes what the index says to the next key.
    #[inline]
    fn take(
        &mut self,
        looked: Looked<(IndexedObject, SlotLease)>,
        used: &mut Used<'_>,
        make: &mut impl FnMut(Hit, Hold) -> Result<T, HandlerError>,
    ) {
        let at = self.hits.len();
        if at >= self.group + self.wanted.group as usize {
            self.group = at;
            self.is_broken = false;
        }
        if self.has_ended || self.is_broken {
            self.hits.push(None);
            return;
        }
        let Expect { layout, wait, .. } = self.wanted.expect;
        match looked {
            // The engine counts the others.
            Looked::Found((object, lease)) if layout.is_none() || object.meta.layout == layout => {
                let IndexedObject { location, meta } = object;
                used.note(location.page);
                match make(Hit { location, meta }, lease.into()) {
                    Ok(made) => self.hits.push(Some(made)),
                    Err(error) => {
                        self.failed.get_or_insert(error);
                        self.has_ended = true;
                        self.hits.push(None);
                    }
                }
                return;
            }
            Looked::Absent if wait.is_zero() => {
                self.hits[self.group..].fill_with(|| None);
            }
            _ => self.open.push(self.group),
        }
        self.hits.push(None);
        self.is_broken = true;
        self.has_ended = self.wanted.prefix;
    }
}

/// So many used pages are told with one atomic operation.
const TOLD_AT_ONCE: usize = 16;

/// Tells the engine which pages were used, some at a time.
struct Used<'a> {
    slots: &'a SlotTable,
    pages: [PageId; TOLD_AT_ONCE],
    count: usize,
}

impl<'a> Used<'a> {
    fn new(slots: &'a SlotTable) -> Self {
        let page = PageId {
            region: RegionId(0),
            index: 0,
        };
        Self {
            slots,
            pages: [page; TOLD_AT_ONCE],
            count: 0,
        }
    }

    #[inline]
    fn note(&mut self, page: PageId) {
        if self.count == TOLD_AT_ONCE {
            self.tell();
        }
        self.pages[self.count] = page;
        self.count += 1;
    }

    fn tell(&mut self) {
        self.slots
            .note_hits(self.pages[..self.count].iter().copied());
        self.count = 0;
    }
}

/// Whole milliseconds, rounded up, so that a short wait is not none at all.
fn milliseconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}
