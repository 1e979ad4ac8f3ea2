//! Making room: what goes when a page size has no free page.
//!
//! In this order, the first that helps: a free page; a free extent; a region of another page size that holds
//! nothing; the policy's victim among objects of the same page size, or the regions of another page size that were
//! used longest ago, whichever is colder. A page size that has evicted a region's worth of its own objects is
//! starving and is compared with the others; one with nothing of its own to evict drains the others at once.

use std::ops::ControlFlow;
use std::sync::Arc;

use ondol_memory::{Change, JournalError, REGION_ALIGNMENT, Region, RemoveReason};
use ondol_plugin::RegionId;
use ondol_protocol::Breakdown;
use ondol_shm::{BackingId, PageId};

use crate::entry::Entry;
use crate::metrics::Counters;
use crate::shards::Shards;
use crate::state::{Removal, State};

/// So many objects in the policy's order are looked through for one that a storage backend has, too.
const STORED_WINDOW: usize = 256;

/// So many objects go at once where slots have to be read, however few pages are wanted; never more than a small share of
/// the pages of their size.
const AHEAD: u64 = 32;

/// Why there is no page.
#[derive(Debug)]
pub(crate) enum NoRoom {
    Full(Breakdown),
    Journal(JournalError),
    /// Objects of the last run have yet to be loaded, so that the coldest of them is not known.
    Loading,
}

impl From<JournalError> for NoRoom {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// Regions of other page sizes that lie side by side, with the free extents between them.
#[derive(Debug)]
struct Drain {
    regions: Vec<RegionId>,
    cost: Cost,
}

/// What is lost with objects: first, whether no storage backend has one of them; then, when one was last used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    unstored: bool,
    last_use: u64,
}

impl Cost {
    fn and(self, other: Self) -> Self {
        Self {
            unstored: self.unstored || other.unstored,
            last_use: self.last_use.max(other.last_use),
        }
    }
}

impl State {
    /// Frees at least one page of `stride` bytes; `wanted` of them if that costs only objects of the same size.
    ///
    /// Ended leases must have been noted before.
    pub(crate) fn make_room(
        &mut self,
        shards: &Shards,
        counters: &Counters,
        stride: u64,
        wanted: u64,
    ) -> Result<(), NoRoom> {
        self.slots.scan();
        self.release_unheld()?;
        let class_pages = |state: &Self| {
            let regions = state
                .pool
                .regions()
                .filter(|(_, region)| region.stride() == stride);
            regions
                .map(|(_, region)| u64::from(region.page_count()))
                .sum::<u64>()
        };
        if self.pool.find_free(stride).is_some() {
            return Ok(());
        }
        while !self.carve(stride)? {
            if self.dissolve_idle(counters, stride)? {
                continue;
            }
            if shards.is_loading() {
                return Err(NoRoom::Loading);
            }
            let victim = self.victims(stride, 1).pop();
            let pages_per_region = self
                .pool
                .region_len(stride)
                .map_or(1, |len| (len / stride).max(1));
            let starving = self
                .hunger
                .get(&stride)
                .is_some_and(|evicted| *evicted >= pages_per_region);
            let drain = if victim.is_none() || starving {
                self.cheapest_drain(stride)
            } else {
                None
            };
            match (victim, drain) {
                (Some(victim), Some(drain)) if drain.cost < self.cost(&victim) => {
                    self.drain(shards, counters, stride, &drain)?;
                }
                (None, Some(drain)) => self.drain(shards, counters, stride, &drain)?,
                (Some(victim), _) => {
                    // A few at once, so that the next grants find free pages without another search, and without
                    // another look at the slots of all clients.
                    let share = class_pages(self) / 64;
                    let ahead = if self.slots.are_unused() { 1 } else { AHEAD };
                    let enough = wanted.max(ahead).min(share.max(1)) as usize;
                    let victims = if enough > 1 {
                        self.victims(stride, enough)
                    } else {
                        vec![victim]
                    };
                    let mut evicted = 0;
                    for victim in victims {
                        if self.remove(shards, &victim, RemoveReason::Evicted, false)?
                            == Removal::Removed
                        {
                            counters.evictions.increment();
                            self.count_unstored(counters, &victim);
                            evicted += 1;
                        }
                    }
                    *self.hunger.entry(stride).or_default() += evicted;
                    if evicted > 0 {
                        // What a client has come to hold meanwhile is gone for all, and not free yet.
                        self.release_retired()?;
                        if self.pool.find_free(stride).is_some() {
                            return Ok(());
                        }
                    }
                }
                (None, None) => return Err(NoRoom::Full(self.breakdown(stride))),
            }
        }
        Ok(())
    }

