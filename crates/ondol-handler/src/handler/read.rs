use std::sync::Arc;
use std::time::Duration;

use ondol_host::OwnedBatch;
use ondol_plugin::{BatchSource, Hooks, Key, RetrievedBatch, StageResult};

use super::{Handler, Prefetched};
use crate::batch::{Batch, Sighted};
use crate::line::Line;
use crate::lookup::Wanted;
use crate::{Expect, HandlerError, Object};

/// How long staging waits for storage if the handler's configuration does not say how long reads do.
const STAGE_WAIT: Duration = Duration::from_secs(60);

/// What gives access to objects.
impl Handler {
    /// The object of a key, leased; `None` if there is none that meets the handler's expectation. Fires no seam.
    ///
    /// # Errors
    /// [`HandlerError`]; never for a key that is not there.
    pub fn retrieve(&self, key: &Key) -> Result<Option<Object>, HandlerError> {
        self.retrieve_with(key, self.expectation())
    }

    /// As [`retrieve`](Self::retrieve), under another expectation.
    ///
    /// # Errors
    /// As there.
    pub fn retrieve_with(&self, key: &Key, expect: Expect) -> Result<Option<Object>, HandlerError> {
        let keys = std::slice::from_ref(key);
        let mut objects = self.on_line(|line| self.find(line, keys, 1, false, expect))?;
        Ok(objects.pop().flatten())
    }

    /// As [`retrieve`](Self::retrieve), waiting for storage for at most `wait`.
    ///
    /// # Errors
    /// As there.
    pub fn retrieve_within(
        &self,
        key: &Key,
        wait: Duration,
    ) -> Result<Option<Object>, HandlerError> {
        self.retrieve_with(key, self.expectation_within(wait))
    }

