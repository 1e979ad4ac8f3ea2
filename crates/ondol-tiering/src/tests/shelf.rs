use std::collections::BTreeMap;
use std::sync::Arc;

use ondol_plugin::Key;
use ondol_plugin::l2::{
    BlockingBackend, KeyEntry, KeyPage, ListRequest, LoadOutcome, ObjectKey, ObjectRef, PageMut,
    StoreError, Usage,
};
use parking_lot::{Condvar, Mutex};

use crate::object_key;

/// A backend in memory that fails and hangs as a test says. Clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Shelf(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<ObjectKey, Vec<u8>>,
    capacity: Option<u64>,
    stores: u64,
    deletes: u64,
    failure: Option<StoreError>,
    poison: Vec<ObjectKey>,
    cannot_delete: bool,
    stores_hang: bool,
    deletes_hang: bool,
    deletes_panic: bool,
    failing_lists: u32,
    lists_in_circles: bool,
}

impl Shelf {
    pub(super) fn with_capacity(bytes: u64) -> Self {
        let shelf = Self::default();
        shelf.0.state.lock().capacity = Some(bytes);
        shelf
    }

    /// Puts an object on it that is not the server's, as an earlier process did.
    pub(super) fn fill(&self, key: ObjectKey, len: usize) {
        self.0.state.lock().objects.insert(key, vec![1; len]);
    }

    pub(super) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        self.0.state.lock().objects.get(&object_key(key)).cloned()
    }

    pub(super) fn has(&self, key: &ObjectKey) -> bool {
        self.0.state.lock().objects.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.0.state.lock().objects.len()
    }

    pub(super) fn used(&self) -> u64 {
        self.usage().used_bytes
    }

    /// How often it was asked to store an object.
    pub(super) fn stores(&self) -> u64 {
        self.0.state.lock().stores
    }

    /// How often it was asked to delete an object.
    pub(super) fn deletes(&self) -> u64 {
        self.0.state.lock().deletes
    }

    /// Every store fails, or none does.
    pub(super) fn fail(&self, retryable: Option<bool>) {
        self.0.state.lock().failure = retryable.map(|retryable| StoreError {
            reason: "the test says so".to_owned(),
            retryable,
        });
    }

    /// Stores of this object fail for good.
    pub(super) fn poison(&self, key: &Key) {
        self.0.state.lock().poison.push(object_key(key));
    }

    pub(super) fn cannot_delete(&self) {
        self.0.state.lock().cannot_delete = true;
    }

    /// The next delete takes it out of use.
    pub(super) fn panic_in_deletes(&self) {
        self.0.state.lock().deletes_panic = true;
    }

    /// So many listings fail.
    pub(super) fn fail_lists(&self, times: u32) {
        self.0.state.lock().failing_lists = times;
    }

    /// A listing tells nothing and comes to no end.
    pub(super) fn list_in_circles(&self) {
        self.0.state.lock().lists_in_circles = true;
    }

    pub(super) fn hang_stores(&self, hang: bool) {
        self.0.state.lock().stores_hang = hang;
        self.0.opened.notify_all();
    }

    pub(super) fn hang_deletes(&self, hang: bool) {
        self.0.state.lock().deletes_hang = hang;
        self.0.opened.notify_all();
    }
}

impl BlockingBackend for Shelf {
    fn store(&self, key: &ObjectKey, object: &ObjectRef) -> Result<u64, StoreError> {
        let mut state = self.0.state.lock();
        state.stores += 1;
        while state.stores_hang {
            self.0.opened.wait(&mut state);
        }
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.poison.contains(key) {
            return Err(StoreError {
                reason: "this one never".to_owned(),
                retryable: false,
            });
        }
        if state.objects.contains_key(key) {
            return Ok(0);
        }
        state.objects.insert(key.clone(), object.to_vec());
        Ok(object.stored_len() as u64)
    }

    fn lookup(&self, key: &ObjectKey) -> anyhow::Result<Option<u64>> {
        let state = self.0.state.lock();
        Ok(state.objects.get(key).map(|object| object.len() as u64))
    }

    fn load(&self, key: &ObjectKey, page: &mut PageMut) -> LoadOutcome {
        let state = self.0.state.lock();
        match state.objects.get(key).map(|object| page.fill(object)) {
            None => LoadOutcome::Missing,
            Some(Ok(bytes)) => LoadOutcome::Found(bytes),
            Some(Err(error)) => LoadOutcome::Failed(error.to_string()),
        }
    }

    fn delete(&self, key: &ObjectKey) -> anyhow::Result<bool> {
        let mut state = self.0.state.lock();
        state.deletes += 1;
        while state.deletes_hang {
            self.0.opened.wait(&mut state);
        }
        assert!(!state.deletes_panic, "the test says so");
        anyhow::ensure!(!state.cannot_delete, "this backend does not delete");
        Ok(state.objects.remove(key).is_some())
    }

    fn usage(&self) -> Usage {
        let state = self.0.state.lock();
        let mut usage = Usage {
            capacity_bytes: state.capacity,
            objects: state.objects.len() as u64,
            is_complete: true,
            ..Usage::default()
        };
        for (key, object) in &state.objects {
            let bytes = object.len() as u64;
            usage.used_bytes += bytes;
            let salt = key.cache_salt().to_owned();
            *usage.bytes_by_salt.entry(salt).or_default() += bytes;
        }
        usage
    }

    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        let mut state = self.0.state.lock();
        if state.failing_lists > 0 {
            state.failing_lists -= 1;
            anyhow::bail!("the test says so");
        }
        if state.lists_in_circles {
            return Ok(KeyPage {
                entries: Vec::new(),
                next_cursor: Some("again".to_owned()),
            });
        }
        let after: Option<ObjectKey> =
            request.cursor.as_ref().map(|key| key.parse()).transpose()?;
        let behind = state
            .objects
            .iter()
            .filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after));
        let entries: Vec<_> = behind
            .take(request.page_size)
            .map(|(key, object)| KeyEntry {
                key: key.clone(),
                size_bytes: object.len() as u64,
            })
            .collect();
        let is_full = entries.len() == request.page_size;
        let next_cursor = entries.last().filter(|_| is_full);
        Ok(KeyPage {
            next_cursor: next_cursor.map(|entry| entry.key.to_string()),
            entries,
        })
    }

    fn close(&self) {
        self.hang_stores(false);
        self.hang_deletes(false);
    }
}
