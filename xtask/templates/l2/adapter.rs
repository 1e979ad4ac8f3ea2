use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ondol_plugin::l2::{
    AdapterConfig, BlockingBackend, KeyEntry, KeyPage, L2Adapter, ListRequest, LoadOutcome,
    ObjectKey, ObjectRef, OpenContext, PageMut, StoreError, Usage, WorkerAdapter,
};

use crate::{{Type}}Config;

/// Opens the backend: what the registration names.
pub(crate) fn open(
    config: AdapterConfig,
    context: &OpenContext<'_>,
) -> anyhow::Result<Box<dyn L2Adapter>> {
    let config: {{Type}}Config = config.read()?;
    let backend = {{Type}}Backend::new(config.max_objects);
    let adapter = WorkerAdapter::new(context.name(), config.num_workers, backend)?;
    Ok(Box::new(adapter))
}

/// Objects in a map, which is the place for the storage itself. Each method is called from several threads, for one
/// object at a time; tasks, locks and signals are `WorkerAdapter`'s.
#[derive(Debug)]
pub struct {{Type}}Backend {
    max_objects: Option<usize>,
    objects: Mutex<BTreeMap<ObjectKey, Vec<u8>>>,
}

impl {{Type}}Backend {
    /// An empty one, which keeps at most so many objects.
    pub fn new(max_objects: Option<usize>) -> Self {
        Self {
            max_objects,
            objects: Mutex::default(),
        }
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Vec<u8>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockingBackend for {{Type}}Backend {
    fn store(&self, key: &ObjectKey, object: &ObjectRef) -> Result<u64, StoreError> {
        let mut objects = self.objects();
        if objects.contains_key(key) {
            return Ok(0);
        }
        if let Some(most) = self.max_objects.filter(|most| objects.len() >= *most) {
            return Err(StoreError {
                reason: format!("there are {most} objects, as many as max_objects allows"),
                retryable: true,
            });
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
            let salt = key.cache_salt().to_owned();
            *usage.bytes_by_salt.entry(salt).or_default() += bytes;
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
        let entry = |(key, stored): (&ObjectKey, &Vec<u8>)| KeyEntry {
            key: key.clone(),
            size_bytes: stored.len() as u64,
        };
        let entries: Vec<_> = wanted.by_ref().take(request.page_size).map(entry).collect();
        let last = entries.last().map(|entry| entry.key.to_string());
        Ok(KeyPage {
            next_cursor: last.filter(|_| wanted.next().is_some()),
            entries,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondol_plugin::l2::KvRank;

    #[test]
    fn what_is_beyond_the_limit_is_refused_and_may_be_tried_again() {
        let backend = {{Type}}Backend::new(Some(1));
        let key = |hash| ObjectKey::new("model", KvRank(0), 0, [hash], "").unwrap();
        let object = ObjectRef::new(vec![1; 10]);
        assert_eq!(backend.store(&key(1), &object), Ok(10));
        assert_eq!(backend.store(&key(1), &object), Ok(0));
        let refused = backend.store(&key(2), &object).unwrap_err();
        assert!(refused.retryable && refused.reason.contains("max_objects"), "{refused}");
    }
}
