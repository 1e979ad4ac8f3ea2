use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use ondol_host::{HandlerPlugins, LoadOptions, OwnedBatch, PluginReport, Registry};
use ondol_plugin::{BatchSource, Hooks, Key, RetrievedBatch, StageResult};
use ondol_protocol::{
    Commit, CommitOutcome, ControlError, ControlPlane, DeleteOutcome, Grant, Listing, ObjectMeta,
    PinOutcome,
};
use ondol_shm::ForkGuard;
use parking_lot::RwLock;
use xxhash_rust::xxh3::xxh3_64;

use crate::batch::{Batch, Sighted, Sighting};
use crate::line::Line;
use crate::metrics::Counters;
use crate::{
    Expect, HandlerConfig, HandlerCounts, HandlerError, HandlerStats, Health, Object, PageMut,
    Plugins, SocketOptions, SocketPlane,
};

type Connect = dyn Fn() -> Result<Arc<dyn ControlPlane>, ControlError> + Send + Sync;

/// How long a closing handler waits for batches that are on their way to deferred plugins.
const SETTLE: Duration = Duration::from_millis(500);

/// What became of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The object is visible.
    New,
    /// The key was there already; the first object stays.
    AlreadyPresent,
}

/// What became of each store of a batch.
pub type BatchStored = Vec<Result<Stored, HandlerError>>;

/// What a prefetch found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefetched {
    /// Keys asked for.
    pub requested: u64,
    /// Objects that are in memory.
    pub found: u64,
}

/// The client of an engine: writes objects into shared memory, reads them without a copy.
///
/// All methods take `&self` and may be called from many threads at once. Readers take no lock that a writer holds
/// while it talks to the engine. See the [crate's documentation](crate) for what the guards promise.
pub struct Handler {
    config: HandlerConfig,
    connect: Box<Connect>,
    plugins: Arc<HandlerPlugins>,
    counters: Counters,
    home: ForkGuard,
    /// The connection in use; none after `close`.
    line: ArcSwapOption<Line>,
    /// Held shared by writers, alone by `close` and `reconnect`. Readers do not take it.
    lifecycle: RwLock<()>,
}

impl Handler {
    /// Connects to the server whose Unix socket is at `path`.
    ///
    /// # Errors
    /// If no server answers there or it refuses.
    pub fn connect(path: &Path, config: HandlerConfig) -> Result<Self, HandlerError> {
        let path = path.to_owned();
        Self::embedded(
            move || SocketPlane::connect(&path, SocketOptions::default()),
            config,
        )
    }

