//! The whole state of pool and directory as plain data: what a log is replayed into, and what a directory starts from.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::fast::RandomState;
use hashlink::LinkedHashMap;
use ondol_plugin::Key;
use ondol_shm::{ClientId, Location, ObjectMeta, PageId, ProcessIdentity};

use crate::journal::Change;
use crate::pool::{ApplyError, Pool};

/// A visible object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// Its bytes.
    pub location: Location,
    /// What is known about it.
    pub meta: ObjectMeta,
    /// Who stored it.
    pub client: ClientId,
}

/// A client that was let in and is not forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRecord {
    /// The process that it lives in.
    pub process: ProcessIdentity,
    /// The random number by which it knows itself again.
    pub instance: [u8; 16],
    /// Its pins: the numbers of those on each object.
    pub pins: BTreeMap<Key, BTreeSet<u64>>,
}

/// Pool and directory as the changes so far made them.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    /// Regions, pages, grants.
    pub pool: Pool,
    /// Visible objects, in the order in which they were committed.
    pub objects: LinkedHashMap<Key, StoredObject, RandomState>,
    /// Objects that were removed and whose page is still captive, with the name that they had.
    pub removed: BTreeMap<PageId, (Key, StoredObject)>,
    /// Clients.
    pub clients: BTreeMap<ClientId, ClientRecord>,
    /// The name of the next client.
    pub next_client: u64,
}

impl Image {
    /// Nothing but a pool.
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            objects: LinkedHashMap::default(),
            removed: BTreeMap::new(),
            clients: BTreeMap::new(),
            next_client: 1,
        }
    }

    /// Makes a change, or reports that it does not fit and changes nothing.
    ///
    /// # Errors
    /// [`ApplyError`].
    pub fn apply(&mut self, change: &Change) -> Result<(), ApplyError> {
        self.check(change).map_err(|reason| ApplyError {
            change: Box::new(change.clone()),
            reason: reason.to_owned(),
        })?;
        self.pool.apply(change)?;
        match change {
            Change::Commit {
                key,
                location,
                meta,
                client,
            } => {
                let object = StoredObject {
                    location: *location,
                    meta: *meta,
                    client: *client,
                };
                self.objects.insert(key.clone(), object);
            }
            Change::Remove { key, location, .. } => {
                if let Some(entry) = self.objects.remove_entry(key) {
                    self.removed.insert(location.page, entry);
                }
            }
            Change::Release { page } => {
                self.removed.remove(page);
            }
            Change::Pin { key, client, pin } => {
                if let Some(record) = self.clients.get_mut(client) {
                    record.pins.entry(key.clone()).or_default().insert(*pin);
                }
            }
            Change::Unpin { key, client, pin } => {
                if let Some(record) = self.clients.get_mut(client)
                    && let Some(pins) = record.pins.get_mut(key)
                {
                    pins.remove(pin);
                    if pins.is_empty() {
                        record.pins.remove(key);
                    }
                }
            }
            Change::Attach {
                client,
                process,
                instance,
            } => {
                self.next_client = client.0 + 1;
                let record = ClientRecord {
                    process: *process,
                    instance: *instance,
                    pins: BTreeMap::new(),
                };
                self.clients.insert(*client, record);
            }
            Change::Detach { client } => {
                self.clients.remove(client);
            }
            Change::Carve { .. }
            | Change::Dissolve { .. }
            | Change::Grant { .. }
            | Change::Return { .. } => {}
        }
        Ok(())
    }

    /// What the pool cannot see.
    fn check(&self, change: &Change) -> Result<(), &'static str> {
        let known = |client: &ClientId| self.clients.contains_key(client);
        match change {
            Change::Grant { client, .. } if !known(client) => Err("there is no such client"),
            Change::Commit { key, .. } if self.objects.contains_key(key) => {
                Err("the key is in use")
            }
            Change::Remove { key, location, .. } => match self.objects.get(key) {
                Some(object) if object.location == *location => Ok(()),
                _ => Err("there is no such object"),
            },
            Change::Pin { key, client, .. } => match self.objects.contains_key(key) {
                true if known(client) => Ok(()),
                true => Err("there is no such client"),
                false => Err("there is no such object"),
            },
            Change::Unpin { key, client, pin } => {
                let pins = self
                    .clients
                    .get(client)
                    .and_then(|record| record.pins.get(key));
                match pins.is_some_and(|pins| pins.contains(pin)) {
                    true => Ok(()),
                    false => Err("there is no such pin"),
                }
            }
            Change::Attach { client, .. } if client.0 < self.next_client => {
                Err("clients' names only grow")
            }
            Change::Detach { client } => match self.clients.get(client) {
                None => Err("there is no such client"),
                Some(record) if !record.pins.is_empty() || self.pool.granted_to(*client).0 > 0 => {
                    Err("the client holds something")
                }
                Some(_) => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
