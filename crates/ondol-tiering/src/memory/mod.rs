//! The memory tier as the controllers use it: leases, pages, admission.

mod guards;
mod regions;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_directory::{Admission, Admitted, Directory, DirectoryError};
use ondol_memory::Backing;
use ondol_plugin::Key;
use ondol_plugin::l2::{Bitmap, L1Mapping};
use ondol_protocol::{Commit, Hit, fitted_page_bytes};
use ondol_shm::{ClientId, Lease, LeaseSlots, Location, ObjectMeta};
use parking_lot::RwLock;

pub use guards::{Leased, Page};

use guards::Granted;
use regions::{Region, Regions};

/// Why the memory tier cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MemoryError(pub String);

/// Makes the bytes of objects as durable as their records will be; nothing where that is not promised.
pub type MakeDurable = Box<dyn Fn(&[Location]) -> io::Result<()> + Send + Sync>;

/// The memory tier.
///
/// It is a client of the directory's like any other, with a lease table of its own, so that what it holds outlives a
/// request, an adapter that hangs, and the engine, for as long as this process may touch it.
pub struct Memory {
    directory: Arc<Directory>,
    client: ClientId,
    slots: Arc<LeaseSlots>,
    regions: Regions,
    make_durable: MakeDurable,
    capacity_bytes: u64,
    max_page_bytes: u64,
    next_request: AtomicU64,
    /// Held by those who admit, so that closing waits for them.
    closed: RwLock<bool>,
}

