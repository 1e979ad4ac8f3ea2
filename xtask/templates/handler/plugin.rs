use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use ondol_plugin::{HandlerPlugin, HandlerView, Hooks, RetrievedBatch};
use serde_json::{Map, Value};

use crate::Config;

/// The plugin. Its hooks are called from many threads at once.
#[derive(Debug)]
pub struct {{Type}} {
    config: Config,
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl {{Type}} {
    /// A plugin that has seen nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            objects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

impl HandlerPlugin for {{Type}} {
    fn hooks(&self) -> Hooks {
        // Only what is named here is called; a hook that is left out costs nothing.
        Hooks::BATCH_RETRIEVE | Hooks::STATS
    }

    fn on_batch_retrieve(
        &self,
        handler: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> Result<()> {
        for entry in batch.entries() {
            let Some(region) = entry.handle() else {
                continue;
            };
            if entry.kv_length() < self.config.min_bytes
                || !handler.is_region_mapped(region.region_id)
            {
                continue;
            }
            // The place for the hint: the object is `kv_length()` bytes at `region.offset + kv_offset()` of the
            // file that `get_region_dax_path` names, or `bytes()` in this process.
            self.objects.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(entry.kv_length(), Ordering::Relaxed);
        }
        Ok(())
    }

    fn contribute_stats(&self) -> Option<Map<String, Value>> {
        let figure = |name: &str, value: &AtomicU64| {
            (name.to_owned(), Value::from(value.load(Ordering::Relaxed)))
        };
        Some(Map::from_iter([
            figure("objects", &self.objects),
            figure("bytes", &self.bytes),
        ]))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use ondol_plugin::{
        BatchEntry, BatchSource, HandlerPluginFactory, Key, RegionId, RegionSpan, inventory,
    };

    /// A handler that has mapped one region.
    struct Mapped(RegionId);

    impl HandlerView for Mapped {
        fn is_region_mapped(&self, region: RegionId) -> bool {
            region == self.0
        }
        fn get_region_dax_path(&self, _: RegionId) -> Option<PathBuf> {
            None
        }
    }

    /// One key in each of two regions, and one that was not found.
    struct Batch([Key; 3]);

    impl BatchSource for Batch {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn entry(&self, index: usize) -> BatchEntry<'_> {
            let region = RegionSpan {
                region_id: RegionId(index as u64 + 1),
                offset: 0,
                length: 4096,
            };
            match index {
                2 => BatchEntry::missed(&self.0[2]),
                _ => BatchEntry::located(&self.0[index], region, 1024, 512, None),
            }
        }
    }

    fn figures(min_bytes: u64) -> (Value, Value) {
        let plugin = {{Type}}::new(Config { min_bytes });
        let batch = Batch([1, 2, 3].map(Key::integer));
        plugin
            .on_batch_retrieve(&Mapped(RegionId(1)), &RetrievedBatch::new(&batch))
            .unwrap();
        let mut stats = plugin.contribute_stats().unwrap();
        let mut take = |name: &str| stats.remove(name).unwrap();
        (take("objects"), take("bytes"))
    }

    #[test]
    fn only_long_objects_of_mapped_regions_are_acted_on() {
        assert_eq!(figures(512), (1.into(), 512.into()));
        assert_eq!(figures(513), (0.into(), 0.into()));
    }

    #[test]
    fn the_crate_registers_it_under_its_name() {
        let mine = inventory::iter::<HandlerPluginFactory>
            .into_iter()
            .filter(|factory| factory.package().name == env!("CARGO_PKG_NAME"));
        assert_eq!(mine.map(HandlerPluginFactory::name).collect::<Vec<_>>(), ["{{plugin}}"]);
    }
}
