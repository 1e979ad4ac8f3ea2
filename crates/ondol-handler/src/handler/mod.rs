#[cfg(test)]
mod index_tests;
mod pin;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwapOption, Guard};
use ondol_host::{HandlerPlugins, LoadOptions, PluginReport, Registry};
use ondol_plugin::Key;
use ondol_protocol::{ControlError, ControlPlane, Listing};
use ondol_shm::ForkGuard;
use parking_lot::{RwLock, RwLockWriteGuard};

use crate::backoff::Backoff;
use crate::line::Line;
use crate::metrics::Counters;
use crate::{
    HandlerConfig, HandlerCounts, HandlerError, HandlerStats, Health, Plugins, SocketOptions,
    SocketPlane,
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
    /// Whether others are on their way from storage.
    pub pending: bool,
}

/// The client of an engine: writes objects into shared memory, reads them without a copy.
///
/// All methods take `&self` and may be called from many threads at once. Readers take no lock that a writer holds
/// while it talks to the engine; those that come while [`reconnect`](Self::reconnect) is under way wait for it.
///
/// A handler outlives its server: while that is away calls fail, and they work again once it is back. If the server
/// does not know this handler any more, the call that learns it makes the handler a new client and is carried out.
/// See the [crate's documentation](crate) for what the guards promise.
pub struct Handler {
    config: HandlerConfig,
    connect: Box<Connect>,
    plugins: Arc<HandlerPlugins>,
    counters: Counters,
    home: ForkGuard,
    /// The connection in use; none after `close`.
    line: ArcSwapOption<Line>,
    /// Held shared by writers, alone by who replaces the line. Readers do not take it.
    lifecycle: RwLock<()>,
    /// When a new line is tried again that could not be opened.
    backoff: Backoff,
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

