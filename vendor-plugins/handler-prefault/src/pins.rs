use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ondol_plugin::RegionId;
use rustix::io::Result;

use crate::memory::{self, Pages};

/// Which ranges are locked in memory, how often each was asked for, and how much more may be.
///
/// The mutex is not held while pages are locked: that reads them in and may take long, and the close must not wait
/// for it.
#[derive(Debug)]
pub(crate) struct Pins {
    budget: u64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Counts closes, so that a lock that took effect after one is undone.
    closes: u64,
    bytes: u64,
    ranges: HashMap<Pages, Pin>,
}

#[derive(Debug)]
struct Pin {
    region: RegionId,
    references: u64,
}

/// What became of a wish to pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinned {
    /// The range is locked, or was.
    Held,
    /// The budget has no room for the range.
    OverBudget,
}

/// What is pinned now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) ranges: u64,
    pub(crate) bytes: u64,
    pub(crate) references: u64,
}

impl Pins {
    pub(crate) fn new(budget: u64) -> Self {
        Self {
            budget,
            held: Mutex::default(),
        }
    }

    /// Pins the pages of `bytes`, which lie in `region`.
    pub(crate) fn pin(&self, region: RegionId, bytes: &[u8]) -> Result<Pinned> {
        if bytes.is_empty() {
            return Ok(Pinned::Held);
        }
        let pages = Pages::of(bytes);
        let closes = {
            let mut held = self.held();
            let has_room = held.bytes.saturating_add(pages.len()) <= self.budget;
            match held.ranges.get_mut(&pages) {
                Some(pin) if pin.region == region => {
                    pin.references += 1;
                    return Ok(Pinned::Held);
                }
                // The region that was pinned here is gone, and its locks with it.
                Some(stale) => {
                    *stale = Pin {
                        region,
                        references: 1,
                    }
                }
                None if !has_room => return Ok(Pinned::OverBudget),
                None => {
                    held.bytes += pages.len();
                    held.ranges.insert(
                        pages,
                        Pin {
                            region,
                            references: 1,
                        },
                    );
                }
            }
            held.closes
        };
        let locked = memory::lock(bytes);
        let mut held = self.held();
        if held.closes != closes {
            // Closed meanwhile, so nobody else will undo this lock, unless somebody pinned the range again. The
            // bytes are borrowed, so they are still mapped.
            if !held.ranges.contains_key(&pages) {
                locked.and_then(memory::unlock)?;
            }
            return Ok(Pinned::Held);
        }
        if let Err(error) = locked {
            held.bytes -= pages.len();
            held.ranges.remove(&pages);
            return Err(error);
        }
        Ok(Pinned::Held)
    }

    /// Lets go of every pin whose region is still mapped, and forgets the others: unmapping ended them.
    pub(crate) fn release(&self, is_mapped: impl Fn(RegionId) -> bool) -> Result<()> {
        let ranges = {
            let mut held = self.held();
            held.closes += 1;
            held.bytes = 0;
            std::mem::take(&mut held.ranges)
        };
        let mapped = ranges.into_iter().filter(|(_, pin)| is_mapped(pin.region));
        let mut result = Ok(());
        // All of them, though one may fail.
        for (pages, _) in mapped {
            result = result.and(memory::unlock(pages));
        }
        result
    }

    pub(crate) fn tally(&self) -> Tally {
        let held = self.held();
        Tally {
            ranges: held.ranges.len() as u64,
            bytes: held.bytes,
            references: held.ranges.values().map(|pin| pin.references).sum(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // No code that could panic runs under the lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
