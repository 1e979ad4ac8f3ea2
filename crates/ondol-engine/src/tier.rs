//! The storage tier of an engine: opened when the pool stands, closed before the pool.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ondol_directory::{CommitListener, Directory};
use ondol_host::l2::{Backend, BackendHealth};
use ondol_memory::Device;
use ondol_plugin::Key;
use ondol_protocol::{ClientId, ControlError, Prefetch, Retrieved};
use ondol_shm::Location;
use ondol_tiering::{
    FetchPolicy, MakeDurable, Memory, PrefetchReport, PrefetchRequest, Quotas, Row, Tiering,
};

use crate::config::{EngineError, L2Config};
use crate::promises::Promises;
use crate::sync::sync_bytes;

/// The longest that one request waits for storage.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long a promotion may take that nobody waits for.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a delete waits for storage that still reads what is to be deleted.
const DELETE_TIMEOUT: Duration = Duration::from_secs(5);
/// The part of the pool that objects may fill which were brought ahead of need and wait for their reader.
const PROMISED_PART: u64 = 8;

/// The parts of the storage tier.
#[derive(Debug)]
pub(crate) struct Tier {
    pub(crate) tiering: Arc<Tiering>,
    pub(crate) memory: Arc<Memory>,
    /// Those that the engine was opened with.
    backends: Vec<Weak<Backend>>,
    promises: Arc<Promises>,
    /// Whether it matters how often an object is used.
    counts_uses: bool,
    close_deadline: Duration,
}

/// Tells the storage tier of commits. The directory, which the tier needs, does not keep it alive.
#[derive(Debug)]
struct Told {
    tiering: Weak<Tiering>,
    counts_uses: bool,
    promises: Weak<Promises>,
}

impl CommitListener for Told {
    fn committed(&self, objects: &[(Key, u64)]) {
        if let Some(tiering) = self.tiering.upgrade() {
            tiering.committed(objects);
        }
    }

    fn let_go(&self) -> bool {
        let promises = self.promises.upgrade();
        promises.is_some_and(|promises| promises.cancel())
    }

    fn counts_uses(&self) -> bool {
        self.counts_uses
    }

    fn used(&self, keys: &[Key]) {
        if let Some(tiering) = self.tiering.upgrade() {
            tiering.used(keys);
        }
    }
}

/// The keys of a request by the place that they have in their group: what storage is asked for.
struct Rows {
    /// All groups that are whole, and those of the last one if it is not.
    parts: Vec<Vec<Row>>,
    policy: FetchPolicy,
}

/// What a client wants of storage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) keys: &'a [Key],
    pub(crate) group: u32,
    pub(crate) prefix: bool,
    pub(crate) expected_len: u64,
}

impl<'a> From<&'a Prefetch> for Wish<'a> {
    fn from(request: &'a Prefetch) -> Self {
        Self {
            keys: &request.keys,
            group: request.group,
            prefix: request.prefix,
            expected_len: request.expected_len,
        }
    }
}

impl Rows {
    fn of(wish: Wish<'_>) -> Self {
        let group = (wish.group as usize).clamp(1, wish.keys.len().max(1));
        let whole = wish.keys.len() / group * group;
        let row = |keys: Vec<Key>| Row {
            keys,
            window: None,
            expected_len: (wish.expected_len > 0).then_some(wish.expected_len),
        };
        let column = |keys: &[Key], place: usize| {
            let keys = keys.iter().skip(place).step_by(group);
            row(keys.cloned().collect())
        };
        let mut parts = Vec::new();
        let (groups, rest) = wish.keys.split_at(whole);
        for (keys, rows) in [(groups, group), (rest, rest.len())] {
            if !keys.is_empty() {
                parts.push((0..rows).map(|place| column(keys, place)).collect());
            }
        }
        let policy = if wish.prefix {
            FetchPolicy::Prefix
        } else {
            FetchPolicy::Full
        };
        Self { parts, policy }
    }
}

/// What storage brought.
#[derive(Debug)]
pub(crate) struct Brought {
    reports: Vec<PrefetchReport>,
    /// Whether more is on its way.
    pub(crate) pending: bool,
    /// Objects that are here now and were not before.
    pub(crate) loaded: u64,
}

impl Tier {
    /// Opens the storage tier over a pool that stands, as this client of the directory's.
    pub(crate) fn open(
        config: &L2Config,
        directory: &Arc<Directory>,
        devices: &Arc<[Device]>,
        client: (ClientId, OwnedFd),
        quotas: &Arc<Quotas>,
        make_durable: bool,
    ) -> Result<Self, EngineError> {
        let failed = |error: &dyn std::fmt::Display| EngineError::Storage(error.to_string());
        let files = devices.iter().flat_map(Device::backings);
        let durable: MakeDurable = if make_durable {
            let (directory, devices) = (Arc::clone(directory), Arc::clone(devices));
            Box::new(move |places: &[Location]| sync_bytes(&directory, &devices, places.iter()))
        } else {
            Box::new(|_| Ok(()))
        };
        let (id, table) = client;
        let memory = Memory::open(Arc::clone(directory), id, table.as_fd(), files, durable);
        let memory = Arc::new(memory.map_err(|error| failed(&error))?);
        let mappings = memory.l1_mappings();
        let backends = config.open(&mappings).map_err(EngineError::Storage)?;
        let weak = backends.iter().map(Arc::downgrade).collect();
        let mut settings = config.tiering.clone();
        settings.quotas = Arc::clone(quotas);
        let tiering = Tiering::start(Arc::clone(&memory), backends, settings)
            .map_err(|error| failed(&error))?;
        let promises = Promises::start(memory.capacity_bytes() / PROMISED_PART);
        let promises = Arc::new(promises.map_err(EngineError::Thread)?);
        let counts_uses = config.tiering.admit_after_uses > 1;
        directory.set_commit_listener(Arc::new(Told {
            counts_uses,
            tiering: Arc::downgrade(&tiering),
            promises: Arc::downgrade(&promises),
        }));
        Ok(Self {
            tiering,
            memory,
            backends: weak,
            counts_uses,
            promises,
            close_deadline: config.close_deadline,
        })
    }