impl Memory {
    /// The memory tier over `directory`, whose pool lies in `files`. `client` is a client of the directory's with this
    /// lease table, and nobody else's.
    ///
    /// # Errors
    /// If the files or the table cannot be mapped.
    pub fn open<'a>(
        directory: Arc<Directory>,
        client: ClientId,
        lease_table: BorrowedFd<'_>,
        files: impl IntoIterator<Item = &'a Backing>,
        make_durable: MakeDurable,
    ) -> Result<Self, MemoryError> {
        let slots = LeaseSlots::open(lease_table).map_err(|error| {
            MemoryError(format!("the storage tier has no lease table: {error}"))
        })?;
        let regions = Regions::map(files).map_err(|error| {
            MemoryError(format!("the storage tier cannot map the pool: {error}"))
        })?;
        directory.set_tier(client);
        let (capacity_bytes, max_page_bytes) = directory.with_pool(|pool| {
            let extents = pool.extents();
            (extents.total_bytes(), extents.largest_arena())
        });
        Ok(Self {
            directory,
            client,
            slots,
            regions,
            make_durable,
            capacity_bytes,
            max_page_bytes,
            next_request: AtomicU64::new(1),
            closed: RwLock::new(false),
        })
    }

    /// How the pool is mapped here, for adapters that register memory: each file as it is read and as it is written.
    pub fn l1_mappings(&self) -> Vec<L1Mapping> {
        self.regions.l1_mappings()
    }

    /// Leases the objects of these keys; `None` for those that are not there, or when the tier has as many leases as it
    /// may, which is counted. It does not count as a use.
    pub fn lease(&self, keys: &[Key]) -> Vec<Option<Leased>> {
        let mut leases = Vec::with_capacity(keys.len());
        let hits = self.directory.lease(self.client, keys, || {
            let lease = self.slots.propose()?;
            let reference = lease.reference();
            leases.push(lease);
            Some(reference)
        });
        match hits {
            Ok(hits) => {
                let mut view = self.viewer();
                let mut leases = leases.into_iter();
                hits.into_iter()
                    .map(|hit| hit.and_then(|hit| view(hit, leases.next()?)))
                    .collect()
            }
            Err(error) => {
                if !matches!(error, DirectoryError::UnknownClient) {
                    tracing::warn!(?error, "objects cannot be leased for the storage tier");
                }
                keys.iter().map(|_| None).collect()
            }
        }
    }

    /// Makes views of leased objects; neighbours in one region are found at once.
    fn viewer(&self) -> impl FnMut(Hit, Lease) -> Option<Leased> {
        let mut last: Option<Arc<Region>> = None;
        move |hit, lease| {
            let id = hit.location.page.region;
            let region = match &last {
                Some(region) if region.read.span().region_id == id => region,
                _ => last.insert(self.regions.get(&self.directory, id)?),
            };
            match region.read.view(hit.location, lease) {
                Ok(bytes) => Some(Leased::new(bytes, hit.meta)),
                Err(error) => {
                    tracing::error!(%error, "an object does not lie in its region");
                    None
                }
            }
        }
    }

    /// Which objects are there now.
    pub fn contains(&self, keys: &[Key]) -> Bitmap {
        let mut found = Bitmap::new(keys.len());
        self.directory.find_all(keys, |index| found.set(index));
        found
    }

    /// Pages of exactly these lengths; `None` for those that there is no room for. Objects are evicted for them as for any
    /// grant. A page size that is in use is taken if it wastes at most a fifth.
    pub fn reserve(&self, lengths: &[u64]) -> Vec<Option<Page>> {
        let mut by_stride: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        self.directory.with_pool(|pool| {
            let mut last = None;
            for (index, &len) in lengths.iter().enumerate() {
                let stride = match last {
                    Some((same, stride)) if same == len => stride,
                    _ => {
                        let mut in_use = pool.classes().map(|(stride, _)| stride);
                        in_use
                            .find(|stride| *stride >= len && stride - len <= stride / 5)
                            .or_else(|| fitted_page_bytes(len))
                    }
                };
                last = Some((len, stride));
                if let Some(stride) = stride.filter(|stride| *stride <= self.max_page_bytes) {
                    by_stride.entry(stride).or_default().push(index);
                }
            }
        });
        let mut pages: Vec<_> = lengths.iter().map(|_| None).collect();
        if *self.closed.read() {
            return pages;
        }
        for (stride, indices) in by_stride {
            let request = self.next_request.fetch_add(1, Ordering::Relaxed);
            let granted = self
                .directory
                .grant_all(self.client, request, stride, indices.len());
            let grants = match granted {
                Ok(grants) => grants,
                Err(DirectoryError::Full(breakdown)) => {
                    tracing::debug!(%breakdown, "no page to load into");
                    continue;
                }
                Err(error) => {
                    tracing::warn!(?error, "no page to load into");
                    continue;
                }
            };
            for (grant, index) in grants.into_iter().zip(indices) {
                let granted = Granted::new(grant, Arc::clone(self.directory.returns()));
                let page = grant.page;
                let region = self.regions.get(&self.directory, page.region);
                let bytes = region.map(|region| region.write.claim(page, lengths[index]));
                match bytes {
                    Some(Ok(bytes)) => pages[index] = Some(Page::new(bytes, granted)),
                    Some(Err(error)) => tracing::error!(%error, "a granted page cannot be written"),
                    None => tracing::error!(%page, "a granted page lies in no region"),
                }
            }
        }
        pages
    }

    /// Makes loaded objects visible and leases them in one step: the first `len` bytes of each page. Where an object of that key
    /// is there already, that one is leased and the page let go. They count as stored in a backend, and nobody is told
    /// that they were committed. `None` where nothing could be recorded.
    pub fn admit(&self, objects: Vec<(Key, Page, u64, ObjectMeta)>) -> Vec<Option<Leased>> {
        let mut admitted: Vec<_> = objects.iter().map(|_| None).collect();
        let closed = self.closed.read();
        if *closed || objects.is_empty() {
            return admitted;
        }
        let mut pages = Vec::with_capacity(objects.len());
        let mut leases = Vec::with_capacity(objects.len());
        let mut admissions = Vec::with_capacity(objects.len());
        for (key, page, len, meta) in objects {
            let granted = page.finish();
            let grant = granted.grant();
            let lease = self.slots.propose();
            admissions.push(Admission {
                commit: Commit {
                    key,
                    location: Location {
                        page: grant.page,
                        generation: grant.generation,
                        len,
                    },
                    meta,
                },
                lease: lease.as_ref().map(Lease::reference),
            });
            pages.push(granted);
            leases.push(lease);
        }
        let locations: Vec<_> = admissions
            .iter()
            .map(|admission| admission.commit.location)
            .collect();
        if let Err(error) = (self.make_durable)(&locations) {
            tracing::warn!(%error, "loaded objects are not admitted, as their bytes are not durable");
            return admitted;
        }
        let outcomes = match self.directory.admit(self.client, &admissions) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                // What was recorded all the same is not the tier's any more; the directory knows when a page comes back.
                tracing::warn!(?error, "loaded objects are not admitted");
                return admitted;
            }
        };
        drop(closed);
        let mut view = self.viewer();
        let mut unverified = Vec::new();
        for (index, ((outcome, page), lease)) in
            outcomes.into_iter().zip(pages).zip(leases).enumerate()
        {
            match outcome {
                Admitted::Visible(hit) => {
                    page.keep();
                    admitted[index] = lease.and_then(|lease| view(hit, lease));
                }
                Admitted::Present(hit) => {
                    admitted[index] = lease.and_then(|lease| view(hit, lease));
                }
                Admitted::Unleased => page.keep(),
                Admitted::Unverified => unverified.push(index),
                Admitted::Refused(reason) => {
                    tracing::warn!(%reason, "a loaded object is not admitted");
                }
            }
        }
        if !unverified.is_empty() {
            let keys: Vec<_> = unverified
                .iter()
                .map(|&index| admissions[index].commit.key.clone())
                .collect();
            for (index, leased) in unverified.into_iter().zip(self.lease(&keys)) {
                admitted[index] = leased;
            }
        }
        admitted
    }

    /// Notes that these objects are safe in a backend, so that they are evicted before others.
    pub fn mark_stored(&self, keys: &[Key]) {
        self.directory.mark_stored(keys, true);
    }

    /// Notes that no backend has these objects any more.
    pub fn mark_unstored(&self, keys: &[Key]) {
        self.directory.mark_stored(keys, false);
    }

    /// Which of these objects are there and not known to be safe in a backend.
    pub fn unstored(&self, keys: &[Key]) -> Bitmap {
        let mut unstored = Bitmap::new(keys.len());
        self.directory
            .find_unstored(keys, |index| unstored.set(index));
        unstored
    }

    /// The objects of one part of the memory that are not known to be safe in a backend, with their lengths; `None` behind
    /// the last part. Parts count from 0, and all of them together are all objects.
    pub fn unstored_part(&self, part: usize) -> Option<Vec<(Key, u64)>> {
        self.directory.unstored_part(part)
    }

    /// The objects of one part of the memory, as [`unstored_part`](Self::unstored_part) gives those that are not safe.
    pub fn part(&self, part: usize) -> Option<Vec<(Key, u64)>> {
        self.directory.part(part)
    }

    /// Removes objects unless somebody holds them; how many.
    pub fn evict(&self, keys: &[Key]) -> u64 {
        self.directory.let_go(keys).unwrap_or_else(|error| {
            tracing::warn!(?error, "objects that are stored stay in memory");
            0
        })
    }

    /// Keys of objects, in their order, from the first behind `after`. Each call looks at all objects; to see all of them
    /// once, [`unstored_part`](Self::unstored_part) is cheaper.
    pub fn list(&self, after: Option<&Key>, limit: usize) -> Vec<Key> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let listing = self.directory.list(after, limit);
        listing
            .objects
            .into_iter()
            .map(|object| object.key)
            .collect()
    }

    /// Bytes of the pool.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes of pages that are granted to the tier: reserved, or in the hands of an adapter.
    pub fn reserved_bytes(&self) -> u64 {
        self.directory.tier_grants().1
    }

    /// Leases in use.
    pub fn leases(&self) -> usize {
        self.slots.in_use()
    }

    /// Frees pages that were let go now. Who makes room does so too, so nothing is lost if nobody calls this.
    pub fn flush_returns(&self) {
        if let Err(error) = self.directory.flush_returns() {
            tracing::warn!(?error, "pages that were let go stay captive for now");
        }
    }

    /// Ends reserving, admitting and leasing. What is held stays held: a page that a transfer may still touch, and an object
    /// that is still read, are nobody else's for as long as this process lives, also under the next engine.
    pub fn close(&self) {
        if std::mem::replace(&mut *self.closed.write(), true) {
            return;
        }
        self.flush_returns();
        if let Err(error) = self.directory.leave(self.client) {
            tracing::warn!(?error, "the storage tier could not leave the directory");
        }
        let (pages, bytes) = self.directory.tier_grants();
        let leases = self.leases();
        if pages > 0 || leases > 0 {
            tracing::warn!(
                pages,
                bytes,
                leases,
                "transfers of the storage tier have not ended; what they may touch stays captive"
            );
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("client", &self.client)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}
