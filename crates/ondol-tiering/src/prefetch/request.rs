//! What the controller knows of one request.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ondol_plugin::Key;
use ondol_plugin::l2::{Bitmap, ObjectKey};

use super::controller::Shared;
use super::held::Held;
use super::room::{Room, Unfit};
use super::slot::Slot;
use super::speed::Speed;
use crate::Leased;
use crate::attached::Attached;

/// One request, from its lookups to its end. Dropping it answers who waits, with what there is, and unlocks what it holds.
#[derive(Debug)]
pub(super) struct Request {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    pub(super) id: u64,
    pub(super) deadline: Option<Instant>,
    /// Whether it stands in the queue of those that want to load.
    pub(super) is_queued: bool,
    /// The backends that it waits for there: they load as much as they may.
    pub(super) waits_for: Vec<u64>,
    /// Whether nothing has changed since it was planned.
    pub(super) is_planned: bool,
    /// The chunks of each row that are or were leased for it.
    present: Vec<Bitmap>,
    /// What memory did not have, column by column: so the first chunks are loaded first.
    cells: Vec<Cell>,
    /// The names of these.
    names: Arc<[ObjectKey]>,
    /// What each backend answered, in the order of their priority.
    answers: Vec<Option<Answer>>,
    unanswered: usize,
    /// The chunks that are wanted of those that can be had.
    wanted: Vec<Bitmap>,
    /// The column from which on nothing would come in time; `None` until that was thought about.
    end: Option<usize>,
    /// How many admissions there had been when memory was looked at.
    admissions: u64,
    timed_out: bool,
}

/// A chunk that memory did not have.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) key: Key,
    pub(super) expected_len: Option<u64>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Neither here nor on its way.
    Open,
    /// A load brings it, of this request or of another.
    Loading,
    /// Leased.
    Present,
}

/// What a backend has of a request.
#[derive(Debug)]
struct Answer {
    held: Held,
    /// How each object that is held is loaded.
    rooms: Vec<Option<Room>>,
}

/// A cell that is to be loaded now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Todo {
    pub(super) cell: usize,
    /// Which backend's answer it is loaded by.
    pub(super) answer: usize,
    pub(super) room: Room,
}

impl Cell {
    pub(super) fn new(row: usize, column: usize, key: Key, expected_len: Option<u64>) -> Self {
        Self {
            row,
            column,
            key,
            expected_len,
            state: State::Open,
        }
    }
}

/// What memory has of a request, and what it has not.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) present: Vec<Bitmap>,
    /// What is missing, column by column.
    pub(super) cells: Vec<Cell>,
    /// The names of these.
    pub(super) names: Arc<[ObjectKey]>,
    /// How many admissions there had been before memory was looked at.
    pub(super) admissions: u64,
}

