//! Regions and pages: who may write what, and what is free.
//!
//! The pool is plain state without locks, files or keys. Every mutation goes through [`Pool::apply`], so that a
//! recorded sequence of changes rebuilds the same state.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use foldhash::fast::RandomState;
use ondol_plugin::{RegionId, RegionSpan};
use ondol_shm::{ClientId, Generation, Grant, Location, PageId, StaleReason};

use crate::extent::{Arena, Extent, ExtentAllocator, REGION_ALIGNMENT};
use crate::journal::Change;
pub(crate) use parts::RegionParts;

mod parts;

/// No region has more pages than this, so that the book of a region of small pages stays small.
const MAX_PAGES: u64 = 65_536;
/// The shortest page in bytes.
pub const MIN_PAGE_BYTES: u64 = 64;

/// How a region's length follows from the page size: at most this share of it may stay unused behind the last page.
const TOLERATED_WASTE: u64 = 8;

/// What a page is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Nothing; it may be granted.
    Free,
    /// A client may write it.
    Granted(ClientId),
    /// It holds a visible object.
    Committed,
    /// It holds an object that was removed while readers held it.
    Retired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    generation: Generation,
    state: PageState,
}

/// One region.
#[derive(Debug, PartialEq, Eq)]
pub struct Region {
    extent: Extent,
    stride: u64,
    pages: Vec<Page>,
    /// Free pages, the next to be granted last.
    free: Vec<u32>,
    granted: u32,
    committed: u32,
}

/// Number of pages of a region. Where a region is a whole file, the rest of a long one may stay unused.
fn page_count(extent: Extent, stride: u64) -> u64 {
    (extent.len / stride).min(MAX_PAGES)
}

impl Region {
    fn new(extent: Extent, stride: u64) -> Self {
        let count = page_count(extent, stride) as u32;
        let page = Page {
            generation: Generation(0),
            state: PageState::Free,
        };
        let free = (0..count).rev().collect();
        Self {
            extent,
            stride,
            pages: vec![page; count as usize],
            free,
            granted: 0,
            committed: 0,
        }
    }

    /// Its bytes.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Its page size.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// Number of its pages.
    pub fn page_count(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Pages that hold nothing.
    pub fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Pages granted to clients.
    pub fn granted_count(&self) -> u32 {
        self.granted
    }

    /// Pages that hold a visible object.
    pub fn committed_count(&self) -> u32 {
        self.committed
    }

    /// In which generation a page is and what it is used for; `None` if there is no such page.
    pub fn page(&self, index: u32) -> Option<(Generation, PageState)> {
        let page = self.pages.get(index as usize)?;
        Some((page.generation, page.state))
    }

    /// Whether no page is in use.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.pages.len()
    }

    /// Where the region lies.
    pub fn span(&self, id: RegionId) -> RegionSpan {
        RegionSpan {
            region_id: id,
            offset: self.extent.offset,
            length: self.extent.len,
        }
    }
}

/// The pages of one size.
#[derive(Debug, Default, PartialEq, Eq)]
struct Class {
    regions: BTreeSet<RegionId>,
    /// Those of them that have a free page.
    open: BTreeSet<RegionId>,
}

/// A change that does not fit the state: a damaged record or a fault of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pool is in no state for {change:?}: {reason}")]
pub struct ApplyError {
    /// The change.
    pub change: Box<Change>,
    /// Why not.
    pub reason: String,
}

/// The pages granted to one client.
#[derive(Debug, Default, PartialEq, Eq)]
struct ClientGrants {
    /// Each page with the request that it answered.
    pages: HashMap<PageId, u64, RandomState>,
    /// The pages that are left of each request's answer.
    by_request: HashMap<u64, Vec<PageId>, RandomState>,
}

/// Regions, pages and free extents of all devices.
#[derive(Debug, PartialEq, Eq)]
pub struct Pool {
    extents: ExtentAllocator,
    regions: BTreeMap<RegionId, Region>,
    classes: BTreeMap<u64, Class>,
    granted: HashMap<ClientId, ClientGrants, RandomState>,
    next_region: u64,
    region_bytes: u64,
}

