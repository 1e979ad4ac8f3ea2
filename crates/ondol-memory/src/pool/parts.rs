//! The pool in parts, as a checkpoint holds it, and put together again.

use super::{ClientGrants, Page, PageState, Pool, Region, page_count};
use crate::extent::Extent;
use ondol_plugin::RegionId;
use ondol_shm::{ClientId, Generation, Location, PageId};

/// Everything that is known of a region.
#[derive(Debug)]
pub(crate) struct RegionParts {
    pub(crate) extent: Extent,
    pub(crate) stride: u64,
    pub(crate) pages: Vec<(Generation, PageState)>,
    /// Free pages, the next to be granted last.
    pub(crate) free: Vec<u32>,
}

impl Region {
    pub(crate) fn pages(&self) -> impl Iterator<Item = (Generation, PageState)> {
        self.pages.iter().map(|page| (page.generation, page.state))
    }

    pub(crate) fn free_pages(&self) -> &[u32] {
        &self.free
    }
}

impl Pool {
    /// The pool with nothing in it.
    pub fn emptied(&self) -> Self {
        Self {
            extents: self.extents.emptied(),
            regions: Default::default(),
            classes: Default::default(),
            granted: Default::default(),
            next_region: 1,
            region_bytes: self.region_bytes,
        }
    }

    /// The id of the next region.
    pub(crate) fn next_region(&self) -> u64 {
        self.next_region
    }

    /// The pages that are left of the answer to each request of each client.
    pub(crate) fn grants_by_request(&self) -> impl Iterator<Item = (ClientId, u64, &[PageId])> {
        self.granted.iter().flat_map(|(client, grants)| {
            let requests = grants.by_request.iter();
            requests.map(|(request, pages)| (*client, *request, pages.as_slice()))
        })
    }

    /// Puts a region into its place.
    pub(crate) fn restore_region(
        &mut self,
        id: RegionId,
        parts: RegionParts,
    ) -> Result<(), &'static str> {
        let RegionParts {
            extent,
            stride,
            pages,
            free,
        } = parts;
        if stride == 0 || pages.len() as u64 != page_count(extent, stride) {
            return Err("a region with another number of pages than fit");
        }
        let mut listed = vec![false; pages.len()];
        for &index in &free {
            match listed.get_mut(index as usize) {
                Some(listed) if !*listed => *listed = true,
                _ => return Err("a free list with a page twice or one that is not there"),
            }
        }
        let (mut granted, mut committed) = (0, 0);
        for ((_, state), listed) in pages.iter().zip(&listed) {
            if (*state == PageState::Free) != *listed {
                return Err("a free list that does not fit the pages");
            }
            match state {
                PageState::Granted(_) => granted += 1,
                PageState::Committed => committed += 1,
                PageState::Free | PageState::Retired => {}
            }
        }
        self.extents
            .take(extent)
            .map_err(|_| "a region on bytes that are not free")?;
        let class = self.classes.entry(stride).or_default();
        class.regions.insert(id);
        if !free.is_empty() {
            class.open.insert(id);
        }
        let pages = pages.into_iter();
        let region = Region {
            extent,
            stride,
            pages: pages
                .map(|(generation, state)| Page { generation, state })
                .collect(),
            free,
            granted,
            committed,
        };
        match self.regions.insert(id, region) {
            None => Ok(()),
            Some(_) => Err("a region twice"),
        }
    }

    /// Puts back which request was answered with these pages.
    pub(crate) fn restore_grants(
        &mut self,
        client: ClientId,
        request: u64,
        pages: Vec<PageId>,
    ) -> Result<(), &'static str> {
        for page in &pages {
            if self.state(*page) != Some(PageState::Granted(client)) {
                return Err("a grant of a page that is not granted");
            }
        }
        let ClientGrants {
            pages: known,
            by_request,
        } = self.granted.entry(client).or_default();
        for page in &pages {
            if known.insert(*page, request).is_some() {
                return Err("a grant twice");
            }
        }
        match by_request.insert(request, pages) {
            None => Ok(()),
            Some(_) => Err("a request twice"),
        }
    }

    /// Checks what can only be checked when everything is in its place.
    pub(crate) fn finish_restore(&mut self, next_region: u64) -> Result<(), &'static str> {
        if self.regions.keys().any(|id| id.0 >= next_region) {
            return Err("a region above the highest id");
        }
        self.next_region = next_region;
        let granted: usize = self.granted.values().map(|grants| grants.pages.len()).sum();
        let in_regions: u64 = self.regions.values().map(|r| u64::from(r.granted)).sum();
        if granted as u64 != in_regions {
            return Err("granted pages without the request that they answer");
        }
        Ok(())
    }

    /// Whether the page holds what is said to lie there.
    pub(crate) fn holds(&self, location: &Location, state: PageState) -> bool {
        let Some(region) = self.regions.get(&location.page.region) else {
            return false;
        };
        let page = region.pages.get(location.page.index as usize);
        page.is_some_and(|page| page.state == state && page.generation == location.generation)
            && location.len <= region.stride
    }
}
