//! What this client learns of the engine's index by itself, without asking the engine.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::{ArcSwapOption, Guard};
use ondol_plugin::Key;
use ondol_protocol::{ControlError, ControlPlane, IndexFiles};
use ondol_shm::{IndexError, IndexReader, IndexedObject, Looked, SlotLease, SlotTable};
use parking_lot::Mutex;

/// Milliseconds until an engine that had no index for this client is asked again.
const ASK_AGAIN_MS: u64 = 1000;
/// Milliseconds until one is asked again whose index was replaced before it could be used.
const REPLACED_MS: u64 = 10;

/// An index and the table in which leases on what it holds are published.
#[derive(Debug)]
pub(crate) struct Index {
    reader: IndexReader,
    slots: Arc<SlotTable>,
}

impl Index {
    /// Whether what it says is what the engine knows.
    pub(crate) fn is_current(&self) -> bool {
        self.reader.is_current() && self.slots.incarnation() == self.reader.incarnation()
    }

    /// Finds objects, leased: `answer` is called once for each key, in order.
    pub(crate) fn lease(
        &self,
        keys: &[Key],
        answer: impl FnMut(usize, Looked<(IndexedObject, SlotLease)>),
    ) {
        self.reader.lease(&self.slots, keys, answer);
    }

    /// Finds objects: `answer` is called once for each key, in order. It holds if the index [is
    /// current](Self::is_current) afterwards.
    pub(crate) fn look(&self, keys: &[Key], answer: impl FnMut(usize, Looked<IndexedObject>)) {
        self.reader.look(keys, answer);
    }

    /// Where the engine learns what was found.
    pub(crate) fn slots(&self) -> &SlotTable {
        &self.slots
    }
}

/// A client's slot table, once it has been given one. It is mapped once, so that no two parts of a process take the same slot.
pub(crate) type OwnTable = OnceLock<Arc<SlotTable>>;

/// The index in use, if there is one.
#[derive(Debug)]
pub(crate) struct SharedIndex {
    index: ArcSwapOption<Index>,
    slots: Arc<OwnTable>,
    /// Held by the thread that asks the engine for an index.
    asking: Mutex<()>,
    /// When the engine may be asked, in milliseconds since `begun`.
    due: AtomicU64,
    begun: Instant,
}

impl SharedIndex {
    /// The client's table goes to `slots`.
    pub(crate) fn new(slots: Arc<OwnTable>) -> Self {
        Self {
            index: ArcSwapOption::empty(),
            slots,
            asking: Mutex::new(()),
            due: AtomicU64::new(0),
            begun: Instant::now(),
        }
    }

    /// The index to be used now. The engine is asked for one if there is none and it may have one; meanwhile other
    /// threads are told that there is none.
    ///
    /// # Errors
    /// That the engine cannot be reached, or does not know this client.
    pub(crate) fn get(
        &self,
        plane: &dyn ControlPlane,
    ) -> Result<Guard<Option<Arc<Index>>>, ControlError> {
        let index = self.index.load();
        if index.as_ref().is_some_and(|index| index.is_current()) {
            return Ok(index);
        }
        drop(index);
        self.renew(plane)?;
        let index = self.index.load();
        let is_current = index.as_ref().is_some_and(|index| index.is_current());
        Ok(if is_current {
            index
        } else {
            Guard::from_inner(None)
        })
    }

    /// There is another server; it is asked when the index is next needed.
    pub(crate) fn look_again(&self) {
        self.due.store(0, Ordering::Relaxed);
    }

    /// The client's slot table, once there is one.
    pub(crate) fn slots(&self) -> Option<&Arc<SlotTable>> {
        self.slots.get()
    }

    fn renew(&self, plane: &dyn ControlPlane) -> Result<(), ControlError> {
        let now = || self.begun.elapsed().as_millis() as u64;
        if now() < self.due.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(_asking) = self.asking.try_lock() else {
            return Ok(());
        };
        if self
            .index
            .load()
            .as_ref()
            .is_some_and(|index| index.is_current())
        {
            return Ok(());
        }
        // Before the question: a server that is found meanwhile may set it to be asked at once.
        self.due.store(now() + ASK_AGAIN_MS, Ordering::Relaxed);
        let index = match plane.index() {
            Ok(Some(files)) => match self.open(&files) {
                Ok(index) => Some(Arc::new(index)),
                Err(error) => {
                    tracing::warn!(%error, "the index cannot be used; the engine is asked for everything");
                    // It would be the same again, until there is another server.
                    self.due.store(u64::MAX, Ordering::Relaxed);
                    None
                }
            },
            Ok(None) => None,
            Err(
                error @ (ControlError::Disconnected { .. }
                | ControlError::TimedOut { .. }
                | ControlError::UnknownClient(_)),
            ) => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "the engine gives no index; it is asked for everything");
                None
            }
        };
        match &index {
            Some(index) if index.is_current() => self.look_again(),
            // It was replaced meanwhile.
            Some(_) => self.due.store(now() + REPLACED_MS, Ordering::Relaxed),
            None => {}
        }
        self.index.store(index);
        Ok(())
    }

    fn open(&self, files: &IndexFiles) -> Result<Index, IndexError> {
        let reader = IndexReader::open(files.index.as_fd())?;
        let slots = match self.slots.get() {
            Some(slots) => slots,
            None => {
                let slots = SlotTable::open(files.slots.as_fd())?;
                self.slots.get_or_init(|| slots)
            }
        };
        Ok(Index {
            reader,
            slots: Arc::clone(slots),
        })
    }
}
