use std::ops::ControlFlow;

use ondol_catalog::{
    Admitted, EntryId, EvictionPolicy, POLICIES, Policy, PolicyContext, linkme::distributed_slice,
};

use super::lists::{Ghosts, Lists, Place, Resident, Room};

#[distributed_slice(POLICIES)]
#[linkme(crate = ondol_catalog::linkme)]
static S3_FIFO: Policy = Policy {
    name: "s3-fifo",
    summary: "What is not used again soon goes first; the rest in turn, the used ones spared.",
    build: |context| Box::new(S3Fifo::new(context)),
};

/// The small queue has one part of the room in so many.
const SMALL_SHARE: u64 = 10;
/// Uses beyond this count no more.
const MOST_USES: u8 = 3;
/// Uses with which an object leaves the small queue for the main queue and not for good.
const PROMOTED_USES: u8 = 2;

/// The queue of what came for the first time.
const SMALL: usize = 0;
/// The queue of what was used while it was in [`SMALL`], or came back soon after.
const MAIN: usize = 1;

/// Three queues, first in first out (Yang et al., SOSP 2023), in bytes.
#[derive(Debug)]
struct S3Fifo {
    queues: Lists<2>,
    /// What was evicted from [`SMALL`].
    ghosts: Ghosts,
    room: Room,
}

impl S3Fifo {
    fn new(context: &PolicyContext) -> Self {
        Self {
            queues: Lists::default(),
            ghosts: Ghosts::default(),
            room: Room::new(context.capacity_bytes),
        }
    }

    fn small_target(&self) -> u64 {
        self.room.bytes() / SMALL_SHARE
    }

    /// Whether the next victim is in the small queue.
    fn is_small_next(&self) -> bool {
        let small = self.queues.bytes_of(SMALL);
        small >= self.small_target().max(1) || self.queues.first(MAIN).is_none()
    }

    /// Lets those pass that are spared, until the best victim is at the front of its queue.
    fn settle(&mut self) {
        loop {
            let (queue, spared_at) = match self.is_small_next() {
                true => (SMALL, PROMOTED_USES),
                false => (MAIN, 1),
            };
            let Some(front) = self.queues.first(queue) else {
                break;
            };
            let resident = self.queues.get_mut(front);
            if resident.uses < spared_at {
                break;
            }
            resident.uses = if queue == SMALL { 0 } else { resident.uses - 1 };
            self.queues.move_to(MAIN, front);
        }
    }
}

impl EvictionPolicy for S3Fifo {
    fn inserted(&mut self, object: Admitted<'_>) {
        let resident = Resident::from(&object);
        let queue = match self.ghosts.remove(resident.fingerprint) {
            true => MAIN,
            false => SMALL,
        };
        self.queues.push(queue, object.id, resident);
        self.room.note(self.queues.bytes(), self.queues.len());
    }

    fn accessed(&mut self, entry: EntryId) {
        if let Some(place) = self.queues.find(entry) {
            let resident = self.queues.get_mut(place);
            resident.uses = MOST_USES.min(resident.uses + 1);
        }
    }

    fn removed(&mut self, entry: EntryId) {
        if let Some((SMALL, resident)) = self.queues.remove(entry)
            && resident.offered
        {
            self.ghosts.push_back(&resident);
            let of_main = self.room.bytes() - self.small_target();
            self.ghosts.trim(of_main, self.room.objects());
        }
    }

