use std::fmt;

use ondol_plugin::RegionId;

/// One file or device that holds regions; numbered from 0 in the order of the pool's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackingId(pub u32);

/// How often a page has been given out; a location of an earlier generation is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Generation(pub u64);

/// One page: the `index`-th slice of its region, as long as the region's page stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId {
    /// The region.
    pub region: RegionId,
    /// Number of the page within its region, from 0.
    pub index: u32,
}

#[cfg(not(loom))]
impl PageId {
    /// The page as a word of shared memory, which is never 0: the region in the upper half, in the lower one the page's
    /// number and 1. `None` if one of them does not fit.
    pub(crate) fn to_word(self) -> Option<u64> {
        let region = u32::try_from(self.region.0).ok()?;
        let number = self.index.checked_add(1)?;
        Some((u64::from(region) << 32) | u64::from(number))
    }

    /// The page that a word stands for; `None` if for none.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let index = (word as u32).checked_sub(1)?;
        Some(Self {
            region: RegionId(word >> 32),
            index,
        })
    }
}

/// Where an object lies: the first `len` bytes of a page, in the generation in which it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The page.
    pub page: PageId,
    /// The page's generation when the object was written.
    pub generation: Generation,
    /// Length of the object in bytes.
    pub len: u64,
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.region, self.index)
    }
}

/// The engine's name for a client; never reused by the same engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A page that its client may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The page.
    pub page: PageId,
    /// The generation in which it was granted.
    pub generation: Generation,
}

/// Why a page is not the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaleReason {
    /// No such region or page.
    #[error("there is no such page; its region is gone or was never there")]
    UnknownPage,
    /// The page was given out again since.
    #[error("the page was given out again since: the handle is stale")]
    OldGeneration,
    /// The page is free, committed or granted to somebody else.
    #[error("the page is not granted to this client: it was returned or committed before")]
    NotGranted,
}
