use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::{Hooks, RegionId, RetrievedBatch, StageResult};

/// Behaviour that a vendor adds to the handler: every hook is optional.
///
/// Hooks of one instance are called from many threads at once. An error or a panic in a hook is logged,
/// counted and swallowed; an instance that panicked is never called again. A hook that repeatedly overruns its
/// time budget is quarantined. The numbered promises, each with the test that pins it, are in
/// `docs/contract/CONTRACT.md`.
pub trait HandlerPlugin: Send + Sync {
    /// The hooks that this plugin wants; the others are never called. Asked once, after construction.
    fn hooks(&self) -> Hooks {
        Hooks::ALL
    }

    /// Those of [`hooks`](Self::hooks) to be called on a lane of the plugin's own, not on the caller's
    /// thread. The lane is bounded and drops when full. Only [`Hooks::BATCH_RETRIEVE`] and
    /// [`Hooks::PREFETCH`] can be deferred; other bits are ignored. Asked once, after construction.
    fn deferred(&self) -> Hooks {
        Hooks::NONE
    }

    /// Called once, at the end of the handler's construction. It is not paired with
    /// [`on_close`](Self::on_close): acquire nothing here that only `on_close` would release.
    ///
    /// # Errors
    /// An error is logged and counted; the plugin stays in use.
    fn on_init(&self, handler: &dyn HandlerView) -> anyhow::Result<()> {
        let _ = handler;
        Ok(())
    }

    /// Called at the end of every batch retrieve, after the regions of its hits are mapped. On the hot path,
    /// not serialised against close: a region that was mapped at the start of the hook may be unmapped by the end of it,
    /// but the bytes of the batch's own entries stay valid throughout the call.
    ///
    /// # Errors
    /// An error is logged and counted; the retrieve itself is not affected.
    fn on_batch_retrieve(
        &self,
        handler: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<()> {
        let _ = (handler, batch);
        Ok(())
    }

    /// Called at the end of a prefetch, which looks up and maps nothing: hint only regions that
    /// [`HandlerView::is_region_mapped`] confirms. Hints must be idempotent.
    ///
    /// # Errors
    /// An error is logged and counted.
    fn on_prefetch(
        &self,
        handler: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<()> {
        let _ = (handler, batch);
        Ok(())
    }

    /// Makes the objects of the batch ready for use; may block, being called off the critical path only.
    /// `None` means that this plugin does not stage.
    ///
    /// # Errors
    /// An error becomes a failed [`StageResult`].
    fn on_stage(
        &self,
        handler: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<Option<StageResult>> {
        let _ = (handler, batch);
        Ok(None)
    }

    /// Called when a connected handler closes, while its regions are still mapped, with all writers of the
    /// handler excluded. Must not block.
    ///
    /// # Errors
    /// An error is logged and counted; the close goes on.
    fn on_close(&self, handler: &dyn HandlerView) -> anyhow::Result<()> {
        let _ = handler;
        Ok(())
    }

    /// Figures to show under this plugin's name in the handler's statistics.
    fn contribute_stats(&self) -> Option<Map<String, Value>> {
        None
    }
}

/// What a hook may ask of the handler that calls it.
pub trait HandlerView {
    /// Whether the region is mapped in this process now.
    fn is_region_mapped(&self, region: RegionId) -> bool;

    /// The path of the file or device that holds the region; `None` if the region is unknown here or has no path.
    fn get_region_dax_path(&self, region: RegionId) -> Option<PathBuf>;
}