    fn victims(&mut self, visit: &mut dyn FnMut(EntryId) -> ControlFlow<()>) {
        self.settle();
        // Beyond the best victim, the order is what it would be if each of them went and nothing was spared twice.
        let target = self.small_target().max(1);
        let queues = &mut self.queues;
        let mut show = |queues: &mut Lists<2>, place: Place| {
            queues.get_mut(place).offered = true;
            visit(queues.entry(place))
        };
        let is_promoted = |queues: &Lists<2>, place: Place| queues.get(place).uses >= PROMOTED_USES;
        let mut small_bytes = queues.bytes_of(SMALL);
        let mut next = queues.first(SMALL);
        while let Some(place) = next {
            if small_bytes < target && queues.first(MAIN).is_some() {
                break;
            }
            next = queues.next(place);
            small_bytes -= queues.get(place).bytes;
            if !is_promoted(queues, place) && show(queues, place).is_break() {
                return;
            }
        }
        let not_passed = next;
        for uses in 0..=MOST_USES {
            let mut next = queues.first(MAIN);
            while let Some(place) = next {
                next = queues.next(place);
                if queues.get(place).uses == uses && show(queues, place).is_break() {
                    return;
                }
            }
        }
        for promoted in [false, true] {
            // Those that were passed have been shown, unless they are promoted.
            let mut next = if promoted {
                queues.first(SMALL)
            } else {
                not_passed
            };
            while let Some(place) = next {
                next = queues.next(place);
                if is_promoted(queues, place) == promoted && show(queues, place).is_break() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{admitted, first, order};
    use super::*;

    fn policy(room: u64) -> S3Fifo {
        S3Fifo::new(&PolicyContext {
            capacity_bytes: Some(room),
            ..PolicyContext::default()
        })
    }

    impl S3Fifo {
        fn queue_of(&self, entry: EntryId) -> Option<usize> {
            self.queues.find(entry).map(|place| self.queues.list(place))
        }
    }

    fn evict(policy: &mut S3Fifo) -> EntryId {
        let victim = first(policy).unwrap();
        policy.removed(victim);
        victim
    }

    #[test]
    fn what_was_used_again_soon_leaves_the_small_queue_for_the_main_queue() {
        let mut policy = policy(10);
        (1..=4).for_each(|id| policy.inserted(admitted(id, id, 1)));
        for _ in 0..2 {
            policy.accessed(1);
            policy.accessed(3);
        }
        policy.accessed(2);
        assert_eq!(evict(&mut policy), 2, "one use is not enough");
        assert_eq!(policy.queue_of(1), Some(MAIN));
        assert_eq!(order(&mut policy), [4, 1, 3]);
    }

    #[test]
    fn the_main_queue_spares_what_was_used_and_forgets_it() {
        let mut policy = policy(10);
        for id in 1..=3 {
            policy.inserted(admitted(id, id, 1));
            (0..2).for_each(|_| policy.accessed(id));
        }
        first(&mut policy);
        assert!((1..=3).all(|id| policy.queue_of(id) == Some(MAIN)));
        policy.accessed(1);
        assert_eq!(evict(&mut policy), 2);
        assert_eq!(evict(&mut policy), 3);
        assert_eq!(evict(&mut policy), 1);
        assert_eq!(first(&mut policy), None);
    }

    #[test]
    fn who_was_used_more_often_is_spared_more_often() {
        let mut policy = policy(10);
        for id in 1..=2 {
            policy.inserted(admitted(id, id, 1));
            (0..2).for_each(|_| policy.accessed(id));
        }
        first(&mut policy);
        (0..2).for_each(|_| policy.accessed(1));
        policy.accessed(2);
        assert_eq!(evict(&mut policy), 2);
    }

    #[test]
    fn what_comes_back_soon_goes_to_the_main_queue() {
        let mut policy = policy(10);
        (1..=3).for_each(|id| policy.inserted(admitted(id, 100 + id, 1)));
        assert_eq!(evict(&mut policy), 1);
        policy.removed(2);
        policy.inserted(admitted(4, 101, 1));
        policy.inserted(admitted(5, 102, 1));
        assert_eq!(policy.queue_of(4), Some(MAIN));
        assert_eq!(
            policy.queue_of(5),
            Some(SMALL),
            "it was deleted, not evicted"
        );
        assert_eq!(policy.ghosts.len(), 0);
    }

    #[test]
    fn asking_twice_changes_nothing() {
        let mut policy = policy(10);
        (1..=6).for_each(|id| policy.inserted(admitted(id, id, 1)));
        (0..2).for_each(|_| policy.accessed(1));
        policy.accessed(2);
        let before = order(&mut policy);
        assert_eq!(order(&mut policy), before);
        assert_eq!(first(&mut policy), Some(before[0]));
    }

    #[test]
    fn ghosts_have_no_more_bytes_than_the_main_queue_may_nor_are_more_than_objects_were() {
        for bytes in [0, 1, 7] {
            let mut policy = policy(1000);
            for id in 0..10_000 {
                policy.inserted(admitted(id, id, bytes));
                if id >= 50 {
                    evict(&mut policy);
                }
                assert!(policy.ghosts.bytes() <= 900 && policy.ghosts.len() <= 51);
            }
            assert!(policy.ghosts.len() > 10);
        }
    }
}
