//! Which slots of a table are free. The lowest come first, so that a client which holds few leases uses few slots, and what
//! the server has to look through stays small.
//!
//! Slots are kept in groups of 64, a bit for each: one atomic operation takes as many slots of a group as are needed, and
//! one gives a slot back. Threads begin at different groups, so that they rarely meet in one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A set of slot numbers without a lock.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    groups: Box<[Group]>,
    /// A bit for each group in which no slot was free when somebody last looked.
    full: Box<[AtomicU64]>,
    /// Slots of the last group that do not exist, and always count as taken.
    beyond: u64,
}

/// Slots that are taken: a bit each, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Group {
    taken: AtomicU64,
}

/// Slots of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotGroup {
    number: usize,
    bits: u64,
}

/// Number of slots in a group.
const GROUP: usize = 64;
/// Threads begin at so many different groups ...
const STARTS: usize = 16;
/// ... that are so many groups apart: a batch of 256 slots.
const START_STEP: usize = 4;
const _: () = assert!(
    STARTS * START_STEP <= 64,
    "a start lies in the first word of `full`"
);

thread_local! {
    static START: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn start() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    START.with(|start| {
        if start.get() == usize::MAX {
            let thread = NEXT.fetch_add(1, Ordering::Relaxed);
            start.set(thread % STARTS * START_STEP);
        }
        start.get()
    })
}

impl FreeSlots {
    /// The slots `0..count`.
    pub(crate) fn new(count: u32) -> Self {
        let groups: Box<[Group]> = (0..(count as usize).div_ceil(GROUP))
            .map(|_| Group::default())
            .collect();
        let full: Box<[AtomicU64]> = (0..groups.len().div_ceil(64))
            .map(|_| AtomicU64::new(0))
            .collect();
        let mut beyond = 0;
        if let (Some(last), used @ 1..) = (groups.last(), count as usize % GROUP) {
            beyond = !0 << used;
            last.taken.store(beyond, Ordering::Relaxed);
        }
        if let (Some(last), used @ 1..) = (full.last(), groups.len() % 64) {
            last.store(!0 << used, Ordering::Relaxed);
        }
        Self {
            groups,
            full,
            beyond,
        }
    }

    /// Takes one slot.
    pub(crate) fn take(&self) -> Option<u32> {
        self.take_group(1)?.pop()
    }

    /// Takes at least one and at most `wanted` slots, all of one group; `None` if no slot is free or none is wanted.
    pub(crate) fn take_group(&self, wanted: usize) -> Option<SlotGroup> {
        if self.full.is_empty() || wanted == 0 {
            return None;
        }
        let from_start = [(0, !0 << start())];
        let rest = (1..self.full.len()).map(|word| (word, !0));
        for (word, mask) in from_start.into_iter().chain(rest).chain([(0, !0)]) {
            let mut open = !self.full[word].load(Ordering::Relaxed) & mask;
            while open != 0 {
                let number = word * 64 + open.trailing_zeros() as usize;
                if let Some(bits) = self.take_from(number, wanted) {
                    return Some(SlotGroup { number, bits });
                }
                open &= open - 1;
            }
        }
        None
    }

    fn take_from(&self, number: usize, wanted: usize) -> Option<u64> {
        let taken = &self.groups[number].taken;
        let mut before = taken.load(Ordering::Relaxed);
        loop {
            let pick = lowest(!before, wanted);
            if pick == 0 {
                self.note_full(number);
                return None;
            }
            // Acquire: what the last holder did to the slot is done.
            before = taken.fetch_or(pick, Ordering::SeqCst);
            let got = pick & !before;
            if before | pick == !0 {
                self.note_full(number);
            }
            if got != 0 {
                return Some(got);
            }
            before |= pick;
        }
    }

    /// Notes that a group has no free slot. Whoever gives back a slot of a group without a free one strikes the note out;
    /// as that may have happened before the note was made, its maker looks again. The order of both sides' operations is the one order of
    /// all that are sequentially consistent.
    fn note_full(&self, number: usize) {
        let (full, bit) = (&self.full[number / 64], 1 << (number % 64));
        full.fetch_or(bit, Ordering::SeqCst);
        if self.groups[number].taken.load(Ordering::SeqCst) != !0 {
            full.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// Gives a slot back that was taken.
    pub(crate) fn give_back(&self, slot: u32) {
        self.give_back_group(SlotGroup {
            number: slot as usize / GROUP,
            bits: 1 << (slot as usize % GROUP),
        });
    }

    /// Gives slots back that were taken.
    pub(crate) fn give_back_group(&self, group: SlotGroup) {
        let SlotGroup { number, bits } = group;
        let before = self.groups[number].taken.fetch_and(!bits, Ordering::SeqCst);
        if before == !0 {
            self.full[number / 64].fetch_and(!(1 << (number % 64)), Ordering::SeqCst);
        }
    }

    /// Number of slots that are taken, which others may be changing.
    pub(crate) fn taken(&self) -> usize {
        let taken = |group: &Group| group.taken.load(Ordering::Relaxed).count_ones();
        let taken: u32 = self.groups.iter().map(taken).sum();
        (taken - self.beyond.count_ones()) as usize
    }
}

impl SlotGroup {
    /// No slot.
    pub(crate) const EMPTY: Self = Self { number: 0, bits: 0 };

    /// The lowest slot, which is no longer in the group then.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let bit = (self.bits != 0).then(|| self.bits.trailing_zeros())?;
        self.bits &= self.bits - 1;
        Some(self.first() + bit)
    }

    /// The first slot of the whole group.
    pub(crate) fn first(self) -> u32 {
        (self.number * GROUP) as u32
    }

    /// Number of slots in it.
    pub(crate) fn len(self) -> usize {
        self.bits.count_ones() as usize
    }

    /// Whether there is no slot in it.
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

    /// The slots of a group.
    fn slots(mut group: SlotGroup) -> Vec<u32> {
        std::iter::from_fn(|| group.pop()).collect()
    }

    #[test]
    fn each_slot_is_taken_once_and_none_beyond_the_last() {
        for count in [0, 1, 63, 64, 65, 128, 4095, 4096, 5000, 65_536] {
            for wanted in [1, 7, 64, 300] {
                let free = FreeSlots::new(count);
                let mut taken = BTreeSet::new();
                while let Some(group) = free.take_group(wanted) {
                    let slots = slots(group);
                    assert!((1..=wanted.min(64)).contains(&slots.len()), "{slots:?}");
                    for slot in slots {
                        assert!(slot < count && taken.insert(slot), "{slot} of {count}");
                    }
                }
                assert_eq!(taken.len(), count as usize);
                assert_eq!(free.taken(), count as usize);
                taken.into_iter().for_each(|slot| free.give_back(slot));
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
            while let Some(group) = free.take_group(wanted) {
                wanted -= slots(group).len();
                held.extend(slots(group));
            }
            held.iter().for_each(|slot| free.give_back(*slot));
            used.extend(held);
        }
        assert!(used.len() <= 256, "{}", used.len());
    }

    #[test]
    fn a_slot_that_is_given_back_to_a_full_table_is_found() {
        let free = FreeSlots::new(65_536);
        while free.take_group(64).is_some() {}
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
                        while let Some(mut group) = slots.take_group(1 + (round + thread) % 40) {
                            while let Some(slot) = group.pop() {
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
        assert_eq!(all, 130, "a group without a slot in use counts as full");
    }
}