impl Pool {
    /// An empty pool over these backings. Regions are `region_bytes` long where the page size allows it; by default
    /// a 64th of the pool, between 2 and 256 MiB.
    pub fn new(arenas: impl IntoIterator<Item = Arena>, region_bytes: Option<u64>) -> Self {
        let extents = ExtentAllocator::new(arenas);
        let region_bytes = region_bytes
            .unwrap_or_else(|| (extents.total_bytes() / 64).clamp(REGION_ALIGNMENT, 256 << 20))
            .next_multiple_of(REGION_ALIGNMENT);
        Self {
            extents,
            regions: BTreeMap::new(),
            classes: BTreeMap::new(),
            granted: HashMap::default(),
            next_region: 1,
            region_bytes,
        }
    }

    /// A free page of this size, if a region has one.
    pub fn find_free(&self, stride: u64) -> Option<Grant> {
        let region = *self.classes.get(&stride)?.open.first()?;
        let pages = &self.regions[&region];
        let index = *pages.free.last()?;
        let generation = Generation(pages.pages[index as usize].generation.0 + 1);
        Some(Grant {
            page: PageId { region, index },
            generation,
        })
    }

    /// The change that makes a new region of this page size, if there is a free extent for one.
    pub fn plan_carve(&self, stride: u64) -> Option<Change> {
        let wanted = self.region_len(stride)?;
        // Where there is no room for a full region, a smaller one serves as well.
        let smaller = || {
            self.extents
                .find_largest()
                .filter(|extent| extent.len >= stride)
        };
        let extent = self.extents.find(wanted).or_else(smaller)?;
        Some(Change::Carve {
            region: RegionId(self.next_region),
            extent,
            stride,
        })
    }

    /// Length of a region of this page size: the configured one, or the first multiple of 2 MiB above it that
    /// wastes at most an eighth. `None` if no device could ever hold one page, or the page is too short.
    pub fn region_len(&self, stride: u64) -> Option<u64> {
        if stride < MIN_PAGE_BYTES || stride > self.extents.largest_arena() {
            return None;
        }
        let most = stride
            .saturating_mul(MAX_PAGES)
            .checked_next_multiple_of(REGION_ALIGNMENT)
            .unwrap_or(u64::MAX);
        let base = self
            .region_bytes
            .min(most)
            .max(stride.checked_next_multiple_of(REGION_ALIGNMENT)?);
        let tries = (0..)
            .map(|step| base + step * REGION_ALIGNMENT)
            .take_while(|len| *len <= base + 8 * stride);
        let largest = self.extents.largest_arena();
        let good = tries
            .into_iter()
            .find(|len| *len <= largest && len % stride <= len / TOLERATED_WASTE);
        Some(good.unwrap_or(base).min(largest))
    }

    /// Whether the page is granted to this client in this generation.
    ///
    /// # Errors
    /// [`StaleReason`] says why not.
    pub fn check_grant(&self, client: ClientId, grant: Grant) -> Result<(), StaleReason> {
        let page = self.page(grant.page).ok_or(StaleReason::UnknownPage)?;
        if page.generation != grant.generation {
            return Err(StaleReason::OldGeneration);
        }
        if page.state != PageState::Granted(client) {
            return Err(StaleReason::NotGranted);
        }
        Ok(())
    }

    /// Pages granted to a client.
    pub fn grants_of(&self, client: ClientId) -> Vec<Grant> {
        let grants = self.granted.get(&client).into_iter();
        self.grants(grants.flat_map(|grants| grants.pages.keys()))
    }

    /// Pages that were granted to a client as the answer to this request, and still are.
    pub fn granted_under(&self, client: ClientId, request: u64) -> Vec<Grant> {
        let grants = self.granted.get(&client);
        let pages = grants.and_then(|grants| grants.by_request.get(&request));
        self.grants(pages.into_iter().flatten())
    }

