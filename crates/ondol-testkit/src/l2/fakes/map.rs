use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ondol_plugin::l2::{
    BlockingBackend, KeyEntry, KeyPage, ListRequest, LoadOutcome, ObjectKey, ObjectRef, PageMut,
    StoreError, Usage,
};

/// A backend that keeps what it is given in a map, for `WorkerAdapter`.
#[derive(Debug, Default)]
pub struct MapBackend(Mutex<BTreeMap<ObjectKey, Vec<u8>>>);

impl MapBackend {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is stored under a key: body and trailer.
    pub fn get(&self, key: &ObjectKey) -> Option<Vec<u8>> {
        self.objects().get(key).cloned()
    }

    /// Stores these bytes, in place of what is there; as one does who tampers with a backend.
    pub fn put(&self, key: ObjectKey, stored: impl Into<Vec<u8>>) {
        self.objects().insert(key, stored.into());
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockingBackend for MapBackend {
    fn store(&self, key: &ObjectKey, object: &ObjectRef) -> Result<u64, StoreError> {
        let mut objects = self.objects();
        if objects.contains_key(key) {
            return Ok(0);
        }
        objects.insert(key.clone(), object.to_vec());
        Ok(object.stored_len() as u64)
    }

    fn lookup(&self, key: &ObjectKey) -> anyhow::Result<Option<u64>> {
        Ok(self.objects().get(key).map(|stored| stored.len() as u64))
    }

    fn load(&self, key: &ObjectKey, page: &mut PageMut) -> LoadOutcome {
        match self.objects().get(key) {
            None => LoadOutcome::Missing,
            Some(stored) => match page.fill(stored) {
                Ok(bytes) => LoadOutcome::Found(bytes),
                Err(error) => LoadOutcome::Failed(error.to_string()),
            },
        }
    }

    fn delete(&self, key: &ObjectKey) -> anyhow::Result<bool> {
        Ok(self.objects().remove(key).is_some())
    }

    fn usage(&self) -> Usage {
        let objects = self.objects();
        let mut usage = Usage {
            objects: objects.len() as u64,
            is_complete: true,
            ..Usage::default()
        };
        for (key, stored) in objects.iter() {
            let bytes = stored.len() as u64;
            usage.used_bytes += bytes;
            let salt = usage.bytes_by_salt.entry(key.cache_salt().to_owned());
            *salt.or_default() += bytes;
        }
        usage
    }

    /// A cursor is the last key of the page before.
    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        let from = match &request.cursor {
            None => Bound::Unbounded,
            Some(cursor) => Bound::Excluded(cursor.parse::<ObjectKey>()?),
        };
        let objects = self.objects();
        let model = request.model_name.as_deref();
        let mut wanted = objects
            .range::<ObjectKey, _>((from, Bound::Unbounded))
            .filter(|(key, _)| model.is_none_or(|model| key.model_name() == model));
        let entries: Vec<_> = wanted
            .by_ref()
            .take(request.page_size)
            .map(|(key, stored)| KeyEntry {
                key: key.clone(),
                size_bytes: stored.len() as u64,
            })
            .collect();
        let last = entries.last().map(|entry| entry.key.to_string());
        Ok(KeyPage {
            next_cursor: last.filter(|_| wanted.next().is_some()),
            entries,
        })
    }
}
