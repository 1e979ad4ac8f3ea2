use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ondol_plugin::RegionId;
use ondol_shm::PageId;

use crate::entry::Entry;

/// Visible objects by the page that holds them.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    regions: HashMap<RegionId, Vec<Option<Arc<Entry>>>, RandomState>,
}

impl Pages {
    pub(crate) fn get(&self, page: PageId) -> Option<&Arc<Entry>> {
        self.regions
            .get(&page.region)?
            .get(page.index as usize)?
            .as_ref()
    }

    pub(crate) fn insert(&mut self, entry: Arc<Entry>) {
        let page = entry.location.page;
        let pages = self.regions.entry(page.region).or_default();
        let index = page.index as usize;
        if index >= pages.len() {
            pages.resize(index + 1, None);
        }
        pages[index] = Some(entry);
    }

    pub(crate) fn remove(&mut self, page: PageId) {
        if let Some(pages) = self.regions.get_mut(&page.region)
            && let Some(slot) = pages.get_mut(page.index as usize)
        {
            *slot = None;
        }
    }

    /// Forgets a region that is no more.
    pub(crate) fn dissolve(&mut self, region: RegionId) {
        self.regions.remove(&region);
    }
}
