//! Objects that are being deleted are not stored meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use ondol_host::l2::{Backend, BackendHealth};
use ondol_plugin::Key;

use super::Lane;
use super::inbox::Inbox;

/// How often it is looked whether a backend that is waited for is out of use.
const HEALTH_POLL: Duration = Duration::from_millis(50);

/// What a backend's thread hears of deletes.
#[derive(Debug)]
pub(super) enum Bar {
    /// These keys are being deleted; `settled` is to hear once no store of them is under way.
    Close {
        keys: Arc<[Key]>,
        settled: Sender<()>,
    },
    /// They have been deleted.
    Open(Arc<[Key]>),
}

impl Bar {
    /// Answers who waits: no store of these objects is under way.
    pub(super) fn settle(&self) {
        if let Self::Close { settled, .. } = self {
            // Who does not wait any more need not hear it.
            let _ = settled.try_send(());
        }
    }
}

/// The keys that are being deleted, as a backend's thread knows them.
#[derive(Debug, Default)]
pub(super) struct BarredKeys {
    /// How often each is being deleted.
    counts: HashMap<Key, usize, foldhash::fast::RandomState>,
    unsettled: Vec<(Arc<[Key]>, Sender<()>)>,
}

impl BarredKeys {
    pub(super) fn hear(&mut self, bar: Bar) {
        match bar {
            Bar::Close { keys, settled } => {
                for key in keys.iter() {
                    *self.counts.entry(key.clone()).or_default() += 1;
                }
                self.unsettled.push((keys, settled));
            }
            Bar::Open(keys) => {
                // Who gave up on a store that does not end waits no more.
                self.unsettled
                    .retain(|(unsettled, _)| !Arc::ptr_eq(unsettled, &keys));
                for key in keys.iter() {
                    if let Some(count) = self.counts.get_mut(key) {
                        *count -= 1;
                        if *count == 0 {
                            self.counts.remove(key);
                        }
                    }
                }
            }
        }
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        !self.counts.is_empty() && self.counts.contains_key(key)
    }

    /// Answers those who wait for objects of which no store is under way any more.
    pub(super) fn answer<'a, I: Iterator<Item = &'a Key>>(
        &mut self,
        under_way: impl FnOnce() -> I,
    ) {
        if self.unsettled.is_empty() {
            return;
        }
        let under_way: HashSet<_, foldhash::fast::RandomState> = under_way().collect();
        self.unsettled.retain(|(keys, settled)| {
            let waits = keys.iter().any(|key| under_way.contains(key));
            if !waits {
                // Who does not wait any more need not hear it.
                let _ = settled.try_send(());
            }
            waits
        });
    }
}

/// Keys that no backend begins to store for as long as this lives.
#[derive(Debug)]
pub(crate) struct BarredStores {
    keys: Arc<[Key]>,
    lanes: Vec<BarredLane>,
}

#[derive(Debug)]
struct BarredLane {
    backend: u64,
    inbox: Arc<Inbox>,
    settled: Receiver<()>,
}

impl BarredStores {
    pub(super) fn new<'a>(lanes: impl Iterator<Item = &'a Lane>, keys: &[Key]) -> Self {
        let keys: Arc<[Key]> = keys.into();
        let bar = |lane: &Lane| {
            let (settled, is_settled) = bounded(1);
            lane.inbox.bar(Bar::Close {
                keys: Arc::clone(&keys),
                settled,
            });
            BarredLane {
                backend: lane.backend,
                inbox: Arc::clone(&lane.inbox),
                settled: is_settled,
            }
        };
        Self {
            lanes: lanes.map(bar).collect(),
            keys,
        }
    }

    /// Waits until this backend stores none of these objects any more, or `until`; whether that is so. A backend that is out
    /// of use is not waited for: it serves nothing any more.
    pub(crate) fn wait(&self, id: u64, backend: &Backend, until: Instant) -> bool {
        let lane = self.lanes.iter().find(|lane| lane.backend == id);
        let Some(lane) = lane else {
            return true;
        };
        loop {
            let now = Instant::now();
            match lane.settled.recv_deadline(until.min(now + HEALTH_POLL)) {
                Ok(()) => return true,
                // Its thread has ended, and nobody hears what becomes of its stores.
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if backend.health_of_lane().health == BackendHealth::Quarantined {
                return true;
            }
            if now >= until {
                return false;
            }
        }
    }
}

impl Drop for BarredStores {
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.inbox.bar(Bar::Open(Arc::clone(&self.keys)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One entry for each try to delete something, as long as an adapter keeps it captive.
    #[test]
    fn who_gave_up_waiting_for_a_store_leaves_nothing_behind() {
        let mut barred = BarredKeys::default();
        let stuck = Key::integer(1);
        for _ in 0..3 {
            let keys: Arc<[Key]> = Arc::from([stuck.clone()]);
            let (settled, _) = bounded(1);
            barred.hear(Bar::Close {
                keys: Arc::clone(&keys),
                settled,
            });
            barred.answer(|| [&stuck].into_iter());
            assert!(barred.contains(&stuck));
            barred.hear(Bar::Open(keys));
        }
        assert!(barred.unsettled.is_empty() && barred.counts.is_empty());
    }
}
