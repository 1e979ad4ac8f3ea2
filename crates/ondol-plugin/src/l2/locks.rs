use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::ObjectKey;

/// How often each key is locked.
#[derive(Debug, Default)]
pub struct Locks {
    keys: Mutex<HashMap<ObjectKey, Holds>>,
    removed: Condvar,
}

/// What goes on with a key; both 0 only while that changes.
#[derive(Debug, Default)]
struct Holds {
    locks: u64,
    removals: u64,
}

impl Locks {
    /// Whether a key is locked.
    pub fn is_locked(&self, key: &ObjectKey) -> bool {
        self.keys().get(key).is_some_and(|holds| holds.locks > 0)
    }

    /// Takes a lock. Waits while the key is being removed.
    pub fn lock(&self, key: &ObjectKey) {
        let waited = self.removed.wait_while(self.keys(), |keys| {
            keys.get(key).is_some_and(|holds| holds.removals > 0)
        });
        let mut keys = waited.unwrap_or_else(PoisonError::into_inner);
        keys.entry(key.clone()).or_default().locks += 1;
    }

    /// Gives a lock back, if there is one. Never waits for a removal.
    pub fn unlock(&self, key: &ObjectKey) {
        let mut keys = self.keys();
        if let Some(holds) = keys.get_mut(key) {
            holds.locks = holds.locks.saturating_sub(1);
            forget_if_free(&mut keys, key);
        }
    }

    /// Runs `remove` unless the key is locked, and lets nobody lock it meanwhile; `None` if it is. Other keys are not held
    /// up, nor is another removal of the same one.
    pub fn unless_locked<T>(&self, key: &ObjectKey, remove: impl FnOnce() -> T) -> Option<T> {
        let mut keys = self.keys();
        let holds = keys.entry(key.clone()).or_default();
        if holds.locks > 0 {
            return None;
        }
        holds.removals += 1;
        drop(keys);
        let _removal = Removal { locks: self, key };
        Some(remove())
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<ObjectKey, Holds>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn forget_if_free(keys: &mut HashMap<ObjectKey, Holds>, key: &ObjectKey) {
    if keys
        .get(key)
        .is_some_and(|holds| holds.locks == 0 && holds.removals == 0)
    {
        keys.remove(key);
    }
}

/// A key that is being removed; over also when that panics.
struct Removal<'a> {
    locks: &'a Locks,
    key: &'a ObjectKey,
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let mut keys = self.locks.keys();
        if let Some(holds) = keys.get_mut(self.key) {
            holds.removals -= 1;
            forget_if_free(&mut keys, self.key);
        }
        drop(keys);
        self.locks.removed.notify_all();
    }
}
