use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashlink::{LinkedHashMap, linked_hash_map};
use ondol_catalog::{
    Admitted, EntryId, EvictionPolicy, POLICIES, Policy, PolicyContext, SaltLimits,
    linkme::distributed_slice,
};

use super::lists::Resident;
use crate::ids::Ids;

#[distributed_slice(POLICIES)]
#[linkme(crate = ondol_catalog::linkme)]
static ISOLATED_LRU: Policy = Policy {
    name: "isolated-lru",
    summary: "Of the cache salt that is furthest above its quota, else the fullest, the least recently used first.",
    build: |context| Box::new(IsolatedLru::new(context)),
};

/// An LRU for each cache salt. It knows the bytes of the objects that it was told of: where pages of several sizes have a policy
/// each, those are of one size only.
#[derive(Debug)]
struct IsolatedLru {
    /// Salts that have objects.
    salts: HashMap<Arc<str>, Residents, RandomState>,
    /// Whose each object is.
    owners: HashMap<EntryId, Arc<str>, Ids>,
    limits: Option<Arc<dyn SaltLimits>>,
}

/// The objects of one salt, from the least to the most recently used.
#[derive(Debug, Default)]
struct Residents {
    entries: LinkedHashMap<EntryId, Resident, Ids>,
    bytes: u64,
}

impl Residents {
    fn push_back(&mut self, entry: EntryId, resident: Resident) {
        self.bytes += resident.bytes;
        if let Some(replaced) = self.entries.insert(entry, resident) {
            self.bytes -= replaced.bytes;
        }
    }

    fn remove(&mut self, entry: EntryId) -> Option<Resident> {
        let resident = self.entries.remove(&entry)?;
        self.bytes -= resident.bytes;
        Some(resident)
    }
}

impl IsolatedLru {
    fn new(context: &PolicyContext) -> Self {
        Self {
            salts: HashMap::default(),
            owners: HashMap::default(),
            limits: context.quotas.clone(),
        }
    }

    fn of(&mut self, entry: EntryId) -> Option<&mut Residents> {
        let salt = self.owners.get(&entry)?;
        self.salts.get_mut(salt)
    }
}

/// The objects of one salt that have not been shown yet.
struct Tenant<'a> {
    rest: linked_hash_map::Iter<'a, EntryId, Resident>,
    bytes: u64,
    limit: Option<u64>,
    salt: &'a str,
}

impl Tenant<'_> {
    /// How often its bytes hold its limit, if they are above it.
    fn excess(&self) -> Option<f64> {
        let limit = self.limit.filter(|limit| self.bytes > *limit)?;
        Some(self.bytes as f64 / limit as f64)
    }
}

/// Who gives up something first is greater.
impl Ord for Tenant<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let excess = match (self.excess(), other.excess()) {
            (Some(one), Some(another)) => one.total_cmp(&another),
            (one, another) => one.is_some().cmp(&another.is_some()),
        };
        excess
            .then(self.bytes.cmp(&other.bytes))
            .then(other.salt.cmp(self.salt))
    }
}

impl PartialOrd for Tenant<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Tenant<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Tenant<'_> {}

impl EvictionPolicy for IsolatedLru {
    fn inserted(&mut self, object: Admitted<'_>) {
        let salt = match self.salts.get_key_value(object.salt) {
            Some((salt, _)) => Arc::clone(salt),
            None => object.salt.into(),
        };
        let residents = self.salts.entry(Arc::clone(&salt)).or_default();
        residents.push_back(object.id, Resident::from(&object));
        self.owners.insert(object.id, salt);
    }

    fn accessed(&mut self, entry: EntryId) {
        if let Some(residents) = self.of(entry) {
            residents.entries.to_back(&entry);
        }
    }

    fn removed(&mut self, entry: EntryId) {
        let Some(salt) = self.owners.remove(&entry) else {
            return;
        };
        if let Some(residents) = self.salts.get_mut(&salt) {
            residents.remove(entry);
            if residents.entries.is_empty() {
                self.salts.remove(&salt);
            }
        }
    }

    fn victims(&mut self, visit: &mut dyn FnMut(EntryId) -> ControlFlow<()>) {
        let tenants = self.salts.iter().map(|(salt, residents)| Tenant {
            rest: residents.entries.iter(),
            bytes: residents.bytes,
            limit: self.limits.as_ref().and_then(|limits| limits.limit(salt)),
            salt,
        });
        let mut tenants: BinaryHeap<_> = tenants.collect();
        while let Some(mut tenant) = tenants.peek_mut() {
            let Some((entry, resident)) = tenant.rest.next() else {
                std::collections::binary_heap::PeekMut::pop(tenant);
                continue;
            };
            tenant.bytes -= resident.bytes;
            if visit(*entry).is_break() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{first, order};
    use super::*;

    #[derive(Debug)]
    struct Limits(HashMap<&'static str, u64>);

    impl SaltLimits for Limits {
        fn limit(&self, salt: &str) -> Option<u64> {
            self.0.get(salt).copied()
        }
    }

    fn policy<const N: usize>(limits: [(&'static str, u64); N]) -> IsolatedLru {
        IsolatedLru::new(&PolicyContext {
            quotas: Some(Arc::new(Limits(HashMap::from(limits)))),
            ..PolicyContext::default()
        })
    }

    fn insert(policy: &mut IsolatedLru, id: EntryId, bytes: u64, salt: &str) {
        policy.inserted(Admitted {
            id,
            fingerprint: id,
            bytes,
            salt,
        });
    }

    #[test]
    fn who_is_furthest_above_its_quota_gives_first() {
        let mut policy = policy([("a", 10), ("b", 2)]);
        for id in 1..=4 {
            insert(&mut policy, id, 4, "a");
        }
        insert(&mut policy, 11, 2, "b");
        insert(&mut policy, 12, 2, "b");
        insert(&mut policy, 13, 1, "b");
        insert(&mut policy, 21, 100, "c");
        // a has 16 of 10, b 5 of 2; c has no limit.
        assert_eq!(order(&mut policy)[..5], [11, 1, 12, 2, 21]);
    }

    #[test]
    fn within_all_quotas_the_fullest_gives_first_and_its_oldest() {
        let mut policy = policy([("a", 100)]);
        insert(&mut policy, 1, 5, "a");
        insert(&mut policy, 2, 5, "a");
        insert(&mut policy, 3, 7, "");
        policy.accessed(1);
        assert_eq!(order(&mut policy), [2, 3, 1]);
    }

    #[test]
    fn a_quota_of_nothing_lets_nothing_stay() {
        let mut policy = policy([("a", 0), ("b", 1)]);
        insert(&mut policy, 1, 1, "a");
        (2..=9).for_each(|id| insert(&mut policy, id, 100, "b"));
        assert_eq!(first(&mut policy), Some(1));
    }

    #[test]
    fn a_salt_that_has_nothing_is_forgotten() {
        let mut policy = policy([]);
        for id in 0..1000 {
            insert(&mut policy, id, 1, &format!("salt-{id}"));
            policy.removed(id);
        }
        assert!(policy.salts.is_empty() && policy.owners.is_empty());
        assert_eq!(first(&mut policy), None);
    }
}
