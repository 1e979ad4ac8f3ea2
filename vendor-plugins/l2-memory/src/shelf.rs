use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use ondol_plugin::l2::{KeyEntry, KeyPage, ListRequest, Locks, ObjectKey, Usage};

use crate::Error;

/// Objects in the order in which they came, within a capacity.
#[derive(Debug)]
pub(crate) struct Shelf {
    capacity: u64,
    objects: HashMap<ObjectKey, Placed>,
    /// The same by age; its numbers are the cursors of listings.
    order: BTreeMap<u64, ObjectKey>,
    next: u64,
    used: u64,
    by_salt: BTreeMap<String, u64>,
    pub(crate) evicted_objects: u64,
    pub(crate) evicted_bytes: u64,
    pub(crate) refused: u64,
}

#[derive(Debug)]
struct Placed {
    number: u64,
    stored: Arc<Vec<u8>>,
}

impl Shelf {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            objects: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
            used: 0,
            by_salt: BTreeMap::new(),
            evicted_objects: 0,
            evicted_bytes: 0,
            refused: 0,
        }
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&Arc<Vec<u8>>> {
        Some(&self.objects.get(key)?.stored)
    }

    /// Puts an object there unless there is one, and makes room for it; whether it was put.
    pub(crate) fn put(
        &mut self,
        key: &ObjectKey,
        stored: Arc<Vec<u8>>,
        locks: &Locks,
    ) -> Result<bool, Error> {
        if self.objects.contains_key(key) {
            return Ok(false);
        }
        let bytes = stored.len() as u64;
        if let Err(error) = self.make_room(bytes, locks) {
            self.refused += 1;
            return Err(error);
        }
        let number = self.next;
        self.next += 1;
        self.used += bytes;
        *self.by_salt.entry(key.cache_salt().to_owned()).or_default() += bytes;
        self.order.insert(number, key.clone());
        self.objects.insert(key.clone(), Placed { number, stored });
        Ok(true)
    }

    /// Takes an object away; whether it was there.
    pub(crate) fn remove(&mut self, key: &ObjectKey) -> bool {
        let Some(Placed { number, stored }) = self.objects.remove(key) else {
            return false;
        };
        self.order.remove(&number);
        let bytes = stored.len() as u64;
        self.used -= bytes;
        if let Some(salt) = self.by_salt.get_mut(key.cache_salt()) {
            *salt -= bytes;
            if *salt == 0 {
                self.by_salt.remove(key.cache_salt());
            }
        }
        true
    }

    fn make_room(&mut self, bytes: u64, locks: &Locks) -> Result<(), Error> {
        let capacity = self.capacity;
        if bytes > capacity {
            return Err(Error::TooLarge {
                found: bytes,
                capacity,
            });
        }
        let mut from = 0;
        while self.used + bytes > capacity {
            let Some((&number, key)) = self.order.range(from..).next() else {
                return Err(Error::Locked { found: bytes });
            };
            from = number + 1;
            let key = key.clone();
            let before = self.used;
            if locks.unless_locked(&key, || self.remove(&key)).is_some() {
                self.evicted_objects += 1;
                self.evicted_bytes += before - self.used;
            }
        }
        Ok(())
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            used_bytes: self.used,
            capacity_bytes: Some(self.capacity),
            objects: self.objects.len() as u64,
            bytes_by_salt: self.by_salt.clone(),
            is_complete: true,
        }
    }

    /// Keys by age. A cursor is the number of the last one of the page before; one that is gone meanwhile does no harm.
    pub(crate) fn list(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        let from = match &request.cursor {
            None => Bound::Unbounded,
            Some(cursor) => Bound::Excluded(cursor.parse::<u64>().map_err(|_| {
                anyhow::anyhow!(
                    "the cursor is {cursor:?}; expected one that a page before ended with"
                )
            })?),
        };
        let model = request.model_name.as_deref();
        let mut wanted = self
            .order
            .range((from, Bound::Unbounded))
            .filter(|(_, key)| model.is_none_or(|model| key.model_name() == model));
        let page: Vec<_> = wanted.by_ref().take(request.page_size.max(1)).collect();
        let is_last = wanted.next().is_none();
        let last = page.last().map(|(number, _)| number.to_string());
        let entry = |(_, key): (&u64, &ObjectKey)| KeyEntry {
            key: key.clone(),
            size_bytes: self.get(key).map_or(0, |stored| stored.len() as u64),
        };
        Ok(KeyPage {
            next_cursor: last.filter(|_| !is_last),
            entries: page.into_iter().map(entry).collect(),
        })
    }
}
