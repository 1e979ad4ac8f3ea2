use ondol_plugin::l2::L2Adapter;

use crate::{Panicked, guarded};

/// An adapter, which is called and destroyed under guard only, wherever its last owner lets go.
pub(super) struct Guest(Option<Box<dyn L2Adapter>>);

impl Guest {
    pub(super) fn new(adapter: Box<dyn L2Adapter>) -> Self {
        Self(Some(adapter))
    }

    /// Calls the adapter. Errors of its own making are to be formatted and dropped within `call`.
    #[inline]
    pub(super) fn call<'a, R>(
        &'a self,
        call: impl FnOnce(&'a dyn L2Adapter) -> R,
    ) -> Result<R, Panicked> {
        match self.0.as_deref() {
            Some(adapter) => guarded(|| call(adapter)),
            None => Err(Panicked {
                message: "the adapter is gone".to_owned(),
            }),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let adapter = self.0.take();
        if let Err(panicked) = guarded(|| drop(adapter)) {
            tracing::warn!(error = %panicked, "the destructor of a storage adapter failed; what it held may be lost");
        }
    }
}

/// An error with its causes; consumes it, since its destructor is foreign code.
#[cold]
pub(super) fn describe(error: anyhow::Error) -> String {
    format!("{error:#}")
}
