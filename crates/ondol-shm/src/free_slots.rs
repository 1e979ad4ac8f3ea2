//! Which slots of a table are free. The lowest come first, so that a client which holds few leases uses few slots, and
//! what the server has to look through stays small.
//!
//! Slots are kept in groups of 64, a bit for each: one atomic operation takes as many slots of a group as are needed,
//! and one gives a slot back. Threads begin at groups of different cache lines, so that they rarely meet in one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A set of slot numbers without a lock.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    lines: Box<[Line]>,
    /// Slots of the last line that do not exist, and always count as taken.
    beyond: u32,
}

/// The slots of some groups that are taken: a bit each.
#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU64; GROUPS]);

/// Slots of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotGroup {
    number: usize,
    bits: u64,
}

/// Slots that were free until now.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) slots: SlotGroup,
    /// Whether no slot of their group was taken before.
    pub(crate) was_idle: bool,
}

/// Slots that are to be given back.
pub(crate) struct Returning<'s> {
    taken: &'s AtomicU64,
    bits: u64,
}

/// Number of slots in a group.
const GROUP: usize = 64;
/// Number of groups in a line.
const GROUPS: usize = 8;
/// Threads begin at so many different lines.
const STARTS: usize = 8;

thread_local! {
    static START: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The line at which this thread begins.
fn start() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    START.with(|start| {
        if start.get() == usize::MAX {
            start.set(NEXT.fetch_add(1, Ordering::Relaxed) % STARTS);
        }
        start.get()
    })
}

impl FreeSlots {
    /// The slots `0..count`.
    pub(crate) fn new(count: u32) -> Self {
        let group = |number: usize| {
            let exist = (count as usize).saturating_sub(number * GROUP);
            AtomicU64::new(if exist < GROUP { !0 << exist } else { 0 })
        };
        let line = |line: usize| Line(std::array::from_fn(|at| group(line * GROUPS + at)));
        let lines = (count as usize).div_ceil(GROUPS * GROUP);
        Self {
            lines: (0..lines).map(line).collect(),
            beyond: (lines * GROUPS * GROUP) as u32 - count,
        }
    }

    /// Takes one slot.
    pub(crate) fn take(&self) -> Option<u32> {
        self.take_some(1)?.slots.pop()
    }

    /// Takes at least one and at most `wanted` slots, all of one group; `None` if no slot is free or none is wanted.
    pub(crate) fn take_some(&self, wanted: usize) -> Option<Taken> {
        let (before, from) = self.lines.split_at(start().min(self.lines.len()));
        let numbers = (before.len()..self.lines.len()).chain(0..before.len());
        for (line, groups) in numbers.zip(from.iter().chain(before)) {
            for (at, group) in groups.0.iter().enumerate() {
                if let Some((bits, was_idle)) = take_from(group, wanted) {
                    let number = line * GROUPS + at;
                    let slots = SlotGroup { number, bits };
                    return Some(Taken { slots, was_idle });
                }
            }
        }
        None
    }

    /// Slots that were taken, to be given back.
    pub(crate) fn returning(&self, slots: SlotGroup) -> Returning<'_> {
        let SlotGroup { number, bits } = slots;
        let taken = &self.lines[number / GROUPS].0[number % GROUPS];
        Returning { taken, bits }
    }

    /// Gives a slot back that was taken.
    pub(crate) fn give_back(&self, slot: u32) {
        self.returning(SlotGroup::of(slot)).give();
    }

    /// Number of slots that are taken, which others may be changing.
    pub(crate) fn taken(&self) -> usize {
        let groups = self.lines.iter().flat_map(|line| &line.0);
        let taken: u32 = groups
            .map(|group| group.load(Ordering::Relaxed).count_ones())
            .sum();
        (taken - self.beyond) as usize
    }
}

fn take_from(group: &AtomicU64, wanted: usize) -> Option<(u64, bool)> {
    let mut before = group.load(Ordering::Relaxed);
    loop {
        let pick = lowest(!before, wanted);
        if pick == 0 {
            return None;
        }
        // What the last holder did to the slot happens before what the next one does.
        before = group.fetch_or(pick, Ordering::Acquire);
        if pick & !before != 0 {
            return Some((pick & !before, before == 0));
        }
    }
}

impl Returning<'_> {
    /// Gives the slots back; whether no slot of their group is taken now.
    ///
    /// Nothing is accessed after the one operation that does it: the set may end with its last slot.
    pub(crate) fn give(self) -> bool {
        self.taken.fetch_and(!self.bits, Ordering::AcqRel) == self.bits
    }
}