    /// Brings objects to memory and waits for them; they stay for as long as what is answered is kept.
    pub(crate) fn bring(&self, wish: Wish<'_>, wait: Duration) -> Brought {
        let wait = wait.min(LONGEST_WAIT);
        let until = Instant::now() + wait;
        let Rows { parts, policy } = Rows::of(wish);
        let running: Vec<_> = parts
            .into_iter()
            .map(|rows| {
                self.tiering.prefetch(PrefetchRequest {
                    rows,
                    policy,
                    timeout: wait,
                })
            })
            .collect();
        let reports: Vec<_> = running
            .into_iter()
            .map(|prefetch| prefetch.wait(until))
            .collect();
        let count = |bitmaps: &[ondol_plugin::l2::Bitmap]| -> usize {
            bitmaps.iter().map(|bitmap| bitmap.count_ones()).sum()
        };
        let loaded = reports
            .iter()
            .map(|report| count(&report.present).saturating_sub(count(&report.from_memory)))
            .sum::<usize>();
        Brought {
            pending: reports.iter().any(|report| report.timed_out),
            loaded: loaded as u64,
            reports,
        }
    }

    /// Hears that a client found these.
    pub(crate) fn used(&self, keys: &[Key], found: &Retrieved) {
        if !self.counts_uses {
            return;
        }
        let keys: Vec<_> = keys
            .iter()
            .zip(&found.hits)
            .filter(|(_, hit)| hit.is_some())
            .map(|(key, _)| key.clone())
            .collect();
        self.tiering.used(&keys);
    }

    /// Has objects brought to memory, where they stay for some seconds if there is room; whether any are on their way.
    pub(crate) fn promote(&self, wish: Wish<'_>) -> bool {
        let Rows { parts, policy } = Rows::of(wish);
        let mut pending = false;
        for rows in parts {
            let prefetch = self.tiering.prefetch(PrefetchRequest {
                rows,
                policy,
                timeout: PROMOTION_TIMEOUT,
            });
            pending |= !prefetch.is_done();
            self.promises.make(prefetch);
        }
        pending
    }

    /// Keeps what was brought for some seconds if there is room.
    pub(crate) fn keep(&self, brought: Brought) {
        for report in brought.reports {
            self.promises.keep(report);
        }
    }

    /// Deletes objects, from memory by `from_memory`, and from storage.
    pub(crate) fn delete<R>(
        &self,
        keys: &[Key],
        from_memory: impl FnOnce() -> R,
    ) -> Result<R, ControlError> {
        let until = Instant::now() + DELETE_TIMEOUT;
        let deleted = self.tiering.delete(keys, until, from_memory);
        deleted.map_err(|error| ControlError::Failed(error.to_string()))
    }

    /// The storage backend that a server without would not have started, and that is not called any more; why.
    pub(crate) fn broken(&self) -> Option<String> {
        self.backends.iter().find_map(|backend| {
            let backend = backend.upgrade()?;
            let status = backend.status();
            let is_broken = status.health == BackendHealth::Quarantined;
            (is_broken && backend.spec().required).then(|| {
                let why = status.reason.unwrap_or_default();
                format!("storage {} is out of use: {why}", backend.name())
            })
        })
    }

    /// Ends the tier. What transfers may still touch stays captive.
    pub(crate) fn close(&self) {
        let report = self.tiering.close(self.close_deadline);
        if report.abandoned > 0 {
            tracing::warn!(
                tasks = report.abandoned,
                "tasks of storage backends have not ended; the pages that they may touch stay captive"
            );
        }
        self.promises.stop();
        self.memory.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(numbers: impl IntoIterator<Item = u64>) -> Vec<Key> {
        numbers.into_iter().map(Key::integer).collect()
    }

    fn rows(count: u64, group: u32, prefix: bool) -> Vec<Vec<Vec<Key>>> {
        let keys = keys(0..count);
        let rows = Rows::of(Wish {
            keys: &keys,
            group,
            prefix,
            expected_len: 0,
        });
        let part = |rows: Vec<Row>| rows.into_iter().map(|row| row.keys).collect();
        rows.parts.into_iter().map(part).collect()
    }

    #[test]
    fn a_row_has_the_keys_of_one_place_in_every_group() {
        assert_eq!(rows(6, 2, true), [[keys([0, 2, 4]), keys([1, 3, 5])]]);
        assert_eq!(rows(3, 1, false), [[keys([0, 1, 2])]]);
    }

    #[test]
    fn a_last_group_that_is_not_whole_is_a_request_of_its_own() {
        let expected = vec![vec![keys([0, 2]), keys([1, 3])], vec![keys([4])]];
        assert_eq!(rows(5, 2, true), expected);
        assert_eq!(
            rows(3, u32::MAX, false),
            [[keys([0]), keys([1]), keys([2])]]
        );
        assert!(rows(0, 7, false).is_empty());
    }
}
