use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context;
use ondol_plugin::{HandlerPlugin, HandlerView, Hooks, RetrievedBatch, StageResult};
use serde_json::{Map, Value};

use crate::pins::{Pinned, Pins};
use crate::{Config, memory};

/// The plugin; see the crate's page.
pub struct Prefault {
    pins: Pins,
    populated: AtomicU64,
    populate_errors: AtomicU64,
    pin_errors: AtomicU64,
    over_budget: AtomicU64,
}

impl Prefault {
    /// The plugin as `config` wants it; acquires nothing.
    pub fn new(config: &Config) -> Self {
        Self {
            pins: Pins::new(config.pin_bytes),
            populated: AtomicU64::new(0),
            populate_errors: AtomicU64::new(0),
            pin_errors: AtomicU64::new(0),
            over_budget: AtomicU64::new(0),
        }
    }

    fn prepare(&self, batch: &RetrievedBatch<'_>) -> StageResult {
        let start = Instant::now();
        let mut result = StageResult {
            requested_keys: batch.len() as u64,
            ..StageResult::default()
        };
        for entry in batch.entries() {
            let Some(handle) = entry.handle() else {
                continue;
            };
            result.found_keys += 1;
            let Some(bytes) = entry.bytes() else {
                result.skipped_keys += 1;
                continue;
            };
            result.eligible_keys += 1;
            result.issued_ranges += 1;
            match memory::populate(bytes) {
                Ok(()) => {
                    add(&self.populated);
                    result.prepared_bytes += bytes.len() as u64;
                }
                Err(error) => {
                    add(&self.populate_errors);
                    result.failed_ranges += 1;
                    result.error.get_or_insert_with(|| {
                        format!(
                            "could not populate {} bytes of {}: {error}",
                            bytes.len(),
                            entry.key()
                        )
                    });
                    continue;
                }
            }
            match self.pins.pin(handle.region_id, bytes) {
                Ok(Pinned::Held) => {}
                Ok(Pinned::OverBudget) => add(&self.over_budget),
                Err(_) => add(&self.pin_errors),
            }
        }
        result.wait = start.elapsed();
        result
    }
}

impl HandlerPlugin for Prefault {
    fn hooks(&self) -> Hooks {
        Hooks::PREFETCH | Hooks::STAGE | Hooks::CLOSE | Hooks::STATS
    }

    fn deferred(&self) -> Hooks {
        Hooks::PREFETCH
    }

    fn on_prefetch(&self, _: &dyn HandlerView, batch: &RetrievedBatch<'_>) -> anyhow::Result<()> {
        match self.prepare(batch).error {
            Some(error) => Err(anyhow::Error::msg(error)),
            None => Ok(()),
        }
    }

    fn on_stage(
        &self,
        _: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<Option<StageResult>> {
        Ok(Some(self.prepare(batch)))
    }

    fn on_close(&self, handler: &dyn HandlerView) -> anyhow::Result<()> {
        let released = self.pins.release(|region| handler.is_region_mapped(region));
        released.context("could not unlock a pinned range")
    }

    fn contribute_stats(&self) -> Option<Map<String, Value>> {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let pins = self.pins.tally();
        let figures = [
            ("populated", count(&self.populated)),
            ("populate_errors", count(&self.populate_errors)),
            ("pinned_ranges", pins.ranges),
            ("pinned_bytes", pins.bytes),
            ("pin_references", pins.references),
            ("pin_errors", count(&self.pin_errors)),
            ("over_budget", count(&self.over_budget)),
        ];
        Some(
            figures
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect(),
        )
    }
}

impl fmt::Debug for Prefault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefault")
            .field("pins", &self.pins)
            .finish_non_exhaustive()
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}
