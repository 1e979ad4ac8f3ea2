use std::sync::atomic::{AtomicBool, Ordering};

use ondol_plugin::l2::L2Adapter;

use crate::{Panicked, guarded};

/// An adapter, which is called and destroyed under guard only, wherever its last owner lets go, and which is not called again
/// once it has panicked: nobody knows in which state it is.
pub(super) struct Guest {
    adapter: Option<Box<dyn L2Adapter>>,
    has_panicked: AtomicBool,
}

impl Guest {
    pub(super) fn new(adapter: Box<dyn L2Adapter>) -> Self {
        Self {
            adapter: Some(adapter),
            has_panicked: AtomicBool::new(false),
        }
    }

    /// Calls the adapter. Errors of its own making are to be formatted and dropped within `call`.
    #[inline]
    pub(super) fn call<'a, R>(
        &'a self,
        call: impl FnOnce(&'a dyn L2Adapter) -> R,
    ) -> Result<R, Panicked> {
        match self.adapter.as_deref() {
            Some(adapter) if !self.has_panicked.load(Ordering::Relaxed) => {
                guarded(|| call(adapter))
                    .inspect_err(|_| self.has_panicked.store(true, Ordering::Relaxed))
            }
            _ => Err(Panicked {
                message: "earlier".to_owned(),
            }),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let adapter = self.adapter.take();
        if let Err(panicked) = guarded(|| drop(adapter)) {
            tracing::warn!(error = %panicked, "the destructor of a storage adapter failed; what it held may be lost");
        }
    }
}
