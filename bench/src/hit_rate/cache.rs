//! A cache of blocks of equal size under an eviction policy.

use std::collections::HashMap;
use std::ops::ControlFlow;

use foldhash::fast::FixedState;
use ondol_catalog::{Admitted, EntryId, EvictionPolicy, Policy, PolicyContext};
use ondol_cli::workload::Workload;

use super::{Order, Tally};

/// Replays the workload with room for `capacity` blocks.
pub(super) fn replay(
    policy: &Policy,
    capacity: usize,
    workload: &Workload,
    uses: Order,
    stores: Order,
) -> Tally {
    // As the directory makes it: it does not tell how much room there is.
    let policy = (policy.build)(&PolicyContext::default());
    let mut cache = Cache {
        policy,
        capacity,
        entries: HashMap::default(),
        blocks: HashMap::default(),
        next: 1,
    };
    let mut tally = Tally::default();
    for request in &workload.requests {
        tally.count(&cache.request(request, uses, stores));
    }
    tally
}

struct Cache {
    policy: Box<dyn EvictionPolicy>,
    capacity: usize,
    entries: HashMap<u64, EntryId, FixedState>,
    blocks: HashMap<EntryId, u64, FixedState>,
    next: EntryId,
}

impl Cache {
    /// Whether each block was there.
    fn request(&mut self, blocks: &[u64], uses: Order, stores: Order) -> Vec<bool> {
        let entries: Vec<_> = blocks.iter().map(|block| self.entries.get(block)).collect();
        let found = entries.iter().map(Option::is_some).collect();
        let mut used: Vec<_> = entries.into_iter().flatten().copied().collect();
        uses.arrange(&mut used);
        for entry in used {
            self.policy.accessed(entry);
        }
        let mut missing = blocks.to_vec();
        missing.retain(|block| !self.entries.contains_key(block));
        stores.arrange(&mut missing);
        for block in missing {
            self.store(block);
        }
        found
    }

    fn store(&mut self, block: u64) {
        if self.entries.contains_key(&block) {
            return;
        }
        if self.entries.len() == self.capacity {
            self.evict();
        }
        let id = self.next;
        self.next += 1;
        self.policy.inserted(Admitted {
            id,
            fingerprint: block,
            bytes: 1,
            salt: "",
        });
        self.entries.insert(block, id);
        self.blocks.insert(id, block);
    }

    fn evict(&mut self) {
        let mut victim = None;
        self.policy.victims(&mut |entry| {
            victim = Some(entry);
            ControlFlow::Break(())
        });
        if let Some(victim) = victim
            && let Some(block) = self.blocks.remove(&victim)
        {
            self.entries.remove(&block);
            self.policy.removed(victim);
        }
    }
}
