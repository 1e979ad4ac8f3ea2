use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::hook::Hook;
use crate::record::Record;

/// The step of a [`Clock`].
pub const TICK: Duration = Duration::from_millis(10);

/// A coarse clock: reading it is one load, and whoever turns it looks for calls that hang.
///
/// The [system](Self::system) clock is turned by a watchdog thread, which runs only while there is something to
/// watch. It advances one [`TICK`] per wake-up of that thread rather than by the time that passed, so a process
/// that was stopped, or a machine too busy to run the watchdog, accuses nobody.
#[derive(Clone)]
pub struct Clock(Arc<Watch>);

struct Watch {
    now: AtomicU32,
    is_system: bool,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    records: HashMap<u32, Arc<Record>>,
    is_turning: bool,
}

impl Clock {
    /// The clock of this process.
    pub fn system() -> Self {
        static SYSTEM: OnceLock<Clock> = OnceLock::new();
        SYSTEM.get_or_init(|| Self::stopped(true)).clone()
    }

    /// A clock that moves by [`advance`](Self::advance) only, for tests.
    pub fn manual() -> Self {
        Self::stopped(false)
    }

    /// Turns a manual clock by `duration`, rounded up to a [`TICK`], and quarantines what hangs then. The
    /// system's clock is not turned by hand.
    pub fn advance(&self, duration: Duration) {
        if !self.0.is_system {
            self.turn(ticks(duration));
        }
    }

    fn stopped(is_system: bool) -> Self {
        Self(Arc::new(Watch {
            now: AtomicU32::new(0),
            is_system,
            watched: Mutex::default(),
        }))
    }

    #[inline]
    pub(crate) fn now(&self) -> u32 {
        self.0.now.load(Ordering::Relaxed)
    }

    pub(crate) fn watch(&self, record: &Arc<Record>) {
        let mut watched = self.0.watched.lock();
        watched.records.insert(record.id(), Arc::clone(record));
        if self.0.is_system && !watched.is_turning {
            let clock = self.clone();
            let thread = std::thread::Builder::new().name("ondol-watchdog".into());
            match thread.spawn(move || clock.keep_turning()) {
                Ok(_) => watched.is_turning = true,
                Err(error) => tracing::warn!(
                    %error,
                    "could not start the watchdog thread: plugins that overrun or hang go unnoticed"
                ),
            }
        }
    }

    pub(crate) fn forget(&self, record: &Record) {
        self.0.watched.lock().records.remove(&record.id());
    }

    fn keep_turning(&self) {
        loop {
            std::thread::sleep(TICK);
            self.turn(1);
            let mut watched = self.0.watched.lock();
            if watched.records.is_empty() {
                watched.is_turning = false;
                return;
            }
        }
    }

    fn turn(&self, by: u32) {
        let now = self.0.now.fetch_add(by, Ordering::Relaxed).wrapping_add(by);
        let overdue: Vec<_> = {
            let watched = self.0.watched.lock();
            let desks = DESKS.lock();
            desks
                .iter()
                .filter_map(|desk| Mark::unpack(desk.0.load(Ordering::Relaxed)))
                .filter_map(|mark| Some((watched.records.get(&mark.record)?, mark)))
                .filter(|(record, mark)| {
                    now.wrapping_sub(mark.since) > record.hang_limit(mark.hook)
                })
                .map(|(record, mark)| (Arc::clone(record), mark.hook))
                .collect()
        };
        // Outside the locks: a quarantine logs, and drops batches whose destructors are the handler's.
        for (record, hook) in overdue {
            record.hangs(hook);
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock")
            .field("now", &(TICK * self.now()))
            .field("is_system", &self.0.is_system)
            .finish_non_exhaustive()
    }
}

/// `duration` in whole ticks, rounded up.
pub(crate) fn ticks(duration: Duration) -> u32 {
    // Half the range, so that differences of wrapped readings stay unambiguous.
    let most = u128::from(u32::MAX / 2);
    duration.as_nanos().div_ceil(TICK.as_nanos()).min(most) as u32
}

/// Which call a thread is in, in one word, so that a watchdog never reads one half of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    record: u32,
    hook: Hook,
    since: u32,
}