    /// Makes a region of a free extent, if there is one that is large enough.
    fn carve(&mut self, stride: u64) -> Result<bool, JournalError> {
        let Some(change) = self.pool.plan_carve(stride) else {
            return Ok(false);
        };
        self.change(&change)?;
        self.hunger.remove(&stride);
        Ok(true)
    }

    /// Gives up the regions of other page sizes that hold nothing.
    fn dissolve_idle(&mut self, counters: &Counters, stride: u64) -> Result<bool, JournalError> {
        let is_idle =
            |(_, region): &(RegionId, &Region)| region.stride() != stride && region.is_idle();
        let idle: Vec<_> = self
            .pool
            .regions()
            .filter(is_idle)
            .map(|(id, _)| id)
            .collect();
        for &region in &idle {
            self.change(&Change::Dissolve { region })?;
            counters.drained_regions.increment();
        }
        Ok(!idle.is_empty())
    }

    /// What is lost with this object. Without a storage tier it counts as stored, as all others do.
    fn cost(&self, entry: &Entry) -> Cost {
        Cost {
            unstored: self.tier.is_some() && !entry.is_stored(),
            last_use: entry.last_use(),
        }
    }

    fn count_unstored(&self, counters: &Counters, entry: &Entry) {
        if self.cost(entry).unstored {
            counters.unstored_evictions.increment();
        }
    }