    /// Connects through `connect`: to an engine in this process, or over a transport of the caller's. It is called
    /// again by [`reconnect`](Self::reconnect), and when the engine does not know this client any more.
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
            backoff: Backoff::new(seed()?),
        };
        if let Some(line) = &*handler.line.load() {
            line.reached();
            handler.plugins.init(&**line);
        }
        Ok(handler)
    }

    /// Objects in the order of their keys, from the first behind `after`, at most `limit`.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn list(&self, after: Option<&Key>, limit: u32) -> Result<Listing, HandlerError> {
        self.on_line(|line| Ok(line.plane.list(after, limit)?))
    }

    /// Figures of the engine, of this handler and of its plugins.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn stats(&self) -> Result<HandlerStats, HandlerError> {
        Ok(HandlerStats {
            engine: self.on_line(|line| Ok(line.plane.stats()?))?,
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
            reconnects,
            new_lines,
        } = &self.counters;
        let line = self.line.load();
        let line = line.as_ref();
        HandlerCounts {
            hits: hits.get(),
            misses: misses.get(),
            stores: stores.get(),
            layout_mismatches: layout_mismatches.get(),
            checksum_mismatches: checksum_mismatches.get(),
            reconnects: reconnects.get(),
            new_lines: new_lines.get(),
            leases: line.map_or(0, |line| line.leases_in_use() as u64),
            stock_pages: line.map_or(0, |line| line.stock.len()),
            mapped_regions: line.map_or(0, |line| line.regions.mapped_count()),
        }
    }

    /// Names the start of the engine that this handler was with last; asks nobody. `None` once it is closed.
    pub fn incarnation(&self) -> Option<u64> {
        let line = self.line.load();
        line.as_ref().map(|line| line.plane.client().incarnation)
    }

    /// What became of the plugins that are linked into this process.
    pub fn plugins(&self) -> Vec<PluginReport> {
        self.plugins.report()
    }

    /// Whether the engine answers.
    pub fn health(&self) -> Health {
        match self.on_line(|line| Ok(line.plane.ping()?)) {
            Ok(()) => Health::Connected,
            Err(HandlerError::Closed) => Health::Closed,
            Err(error) => Health::Unreachable(error.to_string()),
        }
    }

    /// Leaves the engine: plugins are told while the regions are still mapped, idle pages go back, pins end. Objects
    /// and pages that are still held stay good until they are dropped. Closing twice does nothing. If the server is
    /// away, the next one hears that this client has left when a handler of this process reaches it.
    pub fn close(&self) {
        if !self.home.is_home() {
            return;
        }
        self.plugins.settle(SETTLE);
        // A statement of its own: who comes now need not wait for what is said to the engine.
        let line = self.take_line(&mut self.lifecycle.write());
        if let Some(line) = line {
            line.leave();
        }
    }

    /// Tells the plugins, and takes the line out of use.
    fn take_line(&self, _alone: &mut RwLockWriteGuard<'_, ()>) -> Option<Arc<Line>> {
        if let Some(line) = &*self.line.load() {
            self.plugins.close(&**line);
        }
        self.line.swap(None)
    }

    /// Connects anew, as a new client: after a close, or to try at once whether the server is back. The old connection
    /// is closed first, and its pins end; objects that are still held stay good, pages that are still held can no
    /// longer be stored. A server that was away needs no call of this: the handler finds it again by itself.
    ///
    /// # Errors
    /// If the engine cannot be reached; the handler is closed then.
    pub fn reconnect(&self) -> Result<(), HandlerError> {
        if !self.home.is_home() {
            return Err(HandlerError::Forked);
        }
        self.plugins.settle(SETTLE);
        let line = {
            // Held until there is a new line, for which readers wait.
            let mut alone = self.lifecycle.write();
            if let Some(line) = self.take_line(&mut alone) {
                line.leave();
            }
            let line = self.open_line()?;
            self.line.store(Some(Arc::clone(&line)));
            line
        };
        line.reached();
        Ok(())
    }

    fn open_line(&self) -> Result<Arc<Line>, HandlerError> {
        let line = Line::open((self.connect)()?, self.config.stock_bytes)?;
        Ok(Arc::new(line))
    }

    /// Does what `ask` says on the line in use, which must be safe to repeat. It is asked again on another line if other
    /// threads left the line meanwhile, and once more if the engine does not know this client any more.
    fn on_line<T>(
        &self,
        ask: impl Fn(&Arc<Line>) -> Result<T, HandlerError>,
    ) -> Result<T, HandlerError> {
        let mut is_replaced = false;
        loop {
            let loaded = self.loaded_line()?;
            let line = loaded.as_ref().ok_or(HandlerError::Closed)?;
            let result = ask(line);
            self.notice_resume(line);
            match result {
                // Whatever the engine said, it said to a client that is not used any more.
                Err(HandlerError::Control(_)) if line.is_over() => {}
                Err(error) if error.is_unknown_client() && !is_replaced => {
                    is_replaced = true;
                    self.replace(line, &error)?;
                }
                result => return result,
            }
        }
    }

    /// As [`on_line`](Self::on_line), while nobody replaces the line.
    fn write_on_line<T>(
        &self,
        ask: impl Fn(&Arc<Line>) -> Result<T, HandlerError>,
    ) -> Result<T, HandlerError> {
        match self.write_once(&ask)? {
            (line, Err(error)) if error.is_unknown_client() => {
                self.replace(&line, &error)?;
                self.write_once(&ask)?.1
            }
            (_, result) => result,
        }
    }

    /// What `ask` answers on the line in use, which nobody replaces meanwhile, and that line. A forked child is turned
    /// away before it waits for a lock that a thread of its parent holds.
    fn write_once<T>(
        &self,
        ask: impl FnOnce(&Arc<Line>) -> Result<T, HandlerError>,
    ) -> Result<(Arc<Line>, Result<T, HandlerError>), HandlerError> {
        if !self.home.is_home() {
            return Err(HandlerError::Forked);
        }
        let (line, result) = {
            let _writer = self.lifecycle.read();
            let line = self.line.load_full().ok_or(HandlerError::Closed)?;
            let result = ask(&line);
            (line, result)
        };
        self.notice_resume(&line);
        Ok((line, result))
    }

    /// The line that is used instead of one whose client the engine does not know any more; the first thread that
    /// asks opens it. Plugins are not told: the handler is neither new nor closed.
    fn replace(&self, old: &Arc<Line>, why: &HandlerError) -> Result<Arc<Line>, HandlerError> {
        let alone = self.lifecycle.write();
        let current = self.line.load_full().ok_or(HandlerError::Closed)?;
        if !Arc::ptr_eq(&current, old) {
            return Ok(current);
        }
        let attempt = self.backoff.attempt(Instant::now())?;
        ondol_catalog::failpoint!("client.replace");
        let line = match self.open_line() {
            Err(HandlerError::Control(ControlError::Disconnected { reason, sent })) => {
                attempt.failed(Instant::now(), &reason);
                return Err(ControlError::Disconnected { reason, sent }.into());
            }
            opened => {
                attempt.succeeded();
                opened?
            }
        };
        let (was, is) = (current.info.id, line.info.id);
        let pins = current.pins.count();
        if pins > 0 {
            tracing::warn!(%was, %is, pins, %why, "this handler goes on as a new client; the pins that it had are gone");
        } else {
            tracing::info!(%was, %is, %why, "this handler goes on as a new client");
        }
        // In this order: who finds the old line over finds the new one.
        self.line.store(Some(Arc::clone(&line)));
        current.abandon();
        self.counters.new_lines.increment();
        drop(alone);
        line.reached();
        Ok(line)
    }

    fn line(&self) -> Result<Arc<Line>, HandlerError> {
        let line = Guard::into_inner(self.loaded_line()?);
        line.ok_or(HandlerError::Closed)
    }

    /// The line in use, borrowed, so that many threads do not all change one count of references; none after `close`.
    fn loaded_line(&self) -> Result<Guard<Option<Arc<Line>>>, HandlerError> {
        if !self.home.is_home() {
            return Err(HandlerError::Forked);
        }
        let line = self.line.load();
        if line.is_some() {
            return Ok(line);
        }
        // A reconnect that is under way holds this lock.
        let _settled = self.lifecycle.read();
        Ok(self.line.load())
    }

    /// Looks whether a call went to a server that was started again.
    fn notice_resume(&self, line: &Line) {
        if line.settle_after_resume() {
            self.counters.reconnects.increment();
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        if self.home.is_home() {
            self.close();
        } else {
            // Plugins and connection are the parent's: their destructors would end in the child what the parent
            // still uses, and wait for threads and locks that no child has.
            let _ = ManuallyDrop::new((Arc::clone(&self.plugins), self.line.swap(None)));
        }
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

fn seed() -> Result<u64, ControlError> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed)
        .map_err(|error| ControlError::Failed(format!("random bytes: {error}")))?;
    Ok(u64::from_ne_bytes(seed))
}

fn short_answer(what: &str) -> HandlerError {
    ControlError::Protocol(format!("the engine gave {what}")).into()
}
