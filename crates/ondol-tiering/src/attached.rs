//! The backends in use, in the order of their priority.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use ondol_host::l2::{AdapterSpec, Backend};
use ondol_plugin::l2::ObjectKey;
use parking_lot::RwLock;

use crate::codec::Codec;
use crate::complaints::Complaints;
use crate::deletion::Holder;
use crate::error::TieringError;
use crate::evict::Reports;
use crate::latch::Latch;
use crate::prefetch::Reads;

/// A backend in use.
#[derive(Debug)]
pub(crate) struct Attached {
    /// Its number, never used again for another one.
    pub(crate) id: u64,
    /// The adapter behind its lane.
    pub(crate) backend: Arc<Backend>,
    /// What is stored there of an object.
    pub(crate) codec: Codec,
    /// Where its eviction hears what happens to objects; `None` if the backend makes room by itself.
    pub(crate) evictions: Option<Arc<Reports>>,
    /// Whether lookups and loads end in time.
    pub(crate) reads: Reads,
    /// Bytes that loads from here may be filling.
    pub(crate) loading_bytes: AtomicU64,
    /// What was said in the log of its objects.
    pub(crate) complaints: Complaints,
    /// Set when nobody uses it any more.
    unused: Arc<Latch>,
}

impl Attached {
    /// These objects were loaded from here, which makes them worth keeping.
    pub(crate) fn note_loaded(&self, keys: &[ObjectKey]) {
        if let Some(evictions) = &self.evictions {
            evictions.loaded(keys);
        }
    }

    /// These objects were deleted here, or found not to be here.
    pub(crate) fn note_deleted(&self, keys: &[ObjectKey]) {
        if let Some(evictions) = &self.evictions {
            evictions.deleted(keys);
        }
    }
}

/// Whoever holds an [`Attached`] uses it; the last one to let go says so.
impl Drop for Attached {
    fn drop(&mut self) {
        self.unused.set();
    }
}

/// The codec that a configuration asks for.
pub(crate) fn codec_of(
    backend: &str,
    spec: &AdapterSpec,
    verifies: bool,
) -> Result<Codec, TieringError> {
    let codec = Codec::new(&spec.transforms, verifies);
    codec.map_err(|error| no_transforms(backend, &error))
}

pub(crate) fn no_transforms(backend: &str, error: &dyn std::error::Error) -> TieringError {
    TieringError::Transforms {
        backend: backend.to_owned(),
        reason: error.to_string(),
    }
}

/// The eviction that a configuration asks for.
pub(crate) fn evictions_of(
    backend: &str,
    spec: &AdapterSpec,
) -> Result<Option<Arc<Reports>>, TieringError> {
    let Some(eviction) = &spec.eviction else {
        return Ok(None);
    };
    Reports::new(eviction).map_err(|reason| TieringError::Eviction {
        backend: backend.to_owned(),
        reason,
    })
}

/// All backends in use.
#[derive(Debug, Default)]
pub(crate) struct AttachedBackends(RwLock<Backends>);

#[derive(Debug, Default)]
struct Backends {
    last_id: u64,
    active: Vec<Arc<Attached>>,
    draining: Vec<Draining>,
}

/// A backend that takes no new work and that somebody may still use.
#[derive(Clone, Debug)]
pub(crate) struct Draining {
    pub(crate) id: u64,
    pub(crate) backend: Arc<Backend>,
    unused: Arc<Latch>,
}

impl Draining {
    /// Waits until nobody uses it any more, or `until`; whether that is so.
    pub(crate) fn wait_until_unused(&self, until: Instant) -> bool {
        self.unused.wait(until)
    }
}

impl AttachedBackends {
    /// Those that take new work now, the first to be asked first. Whoever holds one keeps it from being detached.
    pub(crate) fn active(&self) -> Vec<Arc<Attached>> {
        self.0.read().active.clone()
    }

    /// How many take new work now.
    pub(crate) fn len(&self) -> usize {
        self.0.read().active.len()
    }

    /// Whether an object that this backend has counts as safe: its contents outlive the server (`persist_enabled`), or those of no
    /// backend do.
    pub(crate) fn is_safe_in(&self, attached: &Attached) -> bool {
        let persists = |backend: &Attached| backend.backend.spec().persist_enabled;
        persists(attached) || !self.0.read().active.iter().any(|active| persists(active))
    }

    /// Those that take no new work and are not unused yet.
    pub(crate) fn draining(&self) -> Vec<Draining> {
        self.0.read().draining.clone()
    }

    /// All that may have objects: those that take new work and those that are draining.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        let backends = self.0.read();
        let active = backends.active.iter().map(|active| Holder {
            id: active.id,
            backend: Arc::clone(&active.backend),
            attached: Some(Arc::clone(active)),
        });
        let draining = backends.draining.iter().map(|draining| Holder {
            id: draining.id,
            backend: Arc::clone(&draining.backend),
            attached: None,
        });
        active.chain(draining).collect()
    }

    /// Takes a backend into use, behind all others.
    ///
    /// # Errors
    /// If its `serde` or `eviction` cannot be used.
    pub(crate) fn attach(&self, backend: Arc<Backend>) -> Result<Arc<Attached>, TieringError> {
        let spec = backend.spec();
        let codec = codec_of(backend.name(), spec, backend.verifies())?;
        let evictions = evictions_of(backend.name(), spec)?;
        let mut backends = self.0.write();
        backends.last_id += 1;
        let attached = Arc::new(Attached {
            id: backends.last_id,
            backend,
            codec,
            evictions,
            reads: Reads::default(),
            loading_bytes: AtomicU64::new(0),
            complaints: Complaints::default(),
            unused: Arc::default(),
        });
        backends.active.push(Arc::clone(&attached));
        Ok(attached)
    }

    /// From now on this backend takes no new work. Again for one that is draining.
    ///
    /// # Errors
    /// [`TieringError::UnknownBackend`].
    pub(crate) fn drain(&self, id: u64) -> Result<Draining, TieringError> {
        let mut backends = self.0.write();
        if let Some(draining) = backends.draining.iter().find(|draining| draining.id == id) {
            return Ok(draining.clone());
        }
        let Some(at) = backends.active.iter().position(|active| active.id == id) else {
            let known = |id: u64, backend: &Backend| format!("{id} ({})", backend.name());
            let active = backends.active.iter().map(|it| known(it.id, &it.backend));
            let draining = backends.draining.iter().map(|it| known(it.id, &it.backend));
            let known: Vec<_> = active.chain(draining).collect();
            return Err(TieringError::UnknownBackend {
                id,
                known: if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                },
            });
        };
        let active = backends.active.remove(at);
        let draining = Draining {
            id,
            backend: Arc::clone(&active.backend),
            unused: Arc::clone(&active.unused),
        };
        backends.draining.push(draining.clone());
        // Its drop sets a latch and may free a codec: not under the lock.
        drop(backends);
        drop(active);
        Ok(draining)
    }

    /// Forgets a backend that was drained.
    pub(crate) fn forget(&self, id: u64) {
        self.0.write().draining.retain(|draining| draining.id != id);
    }
}