const HOOK_BITS: u32 = 3;

impl Mark {
    const fn pack(record: u32, hook: Hook, since: u32) -> u64 {
        (((record << HOOK_BITS) | hook as u32) as u64) << 32 | since as u64
    }

    fn unpack(word: u64) -> Option<Self> {
        let (who, since) = ((word >> 32) as u32, word as u32);
        let hook = Hook::from_index((who & ((1 << HOOK_BITS) - 1)) as usize)?;
        let record = who >> HOOK_BITS;
        (record != 0).then_some(Self {
            record,
            hook,
            since,
        })
    }
}

/// The name of a record within a [`Mark`]; never 0.
pub(crate) fn next_record_id() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) % (u32::MAX >> HOOK_BITS) + 1
}

/// Where a thread says which call it is in. A cache line of its own: only the watchdog reads it.
#[repr(align(128))]
struct Desk(AtomicU64);

struct Seat(Arc<Desk>);

static DESKS: Mutex<Vec<Arc<Desk>>> = Mutex::new(Vec::new());

thread_local! {
    static SEAT: Seat = Seat::take();
}

impl Seat {
    fn take() -> Self {
        let desk = Arc::new(Desk(AtomicU64::new(0)));
        DESKS.lock().push(Arc::clone(&desk));
        Self(desk)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        DESKS.lock().retain(|desk| !Arc::ptr_eq(desk, &self.0));
    }
}

/// Publishes that this thread entered a call at `since`; returns what [`leave`] is to put back, since a plugin
/// may itself use a handler that has plugins.
#[inline]
pub(crate) fn enter(record: u32, hook: Hook, since: u32) -> u64 {
    exchange(Mark::pack(record, hook, since))
}

#[inline]
pub(crate) fn leave(before: u64) {
    exchange(before);
}

#[inline]
fn exchange(word: u64) -> u64 {
    // A thread that is being torn down has no seat any more; its last calls go unwatched.
    SEAT.try_with(|seat| {
        let before = seat.0.0.load(Ordering::Relaxed);
        seat.0.0.store(word, Ordering::Relaxed);
        before
    })
    .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_its_word() {
        for record in [1, 77, u32::MAX >> HOOK_BITS] {
            for hook in Hook::ALL {
                for since in [0, u32::MAX] {
                    let mark = Mark {
                        record,
                        hook,
                        since,
                    };
                    assert_eq!(Mark::unpack(Mark::pack(record, hook, since)), Some(mark));
                }
            }
        }
        assert_eq!(Mark::unpack(0), None);
    }

    #[test]
    fn nested_calls_put_back_the_outer_mark() {
        let outer = Mark::pack(1, Hook::Stats, 5);
        assert_eq!(enter(1, Hook::Stats, 5), 0);
        let before = enter(2, Hook::Prefetch, 9);
        assert_eq!(before, outer);
        leave(before);
        assert_eq!(exchange(0), outer);
    }

    #[test]
    fn a_thread_gives_its_desk_back_when_it_ends() {
        let desk = std::thread::spawn(|| {
            leave(enter(1, Hook::Close, 0));
            SEAT.with(|seat| Arc::downgrade(&seat.0))
        })
        .join()
        .unwrap();
        assert!(desk.upgrade().is_none());
    }

    #[test]
    fn durations_round_up_to_ticks() {
        assert_eq!(ticks(Duration::ZERO), 0);
        assert_eq!(ticks(Duration::from_nanos(1)), 1);
        assert_eq!(ticks(TICK * 5), 5);
        assert_eq!(ticks(Duration::MAX), u32::MAX / 2);
    }
}