    /// The objects that the policy gives up first among those that nobody holds; with a storage tier those that it has
    /// go before others that the policy gives up a little earlier.
    fn victims(&mut self, stride: u64, count: usize) -> Vec<Arc<Entry>> {
        let window = STORED_WINDOW.max(count);
        let (mut victims, mut others) = (Vec::new(), Vec::new());
        let mut seen = 0;
        let (objects, slots, tiered) = (&self.objects, &self.slots, self.tier.is_some());
        let Some(policy) = self.policies.get_mut(&stride) else {
            return victims;
        };
        policy.victims(&mut |id| {
            let entry = objects.get(&id).map(|shown| &shown.entry);
            let is_free =
                |entry: &&Arc<Entry>| !entry.is_held() && !slots.hold(entry.location.page);
            if let Some(entry) = entry.filter(is_free) {
                seen += 1;
                if !tiered || entry.is_stored() {
                    victims.push(Arc::clone(entry));
                } else if others.len() < count {
                    others.push(Arc::clone(entry));
                }
            }
            if victims.len() < count && seen < window {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        others.truncate(count.saturating_sub(victims.len()));
        victims.extend(others);
        victims
    }

    /// What is lost with the objects of the region; `None` if it cannot be drained now.
    fn drain_cost(&self, id: RegionId, region: &Region) -> Option<Cost> {
        if region.granted_count() > 0 {
            return None;
        }
        let in_use = region.page_count() - region.free_count();
        if in_use != region.committed_count() {
            return None;
        }
        let mut left = region.committed_count();
        let mut cost = Cost::default();
        for index in 0..region.page_count() {
            if left == 0 {
                break;
            }
            let page = PageId { region: id, index };
            if let Some(entry) = self.pages.get(page) {
                if entry.is_held() || self.slots.hold(page) {
                    return None;
                }
                cost = cost.and(self.cost(entry));
                left -= 1;
            }
        }
        // What is left waits to be durable.
        (left == 0).then_some(cost)
    }

    /// The coldest run of drainable regions of other page sizes that is long enough for a page of `stride` bytes.
    fn cheapest_drain(&self, stride: u64) -> Option<Drain> {
        struct Segment {
            backing: BackingId,
            offset: u64,
            len: u64,
            region: Option<(RegionId, Cost)>,
        }
        let free = self.pool.extents().free_extents().map(|extent| Segment {
            backing: extent.backing,
            offset: extent.offset,
            len: extent.len,
            region: None,
        });
        let others = self
            .pool
            .regions()
            .filter(|(_, region)| region.stride() != stride);
        let drainable = others.filter_map(|(id, region)| {
            let extent = region.extent();
            let region = Some((id, self.drain_cost(id, region)?));
            Some(Segment {
                backing: extent.backing,
                offset: extent.offset,
                len: extent.len,
                region,
            })
        });
        let mut segments: Vec<_> = free.chain(drainable).collect();
        segments.sort_unstable_by_key(|segment| (segment.backing, segment.offset));

        let mut best: Option<Drain> = None;
        for (start, first) in segments.iter().enumerate() {
            let arena = self.pool.extents().arena(first.backing);
            let needed = if arena.whole {
                stride
            } else {
                stride.checked_next_multiple_of(arena.alignment.max(REGION_ALIGNMENT))?
            };
            let mut drain = Drain {
                regions: Vec::new(),
                cost: Cost::default(),
            };
            let mut end = first.offset;
            for segment in &segments[start..] {
                let too_hot = best.as_ref().is_some_and(|best| best.cost <= drain.cost);
                if segment.backing != first.backing || segment.offset != end || too_hot {
                    break;
                }
                end += segment.len;
                if let Some((id, cost)) = segment.region {
                    drain.regions.push(id);
                    drain.cost = drain.cost.and(cost);
                }
                let colder = best.as_ref().is_none_or(|best| drain.cost < best.cost);
                if end - first.offset >= needed {
                    if colder && !drain.regions.is_empty() {
                        best = Some(drain);
                    }
                    break;
                }
            }
        }
        best
    }

    fn drain(
        &mut self,
        shards: &Shards,
        counters: &Counters,
        stride: u64,
        drain: &Drain,
    ) -> Result<(), NoRoom> {
        for &region in &drain.regions {
            let pages = self.pool.region(region).map_or(0, Region::page_count);
            for index in 0..pages {
                let Some(entry) = self.pages.get(PageId { region, index }).cloned() else {
                    continue;
                };
                if self.remove(shards, &entry, RemoveReason::Drained, false)? == Removal::Kept {
                    // A reader was faster; what was freed stays free, and the search goes on.
                    self.release_retired()?;
                    return Ok(());
                }
                counters.drained_objects.increment();
                self.count_unstored(counters, &entry);
            }
            self.release_retired()?;
            if !self.pool.region(region).is_some_and(Region::is_idle) {
                return Ok(());
            }
            self.change(&Change::Dissolve { region })?;
            counters.drained_regions.increment();
        }
        tracing::debug!(
            stride,
            regions = drain.regions.len(),
            "drained regions of other page sizes"
        );
        Ok(())
    }

    /// Where the bytes are that keep a page of `stride` bytes from being freed.
    pub(crate) fn breakdown(&self, stride: u64) -> Breakdown {
        let extents = self.pool.extents();
        let mut breakdown = Breakdown {
            asked: stride,
            free: extents.free_bytes(),
            largest_free_extent: extents.find_largest().map_or(0, |extent| extent.len),
            ..Breakdown::default()
        };
        for (_, region) in self.pool.regions() {
            if region.stride() == stride {
                breakdown.granted += u64::from(region.granted_count()) * stride;
            } else {
                breakdown.other_classes += region.extent().len;
            }
        }
        let captive = self.tier.map(|tier| self.pool.grants_of(tier));
        let captive = captive.unwrap_or_default().into_iter().filter(|grant| {
            let region = self.pool.region(grant.page.region);
            region.is_some_and(|region| region.stride() == stride)
        });
        breakdown.captive = captive.count() as u64 * stride;
        breakdown.granted -= breakdown.captive;
        let objects = self.objects.values().map(|shown| &shown.entry);
        for entry in objects.filter(|entry| entry.stride == stride) {
            if entry.leases() > 0 || self.slots.hold(entry.location.page) {
                breakdown.leased += stride;
            } else if entry.pins() > 0 {
                breakdown.pinned += stride;
            }
        }
        // An object that waits to be durable is its writer's still.
        let pending = self.pending.values().filter(|entry| entry.stride == stride);
        breakdown.granted += pending.count() as u64 * stride;
        breakdown.leased += self
            .retired
            .iter()
            .filter(|entry| entry.stride == stride)
            .count() as u64
            * stride;
        breakdown
    }
}
