//! Which slots of a lease table are free: the last one given back is the next one taken, so that a client which holds few
//! leases uses few slots, and the server's book of them stays small.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A stack of slot numbers without a lock.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    /// The slot on top in the lower half; in the upper one a count of changes, so that a top which was taken and given
    /// back meanwhile is not mistaken for one that stayed.
    top: AtomicU64,
    /// The slot under each slot.
    below: Box<[AtomicU32]>,
    free: AtomicU32,
}

const BOTTOM: u32 = u32::MAX;

fn pack(slot: u32, changes: u64) -> u64 {
    (changes << 32) | u64::from(slot)
}

fn unpack(top: u64) -> (u32, u64) {
    (top as u32, top >> 32)
}

impl FreeSlots {
    /// The slots `0..count`, the lowest on top.
    pub(crate) fn new(count: u32) -> Self {
        let below =
            (1..=count).map(|next| AtomicU32::new(if next < count { next } else { BOTTOM }));
        Self {
            top: AtomicU64::new(pack(if count > 0 { 0 } else { BOTTOM }, 0)),
            below: below.collect(),
            free: AtomicU32::new(count),
        }
    }

    pub(crate) fn take(&self) -> Option<u32> {
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            let (slot, changes) = unpack(top);
            let next = self.below.get(slot as usize)?.load(Ordering::Relaxed);
            match self.exchange(top, pack(next, changes + 1)) {
                Ok(_) => {
                    self.free.fetch_sub(1, Ordering::Relaxed);
                    return Some(slot);
                }
                Err(found) => top = found,
            }
        }
    }

    /// Gives a slot back that was taken.
    pub(crate) fn give_back(&self, slot: u32) {
        self.free.fetch_add(1, Ordering::Relaxed);
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            let (next, changes) = unpack(top);
            self.below[slot as usize].store(next, Ordering::Relaxed);
            match self.exchange(top, pack(slot, changes + 1)) {
                Ok(_) => return,
                Err(found) => top = found,
            }
        }
    }

    /// Number of free slots, which others may be changing.
    pub(crate) fn len(&self) -> usize {
        self.free.load(Ordering::Relaxed) as usize
    }

    /// Release, so that whoever sees the new top sees what lies under it; acquire for the same reason.
    fn exchange(&self, from: u64, to: u64) -> Result<u64, u64> {
        self.top
            .compare_exchange_weak(from, to, Ordering::AcqRel, Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn the_lowest_slot_comes_first_and_the_last_one_given_back_next() {
        let slots = FreeSlots::new(3);
        assert_eq!([slots.take(), slots.take()], [Some(0), Some(1)]);
        slots.give_back(0);
        assert_eq!([slots.take(), slots.take()], [Some(0), Some(2)]);
        assert_eq!((slots.take(), slots.len()), (None, 0));
        assert_eq!(FreeSlots::new(0).take(), None);
    }

    #[test]
    fn a_slot_is_taken_by_one_thread_at_a_time() {
        let slots = FreeSlots::new(5);
        let taken: Vec<_> = (0..5).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let held: Vec<_> = (0..2).filter_map(|_| slots.take()).collect();
                        for slot in &held {
                            assert!(!taken[*slot as usize].swap(true, Ordering::SeqCst));
                        }
                        for slot in held {
                            taken[slot as usize].store(false, Ordering::SeqCst);
                            slots.give_back(slot);
                        }
                    }
                });
            }
        });
        assert_eq!(slots.len(), 5);
    }
}
