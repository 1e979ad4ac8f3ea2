//! A pool, backends whose tasks the test ends by hand, and a controller between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_host::l2::{AdapterSpec, Backend, LaneOptions};
use ondol_plugin::l2::{L2Adapter, ObjectKey};
use ondol_plugin::{Key, KeyTag};
use ondol_shm::ObjectMeta;
use ondol_testkit::l2::ManualAdapter;
use serde_json::{Value, json};

use crate::attached::{Attached, AttachedBackends};
use crate::memory::testing::L1;
use crate::prefetch::{
    FetchPolicy, Prefetch, PrefetchController, PrefetchReport, PrefetchRequest, Row,
};
use crate::{Leased, TieringConfig, object_key};

/// How long a test waits for what it expects.
pub(super) const WATCHDOG: Duration = Duration::from_secs(60);
/// Keys of tests are the first so many.
pub(super) const KEYS: usize = 200;
/// Length of most objects.
pub(super) const LEN: usize = 3000;

pub(super) struct Rig {
    pub(super) l1: L1,
    pub(super) backends: Arc<AttachedBackends>,
    pub(super) attached: Vec<Arc<Attached>>,
    pub(super) adapters: Vec<ManualAdapter>,
    pub(super) controller: PrefetchController,
}

pub(super) fn config() -> TieringConfig {
    TieringConfig::default()
}

pub(super) fn spec(transforms: Value) -> AdapterSpec {
    let spec = json!({"type": "manual", "serde": transforms});
    spec.to_string().parse().unwrap()
}

/// Takes an adapter into use.
pub(super) fn attach(
    backends: &AttachedBackends,
    name: &str,
    adapter: Box<dyn L2Adapter>,
    transforms: Value,
) -> Arc<Attached> {
    let options = LaneOptions::default();
    let backend = Backend::start(name, spec(transforms), false, adapter, options).unwrap();
    backends.attach(backend).unwrap()
}

impl Rig {
    /// So many backends over a pool of 16 MiB.
    pub(super) fn new(adapters: usize) -> Self {
        Self::with(adapters, 16 << 20, config(), &json!([]))
    }

    pub(super) fn with(
        adapters: usize,
        bytes: u64,
        config: TieringConfig,
        transforms: &Value,
    ) -> Self {
        let l1 = L1::new(bytes);
        let backends: Arc<AttachedBackends> = Arc::default();
        let adapters: Vec<_> = (0..adapters)
            .map(|_| ManualAdapter::new().unwrap())
            .collect();
        let attached = adapters
            .iter()
            .enumerate()
            .map(|(at, adapter)| {
                let name = format!("manual#{at}");
                attach(
                    &backends,
                    &name,
                    Box::new(adapter.clone()),
                    transforms.clone(),
                )
            })
            .collect();
        let controller = PrefetchController::start(
            Arc::clone(&l1.memory),
            Arc::clone(&backends),
            Arc::new(config),
        );
        Self {
            l1,
            backends,
            attached,
            adapters,
            controller: controller.unwrap(),
        }
    }

    /// The first backend.
    pub(super) fn manual(&self) -> &ManualAdapter {
        &self.adapters[0]
    }

    pub(super) fn ask(&self, keys: &[Key]) -> Prefetch {
        self.controller.submit(prefix(keys))
    }

    /// What is stored of an object in the first backend.
    pub(super) fn stored(&self, key: &Key) -> Vec<u8> {
        self.stored_as(key, &body(key))
    }

    pub(super) fn stored_as(&self, key: &Key, bytes: &[u8]) -> Vec<u8> {
        let object = Leased::of(bytes.to_vec(), ObjectMeta::default());
        let codec = &self.attached[0].codec;
        codec
            .encode(key, &object_key(key), object)
            .unwrap()
            .to_vec()
    }

    /// What a backend has that stores all of these.
    pub(super) fn shelf(&self, keys: &[Key]) -> HashMap<ObjectKey, Vec<u8>> {
        keys.iter()
            .map(|key| (object_key(key), self.stored(key)))
            .collect()
    }

    /// Nothing is left of any request: no locks, no leases, no pages, no bytes in flight.
    pub(super) fn assert_all_is_given_back(&self) {
        eventually("no request is under way", || {
            self.controller.under_way() == 0
        });
        eventually("no bytes are in flight", || {
            self.controller.loading_bytes() == 0
        });
        for adapter in &self.adapters {
            let names: Vec<_> = keys(0..KEYS).iter().map(object_key).collect();
            eventually("nothing is locked", || {
                !names.iter().any(|name| adapter.locks().is_locked(name))
            });
        }
        eventually("nothing is leased", || self.l1.memory.leases() == 0);
        eventually("no page is reserved", || {
            self.l1.memory.flush_returns();
            self.l1.memory.reserved_bytes() == 0
        });
    }

    /// The leases of a report hold the right bytes.
    pub(super) fn assert_right(&self, keys: &[Key], report: &PrefetchReport) {
        for (key, lease) in keys.iter().zip(&report.leases[0]) {
            if let Some(lease) = lease {
                assert!(lease.as_ref() == body(key), "wrong bytes for {key}");
            }
        }
    }
}

/// Waits for something that happens soon.
pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + WATCHDOG;
    while !holds() {
        assert!(Instant::now() < end, "it does not come to it that {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn key(number: usize) -> Key {
    Key::new(KeyTag::Raw, format!("chunk-{number}").as_bytes()).unwrap()
}

pub(super) fn keys(numbers: impl IntoIterator<Item = usize>) -> Vec<Key> {
    numbers.into_iter().map(key).collect()
}

/// The bytes of an object: made of its key, so that another object's are not mistaken for them.
pub(super) fn body(key: &Key) -> Vec<u8> {
    let seed = key.bytes().iter().fold(7_u64, |seed, byte| {
        (seed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (0..LEN as u64)
        .map(|at| (seed.wrapping_mul(at + 1) >> 32) as u8)
        .collect()
}

pub(super) fn row(keys: &[Key]) -> Row {
    Row {
        keys: keys.to_vec(),
        window: None,
        expected_len: None,
    }
}

pub(super) fn prefix(keys: &[Key]) -> PrefetchRequest {
    PrefetchRequest {
        rows: vec![row(keys)],
        policy: FetchPolicy::Prefix,
        timeout: WATCHDOG,
    }
}

/// Waits for a report, as long as it takes.
pub(super) fn finish(prefetch: Prefetch) -> PrefetchReport {
    let report = prefetch.wait(Instant::now() + WATCHDOG);
    assert!(!report.timed_out, "the prefetch did not end");
    report
}

/// Bits as text, row by row.
pub(super) fn present(report: &PrefetchReport) -> String {
    let rows: Vec<_> = report.present.iter().map(ToString::to_string).collect();
    rows.join(" ")
}
