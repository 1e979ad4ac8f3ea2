use std::fmt;

use ondol_plugin::Key;
use ondol_shm::Location;

/// A short name of an object's layout (model, dtype, shape, memory layout), made by
/// `ondol_handler::Layout::fingerprint`. Objects of different layouts have different fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayoutFingerprint(pub [u8; 16]);

impl fmt::Debug for LayoutFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for LayoutFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What is known about an object besides its bytes; kept by the directory, never in the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectMeta {
    /// The layout under which the object was stored.
    pub layout: Option<LayoutFingerprint>,
    /// xxh3-64 of the bytes.
    pub checksum: Option<u64>,
}

/// One row of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The object's name.
    pub key: Key,
    /// Where it lies.
    pub location: Location,
    /// What is known about it.
    pub meta: ObjectMeta,
    /// Leases that protect it now; those that ended a moment ago may still be counted.
    pub leases: u32,
    /// Pins that hold it now.
    pub pins: u32,
}
