//! A plugin that writes down every call that it gets: one JSON object a line, in the file that the variable
//! [`FILE_VARIABLE`] names. Without the variable it declines.
//!
//! Every line has `hook`. Those of batches have `entries`, each with `key`, `found`, and for a found one `region`,
//! `region_offset`, `region_length`, `offset`, `length`, `mapped`, `path` and `sum`: a checksum of the bytes, or
//! null where the plugin was given none. The line of `on_close` has `mapped`: of all regions seen before, those
//! that are mapped still. The last line, `drop`, is the destructor's.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Mutex;

use anyhow::Context;
use ondol_plugin::{
    BatchEntry, HandlerPlugin, HandlerPluginFactory, HandlerView, RegionId, RetrievedBatch,
    StageResult, inventory, package,
};
use serde_json::{Map, Value, json};

/// The plugin's name.
pub const NAME: &str = "recording";

/// The variable that names the file.
pub const FILE_VARIABLE: &str = "RECORDING_PLUGIN_FILE";

inventory::submit! {
    HandlerPluginFactory::new(NAME, package!(), |context| {
        let Some(path) = context.var(FILE_VARIABLE) else {
            return Ok(None);
        };
        let file = OpenOptions::new().create(true).append(true).open(&path).with_context(|| path.clone())?;
        let record = Mutex::new(Record { file, lines: 0, seen: BTreeSet::new() });
        Ok(Some(Box::new(Recording(record))))
    })
}

/// A checksum (FNV-1a) that a test can compute as well.
pub fn sum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

struct Recording(Mutex<Record>);

struct Record {
    file: File,
    lines: u64,
    seen: BTreeSet<RegionId>,
}

impl Recording {
    fn write(&self, line: &Value) -> anyhow::Result<()> {
        let mut record = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        record.lines += 1;
        // One write a line, so that lines of several processes do not run into each other.
        record.file.write_all(format!("{line}\n").as_bytes())?;
        Ok(())
    }

    fn batch(
        &self,
        hook: &str,
        view: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<()> {
        let entries: Vec<_> = batch
            .entries()
            .map(|entry| describe(view, &entry))
            .collect();
        let regions = batch.entries().filter_map(|entry| entry.handle());
        {
            let mut record = self
                .0
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            record.seen.extend(regions.map(|region| region.region_id));
        }
        self.write(&json!({ "hook": hook, "entries": entries }))
    }
}

fn describe(view: &dyn HandlerView, entry: &BatchEntry<'_>) -> Value {
    let Some(handle) = entry.handle() else {
        return json!({ "key": entry.key().to_string(), "found": false });
    };
    json!({
        "key": entry.key().to_string(),
        "found": true,
        "region": handle.region_id.0,
        "region_offset": handle.offset,
        "region_length": handle.length,
        "offset": entry.kv_offset(),
        "length": entry.kv_length(),
        "mapped": view.is_region_mapped(handle.region_id),
        "path": view.get_region_dax_path(handle.region_id),
        "sum": entry.bytes().map(sum),
    })
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Whoever expects the line will miss it.
        let _ = self.write(&json!({ "hook": "drop" }));
    }
}

impl HandlerPlugin for Recording {
    fn on_init(&self, _: &dyn HandlerView) -> anyhow::Result<()> {
        self.write(&json!({ "hook": "on_init" }))
    }

    fn on_batch_retrieve(
        &self,
        view: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<()> {
        self.batch("on_batch_retrieve", view, batch)
    }

    fn on_prefetch(
        &self,
        view: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<()> {
        self.batch("on_prefetch", view, batch)
    }

    fn on_stage(
        &self,
        view: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<Option<StageResult>> {
        self.batch("on_stage", view, batch)?;
        let found = batch.entries().filter(BatchEntry::found).count() as u64;
        Ok(Some(StageResult {
            requested_keys: batch.len() as u64,
            found_keys: found,
            eligible_keys: found,
            prepared_bytes: batch.entries().map(|entry| entry.kv_length()).sum(),
            issued_ranges: found,
            ..StageResult::default()
        }))
    }

    fn on_close(&self, view: &dyn HandlerView) -> anyhow::Result<()> {
        let mapped: Vec<_> = {
            let record = self
                .0
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            let mapped = record
                .seen
                .iter()
                .filter(|region| view.is_region_mapped(**region));
            mapped.map(|region| region.0).collect()
        };
        self.write(&json!({ "hook": "on_close", "mapped": mapped }))
    }

    fn contribute_stats(&self) -> Option<Map<String, Value>> {
        let record = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        Some(Map::from_iter([(
            "lines".to_owned(),
            Value::from(record.lines),
        )]))
    }
}
