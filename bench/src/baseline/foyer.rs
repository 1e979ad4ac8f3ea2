//! foyer as a cache in this process: no other process can use it, so it shows what a lookup costs without one.

use anyhow::Result;
use foyer_memory::{Cache, CacheBuilder};
use ondol::Key;

use super::Peer;

/// More than any scenario gives it.
const CAPACITY: usize = 8 << 30;
const SHARDS: usize = 8;

#[derive(Debug)]
pub(super) struct Foyer {
    cache: Cache<Vec<u8>, Vec<u8>>,
}

impl Foyer {
    pub(super) fn new() -> Self {
        let builder = CacheBuilder::new(CAPACITY).with_shards(SHARDS);
        Self {
            cache: builder
                .with_weighter(|_, value: &Vec<u8>| value.len())
                .build(),
        }
    }
}

impl Peer for Foyer {
    fn name(&self) -> &str {
        "foyer, in this process"
    }

    fn server(&self) -> Option<u32> {
        None
    }

    fn put(&mut self, keys: &[Key], value: &[u8]) -> Result<()> {
        for key in keys {
            self.cache.insert(key.bytes().to_vec(), value.to_vec());
        }
        Ok(())
    }

    fn get(&mut self, keys: &[Key], into: &mut [u8]) -> Result<usize> {
        let mut found = 0;
        for key in keys {
            if let Some(entry) = self.cache.get(key.bytes()) {
                into[..entry.value().len()].copy_from_slice(entry.value());
                found += 1;
            }
        }
        Ok(found)
    }

    fn exists(&mut self, keys: &[Key]) -> Result<usize> {
        Ok(keys
            .iter()
            .filter(|key| self.cache.contains(key.bytes()))
            .count())
    }

    fn ping(&mut self) -> Option<Result<()>> {
        None
    }

    fn clear(&mut self) -> Result<()> {
        self.cache.clear();
        Ok(())
    }
}