    /// The objects of many keys, leased in one step; one answer for each key, in order.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn batch_retrieve(&self, keys: &[Key]) -> Result<Vec<Option<Object>>, HandlerError> {
        self.batch_retrieve_with(keys, self.expectation())
    }

    /// As [`batch_retrieve`](Self::batch_retrieve), under another expectation.
    ///
    /// # Errors
    /// As there.
    pub fn batch_retrieve_with(
        &self,
        keys: &[Key],
        expect: Expect,
    ) -> Result<Vec<Option<Object>>, HandlerError> {
        self.batch(keys, 1, false, expect)
    }

    /// As [`batch_retrieve`](Self::batch_retrieve), waiting for storage for at most `wait`.
    ///
    /// # Errors
    /// As there.
    pub fn batch_retrieve_within(
        &self,
        keys: &[Key],
        wait: Duration,
    ) -> Result<Vec<Option<Object>>, HandlerError> {
        self.batch_retrieve_with(keys, self.expectation_within(wait))
    }

    /// The objects of the longest run of keys, from the first, that are all there; leased in one step.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn match_prefix(&self, keys: &[Key]) -> Result<Vec<Object>, HandlerError> {
        self.match_prefix_groups(keys, 1)
    }

    /// As [`match_prefix`](Self::match_prefix), where every `group` keys in a row (the ranks of one chunk, say)
    /// are found all or not at all.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If `group` is 0.
    pub fn match_prefix_groups(
        &self,
        keys: &[Key],
        group: u32,
    ) -> Result<Vec<Object>, HandlerError> {
        self.match_prefix_with(keys, group, self.expectation())
    }

    /// As [`match_prefix_groups`](Self::match_prefix_groups), waiting for storage for at most `wait`: the prefix is of what is
    /// in memory then.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If `group` is 0.
    pub fn match_prefix_within(
        &self,
        keys: &[Key],
        group: u32,
        wait: Duration,
    ) -> Result<Vec<Object>, HandlerError> {
        self.match_prefix_with(keys, group, self.expectation_within(wait))
    }

    fn match_prefix_with(
        &self,
        keys: &[Key],
        group: u32,
        expect: Expect,
    ) -> Result<Vec<Object>, HandlerError> {
        assert!(group > 0, "a group has at least one key");
        let objects = self.batch(keys, group, true, expect)?;
        let mut prefix: Vec<Object> = objects.into_iter().map_while(|object| object).collect();
        // An object that failed its checksum takes the rest of its group with it.
        prefix.truncate(prefix.len() - prefix.len() % group as usize);
        Ok(prefix)
    }

    /// The objects of all keys, or `None` if any of them is not there: one pin set, all or nothing.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn retrieve_group(&self, keys: &[Key]) -> Result<Option<Vec<Object>>, HandlerError> {
        if keys.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let objects = self.batch(keys, keys.len() as u32, false, self.expectation())?;
        Ok(objects.into_iter().collect())
    }

    /// What reads expect that do not say it themselves, by this handler's configuration.
    pub fn expectation(&self) -> Expect {
        Expect {
            layout: self.config.layout,
            verify: self.config.checksum,
            wait: self.config.l2_wait.unwrap_or_default(),
            object_bytes: self.config.object_bytes,
        }
    }

    fn expectation_within(&self, wait: Duration) -> Expect {
        Expect {
            wait,
            ..self.expectation()
        }
    }

    /// The same for those who do not look at the bytes.
    fn unverified(&self, wait: Duration) -> Expect {
        Expect {
            verify: false,
            ..self.expectation_within(wait)
        }
    }

    pub(super) fn batch(
        &self,
        keys: &[Key],
        group: u32,
        prefix: bool,
        expect: Expect,
    ) -> Result<Vec<Option<Object>>, HandlerError> {
        if !self.plugins.is_interested(Hooks::BATCH_RETRIEVE) {
            return self.on_line(|line| self.find(line, keys, group, prefix, expect));
        }
        let (line, objects) = self.on_line(|line| {
            let objects = self.find(line, keys, group, prefix, expect)?;
            Ok((Arc::clone(line), objects))
        })?;
        let batch = Batch {
            keys,
            objects: &objects,
        };
        let own = || OwnedBatch {
            view: Arc::clone(&line) as _,
            source: Box::new(batch.keep()),
        };
        self.plugins
            .batch_retrieve(&*line, &RetrievedBatch::new(&batch), &own);
        Ok(objects)
    }

    fn find(
        &self,
        line: &Line,
        keys: &[Key],
        group: u32,
        prefix: bool,
        expect: Expect,
    ) -> Result<Vec<Option<Object>>, HandlerError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = Wanted {
            keys,
            group,
            prefix,
            expect,
        };
        let found = line.find(wanted, |regions, hit, hold| regions.object(hit, hold))?;
        self.counters.layout_mismatches.add(found.mismatches.into());
        let mut objects = found.hits;
        if expect.verify {
            objects.iter_mut().for_each(|object| self.verify(object));
        }
        let hits = objects.iter().flatten().count() as u64;
        self.counters.hits.add(hits);
        self.counters.misses.add(keys.len() as u64 - hits);
        Ok(objects)
    }

    /// An object that is damaged is none.
    fn verify(&self, place: &mut Option<Object>) {
        if let Some(object) = place
            && let Err(mismatch) = object.verify()
        {
            tracing::error!(%mismatch, ?object, "an object's bytes are damaged; treated as a miss");
            self.counters.checksum_mismatches.increment();
            *place = None;
        }
    }

    /// Says that objects will be wanted soon: looks them up, counts as a use of them, maps nothing, has those that are not
    /// in memory brought from storage without waiting for it, and lets plugins give their hints on the others.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn prefetch(&self, keys: &[Key]) -> Result<Prefetched, HandlerError> {
        let hints = self.plugins.is_interested(Hooks::PREFETCH);
        let (line, (found, pending), sightings) = self.on_line(|line| {
            let wanted = Wanted {
                keys,
                group: 1,
                prefix: false,
                expect: self.unverified(Duration::ZERO),
            };
            let found = line.find(wanted, |regions, hit, hold| {
                hints.then(|| regions.sight(hit, hold)).transpose()
            })?;
            let missing = keys.iter().zip(&found.hits);
            let missing: Vec<_> = missing
                .filter(|(_, hit)| hit.is_none())
                .map(|(key, _)| key.clone())
                .collect();
            let hits = (keys.len() - missing.len()) as u64;
            let (brought, pending) = match missing.is_empty() {
                true => (0, false),
                false => line.promote(missing, self.config.object_bytes)?,
            };
            let sightings = found.hits.into_iter().map(Option::flatten).collect();
            Ok((Arc::clone(line), (hits + brought, pending), sightings))
        })?;
        if hints && !keys.is_empty() {
            let batch = Sighted {
                keys: keys.to_vec(),
                sightings,
            };
            let own = || OwnedBatch {
                view: Arc::clone(&line) as _,
                source: Box::new(batch.clone()),
            };
            self.plugins
                .prefetch(&*line, &RetrievedBatch::new(&batch), &own);
        }
        Ok(Prefetched {
            requested: keys.len() as u64,
            found,
            pending,
        })
    }

    /// Brings objects from storage if they are not in memory, and makes them ready for use through the plugins that can; may block, so call it off the critical path.
    /// What goes wrong is in the result, which is ready only if everything asked for is.
    pub fn stage(&self, keys: &[Key]) -> StageResult {
        let requested = keys.len() as u64;
        let expect = self.unverified(self.config.l2_wait.unwrap_or(STAGE_WAIT));
        let staged = || {
            let (line, objects) = self.on_line(|line| {
                let objects = self.find(line, keys, 1, false, expect)?;
                Ok((Arc::clone(line), objects))
            })?;
            let batch = Batch {
                keys,
                objects: &objects,
            };
            Ok::<_, HandlerError>(
                self.plugins
                    .stage(&*line, &RetrievedBatch::new(&batch as &dyn BatchSource)),
            )
        };
        staged().unwrap_or_else(|error| StageResult::failed(requested, error.to_string()))
    }

    /// Whether there is an object of this key.
    ///
    /// # Errors
    /// [`HandlerError`]; a server that does not answer is an error, not an absence.
    pub fn exists(&self, key: &Key) -> Result<bool, HandlerError> {
        Ok(self.batch_exists(std::slice::from_ref(key))? == [true])
    }

    /// Whether there are objects of these keys, one answer for each, in order.
    ///
    /// # Errors
    /// As [`exists`](Self::exists).
    pub fn batch_exists(&self, keys: &[Key]) -> Result<Vec<bool>, HandlerError> {
        self.on_line(|line| line.exist(keys))
    }
}
