//! Objects of the last run are compared with their checksum before they are served for the first time.

use std::fmt;
use std::sync::Arc;

use ondol_memory::{Change, Extent, JournalError, Region, RemoveReason};
use ondol_shm::Location;

use crate::directory::{Directory, DirectoryError, Found, Wanted};
use crate::entry::Entry;
use crate::state::Removal;

/// Reads objects where they lie.
pub trait Verifier: Send + Sync + fmt::Debug {
    /// Whether the object at `location`, in the region of that extent and page size, has this xxh3-64. The object is
    /// leased meanwhile.
    ///
    /// # Errors
    /// Why its bytes cannot be read, in words.
    fn fits(
        &self,
        extent: Extent,
        stride: u64,
        location: &Location,
        checksum: u64,
    ) -> Result<bool, String>;
}

impl Directory {
    /// As [`hold`](Self::hold), and no object is among them whose bytes are not what they were.
    pub(crate) fn hold_verified(&self, wanted: Wanted<'_>) -> Result<Found, DirectoryError> {
        loop {
            let found = self.hold(wanted);
            let mut lost = Vec::new();
            let mut failed = None;
            for entry in found.entries.iter().flatten() {
                if entry.is_unverified() {
                    match self.fits(entry) {
                        Ok(true) => {}
                        Ok(false) => lost.push(Arc::clone(entry)),
                        Err(reason) => failed = Some(reason),
                    }
                }
            }
            if lost.is_empty() && failed.is_none() {
                return Ok(found);
            }
            found
                .entries
                .iter()
                .flatten()
                .for_each(|entry| entry.release());
            if let Some(reason) = failed {
                return Err(DirectoryError::Unverifiable(reason));
            }
            for entry in &lost {
                self.lose(entry)?;
            }
        }
    }

    fn fits(&self, entry: &Entry) -> Result<bool, String> {
        let (Some(verifier), Some(checksum)) = (&self.verifier, entry.meta.checksum) else {
            return Ok(true);
        };
        let place = |region: &Region| (region.extent(), region.stride());
        let region = entry.location.page.region;
        let place = self.with_pool(|pool| pool.region(region).map(place));
        let (extent, stride) = place.ok_or_else(|| format!("region {region} is gone"))?;
        let fits = verifier.fits(extent, stride, &entry.location, checksum)?;
        if fits {
            entry.set_verified();
            self.state.lock().show_verified(entry);
            self.counters.verified_objects.increment();
        }
        Ok(fits)
    }

    /// Removes an object whose bytes are gone, whoever pins it.
    fn lose(&self, entry: &Arc<Entry>) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        for client in self.clients.read().values() {
            let mut book = client.book.lock();
            let Some((pinned, numbers)) = book.pins.get_mut(&entry.key) else {
                continue;
            };
            if !Arc::ptr_eq(pinned, entry) {
                continue;
            }
            while let Some(&pin) = numbers.first() {
                state.change(&Change::Unpin {
                    key: entry.key.clone(),
                    client: client.id,
                    pin,
                })?;
                numbers.remove(&pin);
                entry.unpin();
            }
            book.pins.remove(&entry.key);
        }
        if state.remove(&self.shards, entry, RemoveReason::Lost, true)? == Removal::Removed {
            self.counters.lost_objects.increment();
            tracing::error!(
                key = %entry.key, page = %entry.location.page,
                "the bytes of an object do not fit its checksum; it is removed"
            );
        }
        state.release_retired()
    }
}
