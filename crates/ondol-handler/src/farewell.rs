//! What a server has to hear when a handler leaves, said until one hears it.
//!
//! A server that is started again expects back every client of its predecessor whose process lives, and keeps for it
//! what it held. So a farewell that no server heard, as there was none, is kept for the life of this process, and said
//! when another line of this process reaches a server at the same place.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ondol_protocol::{ControlError, ControlPlane};
use ondol_shm::{ForkGuard, LeaseSlots, SlotTable};
use parking_lot::Mutex;

use crate::stock::Stock;

/// So many farewells are kept. Each holds a few descriptors open, and none of the pool's memory.
const LIMIT: usize = 64;

/// The farewells of one process. A forked child begins with none: those of its parent are not its own to say, and their
/// lock may be held by a thread that the child does not have.
static KEPT: ArcSwapOption<Kept> = ArcSwapOption::const_empty();

#[derive(Debug)]
struct Kept {
    home: ForkGuard,
    /// The oldest first.
    farewells: Mutex<VecDeque<Farewell>>,
}

/// What there is to say for a client that is not used any more.
#[derive(Debug)]
pub(crate) struct Farewell {
    plane: Arc<dyn ControlPlane>,
    stock: Arc<Stock>,
    leases: Arc<LeaseSlots>,
    slots: Option<Arc<SlotTable>>,
    /// Where it can be said later.
    place: Option<PathBuf>,
}

/// What came of saying it.
#[derive(Debug)]
enum Said {
    /// There is nothing more to say.
    Done,
    /// This server knows, and waits for the objects that are still held. One that comes after it would not know.
    ForNow,
    /// Not all of it was heard.
    Unheard(ControlError),
}

impl Farewell {
    pub(crate) fn new(
        plane: &Arc<dyn ControlPlane>,
        stock: &Arc<Stock>,
        leases: &Arc<LeaseSlots>,
        slots: Option<&Arc<SlotTable>>,
    ) -> Self {
        Self {
            plane: Arc::clone(plane),
            stock: Arc::clone(stock),
            leases: Arc::clone(leases),
            slots: slots.cloned(),
            place: plane.place().map(Path::to_owned),
        }
    }

    /// Returns what is in stock and leaves; what is not heard is kept, to be said again.
    pub(crate) fn say(self) {
        match self.attempt() {
            Said::Done => {}
            Said::ForNow => keep(self),
            Said::Unheard(error) => {
                tracing::debug!(%error, client = %self.plane.client().id, "the engine has not heard this client leave");
                keep(self);
            }
        }
    }

    fn attempt(&self) -> Said {
        // That engine does not know this client.
        if self.stock.is_abandoned() {
            return Said::Done;
        }
        let returned = self.stock.give_back(&*self.plane);
        ondol_catalog::failpoint!("client.close.returned");
        let told = match returned {
            // Once it has left the client cannot ask which pages a request brought, and never return them.
            Err(error) if !self.stock.is_answered() => Err(error),
            Ok(_) if !self.stock.is_answered() => {
                let reason = "a request for pages is not answered yet".to_owned();
                Err(ControlError::Failed(reason))
            }
            // Pages can be returned later, too.
            Err(error @ ControlError::UnknownClient(_)) => Err(error),
            Err(error) => self.plane.leave().and(Err(error)),
            Ok(_) => self.plane.leave(),
        };
        match told {
            Err(ControlError::UnknownClient(_)) => {
                self.stock.abandon();
                Said::Done
            }
            Err(error) => Said::Unheard(error),
            Ok(()) if self.holds_nothing() => Said::Done,
            Ok(()) => Said::ForNow,
        }
    }

    fn holds_nothing(&self) -> bool {
        let leased = self.leases.in_use() + self.slots.as_ref().map_or(0, |slots| slots.in_use());
        leased == 0 && self.stock.is_empty()
    }

    fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.stock, &other.stock)
    }
}

/// Says again what no server at the place of `reached` has heard: one has just answered there. No lock is held while
/// it is said.
pub(crate) fn repeat(reached: &dyn ControlPlane) {
    let Some(place) = reached.place() else { return };
    let mut due = take(place);
    while let Some(farewell) = due.pop_front() {
        farewell.plane.look_again();
        ondol_catalog::failpoint!("client.farewell.repeat");
        match farewell.attempt() {
            Said::Done => {}
            Said::ForNow => keep(farewell),
            Said::Unheard(error) => {
                let is_away = matches!(
                    error,
                    ControlError::Disconnected { .. } | ControlError::TimedOut { .. }
                );
                tracing::debug!(%error, client = %farewell.plane.client().id, "a farewell was not heard this time either");
                keep(farewell);
                if is_away {
                    break;
                }
            }
        }
    }
    // The server has gone again: the others would wait for it in vain.
    due.into_iter().for_each(keep);
}

/// Takes out the farewells to one place.
fn take(place: &Path) -> VecDeque<Farewell> {
    let kept = kept();
    let mut farewells = kept.farewells.lock();
    let all = std::mem::take(&mut *farewells);
    let (due, others) = all
        .into_iter()
        .partition(|farewell| farewell.place.as_deref() == Some(place));
    *farewells = others;
    due
}

/// Keeps a farewell for a server that may come; the oldest is given up for it if need be.
fn keep(farewell: Farewell) {
    if farewell.place.is_none() {
        return;
    }
    let given_up = {
        let kept = kept();
        let mut farewells = kept.farewells.lock();
        if farewells.iter().any(|known| known.is_of(&farewell)) {
            return;
        }
        farewells.push_back(farewell);
        if farewells.len() > LIMIT {
            farewells.pop_front()
        } else {
            None
        }
    };
    if let Some(Farewell { plane, place, .. }) = given_up {
        tracing::warn!(
            client = %plane.client().id,
            place = %place.unwrap_or_default().display(),
            "more than {LIMIT} clients of this process were left while their servers were away, or with objects held, so that \
             the oldest is given up: if a server that is started again expects it back, its stock of pages, its pins and its \
             leases stay captive there until this process ends"
        );
    }
}

/// The farewells of the calling process.
fn kept() -> Arc<Kept> {
    loop {
        let found = KEPT.load_full();
        if let Some(kept) = found.as_ref().filter(|kept| kept.home.is_home()) {
            return Arc::clone(kept);
        }
        let fresh = Arc::new(Kept {
            home: ForkGuard::new(),
            farewells: Mutex::default(),
        });
        let before = KEPT.compare_and_swap(&found, Some(Arc::clone(&fresh)));
        let is_set = match (&*before, &found) {
            (None, None) => true,
            (Some(before), Some(found)) => Arc::ptr_eq(before, found),
            _ => false,
        };
        // What a parent kept is never dropped in its child.
        let _ = ManuallyDrop::new(found);
        if is_set {
            return fresh;
        }
    }
}
