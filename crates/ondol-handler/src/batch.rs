//! Batches as plugins see them.

use ondol_plugin::{BatchEntry, BatchSource, Key, RegionSpan};

use crate::Object;

/// What a batch found, borrowed for one call.
pub(crate) struct Batch<'a> {
    pub(crate) keys: &'a [Key],
    pub(crate) objects: &'a [Option<Object>],
}

/// The same with its own hold on the objects, for plugins that are called later.
pub(crate) struct KeptBatch {
    keys: Vec<Key>,
    objects: Vec<Option<Object>>,
}

impl Batch<'_> {
    pub(crate) fn keep(&self) -> KeptBatch {
        KeptBatch {
            keys: self.keys.to_vec(),
            objects: self.objects.to_vec(),
        }
    }
}

fn entry<'a>(key: &'a Key, object: Option<&'a Object>) -> BatchEntry<'a> {
    match object {
        Some(object) => BatchEntry::located(
            key,
            object.region(),
            object.offset_in_region(),
            object.len() as u64,
            Some(object),
        ),
        None => BatchEntry::missed(key),
    }
}

impl BatchSource for Batch<'_> {
    fn len(&self) -> usize {
        self.keys.len()
    }

    fn entry(&self, index: usize) -> BatchEntry<'_> {
        entry(
            &self.keys[index],
            self.objects.get(index).and_then(Option::as_ref),
        )
    }
}

impl BatchSource for KeptBatch {
    fn len(&self) -> usize {
        self.keys.len()
    }

    fn entry(&self, index: usize) -> BatchEntry<'_> {
        entry(
            &self.keys[index],
            self.objects.get(index).and_then(Option::as_ref),
        )
    }
}

/// What a prefetch found: objects in regions that are mapped here, places of the others.
#[derive(Clone)]
pub(crate) struct Sighted {
    pub(crate) keys: Vec<Key>,
    pub(crate) sightings: Vec<Option<Sighting>>,
}

/// One object that a prefetch found.
#[derive(Clone)]
pub(crate) enum Sighting {
    Mapped(Object),
    Elsewhere {
        handle: RegionSpan,
        kv_offset: u64,
        kv_length: u64,
    },
}

impl BatchSource for Sighted {
    fn len(&self) -> usize {
        self.keys.len()
    }

    fn entry(&self, index: usize) -> BatchEntry<'_> {
        let key = &self.keys[index];
        match &self.sightings[index] {
            Some(Sighting::Mapped(object)) => entry(key, Some(object)),
            Some(Sighting::Elsewhere {
                handle,
                kv_offset,
                kv_length,
            }) => BatchEntry::located(key, *handle, *kv_offset, *kv_length, None),
            None => BatchEntry::missed(key),
        }
    }
}