impl Request {
    /// A request that asks so many backends.
    pub(super) fn new(
        shared: &Arc<Shared>,
        slot: &Arc<Slot>,
        look: Look,
        backends: usize,
        timeout: Duration,
    ) -> Self {
        let Look {
            present,
            cells,
            names,
            admissions,
        } = look;
        shared.under_way.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Arc::clone(shared),
            slot: Arc::clone(slot),
            id: shared.number(),
            // A time that no clock reaches is none.
            deadline: Instant::now().checked_add(timeout),
            is_queued: false,
            waits_for: Vec::new(),
            is_planned: false,
            wanted: Vec::new(),
            present,
            cells,
            names,
            answers: (0..backends).map(|_| None).collect(),
            unanswered: backends,
            end: None,
            admissions,
            timed_out: false,
        }
    }

    pub(super) fn cell(&self, cell: usize) -> &Cell {
        &self.cells[cell]
    }

    pub(super) fn name(&self, cell: usize) -> &ObjectKey {
        &self.names[cell]
    }

    /// Whether a lookup has not been answered yet.
    pub(super) fn is_looking_up(&self) -> bool {
        self.unanswered > 0
    }

    /// A backend has answered; `None` if it could not.
    pub(super) fn answered(&mut self, at: usize, answer: Option<(Held, Vec<u64>)>) {
        self.unanswered -= 1;
        let Some((mut held, sizes)) = answer else {
            return;
        };
        let counters = &self.shared.counters;
        let codec = &Arc::clone(held.attached()).codec;
        let mut rooms = vec![None; self.cells.len()];
        for index in held.ones() {
            let Some(cell) = self.cells.get(index) else {
                continue;
            };
            let stored = sizes.get(index).copied().unwrap_or_default();
            let capacity = self.shared.capacity;
            match Room::of(codec, &cell.key, stored, cell.expected_len, capacity) {
                Ok(room) => rooms[index] = Some(room),
                Err(Unfit::UnknownLength) => counters.unknown_length.increment(),
                Err(Unfit::TooLong) => counters.too_long.increment(),
            }
        }
        held.keep(|index| rooms.get(index).is_some_and(Option::is_some));
        self.answers[at] = Some(Answer { held, rooms });
    }

    /// Cells that are neither here nor on their way.
    fn open(&self) -> impl Iterator<Item = usize> + '_ {
        let cells = self.cells.iter().enumerate();
        cells
            .filter(|(_, cell)| cell.state == State::Open)
            .map(|(index, _)| index)
    }

    /// Leases what others have brought into memory since it was looked at last.
    pub(super) fn look_again(&mut self) {
        let admissions = self.shared.admissions.load(Ordering::Acquire);
        if admissions == self.admissions {
            return;
        }
        self.admissions = admissions;
        let open: Vec<_> = self.open().collect();
        let keys: Vec<_> = open
            .iter()
            .map(|cell| self.cells[*cell].key.clone())
            .collect();
        let leases = self.shared.memory.lease(&keys);
        for (cell, lease) in open.into_iter().zip(leases) {
            if let Some(lease) = lease {
                self.receive(cell, lease);
            }
        }
    }

    /// Offers every open cell, and marks those that `join` takes as being loaded.
    pub(super) fn join_loads(&mut self, mut join: impl FnMut(&Key, usize) -> bool) {
        for (index, cell) in self.cells.iter_mut().enumerate() {
            if cell.state == State::Open && join(&cell.key, index) {
                cell.state = State::Loading;
            }
        }
    }

    /// A load of this cell is under way.
    pub(super) fn is_loaded_now(&mut self, cell: usize) {
        self.cells[cell].state = State::Loading;
    }

    /// A cell has come.
    pub(super) fn receive(&mut self, cell: usize, lease: Leased) {
        let Cell {
            row, column, state, ..
        } = &mut self.cells[cell];
        *state = State::Present;
        self.present[*row].set(*column);
        self.slot.put(*row, *column, lease);
    }

    /// A load of this cell from a backend failed: that backend is not asked for it again.
    pub(super) fn failed(&mut self, cell: usize, backend: u64) {
        self.cells[cell].state = State::Open;
        for answer in self.answers.iter_mut().flatten() {
            if answer.held.attached().id == backend {
                answer.held.keep(|index| index != cell);
            }
        }
    }

    /// Loads nothing more from a backend; whether anything was to be.
    pub(super) fn leave_out(&mut self, backend: u64) -> bool {
        let mut any = false;
        for answer in self.answers.iter_mut().flatten() {
            if answer.held.attached().id == backend {
                any |= answer.held.ones().next().is_some();
                answer.held.keep(|_| false);
            }
        }
        any
    }

    /// The backend that gave an answer.
    pub(super) fn backend(&self, answer: usize) -> Option<&Arc<Attached>> {
        let answer = self.answers.get(answer)?.as_ref()?;
        Some(answer.held.attached())
    }

    /// This cell cannot be had, wherever it is.
    pub(super) fn give_up(&mut self, cell: usize) {
        self.cells[cell].state = State::Open;
        for answer in self.answers.iter_mut().flatten() {
            answer.held.keep(|index| index != cell);
        }
    }

    /// Unlocks these keys wherever they were found, so that they are not loaded from there; whether there were any.
    pub(super) fn release_keys(&mut self, is_meant: impl Fn(&Key) -> bool) -> bool {
        let Self { answers, cells, .. } = self;
        let mut any = false;
        for answer in answers.iter_mut().flatten() {
            answer.held.keep(|index| {
                let is_kept = !is_meant(&cells[index].key);
                any |= !is_kept;
                is_kept
            });
        }
        any
    }

    /// Decides which chunks are wanted of those that can be had.
    pub(super) fn plan(&mut self, speed: impl Fn(u64) -> Speed) {
        let mut possible = self.present.clone();
        for (index, cell) in self.cells.iter().enumerate() {
            let can_come = match cell.state {
                State::Open => self.source(index).is_some(),
                State::Loading => true,
                State::Present => false,
            };
            if can_come {
                possible[cell.row].set(cell.column);
            }
        }
        let shape = self.slot.shape();
        let columns = shape.columns;
        self.wanted = shape.wanted(&possible, self.end.unwrap_or(columns));
        if self.end.is_none() {
            let end = self.affordable(speed);
            self.end = Some(end);
            if end < columns {
                let before: usize = self.wanted.iter().map(Bitmap::count_ones).sum();
                self.wanted = self.slot.shape().wanted(&possible, end);
                let after: usize = self.wanted.iter().map(Bitmap::count_ones).sum();
                let left_out = before.saturating_sub(after);
                self.shared.counters.too_slow.add(left_out as u64);
            }
        }
    }

    /// The column up to which all can be loaded in the time that is left, as far as is known how fast the backends are. The
    /// first column that misses something is tried in any case: else a backend that was slow once would never be measured again.
    fn affordable(&self, speed: impl Fn(u64) -> Speed) -> usize {
        let columns = self.slot.shape().columns;
        let Some(deadline) = self.deadline else {
            return columns;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.as_secs_f64();
        let speed_of = |answer: &Option<Answer>| {
            let answer = answer.as_ref();
            answer.map_or_else(Speed::default, |answer| speed(answer.held.attached().id))
        };
        let speeds: Vec<_> = self.answers.iter().map(speed_of).collect();
        let mut seconds = vec![0.0; speeds.len()];
        let todo = self.todo();
        let first = todo.first().map(|todo| self.cells[todo.cell].column);
        for Todo { cell, answer, room } in todo {
            seconds[answer] += speeds[answer].seconds(room.bytes());
            if seconds[answer] > left {
                let always = first.map_or(0, |first| first + 1);
                return self.cells[cell].column.max(always);
            }
        }
        columns
    }

    /// The first backend that has a cell, and how it is loaded there.
    fn source(&self, cell: usize) -> Option<(usize, Room)> {
        self.answers.iter().enumerate().find_map(|(at, answer)| {
            let answer = answer.as_ref().filter(|answer| answer.held.holds(cell))?;
            Some((at, answer.rooms[cell]?))
        })
    }

    fn is_wanted(&self, cell: &Cell) -> bool {
        self.wanted
            .get(cell.row)
            .is_some_and(|row| row.test(cell.column))
    }

    /// Whether this cell is wanted.
    pub(super) fn wants(&self, cell: usize) -> bool {
        self.is_wanted(&self.cells[cell])
    }

    /// What is wanted and is not on its way yet.
    pub(super) fn todo(&self) -> Vec<Todo> {
        let mut todo = Vec::with_capacity(self.cells.len());
        for cell in self.open().filter(|cell| self.wants(*cell)) {
            if let Some((answer, room)) = self.source(cell) {
                todo.push(Todo { cell, answer, room });
            }
        }
        todo
    }

    /// Whether something wanted is not on its way yet.
    pub(super) fn has_todo(&self) -> bool {
        self.open()
            .any(|cell| self.wants(cell) && self.source(cell).is_some())
    }

    /// Whether all that memory did not have has come.
    pub(super) fn has_all(&self) -> bool {
        let mut cells = self.cells.iter();
        cells.all(|cell| cell.state == State::Present)
    }

    /// Whether something wanted is on its way.
    pub(super) fn is_waiting(&self) -> bool {
        self.cells
            .iter()
            .any(|cell| cell.state == State::Loading && self.is_wanted(cell))
    }

    /// Moves the locks of these cells to a load.
    ///
    /// # Panics
    /// If that backend gave no answer.
    pub(super) fn split(&mut self, answer: usize, cells: &[usize]) -> Held {
        let answer = self.answers[answer].as_mut();
        answer
            .expect("a cell is only to be loaded where it was found")
            .held
            .split(cells)
    }

    /// Unlocks everything that is not wanted, or has come. What another backend has of a cell that is being loaded stays
    /// locked there, in case the load fails. While it is looking up, it is not known what is wanted.
    pub(super) fn release_unwanted(&mut self) {
        if self.is_looking_up() {
            return;
        }
        let Self {
            answers,
            cells,
            wanted,
            ..
        } = self;
        for answer in answers.iter_mut().flatten() {
            answer.held.keep(|index| {
                let cell = &cells[index];
                let is_wanted = wanted
                    .get(cell.row)
                    .is_some_and(|row| row.test(cell.column));
                is_wanted && cell.state != State::Present
            });
        }
    }

    /// Ends the request because its time is over.
    pub(super) fn time_out(mut self) {
        self.timed_out = true;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // Whoever is answered finds nothing locked for it.
        self.answers.clear();
        self.shared.under_way.fetch_sub(1, Ordering::Relaxed);
        self.slot.finish(self.timed_out);
    }
}
