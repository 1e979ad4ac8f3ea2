//! What the connector is known to hold.

use std::collections::{BTreeMap, HashMap};

use ondol_plugin::l2::{ObjectKey, Usage};

/// Bytes of an object, at most: what a connector says beyond that is made up, and sums of it would say nothing.
const MAX_OBJECT_BYTES: u64 = 1 << 40;

/// Objects that this process has seen, with their lengths.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    objects: HashMap<ObjectKey, Known>,
    used_bytes: u64,
    by_salt: BTreeMap<String, u64>,
    clock: u64,
}

#[derive(Debug)]
struct Known {
    bytes: u64,
    /// The time of the inventory's clock when the object was last known to be there.
    seen: u64,
}

/// A time of an inventory's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

impl Inventory {
    /// A time after all that was learnt before.
    pub(super) fn mark(&mut self) -> Mark {
        self.clock += 1;
        Mark(self.clock)
    }

    /// Learns that an object of so many bytes is there; whether that is new.
    pub(super) fn learn(&mut self, key: &ObjectKey, bytes: u64) -> bool {
        let seen = self.clock;
        let bytes = bytes.min(MAX_OBJECT_BYTES);
        let before = self.objects.insert(key.clone(), Known { bytes, seen });
        if let Some(before) = &before {
            self.subtract(key, before.bytes);
        }
        self.used_bytes = self.used_bytes.saturating_add(bytes);
        if bytes > 0 {
            match self.by_salt.get_mut(key.cache_salt()) {
                Some(used) => *used = used.saturating_add(bytes),
                None => {
                    self.by_salt.insert(key.cache_salt().to_owned(), bytes);
                }
            }
        }
        before.is_none()
    }

    /// Learns that an object was stored; whether it was new. One that was known before was kept by the connector or
    /// replaced, so its length stays as it was until somebody learns better.
    pub(super) fn stored(&mut self, key: &ObjectKey, bytes: u64) -> bool {
        if let Some(known) = self.objects.get_mut(key) {
            known.seen = self.clock;
            return false;
        }
        self.learn(key, bytes)
    }

    /// Learns that an object is not there.
    fn forget(&mut self, key: &ObjectKey) {
        if let Some(known) = self.objects.remove(key) {
            self.subtract(key, known.bytes);
        }
    }

    /// Learns that an object was not there at some time after `mark`, unless it was seen since.
    pub(super) fn was_missing(&mut self, key: &ObjectKey, mark: Mark) {
        if self
            .objects
            .get(key)
            .is_some_and(|known| known.seen < mark.0)
        {
            self.forget(key);
        }
    }

    /// What is known, which is never all.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            used_bytes: self.used_bytes,
            capacity_bytes: None,
            objects: self.objects.len() as u64,
            bytes_by_salt: self.by_salt.clone(),
            is_complete: false,
        }
    }

    fn subtract(&mut self, key: &ObjectKey, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        if let Some(used) = self.by_salt.get_mut(key.cache_salt()) {
            *used = used.saturating_sub(bytes);
            if *used == 0 {
                self.by_salt.remove(key.cache_salt());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ondol_plugin::l2::KvRank;

    use super::*;

    fn key(hash: u8, salt: &str) -> ObjectKey {
        ObjectKey::new("m", KvRank(0), 0, [hash], salt).unwrap()
    }

    #[test]
    fn usage_is_kept_by_salt_and_counts_an_object_once() {
        let mut inventory = Inventory::default();
        assert!(inventory.stored(&key(1, ""), 10));
        assert!(!inventory.stored(&key(1, ""), 10));
        assert!(inventory.stored(&key(2, "tenant"), 5));
        assert!(!inventory.learn(&key(2, "tenant"), 7));
        let usage = inventory.usage();
        assert_eq!((usage.used_bytes, usage.objects), (17, 2));
        assert_eq!(usage.bytes_by_salt["tenant"], 7);
        inventory.forget(&key(2, "tenant"));
        inventory.forget(&key(2, "tenant"));
        let usage = inventory.usage();
        assert_eq!((usage.used_bytes, usage.objects), (10, 1));
        assert!(!usage.bytes_by_salt.contains_key("tenant"));
        assert!(!usage.is_complete);
    }

    // Their sum was more than a number holds.
    #[test]
    fn lengths_that_a_connector_made_up_are_bounded() {
        let mut inventory = Inventory::default();
        inventory.learn(&key(1, ""), u64::MAX);
        inventory.stored(&key(2, ""), u64::MAX);
        assert_eq!(inventory.usage().used_bytes, 2 * MAX_OBJECT_BYTES);
        inventory.forget(&key(1, ""));
        inventory.forget(&key(2, ""));
        assert_eq!(inventory.usage().used_bytes, 0);
    }

    #[test]
    fn an_old_miss_does_not_undo_a_newer_store() {
        let mut inventory = Inventory::default();
        let before = inventory.mark();
        inventory.stored(&key(1, ""), 10);
        inventory.was_missing(&key(1, ""), before);
        assert_eq!(inventory.usage().objects, 1);
        let after = inventory.mark();
        inventory.was_missing(&key(1, ""), after);
        assert_eq!(inventory.usage().objects, 0);
    }
}
