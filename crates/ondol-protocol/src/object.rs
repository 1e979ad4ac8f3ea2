use ondol_plugin::Key;
use ondol_shm::{Location, ObjectMeta};

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
