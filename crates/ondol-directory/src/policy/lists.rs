//! What the policies are made of: objects in an order, with their bytes counted.

use hashlink::LinkedHashMap;
use ondol_catalog::{Admitted, EntryId};

use crate::ids::Ids;

/// An object that is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    pub(super) fingerprint: u64,
    pub(super) bytes: u64,
    /// Uses that a policy counted.
    pub(super) uses: u8,
    /// Whether it was shown as a victim, so that its removal is an eviction.
    pub(super) offered: bool,
}

impl From<&Admitted<'_>> for Resident {
    fn from(object: &Admitted<'_>) -> Self {
        Self {
            fingerprint: object.fingerprint,
            // Without bytes there would be no end to how many may be remembered.
            bytes: object.bytes.max(1),
            uses: 0,
            offered: false,
        }
    }
}

/// Objects that are there, in an order.
#[derive(Debug, Default)]
pub(super) struct Residents {
    pub(super) entries: LinkedHashMap<EntryId, Resident, Ids>,
    pub(super) bytes: u64,
}

impl Residents {
    pub(super) fn push_back(&mut self, entry: EntryId, resident: Resident) {
        self.bytes += resident.bytes;
        if let Some(replaced) = self.entries.insert(entry, resident) {
            self.bytes -= replaced.bytes;
        }
    }

    pub(super) fn remove(&mut self, entry: EntryId) -> Option<Resident> {
        let resident = self.entries.remove(&entry)?;
        self.bytes -= resident.bytes;
        Some(resident)
    }

    pub(super) fn pop_front(&mut self) -> Option<(EntryId, Resident)> {
        let (entry, resident) = self.entries.pop_front()?;
        self.bytes -= resident.bytes;
        Some((entry, resident))
    }

    pub(super) fn front(&self) -> Option<&Resident> {
        self.entries.front().map(|(_, resident)| resident)
    }
}

/// Objects that were evicted, the one that has been gone longest first.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    fingerprints: LinkedHashMap<u64, u64, Ids>,
    bytes: u64,
}

impl Ghosts {
    pub(super) fn push_back(&mut self, resident: &Resident) {
        self.bytes += resident.bytes;
        let replaced = self
            .fingerprints
            .insert(resident.fingerprint, resident.bytes);
        self.bytes -= replaced.unwrap_or(0);
    }

    pub(super) fn contains(&self, fingerprint: u64) -> bool {
        self.fingerprints.contains_key(&fingerprint)
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, fingerprint: u64) -> bool {
        let bytes = self.fingerprints.remove(&fingerprint);
        self.bytes -= bytes.unwrap_or(0);
        bytes.is_some()
    }

    /// Forgets those that have been gone longest until no more than so many bytes and objects are left.
    pub(super) fn trim(&mut self, bytes: u64, count: usize) {
        while self.bytes > bytes || self.fingerprints.len() > count {
            let Some((_, gone)) = self.fingerprints.pop_front() else {
                break;
            };
            self.bytes -= gone;
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.fingerprints.len()
    }
}

/// How much there is room for, as far as a policy knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    given: Option<u64>,
    most_bytes: u64,
    most_objects: usize,
}

impl Room {
    pub(super) fn new(given: Option<u64>) -> Self {
        Self {
            given,
            most_bytes: 0,
            most_objects: 0,
        }
    }

    /// Notes how much is there now.
    pub(super) fn note(&mut self, bytes: u64, objects: usize) {
        self.most_bytes = self.most_bytes.max(bytes);
        self.most_objects = self.most_objects.max(objects);
    }

    /// Bytes: those that were given, else the most that were there at once.
    pub(super) fn bytes(&self) -> u64 {
        self.given.unwrap_or(self.most_bytes)
    }

    /// The most objects that were there at once.
    pub(super) fn objects(&self) -> usize {
        self.most_objects
    }
}
