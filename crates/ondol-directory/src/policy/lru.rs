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

    fn victims(&mut self, visit: &mut dyn FnMut(EntryId) -> ControlFlow<()>) {
        let _ = self.0.iter().try_for_each(|entry| visit(*entry));
    }
}
