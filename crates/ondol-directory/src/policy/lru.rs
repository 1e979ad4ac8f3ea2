use std::ops::ControlFlow;

use hashlink::LinkedHashSet;
use ondol_catalog::{
    Admitted, EntryId, EvictionPolicy, POLICIES, Policy, linkme::distributed_slice,
};

use crate::ids::Ids;

#[distributed_slice(POLICIES)]
#[linkme(crate = ondol_catalog::linkme)]
static LRU: Policy = Policy {
    name: "lru",
    summary: "Least recently used first.",
    build: |_| Box::new(Lru::default()),
};

/// Entries from the least to the most recently used.
#[derive(Debug, Default)]
struct Lru(LinkedHashSet<EntryId, Ids>);

impl EvictionPolicy for Lru {
    fn inserted(&mut self, object: Admitted<'_>) {
        self.0.insert(object.id);
    }

    fn accessed(&mut self, entry: EntryId) {
        self.0.to_back(&entry);
    }

    fn removed(&mut self, entry: EntryId) {
        self.0.remove(&entry);
    }

    fn victims(&self, visit: &mut dyn FnMut(EntryId) -> ControlFlow<()>) {
        let _ = self.0.iter().try_for_each(|entry| visit(*entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(policy: &Lru) -> Vec<EntryId> {
        let mut order = Vec::new();
        policy.victims(&mut |entry| {
            order.push(entry);
            ControlFlow::Continue(())
        });
        order
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let mut policy = Lru::default();
        (1..=4).for_each(|id| {
            policy.inserted(Admitted {
                id,
                fingerprint: id,
                bytes: 1,
                salt: "",
            });
        });
        policy.accessed(1);
        policy.removed(3);
        policy.accessed(9);
        assert_eq!(order(&policy), [2, 4, 1]);
        let mut first = None;
        policy.victims(&mut |entry| {
            first = Some(entry);
            ControlFlow::Break(())
        });
        assert_eq!(first, Some(2));
    }
}