impl SlotGroup {
    /// No slot.
    pub(crate) const EMPTY: Self = Self { number: 0, bits: 0 };

    /// One slot.
    pub(crate) fn of(slot: u32) -> Self {
        Self {
            number: slot as usize / GROUP,
            bits: 1 << (slot as usize % GROUP),
        }
    }

    /// The lowest slot, which is no longer among them then.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let bit = (self.bits != 0).then(|| self.bits.trailing_zeros())?;
        self.bits &= self.bits - 1;
        Some(self.first() + bit)
    }

    /// The first slot of the whole group.
    pub(crate) fn first(self) -> u32 {
        (self.number * GROUP) as u32
    }

    /// Number of slots.
    pub(crate) fn len(self) -> usize {
        self.bits.count_ones() as usize
    }

    /// Whether there is no slot.
    pub(crate) fn is_empty(self) -> bool {
        self.bits == 0
    }
}

/// The lowest `count` bits that are set, or all if there are fewer.
fn lowest(bits: u64, count: usize) -> u64 {
    if bits.count_ones() as usize <= count {
        return bits;
    }
    let mut rest = bits;
    for _ in 0..count {
        rest &= rest - 1;
    }
    bits & !rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    fn slots(mut taken: Taken) -> Vec<u32> {
        std::iter::from_fn(|| taken.slots.pop()).collect()
    }

    #[test]
    fn each_slot_is_taken_once_and_none_beyond_the_last() {
        for count in [0, 1, 63, 64, 65, 512, 4095, 4096, 5000] {
            for wanted in [1, 7, 64, 300] {
                let free = FreeSlots::new(count);
                let mut taken = BTreeSet::new();
                while let Some(taken_now) = free.take_some(wanted) {
                    let slots = slots(taken_now);
                    assert!((1..=wanted.min(64)).contains(&slots.len()), "{slots:?}");
                    for slot in slots {
                        assert!(slot < count && taken.insert(slot), "{slot} of {count}");
                    }
                }
                assert_eq!(taken.len(), count as usize);
                assert_eq!(free.taken(), count as usize);
                for slot in taken {
                    free.give_back(slot);
                }
                assert_eq!(free.taken(), 0);
                assert_eq!(free.take().is_some(), count > 0);
            }
        }
    }

    #[test]
    fn who_holds_few_slots_uses_the_same_few_again() {
        let free = FreeSlots::new(65_536);
        let mut used = BTreeSet::new();
        for round in 0..1000 {
            let mut wanted = 100 + round % 156;
            let mut held = Vec::new();
            while let Some(taken) = free.take_some(wanted) {
                wanted -= taken.slots.len();
                held.extend(slots(taken));
            }
            for slot in held {
                free.give_back(slot);
                used.insert(slot);
            }
        }
        assert!(used.len() <= 256, "{}", used.len());
    }

    #[test]
    fn a_group_tells_its_first_slot_and_its_last_one() {
        let free = FreeSlots::new(128);
        let first = free.take_some(2).unwrap();
        assert!(first.was_idle);
        let second = free.take_some(64).unwrap();
        assert!(!second.was_idle);
        assert!(!free.returning(first.slots).give());
        assert!(free.returning(second.slots).give());
        assert!(free.take_some(1).unwrap().was_idle);
    }

    #[test]
    fn a_slot_that_is_given_back_to_a_full_table_is_found() {
        let free = FreeSlots::new(65_536);
        while free.take_some(64).is_some() {}
        for slot in [65_535, 0, 4096, 40_000] {
            free.give_back(slot);
            assert_eq!(free.take(), Some(slot));
            assert_eq!(free.take(), None);
        }
    }

    #[test]
    fn a_slot_is_taken_by_one_thread_at_a_time_and_none_is_lost() {
        let slots = FreeSlots::new(130);
        let taken: Vec<_> = (0..130).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (slots, taken) = (&slots, &taken);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let mut held = Vec::new();
                        while let Some(mut group) = slots.take_some(1 + (round + thread) % 40) {
                            while let Some(slot) = group.slots.pop() {
                                assert!(!taken[slot as usize].swap(true, Ordering::SeqCst));
                                held.push(slot);
                            }
                            if held.len() > 50 {
                                break;
                            }
                        }
                        for slot in held {
                            taken[slot as usize].store(false, Ordering::SeqCst);
                            slots.give_back(slot);
                        }
                    }
                });
            }
        });
        assert_eq!(slots.taken(), 0);
        let all = std::iter::from_fn(|| slots.take()).count();
        assert_eq!(all, 130, "a slot was lost");
    }
}
