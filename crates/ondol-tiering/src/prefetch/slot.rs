//! Where a request's leases are gathered: the controller puts them in, and who waits takes them, at the latest when its time
//! is over. Neither waits for the other.

use std::time::Instant;

use ondol_plugin::l2::Bitmap;
use parking_lot::{Condvar, Mutex};

use super::PrefetchReport;
use super::plan::Shape;
use crate::Leased;

/// The leases of each row.
pub(super) type Leases = Vec<Vec<Option<Leased>>>;

#[derive(Debug)]
pub(super) struct Slot {
    shape: Shape,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    leases: Leases,
    from_memory: Vec<Bitmap>,
    timed_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The controller may add leases.
    Running,
    /// All is there that will come.
    Done,
    /// Nobody wants the leases any more.
    Left,
}

impl Slot {
    /// A slot with what memory had.
    pub(super) fn new(shape: Shape, leases: Leases) -> Self {
        Self {
            shape,
            state: Mutex::new(State {
                phase: Phase::Running,
                from_memory: present(&leases),
                leases,
                timed_out: false,
            }),
            done: Condvar::new(),
        }
    }

    /// What is asked for.
    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Adds a lease; it ends at once if nobody wants it any more.
    pub(super) fn put(&self, row: usize, column: usize, lease: Leased) {
        let mut state = self.state.lock();
        if state.phase == Phase::Running {
            state.leases[row][column] = Some(lease);
        }
    }

    /// Nothing more comes: leases that serve nothing end, and who waits is answered.
    pub(super) fn finish(&self, timed_out: bool) {
        let mut state = self.state.lock();
        if state.phase != Phase::Running {
            return;
        }
        state.phase = Phase::Done;
        state.timed_out = timed_out;
        let surplus = cut(&self.shape, &mut state.leases);
        drop(state);
        self.done.notify_all();
        // Leases end outside of the lock.
        drop(surplus);
    }

    /// Whether all is there that will come.
    pub(super) fn is_done(&self) -> bool {
        self.state.lock().phase != Phase::Running
    }

    /// Nobody waits any more; the leases end.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.phase = Phase::Left;
        let leases = std::mem::take(&mut state.leases);
        drop(state);
        drop(leases);
    }

    /// Waits until all has come, or `until`; what is there then.
    pub(super) fn wait(&self, until: Instant) -> PrefetchReport {
        let mut state = self.state.lock();
        while state.phase == Phase::Running {
            if self.done.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        let timed_out = state.timed_out || state.phase == Phase::Running;
        state.phase = Phase::Left;
        let leases = std::mem::take(&mut state.leases);
        let from_memory = std::mem::take(&mut state.from_memory);
        drop(state);
        report(&self.shape, leases, from_memory, timed_out)
    }
}

/// What is there of each row.
pub(super) fn present(leases: &Leases) -> Vec<Bitmap> {
    let row = |row: &Vec<Option<Leased>>| row.iter().map(Option::is_some).collect();
    leases.iter().map(row).collect()
}

/// A report of these leases without those that serve nothing.
pub(super) fn report(
    shape: &Shape,
    mut leases: Leases,
    from_memory: Vec<Bitmap>,
    timed_out: bool,
) -> PrefetchReport {
    drop(cut(shape, &mut leases));
    let present = present(&leases);
    let both = from_memory.iter().zip(&present);
    PrefetchReport {
        from_memory: both.map(|(before, now)| before & now).collect(),
        present,
        leases,
        timed_out,
    }
}

/// Takes out the leases that serve nothing: those beyond the prefix, or of columns that are not whole.
fn cut(shape: &Shape, leases: &mut Leases) -> Vec<Leased> {
    let wanted = shape.wanted(&present(leases), shape.columns);
    let mut surplus = Vec::new();
    for (row, wanted) in leases.iter_mut().zip(&wanted) {
        for (column, lease) in row.iter_mut().enumerate() {
            if !wanted.test(column) {
                surplus.extend(lease.take());
            }
        }
    }
    surplus
}
