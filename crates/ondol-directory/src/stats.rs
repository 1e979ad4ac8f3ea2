//! What there is, for people: objects by name, figures.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use ondol_plugin::Key;
use ondol_protocol::{ClassStats, ClientStats, EngineStats, Listing, ObjectInfo, PoolStats};

use ondol_shm::monotonic_ms;

use crate::directory::Directory;

impl Directory {
    /// Visible objects in the order of their keys, from the first behind `after`, at most `limit`,
    /// or one if that is 0.
    pub fn list(&self, after: Option<&Key>, limit: u32) -> Listing {
        // None at all would look like an end that is none.
        let limit = limit.max(1) as usize;
        self.load_all();
        let leased = {
            let mut state = self.state.lock();
            state.slots.scan();
            state.slots.leases_by_page()
        };
        let mut keys: BTreeSet<Key> = BTreeSet::new();
        let mut more = false;
        self.shards.for_each(|entry| {
            let key = &entry.key;
            let is_full = keys.len() == limit;
            if after.is_some_and(|after| key <= after) {
                return;
            }
            if is_full && keys.last().is_some_and(|last| key > last) {
                more = true;
                return;
            }
            keys.insert(key.clone());
            if is_full {
                keys.pop_last();
                more = true;
            }
        });
        let objects = keys.into_iter().filter_map(|key| {
            let entry = self.shards.get(&key)?;
            let by_slot = leased
                .get(&entry.location.page)
                .copied()
                .unwrap_or_default();
            let (leases, pins) = (entry.leases() + by_slot, entry.pins());
            Some(ObjectInfo {
                key,
                location: entry.location,
                meta: entry.meta,
                leases,
                pins,
            })
        });
        Listing {
            objects: objects.collect(),
            more,
        }
    }

    /// Figures of pool and directory; `pool.devices` and the clients' process ids are left to the caller.
    pub fn stats(&self) -> EngineStats {
        let mut state = self.state.lock();
        self.settle(&mut state);
        self.take_counts(&mut state);
        state.slots.scan();
        if let Err(error) = state.release_unheld() {
            tracing::warn!(%error, "pages of removed objects stay captive");
        }
        let extents = state.pool.extents();
        let pool = PoolStats {
            devices: Vec::new(),
            total_bytes: extents.total_bytes(),
            free_bytes: extents.free_bytes(),
            largest_free_extent: extents.find_largest().map_or(0, |extent| extent.len),
            regions: state.pool.regions().count() as u64,
        };
        let classes = state.pool.classes().map(|(stride, regions)| {
            let mut class = ClassStats {
                stride,
                ..ClassStats::default()
            };
            for (_, region) in regions {
                class.regions += 1;
                class.pages += u64::from(region.page_count());
                class.free += u64::from(region.free_count());
                class.granted += u64::from(region.granted_count());
                class.committed += u64::from(region.committed_count());
            }
            class
        });
        let classes = classes.collect();
        let now = monotonic_ms();
        let clients = self.clients.read();
        let guests = clients
            .values()
            .filter(|client| Some(client.id) != state.tier);
        let clients = guests.map(|client| {
            let (granted_pages, granted_bytes) = state.pool.granted_to(client.id);
            let usage = state.usage.get(&client.id).copied().unwrap_or_default();
            let slots = state.slots.leases_of(client.id);
            let by_slot = slots.oldest.map(|since| now.saturating_sub(since));
            let ledger = client.ledger.lock();
            let booked = ledger.oldest().map(|age| age.as_millis() as u64);
            ClientStats {
                id: client.id.0,
                pid: 0,
                granted_pages,
                granted_bytes,
                leases: ledger.leases.len() as u64 + slots.count,
                oldest_lease_ms: by_slot.max(booked),
                pins: client.book.lock().pin_count(),
                objects: usage.objects,
                object_bytes: usage.bytes,
                l2_hits: client.l2_hits.load(Ordering::Relaxed),
            }
        });
        EngineStats {
            pool,
            classes,
            clients: clients.collect(),
            objects: (state.objects.len() + state.unloaded.len()) as u64,
            object_bytes: state.usage.values().map(|usage| usage.bytes).sum(),
            retired: state.retired.len() as u64,
            index: state.shelf.stats(),
            policy: state.policy_name().to_owned(),
            counters: self
                .counters()
                .map(|counter| (counter.metric().name.to_owned(), counter.get()))
                .collect(),
            l2: None,
        }
    }
}
