use std::io;
use std::sync::Arc;

use ondol_plugin::l2::{
    AdapterStatus, BlockingBackend, KeyPage, ListRequest, LoadOutcome, Locks, ObjectKey, ObjectRef,
    PageMut, StoreError, Usage, WorkerAdapter,
};
use parking_lot::Mutex;

use crate::link::Link;
use crate::shelf::Shelf;
use crate::{Error, MemoryConfig};

/// The adapter that `memory` and `mock` open.
pub type MemoryAdapter = WorkerAdapter<MemoryBackend>;

/// Objects in memory, behind a simulated link.
#[derive(Debug)]
pub struct MemoryBackend {
    shelf: Mutex<Shelf>,
    link: Link,
    locks: Arc<Locks>,
}

pub(crate) fn open(name: &str, config: &MemoryConfig) -> io::Result<MemoryAdapter> {
    let locks: Arc<Locks> = Arc::default();
    let backend = MemoryBackend {
        shelf: Mutex::new(Shelf::new(config.capacity)),
        link: Link::new(config.bandwidth, config.latency),
        locks: Arc::clone(&locks),
    };
    WorkerAdapter::with_locks(name, config.workers, backend, locks)
}

impl BlockingBackend for MemoryBackend {
    fn store(&self, key: &ObjectKey, object: &ObjectRef) -> Result<u64, StoreError> {
        if self.shelf.lock().get(key).is_some() {
            return Ok(0);
        }
        let bytes = object.stored_len() as u64;
        let put = self.link.pass(bytes).and_then(|()| {
            // Copied while nobody is held up, and there as a whole afterwards.
            let stored = Arc::new(object.to_vec());
            self.shelf.lock().put(key, stored, &self.locks)
        });
        match put {
            Ok(true) => Ok(bytes),
            Ok(false) => Ok(0),
            Err(error) => Err(StoreError {
                retryable: matches!(error, Error::Locked { .. }),
                reason: error.to_string(),
            }),
        }
    }

    fn lookup(&self, key: &ObjectKey) -> anyhow::Result<Option<u64>> {
        let shelf = self.shelf.lock();
        Ok(shelf.get(key).map(|stored| stored.len() as u64))
    }

    fn load(&self, key: &ObjectKey, page: &mut PageMut) -> LoadOutcome {
        let Some(stored) = self.shelf.lock().get(key).map(Arc::clone) else {
            return LoadOutcome::Missing;
        };
        if let Err(error) = self.link.pass(stored.len() as u64) {
            return LoadOutcome::Failed(error.to_string());
        }
        match page.fill(&stored) {
            Ok(bytes) => LoadOutcome::Found(bytes),
            Err(error) => LoadOutcome::Failed(error.to_string()),
        }
    }

    fn delete(&self, key: &ObjectKey) -> anyhow::Result<bool> {
        Ok(self.shelf.lock().remove(key))
    }

    fn usage(&self) -> Usage {
        self.shelf.lock().usage()
    }

    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        self.shelf.lock().list(request)
    }

    fn status(&self) -> AdapterStatus {
        let shelf = self.shelf.lock();
        let mut status = AdapterStatus::default();
        for (name, figure) in [
            ("evicted_objects", shelf.evicted_objects),
            ("evicted_bytes", shelf.evicted_bytes),
            ("refused_stores", shelf.refused),
        ] {
            status.figures.insert(name.to_owned(), figure.into());
        }
        status
    }

    fn close(&self) {
        self.link.close();
    }
}