    /// Connects through `connect`, which is called again by [`reconnect`](Self::reconnect): to an engine in this
    /// process, or over a transport of the caller's.
    ///
    /// # Errors
    /// What `connect` reports, or what keeps this process from mapping the client's lease table.
    pub fn embedded<P: ControlPlane + 'static>(
        connect: impl Fn() -> Result<Arc<P>, ControlError> + Send + Sync + 'static,
        config: HandlerConfig,
    ) -> Result<Self, HandlerError> {
        let connect =
            Box::new(move || -> Result<Arc<dyn ControlPlane>, ControlError> { Ok(connect()?) });
        let line = Line::open(connect()?, config.stock_bytes)?;
        let plugins = match &config.plugins {
            Plugins::Linked => HandlerPlugins::load(Registry::global(), LoadOptions::from_env()),
            Plugins::LinkedWith(options) => {
                HandlerPlugins::load(Registry::global(), (**options).clone())
            }
            Plugins::None => HandlerPlugins::none(),
        };
        let handler = Self {
            config,
            connect,
            plugins: Arc::new(plugins),
            counters: Counters::new(),
            home: ForkGuard::new(),
            line: ArcSwapOption::from_pointee(line),
            lifecycle: RwLock::new(()),
        };
        if let Some(line) = &*handler.line.load() {
            handler.plugins.init(&**line);
        }
        Ok(handler)
    }

    /// A page of shared memory for an object of `len` bytes, of the size that [`HandlerConfig::page_sizes`] gives.
    ///
    /// # Errors
    /// [`HandlerError::TooLong`], or [`ControlError::PoolFull`] with a breakdown if nothing can be freed.
    pub fn alloc(&self, len: usize) -> Result<PageMut, HandlerError> {
        let asked = len as u64;
        let longest = match &self.config.page_sizes {
            crate::PageSizes::Fixed(sizes) => sizes.iter().copied().max().unwrap_or(0),
            crate::PageSizes::Fitted => self.line()?.info.max_page_bytes,
        };
        let stride = self
            .config
            .page_sizes
            .stride(asked)
            .filter(|stride| *stride <= longest);
        let stride = stride.or((asked <= longest).then_some(longest));
        self.alloc_in(stride.ok_or(HandlerError::TooLong { asked, longest })?, len)
    }

    /// A page of exactly `page_bytes`, of which the first `len` are the object's.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_in(&self, page_bytes: u64, len: usize) -> Result<PageMut, HandlerError> {
        let _writer = self.lifecycle.read();
        let line = self.line()?;
        let longest = page_bytes.min(line.info.max_page_bytes);
        if len as u64 > longest || page_bytes > line.info.max_page_bytes {
            return Err(HandlerError::TooLong {
                asked: page_bytes.max(len as u64),
                longest,
            });
        }
        let grant = line.stock.take(&*line.plane, page_bytes)?;
        let claim = || {
            let region = line.regions.get(&*line.plane, grant.page.region)?;
            Ok::<_, HandlerError>(region.write(&*line.plane)?.claim(grant.page, len as u64)?)
        };
        match claim() {
            Ok(bytes) => Ok(PageMut::new(line, bytes, grant, page_bytes)),
            Err(error) => {
                line.stock.put(page_bytes, grant);
                Err(error)
            }
        }
    }

    /// Makes an object visible, with the handler's layout and, if so configured, a checksum.
    ///
    /// # Errors
    /// [`HandlerError`]; if [its outcome is unknown](HandlerError::is_outcome_unknown) the store can be repeated.
    pub fn store(&self, key: &Key, page: PageMut) -> Result<Stored, HandlerError> {
        let checksum = self.config.checksum.then(|| xxh3_64(&page));
        self.store_with(
            key,
            page,
            ObjectMeta {
                layout: self.config.layout,
                checksum,
            },
        )
    }

    /// Makes an object visible under this description of it.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn store_with(
        &self,
        key: &Key,
        page: PageMut,
        meta: ObjectMeta,
    ) -> Result<Stored, HandlerError> {
        let outcomes = self.commit(vec![(key.clone(), page, meta)])?;
        outcomes
            .into_iter()
            .next()
            .unwrap_or_else(|| Err(short_answer("no outcome of a store")))
    }

    /// Makes many objects visible with one message.
    ///
    /// # Errors
    /// [`HandlerError::LengthMismatch`], or what concerns the whole batch; what concerns one object is in the answer.
    pub fn batch_store(
        &self,
        keys: &[Key],
        pages: Vec<PageMut>,
    ) -> Result<BatchStored, HandlerError> {
        if keys.len() != pages.len() {
            return Err(HandlerError::LengthMismatch {
                keys: keys.len(),
                pages: pages.len(),
            });
        }
        let objects = keys.iter().zip(pages).map(|(key, page)| {
            let checksum = self.config.checksum.then(|| xxh3_64(&page));
            (
                key.clone(),
                page,
                ObjectMeta {
                    layout: self.config.layout,
                    checksum,
                },
            )
        });
        self.commit(objects.collect())
    }

    fn commit(
        &self,
        objects: Vec<(Key, PageMut, ObjectMeta)>,
    ) -> Result<BatchStored, HandlerError> {
        let _writer = self.lifecycle.read();
        let line = self.line()?;
        if objects
            .iter()
            .any(|(_, page, _)| !Arc::ptr_eq(page.line(), &line))
        {
            return Err(HandlerError::ForeignPage);
        }
        let mut commits = Vec::with_capacity(objects.len());
        let mut pages: Vec<(u64, Grant)> = Vec::with_capacity(objects.len());
        for (key, page, meta) in objects {
            let stride = page.stride();
            let (location, grant) = page.into_commit();
            commits.push(Commit {
                key,
                location,
                meta,
            });
            pages.push((stride, grant));
        }
        let outcomes = match line.plane.commit(&commits) {
            Ok(outcomes) if outcomes.len() == pages.len() => outcomes,
            result => {
                // Whether these pages are committed only the engine knows; none is written again before it says so.
                pages
                    .into_iter()
                    .for_each(|(_, grant)| line.stock.leave_unsettled(grant));
                return Err(match result {
                    Ok(outcomes) => short_answer(&format!(
                        "{} outcomes of {} stores",
                        outcomes.len(),
                        commits.len()
                    )),
                    Err(error) => error.into(),
                });
            }
        };
        let settle = |(outcome, (stride, grant))| match outcome {
            CommitOutcome::Stored => {
                self.counters.stores.increment();
                Ok(Stored::New)
            }
            CommitOutcome::AlreadyPresent => {
                line.stock.put(stride, grant);
                Ok(Stored::AlreadyPresent)
            }
            CommitOutcome::Refused(reason) => {
                line.stock.leave_unsettled(grant);
                Err(reason.into())
            }
        };
        Ok(outcomes.into_iter().zip(pages).map(settle).collect())
    }

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
        let line = self.line()?;
        let mut objects = self.find(&line, std::slice::from_ref(key), 1, false, expect)?;
        Ok(objects.pop().flatten())
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
        assert!(group > 0, "a group has at least one key");
        let objects = self.batch(keys, group, true, self.expectation())?;
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

    fn expectation(&self) -> Expect {
        Expect {
            layout: self.config.layout,
            verify: self.config.checksum,
        }
    }

    fn batch(
        &self,
        keys: &[Key],
        group: u32,
        prefix: bool,
        expect: Expect,
    ) -> Result<Vec<Option<Object>>, HandlerError> {
        let line = self.line()?;
        let objects = self.find(&line, keys, group, prefix, expect)?;
        if self.plugins.is_interested(Hooks::BATCH_RETRIEVE) {
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
        }
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
        let found = line.find(keys, group, prefix, expect)?;
        self.counters.layout_mismatches.add(found.mismatches.into());
        let objects = found.hits.into_iter().map(|hit| {
            let Some((hit, lease)) = hit else { return Ok(None) };
            let object = line.object(hit, lease)?;
            if expect.verify && let Err(mismatch) = object.verify() {
                tracing::error!(%mismatch, location = ?hit.location, "an object's bytes are damaged; treated as a miss");
                self.counters.checksum_mismatches.increment();
                return Ok(None);
            }
            Ok(Some(object))
        });
        let objects = objects.collect::<Result<Vec<_>, HandlerError>>()?;
        let hits = objects.iter().flatten().count() as u64;
        self.counters.hits.add(hits);
        self.counters.misses.add(keys.len() as u64 - hits);
        Ok(objects)
    }

    /// Says that objects will be wanted soon: looks them up, counts as a use of them, maps nothing, and lets
    /// plugins give their hints.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn prefetch(&self, keys: &[Key]) -> Result<Prefetched, HandlerError> {
        let line = self.line()?;
        if keys.is_empty() {
            return Ok(Prefetched::default());
        }
        let expect = Expect {
            verify: false,
            ..self.expectation()
        };
        let found = line.find(keys, 1, false, expect)?;
        let hits = found.hits.iter().flatten().count() as u64;
        if self.plugins.is_interested(Hooks::PREFETCH) {
            let sightings = found.hits.into_iter().map(|hit| {
                let Some((hit, lease)) = hit else {
                    return Ok(None);
                };
                let region = line.regions.get(&*line.plane, hit.location.page.region)?;
                let (handle, stride) = (region.info.handle.span, region.info.stride);
                let elsewhere = Sighting::Elsewhere {
                    handle,
                    kv_offset: u64::from(hit.location.page.index) * stride,
                    kv_length: hit.location.len,
                };
                Ok(Some(
                    line.mapped_object(hit, lease)
                        .map_or(elsewhere, Sighting::Mapped),
                ))
            });
            let sightings = sightings.collect::<Result<_, HandlerError>>()?;
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
            found: hits,
        })
    }

    /// Makes objects ready for use through the plugins that can; may block, so call it off the critical path.
    /// What goes wrong is in the result, which is ready only if everything asked for is.
    pub fn stage(&self, keys: &[Key]) -> StageResult {
        let requested = keys.len() as u64;
        let staged = || {
            let line = self.line()?;
            let objects = self.find(
                &line,
                keys,
                1,
                false,
                Expect {
                    verify: false,
                    ..self.expectation()
                },
            )?;
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
        let located = self.line()?.plane.locate(keys)?;
        Ok(located.into_iter().map(|hit| hit.is_some()).collect())
    }

    /// Pins an object; `false` if there is none. The pin lasts until [`unpin`](Self::unpin), [`close`](Self::close)
    /// or the end of this process.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn pin(&self, key: &Key) -> Result<bool, HandlerError> {
        Ok(self.batch_pin(std::slice::from_ref(key))? == [true])
    }

    /// Pins objects; one answer for each key, in order.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn batch_pin(&self, keys: &[Key]) -> Result<Vec<bool>, HandlerError> {
        let pinned = self.line()?.plane.pin(keys)?;
        Ok(pinned
            .into_iter()
            .map(|outcome| outcome == PinOutcome::Done)
            .collect())
    }

    /// Takes back one pin of this handler's; `false` if it has none on that object.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn unpin(&self, key: &Key) -> Result<bool, HandlerError> {
        Ok(self.batch_unpin(std::slice::from_ref(key))? == [true])
    }

    /// Takes back pins; one answer for each key, in order.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn batch_unpin(&self, keys: &[Key]) -> Result<Vec<bool>, HandlerError> {
        let unpinned = self.line()?.plane.unpin(keys)?;
        Ok(unpinned
            .into_iter()
            .map(|outcome| outcome == PinOutcome::Done)
            .collect())
    }

    /// Removes an object for every later reader; those that hold it keep it.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn delete(&self, key: &Key) -> Result<DeleteOutcome, HandlerError> {
        let outcomes = self.batch_delete(std::slice::from_ref(key))?;
        outcomes
            .first()
            .copied()
            .ok_or_else(|| short_answer("no outcome of a delete"))
    }

    /// Removes objects; one answer for each key, in order.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn batch_delete(&self, keys: &[Key]) -> Result<Vec<DeleteOutcome>, HandlerError> {
        let _writer = self.lifecycle.read();
        Ok(self.line()?.plane.delete(keys)?)
    }

    /// Objects in the order of their keys, from the first behind `after`, at most `limit`.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn list(&self, after: Option<&Key>, limit: u32) -> Result<Listing, HandlerError> {
        Ok(self.line()?.plane.list(after, limit)?)
    }

    /// Figures of the engine, of this handler and of its plugins.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn stats(&self) -> Result<HandlerStats, HandlerError> {
        let line = self.line()?;
        Ok(HandlerStats {
            engine: line.plane.stats()?,
            handler: self.counts(),
            plugins: self.plugins.stats(),
        })
    }

    /// Figures of this handler alone; asks nobody.
    pub fn counts(&self) -> HandlerCounts {
        let Counters {
            layout_mismatches,
            checksum_mismatches,
            hits,
            misses,
            stores,
        } = &self.counters;
        let line = self.line.load();
        let line = line.as_ref();
        HandlerCounts {
            hits: hits.get(),
            misses: misses.get(),
            stores: stores.get(),
            layout_mismatches: layout_mismatches.get(),
            checksum_mismatches: checksum_mismatches.get(),
            leases: line.map_or(0, |line| line.slots.in_use() as u64),
            stock_pages: line.map_or(0, |line| line.stock.len()),
            mapped_regions: line.map_or(0, |line| line.regions.mapped_count()),
        }
    }

    /// What became of the plugins that are linked into this process.
    pub fn plugins(&self) -> Vec<PluginReport> {
        self.plugins.report()
    }

    /// Whether the engine answers.
    pub fn health(&self) -> Health {
        match self.line() {
            Ok(line) => line.plane.ping().map_or_else(
                |error| Health::Unreachable(error.to_string()),
                |()| Health::Connected,
            ),
            Err(HandlerError::Closed) => Health::Closed,
            Err(error) => Health::Unreachable(error.to_string()),
        }
    }

    /// Leaves the engine: plugins are told while the regions are still mapped, idle pages go back, pins end. Objects
    /// and pages that are still held stay good until they are dropped. Closing twice does nothing.
    pub fn close(&self) {
        if !self.home.is_home() {
            return;
        }
        self.plugins.settle(SETTLE);
        let _alone = self.lifecycle.write();
        self.close_alone();
    }

    fn close_alone(&self) {
        if let Some(line) = &*self.line.load() {
            self.plugins.close(&**line);
        }
        if let Some(line) = self.line.swap(None) {
            line.leave();
        }
    }

    /// Connects anew, after a close or when the server has been away. The old connection is closed first; objects that
    /// are still held stay good, pages that are still held can no longer be stored.
    ///
    /// # Errors
    /// If the engine cannot be reached; the handler is closed then.
    pub fn reconnect(&self) -> Result<(), HandlerError> {
        if !self.home.is_home() {
            return Err(HandlerError::Forked);
        }
        self.plugins.settle(SETTLE);
        let _alone = self.lifecycle.write();
        self.close_alone();
        let line = Line::open((self.connect)()?, self.config.stock_bytes)?;
        self.line.store(Some(Arc::new(line)));
        Ok(())
    }

    fn line(&self) -> Result<Arc<Line>, HandlerError> {
        if !self.home.is_home() {
            return Err(HandlerError::Forked);
        }
        self.line.load_full().ok_or(HandlerError::Closed)
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler")
            .field("config", &self.config)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

fn short_answer(what: &str) -> HandlerError {
    ControlError::Protocol(format!("the engine gave {what}")).into()
}
