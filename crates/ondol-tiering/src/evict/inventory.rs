use std::collections::HashMap;
use std::hash::BuildHasher;
use std::ops::ControlFlow;

use foldhash::fast::FixedState;
use ondol_catalog::{Admitted, EntryId, EvictionPolicy};
use ondol_plugin::l2::ObjectKey;

use super::plan::Plan;
use super::reports::MAX_OBJECT_BYTES;

/// What is known to be stored in a backend, and the order in which it goes.
#[derive(Debug)]
pub(super) struct Inventory {
    ids: HashMap<ObjectKey, EntryId, FixedState>,
    entries: HashMap<EntryId, Entry, FixedState>,
    policy: Box<dyn EvictionPolicy>,
    last: EntryId,
}

#[derive(Debug)]
struct Entry {
    key: ObjectKey,
    bytes: u64,
}

/// An object that is to be deleted.
#[derive(Debug)]
pub(super) struct Victim {
    pub(super) id: EntryId,
    pub(super) key: ObjectKey,
    pub(super) bytes: u64,
}

impl Inventory {
    pub(super) fn new(policy: Box<dyn EvictionPolicy>) -> Self {
        Self {
            ids: HashMap::default(),
            entries: HashMap::default(),
            policy,
            last: 0,
        }
    }

    /// An object is there. Nothing changes if that is known, but for bytes that were not.
    pub(super) fn insert(&mut self, key: ObjectKey, bytes: u64) {
        let bytes = bytes.min(MAX_OBJECT_BYTES);
        if let Some(id) = self.ids.get(&key) {
            if let Some(entry) = self.entries.get_mut(id)
                && entry.bytes == 0
            {
                entry.bytes = bytes;
            }
            return;
        }
        self.last += 1;
        let id = self.last;
        self.policy.inserted(Admitted {
            id,
            fingerprint: self.ids.hasher().hash_one(&key),
            bytes,
            salt: key.cache_salt(),
        });
        self.ids.insert(key.clone(), id);
        self.entries.insert(id, Entry { key, bytes });
    }

    pub(super) fn accessed(&mut self, key: &ObjectKey) {
        if let Some(id) = self.ids.get(key) {
            self.policy.accessed(*id);
        }
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        if let Some(id) = self.ids.remove(key) {
            self.entries.remove(&id);
            self.policy.removed(id);
        }
    }

    /// At most `limit` objects that are to go by a plan, in the policy's order; those for which `passes_over` holds stay.
    pub(super) fn choose(
        &mut self,
        mut plan: Plan,
        limit: usize,
        passes_over: impl Fn(EntryId) -> bool,
    ) -> Vec<Victim> {
        let mut victims = Vec::new();
        self.policy.victims(&mut |id| {
            if plan.is_empty() || victims.len() >= limit {
                return ControlFlow::Break(());
            }
            if let Some(entry) = self.entries.get(&id)
                && !passes_over(id)
                && plan.take(entry.key.cache_salt(), entry.bytes)
            {
                victims.push(Victim {
                    id,
                    key: entry.key.clone(),
                    bytes: entry.bytes,
                });
            }
            ControlFlow::Continue(())
        });
        victims
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondol_catalog::PolicyContext;
    use ondol_plugin::l2::KvRank;

    fn key(n: u8, salt: &str) -> ObjectKey {
        ObjectKey::new("model", KvRank(1), 0, [n; 4], salt).expect("a key")
    }

    fn lru() -> Inventory {
        let policy = ondol_catalog::policy("lru").expect("linked in");
        Inventory::new((policy.build)(&PolicyContext::default()))
    }

    fn names(victims: &[Victim]) -> Vec<u8> {
        victims.iter().map(|it| it.key.chunk_hash()[0]).collect()
    }

    fn bytes(bytes: u64) -> Plan {
        Plan {
            bytes,
            ..Plan::default()
        }
    }

    #[test]
    fn victims_are_chosen_by_bytes_not_by_number() {
        let mut inventory = lru();
        for (n, len) in [(1, 100), (2, 1), (3, 1), (4, 100)] {
            inventory.insert(key(n, ""), len);
        }
        assert_eq!(names(&inventory.choose(bytes(100), 10, |_| false)), [1]);
        assert_eq!(
            names(&inventory.choose(bytes(102), 10, |_| false)),
            [1, 2, 3]
        );
        assert_eq!(names(&inventory.choose(bytes(102), 2, |_| false)), [1, 2]);
        inventory.accessed(&key(1, ""));
        assert_eq!(names(&inventory.choose(bytes(3), 10, |_| false)), [2, 3, 4]);
        inventory.remove(&key(2, ""));
        assert_eq!(names(&inventory.choose(bytes(2), 10, |_| false)), [3, 4]);
    }

    #[test]
    fn a_salt_over_its_quota_loses_its_own_objects_only() {
        let mut inventory = lru();
        for n in 1..=6 {
            inventory.insert(key(n, if n % 2 == 0 { "even" } else { "odd" }), 10);
        }
        let plan = Plan {
            bytes: 0,
            by_salt: [("even".to_owned(), 15)].into(),
        };
        assert_eq!(names(&inventory.choose(plan, 10, |_| false)), [2, 4]);
    }

    #[test]
    fn a_size_that_a_backend_made_up_is_bounded() {
        let mut inventory = lru();
        (1..=3).for_each(|n| inventory.insert(key(n, ""), u64::MAX));
        let victims = inventory.choose(bytes(u64::MAX), 10, |_| false);
        assert_eq!(names(&victims), [1, 2, 3]);
        assert!(victims.iter().all(|it| it.bytes == MAX_OBJECT_BYTES));
    }

    #[test]
    fn what_is_passed_over_stays() {
        let mut inventory = lru();
        (1..=3).for_each(|n| inventory.insert(key(n, ""), 10));
        let first = inventory.choose(bytes(10), 10, |_| false)[0].id;
        let next = inventory.choose(bytes(10), 10, |id| id == first);
        assert_eq!(names(&next), [2]);
    }
}
