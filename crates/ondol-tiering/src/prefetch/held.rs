use std::sync::Arc;

use ondol_plugin::l2::{Bitmap, ObjectKey};

use crate::attached::Attached;

/// Locks that a lookup has taken in a backend; whoever lets go of this has unlocked them. An event that nobody hears,
/// a request that is aborted and a thread that panics therefore leave nothing locked.
#[derive(Debug)]
pub(super) struct Held {
    attached: Arc<Attached>,
    names: Arc<[ObjectKey]>,
    locked: Bitmap,
}

impl Held {
    /// The locks on those of `names` whose bits are set.
    pub(super) fn new(attached: Arc<Attached>, names: Arc<[ObjectKey]>, locked: Bitmap) -> Self {
        let asked = Bitmap::with_prefix(names.len(), names.len());
        Self {
            attached,
            locked: &locked & &asked,
            names,
        }
    }

    /// The backend.
    pub(super) fn attached(&self) -> &Arc<Attached> {
        &self.attached
    }

    /// Whether this name is locked.
    pub(super) fn holds(&self, index: usize) -> bool {
        self.locked.test(index)
    }

    /// The names that are locked, by their places.
    pub(super) fn ones(&self) -> impl Iterator<Item = usize> + '_ {
        self.locked.ones()
    }

    /// Moves some of the locks to another holder.
    pub(super) fn split(&mut self, indices: &[usize]) -> Self {
        let mut moved = Bitmap::new(self.names.len());
        for index in indices.iter().filter(|index| self.locked.test(**index)) {
            moved.set(*index);
        }
        self.locked = &self.locked & &!&moved;
        Self::new(Arc::clone(&self.attached), Arc::clone(&self.names), moved)
    }

    /// Unlocks those that are not to be kept.
    pub(super) fn keep(&mut self, mut is_kept: impl FnMut(usize) -> bool) {
        let freed: Vec<_> = self
            .locked
            .ones()
            .filter(|index| !is_kept(*index))
            .collect();
        freed.iter().for_each(|index| self.locked.clear(*index));
        self.unlock(freed.into_iter());
    }

    fn unlock(&self, indices: impl Iterator<Item = usize>) {
        let names: Vec<_> = indices
            .filter_map(|index| self.names.get(index).cloned())
            .collect();
        if !names.is_empty() {
            self.attached.backend.unlock(names);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.unlock(self.locked.ones());
    }
}
