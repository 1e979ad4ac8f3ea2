//! Counts the bytes that batches found.

use anyhow::Result;
use ondol_plugin::{HandlerPlugin, HandlerPluginFactory, HandlerView, RetrievedBatch};
use serde_json::{Map, Value};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
struct Example(AtomicU64);

impl HandlerPlugin for Example {
    fn on_batch_retrieve(&self, _: &dyn HandlerView, batch: &RetrievedBatch<'_>) -> Result<()> {
        let bytes = batch.entries().map(|entry| entry.kv_length()).sum();
        self.0.fetch_add(bytes, Relaxed);
        Ok(())
    }
    fn contribute_stats(&self) -> Option<Map<String, Value>> {
        let bytes = self.0.load(Relaxed).into();
        Some(Map::from_iter([("bytes".into(), bytes)]))
    }
}

ondol_plugin::inventory::submit! {
    HandlerPluginFactory::new("example", ondol_plugin::package!(), |_| Ok(Some(Box::<Example>::default())))
}
