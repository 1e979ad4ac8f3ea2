//! The backends in use, in the order of their priority.

use std::sync::Arc;

use ondol_host::l2::Backend;
use parking_lot::RwLock;

use crate::codec::Codec;

/// A backend in use.
#[derive(Debug)]
pub(crate) struct Attached {
    /// Its number, never used again for another one.
    pub(crate) id: u64,
    /// The adapter behind its lane.
    pub(crate) backend: Arc<Backend>,
    /// What is stored there of an object.
    pub(crate) codec: Codec,
}

/// All backends in use.
#[derive(Debug, Default)]
pub(crate) struct AttachedBackends(RwLock<Vec<Arc<Attached>>>);

impl AttachedBackends {
    /// Those that take new work now, the first to be asked first. Whoever holds one keeps it from being detached.
    pub(crate) fn active(&self) -> Vec<Arc<Attached>> {
        self.0.read().clone()
    }
}
