use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ondol_catalog::EntryId;
use ondol_memory::StoredObject;
use ondol_plugin::Key;
use ondol_protocol::Hit;
use ondol_shm::{ClientId, HoldCount, Location, ObjectMeta};

/// One visible object, one that waits to be, or one that was removed while readers held it.
///
/// Leases and pins are only added under the lock of the object's shard, while the object is visible, or by the writer;
/// who removes the object is the writer and holds that lock exclusively, so a count of zero seen there stays zero.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: EntryId,
    pub(crate) key: Key,
    pub(crate) location: Location,
    pub(crate) meta: ObjectMeta,
    pub(crate) stride: u64,
    pub(crate) owner: ClientId,
    leases: HoldCount,
    pins: AtomicU32,
    last_use: AtomicU64,
    /// Whether its bytes have yet to be compared with its checksum.
    unverified: AtomicBool,
    /// Whether a storage backend has it, too.
    stored: AtomicBool,
}

impl Entry {
    pub(crate) fn new(
        id: EntryId,
        key: Key,
        object: StoredObject,
        stride: u64,
        now: u64,
        unverified: bool,
    ) -> Self {
        Self {
            id,
            key,
            location: object.location,
            meta: object.meta,
            stride,
            owner: object.client,
            leases: HoldCount::new(),
            pins: AtomicU32::new(0),
            last_use: AtomicU64::new(now),
            unverified: AtomicBool::new(unverified),
            stored: AtomicBool::new(false),
        }
    }

    pub(crate) fn hit(&self) -> Hit {
        Hit {
            location: self.location,
            meta: self.meta,
        }
    }

    pub(crate) fn object(&self) -> StoredObject {
        StoredObject {
            location: self.location,
            meta: self.meta,
            client: self.owner,
        }
    }

    pub(crate) fn lease(&self) {
        self.leases.add();
    }

    /// Ends one lease.
    pub(crate) fn release(&self) {
        self.leases.end();
    }

    pub(crate) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn leases(&self) -> u32 {
        self.leases.get()
    }

    pub(crate) fn pins(&self) -> u32 {
        self.pins.load(Ordering::Relaxed)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.leases() > 0 || self.pins() > 0
    }

    pub(crate) fn touch(&self, now: u64) {
        self.last_use.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn last_use(&self) -> u64 {
        self.last_use.load(Ordering::Relaxed)
    }

    pub(crate) fn is_unverified(&self) -> bool {
        self.unverified.load(Ordering::Relaxed)
    }

    pub(crate) fn set_verified(&self) {
        self.unverified.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_stored(&self) -> bool {
        self.stored.load(Ordering::Relaxed)
    }

    pub(crate) fn set_stored(&self, stored: bool) {
        self.stored.store(stored, Ordering::Relaxed);
    }
}
