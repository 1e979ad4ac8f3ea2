use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use ondol_plugin::FactoryContext;

/// The variable that names the [`Probe`] of a plugin.
pub const PROBE_VARIABLE: &str = "BROKEN_PLUGINS_PROBE";

/// After this long a test that waits is stuck.
const STUCK: Duration = Duration::from_secs(120);

/// Sees what plugins are called for, and holds the gate at which hanging ones wait.
#[derive(Debug)]
pub struct Probe {
    id: u64,
    seen: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Seen {
    calls: Vec<&'static str>,
    is_open: bool,
}

static PROBES: Mutex<Option<HashMap<u64, Weak<Probe>>>> = Mutex::new(None);

impl Probe {
    /// A probe whose gate is shut.
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let probe = Arc::new(Self {
            id,
            seen: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut probes = PROBES.lock().unwrap();
        probes
            .get_or_insert_default()
            .insert(id, Arc::downgrade(&probe));
        probe
    }

    /// The variable by which plugins find this probe.
    pub fn variable(&self) -> (&'static str, String) {
        (PROBE_VARIABLE, self.id.to_string())
    }

    /// All calls so far, of all plugins with this probe: names of hooks, `hooks`, `deferred` and `drop`.
    pub fn calls(&self) -> Vec<&'static str> {
        self.seen().calls.clone()
    }

    /// How often `place` was called so far.
    pub fn count(&self, place: &str) -> usize {
        count(&self.seen(), place)
    }

    /// Waits until `place` was called `times` times.
    ///
    /// # Panics
    /// If that takes minutes.
    pub fn wait_for(&self, place: &str, times: usize) {
        let deadline = Instant::now() + STUCK;
        let mut seen = self.seen();
        while count(&seen, place) < times {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "waited for {times} × {place}; saw {:?}",
                seen.calls
            );
            seen = self.changed.wait_timeout(seen, left).unwrap().0;
        }
    }

    /// Opens the gate, for good.
    pub fn open(&self) {
        self.seen().is_open = true;
        self.changed.notify_all();
    }

    /// The probe that the environment names, or one that nobody else knows.
    pub(crate) fn of(context: &FactoryContext<'_>) -> Arc<Self> {
        let id = context
            .var(PROBE_VARIABLE)
            .and_then(|id| id.parse::<u64>().ok());
        let probes = PROBES.lock().unwrap();
        id.and_then(|id| probes.as_ref()?.get(&id)?.upgrade())
            .unwrap_or_else(|| {
                drop(probes);
                Self::new()
            })
    }

    pub(crate) fn note(&self, place: &'static str) {
        self.seen().calls.push(place);
        self.changed.notify_all();
    }

    pub(crate) fn wait_until_open(&self) {
        let mut seen = self.seen();
        while !seen.is_open {
            seen = self.changed.wait(seen).unwrap();
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }
}

fn count(seen: &Seen, place: &str) -> usize {
    seen.calls.iter().filter(|call| **call == place).count()
}