    fn grants<'a>(&self, pages: impl Iterator<Item = &'a PageId>) -> Vec<Grant> {
        let grant = |&page: &PageId| {
            Some(Grant {
                page,
                generation: self.page(page)?.generation,
            })
        };
        pages.filter_map(grant).collect()
    }

    /// Number and bytes of the pages granted to a client.
    pub fn granted_to(&self, client: ClientId) -> (u64, u64) {
        let grants = self.granted.get(&client).into_iter();
        let pages = grants.flat_map(|grants| grants.pages.keys());
        pages.fold((0, 0), |(pages, bytes), page| {
            (
                pages + 1,
                bytes
                    + self
                        .regions
                        .get(&page.region)
                        .map_or(0, |region| region.stride),
            )
        })
    }

    /// What a page is used for; `None` if there is no such page.
    pub fn state(&self, page: PageId) -> Option<PageState> {
        self.page(page).map(|page| page.state)
    }

    /// The region of this id.
    pub fn region(&self, id: RegionId) -> Option<&Region> {
        self.regions.get(&id)
    }

    /// Every region, by id.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, &Region)> {
        self.regions.iter().map(|(id, region)| (*id, region))
    }

    /// Page sizes that have a region, smallest first, with their regions.
    pub fn classes(
        &self,
    ) -> impl Iterator<Item = (u64, impl Iterator<Item = (RegionId, &Region)>)> {
        self.classes.iter().map(|(stride, class)| {
            (
                *stride,
                class.regions.iter().map(|id| (*id, &self.regions[id])),
            )
        })
    }

    /// The extents that lie in no region.
    pub fn extents(&self) -> &ExtentAllocator {
        &self.extents
    }

    /// Makes a change, or reports that it does not fit and changes nothing.
    ///
    /// # Errors
    /// [`ApplyError`].
    pub fn apply(&mut self, change: &Change) -> Result<(), ApplyError> {
        let refuse = |reason: &str| ApplyError {
            change: Box::new(change.clone()),
            reason: reason.to_owned(),
        };
        match *change {
            Change::Carve {
                region,
                extent,
                stride,
            } => {
                if region.0 < self.next_region {
                    return Err(refuse("region ids only grow"));
                }
                if stride == 0 || stride > extent.len {
                    return Err(refuse("the page size does not fit the extent"));
                }
                self.extents
                    .take(extent)
                    .map_err(|_| refuse("the extent is not free"))?;
                self.next_region = region.0 + 1;
                self.regions.insert(region, Region::new(extent, stride));
                let class = self.classes.entry(stride).or_default();
                class.regions.insert(region);
                class.open.insert(region);
            }
            Change::Dissolve { region } => {
                let idle = self.regions.get(&region).is_some_and(Region::is_idle);
                if !idle {
                    return Err(refuse("the region is unknown or in use"));
                }
                if let Some(gone) = self.regions.remove(&region) {
                    self.extents
                        .free(gone.extent)
                        .map_err(|error| refuse(&error.to_string()))?;
                    if let Some(class) = self.classes.get_mut(&gone.stride) {
                        class.regions.remove(&region);
                        class.open.remove(&region);
                        if class.regions.is_empty() {
                            self.classes.remove(&gone.stride);
                        }
                    }
                }
            }
            Change::Grant {
                grant,
                client,
                request,
            } => {
                let page = self
                    .page(grant.page)
                    .ok_or_else(|| refuse("there is no such page"))?;
                if page.state != PageState::Free || page.generation.0 >= grant.generation.0 {
                    return Err(refuse(
                        "the page is not free or the generation does not grow",
                    ));
                }
                self.set(grant.page, PageState::Granted(client));
                let grants = self.granted.entry(client).or_default();
                grants.pages.insert(grant.page, request);
                grants
                    .by_request
                    .entry(request)
                    .or_default()
                    .push(grant.page);
                if let Some(region) = self.regions.get_mut(&grant.page.region) {
                    region.pages[grant.page.index as usize].generation = grant.generation;
                }
            }
            Change::Return { grant, client } => {
                self.check_grant(client, grant)
                    .map_err(|reason| refuse(&reason.to_string()))?;
                self.set(grant.page, PageState::Free);
            }
            Change::Commit {
                location:
                    Location {
                        page,
                        generation,
                        len,
                    },
                client,
                ..
            } => {
                self.check_grant(client, Grant { page, generation })
                    .map_err(|reason| refuse(&reason.to_string()))?;
                if len > self.regions[&page.region].stride {
                    return Err(refuse("the object is longer than its page"));
                }
                self.set(page, PageState::Committed);
            }
            Change::Remove { location, .. } => {
                let page = self.page(location.page);
                let holds = |page: &Page| {
                    page.state == PageState::Committed && page.generation == location.generation
                };
                if !page.as_ref().is_some_and(holds) {
                    return Err(refuse("the page does not hold that object"));
                }
                self.set(location.page, PageState::Retired);
            }
            Change::Release { page } => {
                if self.state(page) != Some(PageState::Retired) {
                    return Err(refuse("the page does not hold a removed object"));
                }
                self.set(page, PageState::Free);
            }
            Change::Pin { .. }
            | Change::Unpin { .. }
            | Change::Attach { .. }
            | Change::Detach { .. } => {}
        }
        Ok(())
    }

    fn page(&self, page: PageId) -> Option<Page> {
        self.regions
            .get(&page.region)?
            .pages
            .get(page.index as usize)
            .copied()
    }

    /// Moves a page that exists from its state to `next` and keeps all counts.
    fn set(&mut self, id: PageId, next: PageState) {
        let Some(region) = self.regions.get_mut(&id.region) else {
            return;
        };
        let had_free = !region.free.is_empty();
        let page = &mut region.pages[id.index as usize];
        let last = std::mem::replace(&mut page.state, next);
        match last {
            // The page that is granted is the last of the list, save in a replay of foreign order.
            PageState::Free if region.free.last() == Some(&id.index) => drop(region.free.pop()),
            PageState::Free => region.free.retain(|free| *free != id.index),
            PageState::Granted(client) => {
                region.granted -= 1;
                if let Some(grants) = self.granted.get_mut(&client) {
                    let request = grants.pages.remove(&id);
                    if let Some(request) = request
                        && let Some(pages) = grants.by_request.get_mut(&request)
                    {
                        pages.retain(|page| *page != id);
                        if pages.is_empty() {
                            grants.by_request.remove(&request);
                        }
                    }
                    if grants.pages.is_empty() {
                        self.granted.remove(&client);
                    }
                }
            }
            PageState::Committed => region.committed -= 1,
            PageState::Retired => {}
        }
        match next {
            PageState::Free => region.free.push(id.index),
            PageState::Granted(_) => region.granted += 1,
            PageState::Committed => region.committed += 1,
            PageState::Retired => {}
        }
        let has_free = !region.free.is_empty();
        if has_free != had_free
            && let Some(class) = self.classes.get_mut(&region.stride)
        {
            if has_free {
                class.open.insert(id.region);
            } else {
                class.open.remove(&id.region);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondol_plugin::Key;
    use ondol_shm::ObjectMeta;
    use proptest::prelude::*;

    use crate::RemoveReason;

    const CLIENT: ClientId = ClientId(1);
    const MIB: u64 = 1 << 20;

    fn pool(mib: u64) -> Pool {
        Pool::new(
            [Arena {
                usable: 0..mib * MIB,
                alignment: 4096,
                whole: false,
            }],
            Some(2 * MIB),
        )
    }

    /// Grants one page of `stride`, carving a region if needed.
    fn grant(pool: &mut Pool, stride: u64, client: ClientId) -> Option<(Grant, Vec<Change>)> {
        let mut changes = Vec::new();
        if pool.find_free(stride).is_none() {
            changes.push(pool.plan_carve(stride)?);
            pool.apply(&changes[0]).unwrap();
        }
        let grant = pool.find_free(stride)?;
        changes.push(Change::Grant {
            grant,
            client,
            request: 1,
        });
        pool.apply(changes.last().unwrap()).unwrap();
        Some((grant, changes))
    }

    fn commit(grant: Grant, len: u64) -> Change {
        let location = Location {
            page: grant.page,
            generation: grant.generation,
            len,
        };
        Change::Commit {
            key: Key::integer(1),
            location,
            meta: ObjectMeta::default(),
            client: CLIENT,
        }
    }

    #[test]
    fn the_stride_is_exactly_what_was_asked() {
        let mut pool = pool(8);
        let stride = 100_001;
        let (grant, _) = grant(&mut pool, stride, CLIENT).unwrap();
        let region = pool.region(grant.page.region).unwrap();
        assert_eq!(region.stride(), stride);
        assert_eq!(u64::from(region.page_count()), 2 * MIB / stride);
    }

    #[test]
    fn a_region_that_is_a_long_file_has_no_endless_book() {
        let arena = Arena {
            usable: 0..1 << 40,
            alignment: 4096,
            whole: true,
        };
        let mut pool = Pool::new([arena], None);
        let (grant, _) = grant(&mut pool, MIN_PAGE_BYTES, CLIENT).unwrap();
        let region = pool.region(grant.page.region).unwrap();
        assert_eq!(u64::from(region.page_count()), MAX_PAGES);
    }

    #[test]
    fn a_large_page_gets_a_region_that_wastes_little() {
        let pool = pool(64);
        assert_eq!(pool.region_len(3 * MIB), Some(6 * MIB));
        assert_eq!(pool.region_len(2 * MIB), Some(2 * MIB));
        assert_eq!(pool.region_len(64 * MIB), Some(64 * MIB));
        assert_eq!(pool.region_len(64 * MIB + 1), None);
        assert_eq!(pool.region_len(0), None);
    }

    #[test]
    fn returning_twice_is_an_error_and_changes_nothing() {
        let mut pool = pool(2);
        let (grant, _) = grant(&mut pool, MIB, CLIENT).unwrap();
        pool.apply(&Change::Return {
            grant,
            client: CLIENT,
        })
        .unwrap();
        assert_eq!(
            pool.check_grant(CLIENT, grant),
            Err(StaleReason::NotGranted)
        );
        assert!(
            pool.apply(&Change::Return {
                grant,
                client: CLIENT
            })
            .is_err()
        );
        let again = pool.find_free(MIB).unwrap();
        assert_eq!(again.page, grant.page);
        pool.apply(&Change::Grant {
            grant: again,
            client: ClientId(2),
            request: 1,
        })
        .unwrap();
        assert_eq!(
            pool.check_grant(CLIENT, grant),
            Err(StaleReason::OldGeneration)
        );
        assert_eq!(
            pool.check_grant(CLIENT, again),
            Err(StaleReason::NotGranted)
        );
        assert!(pool.apply(&commit(grant, 1)).is_err());
    }

    #[test]
    fn a_committed_page_cannot_be_granted_returned_or_released() {
        let mut pool = pool(2);
        let (grant, _) = grant(&mut pool, MIB, CLIENT).unwrap();
        assert!(pool.apply(&commit(grant, MIB + 1)).is_err());
        pool.apply(&commit(grant, MIB)).unwrap();
        let next = Grant {
            generation: Generation(grant.generation.0 + 1),
            ..grant
        };
        for change in [
            Change::Return {
                grant,
                client: CLIENT,
            },
            Change::Release { page: grant.page },
            Change::Grant {
                grant: next,
                client: CLIENT,
                request: 2,
            },
            Change::Dissolve {
                region: grant.page.region,
            },
        ] {
            assert!(pool.apply(&change).is_err(), "{change:?}");
        }
        assert_eq!(pool.state(grant.page), Some(PageState::Committed));
    }

    #[test]
    fn region_ids_are_never_reused() {
        let mut pool = pool(2);
        let mut last = RegionId(0);
        for _ in 0..5 {
            let (granted, _) = grant(&mut pool, MIB, CLIENT).unwrap();
            assert!(granted.page.region > last);
            last = granted.page.region;
            pool.apply(&Change::Return {
                grant: granted,
                client: CLIENT,
            })
            .unwrap();
            pool.apply(&Change::Dissolve { region: last }).unwrap();
        }
        assert_eq!(pool.extents().free_bytes(), 2 * MIB);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Grant(u8),
        Return(usize),
        Commit(usize),
        Remove(usize),
        Release(usize),
        Dissolve(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let index = || any::<usize>();
        let step = prop_oneof![
            4 => (0..3_u8).prop_map(Step::Grant),
            2 => index().prop_map(Step::Return),
            3 => index().prop_map(Step::Commit),
            2 => index().prop_map(Step::Remove),
            2 => index().prop_map(Step::Release),
            1 => index().prop_map(Step::Dissolve),
        ];
        proptest::collection::vec(step, 1..150)
    }

    proptest! {
        /// A map from page to state is the model; every count of the pool must follow from it, and a second
        /// pool that only applies the recorded changes must end up equal.
        #[test]
        fn the_pool_agrees_with_a_map_and_with_its_replay(steps in steps()) {
            const STRIDES: [u64; 3] = [700_000, MIB, 3 * MIB];
            let mut pool = pool(12);
            let mut replay = self::pool(12);
            let mut model: BTreeMap<PageId, (Generation, PageState)> = BTreeMap::new();
            for step in steps {
                let pick = |index: usize, wanted: PageState| {
                    let pages: Vec<_> = model.iter().filter(|(_, (_, state))| *state == wanted).collect();
                    (!pages.is_empty()).then(|| {
                        let (page, (generation, _)) = pages[index % pages.len()];
                        Grant { page: *page, generation: *generation }
                    })
                };
                let changes = match step {
                    Step::Grant(class) => {
                        let Some((grant, changes)) = grant(&mut pool, STRIDES[usize::from(class)], CLIENT) else { continue };
                        let before = model.insert(grant.page, (grant.generation, PageState::Granted(CLIENT)));
                        prop_assert!(before.is_none_or(|(generation, state)|
                            state == PageState::Free && generation < grant.generation));
                        changes
                    }
                    Step::Dissolve(index) => {
                        let regions: Vec<_> = pool.regions().map(|(id, _)| id).collect();
                        if regions.is_empty() { continue }
                        let region = regions[index % regions.len()];
                        let change = Change::Dissolve { region };
                        let busy = model.iter().any(|(page, (_, state))| page.region == region && *state != PageState::Free);
                        prop_assert_eq!(pool.apply(&change).is_err(), busy);
                        if busy { continue }
                        model.retain(|page, _| page.region != region);
                        vec![change]
                    }
                    Step::Return(index) => {
                        let Some(grant) = pick(index, PageState::Granted(CLIENT)) else { continue };
                        model.insert(grant.page, (grant.generation, PageState::Free));
                        let change = Change::Return { grant, client: CLIENT };
                        pool.apply(&change).unwrap();
                        vec![change]
                    }
                    Step::Commit(index) => {
                        let Some(grant) = pick(index, PageState::Granted(CLIENT)) else { continue };
                        model.insert(grant.page, (grant.generation, PageState::Committed));
                        let change = commit(grant, 5);
                        pool.apply(&change).unwrap();
                        vec![change]
                    }
                    Step::Remove(index) => {
                        let Some(Grant { page, generation }) = pick(index, PageState::Committed) else { continue };
                        model.insert(page, (generation, PageState::Retired));
                        let location = Location { page, generation, len: 5 };
                        let change = Change::Remove { key: Key::integer(1), location, reason: RemoveReason::Deleted };
                        pool.apply(&change).unwrap();
                        vec![change]
                    }
                    Step::Release(index) => {
                        let Some(Grant { page, generation }) = pick(index, PageState::Retired) else { continue };
                        model.insert(page, (generation, PageState::Free));
                        let change = Change::Release { page };
                        pool.apply(&change).unwrap();
                        vec![change]
                    }
                };
                changes.iter().for_each(|change| replay.apply(change).unwrap());

                let count = |region: RegionId, wanted: PageState| {
                    model.iter().filter(|(page, (_, state))| page.region == region && *state == wanted).count() as u32
                };
                let mut in_regions = 0;
                for (id, region) in pool.regions() {
                    let (granted, committed) = (count(id, PageState::Granted(CLIENT)), count(id, PageState::Committed));
                    let free = region.page_count() - granted - committed - count(id, PageState::Retired);
                    prop_assert_eq!(
                        (region.granted_count(), region.committed_count(), region.free_count()),
                        (granted, committed, free));
                    in_regions += region.extent().len;
                }
                prop_assert_eq!(in_regions + pool.extents().free_bytes(), pool.extents().total_bytes());
                let granted = model.values().filter(|(_, state)| *state == PageState::Granted(CLIENT)).count();
                prop_assert_eq!(pool.granted_to(CLIENT).0, granted as u64);
                for stride in STRIDES {
                    let any_free = pool.regions().any(|(_, region)| region.stride() == stride && region.free_count() > 0);
                    prop_assert_eq!(pool.find_free(stride).is_some(), any_free);
                }
            }
            prop_assert_eq!(&pool, &replay);
        }
    }
}
