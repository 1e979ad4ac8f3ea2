//! Locks of keys, and the deletes that must go round them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ondol_plugin::l2::{Bitmap, ObjectKey};
use parking_lot::Mutex;

/// How often each key is locked, or that it is being deleted.
///
/// A key is in one of the two states only: a delete leaves locked keys alone, and a lookup does not find what is being
/// deleted. So no lock is held while the connector works.
#[derive(Debug, Default)]
pub(super) struct KeyLocks(Mutex<HashMap<ObjectKey, State>>);

#[derive(Debug)]
enum State {
    Locked(u64),
    Deleting,
}

impl KeyLocks {
    /// Locks each key once for each time that it stands there, save those that are being deleted.
    pub(super) fn lock_all(&self, keys: Vec<ObjectKey>) -> Locked<'_> {
        let mut states = self.0.lock();
        let mut locked = Bitmap::new(keys.len());
        for (index, key) in keys.iter().enumerate() {
            match states.entry(key.clone()).or_insert(State::Locked(0)) {
                State::Locked(count) => {
                    *count += 1;
                    locked.set(index);
                }
                State::Deleting => {}
            }
        }
        drop(states);
        Locked {
            locks: self,
            keys: LockedKeys { keys, locked },
        }
    }

    /// Takes one lock from each key that has one.
    pub(super) fn unlock_all<'a>(&self, keys: impl IntoIterator<Item = &'a ObjectKey>) {
        let mut states = self.0.lock();
        for key in keys {
            if let Some(State::Locked(count)) = states.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    states.remove(key);
                }
            }
        }
    }

    /// Claims the keys that nobody has locked, and sets the bits of the others in `locked`. A key that is being deleted already
    /// is held by that delete: it is gone when it is asked for again.
    pub(super) fn begin_delete<'a>(
        &'a self,
        keys: &[ObjectKey],
        locked: &mut Bitmap,
    ) -> Deleting<'a> {
        let mut states = self.0.lock();
        let mut claimed = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            match states.entry(key.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(State::Deleting);
                    claimed.push((index, key.clone()));
                }
                Entry::Occupied(_) => locked.set(index),
            }
        }
        drop(states);
        Deleting {
            locks: self,
            claimed,
        }
    }

    /// The delete of these keys has ended.
    pub(super) fn end_delete<'a>(&self, keys: impl IntoIterator<Item = &'a ObjectKey>) {
        let mut states = self.0.lock();
        for key in keys {
            if matches!(states.get(key), Some(State::Deleting)) {
                states.remove(key);
            }
        }
    }

    /// How many keys are locked or being deleted.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// The keys of a lookup, and which of them it has locked.
#[derive(Debug)]
pub(super) struct LockedKeys {
    pub(super) keys: Vec<ObjectKey>,
    pub(super) locked: Bitmap,
}

impl LockedKeys {
    /// Unlocks those of the locked ones that are not in `found`.
    pub(super) fn unlock_but(&self, found: &Bitmap, locks: &KeyLocks) {
        let lost = &self.locked & &!found;
        locks.unlock_all(lost.gather(&self.keys));
    }
}

/// Locks that are given back unless somebody takes them over.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    locks: &'a KeyLocks,
    keys: LockedKeys,
}

impl Locked<'_> {
    pub(super) fn keys(&self) -> &[ObjectKey] {
        &self.keys.keys
    }

    /// The caller answers for the locks from now on.
    pub(super) fn into_parts(mut self) -> LockedKeys {
        let nothing = LockedKeys {
            keys: Vec::new(),
            locked: Bitmap::new(0),
        };
        std::mem::replace(&mut self.keys, nothing)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let none = Bitmap::new(self.keys.keys.len());
        self.keys.unlock_but(&none, self.locks);
    }
}

/// Keys that are claimed for a delete, given back unless somebody takes them over.
#[derive(Debug)]
pub(super) struct Deleting<'a> {
    locks: &'a KeyLocks,
    claimed: Vec<(usize, ObjectKey)>,
}

impl Deleting<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.claimed.is_empty()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.claimed.iter().map(|(_, key)| key)
    }

    /// The keys with their places in the batch; the caller answers for the claims from now on.
    pub(super) fn into_parts(mut self) -> Vec<(usize, ObjectKey)> {
        std::mem::take(&mut self.claimed)
    }
}

impl Drop for Deleting<'_> {
    fn drop(&mut self) {
        self.locks.end_delete(self.keys());
    }
}
