use std::ops::ControlFlow;

use ondol_catalog::{
    Admitted, EntryId, EvictionPolicy, POLICIES, Policy, PolicyContext, linkme::distributed_slice,
};

use super::lists::{Ghosts, Resident, Residents, Room};

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

/// Three queues, first in first out (Yang et al., SOSP 2023), in bytes.
#[derive(Debug)]
struct S3Fifo {
    /// What came for the first time.
    small: Residents,
    /// What was used while it was in `small`, or came back soon after.
    main: Residents,
    /// What was evicted from `small`.
    ghosts: Ghosts,
    room: Room,
}

impl S3Fifo {
    fn new(context: &PolicyContext) -> Self {
        Self {
            small: Residents::default(),
            main: Residents::default(),
            ghosts: Ghosts::default(),
            room: Room::new(context.capacity_bytes),
        }
    }

    fn small_target(&self) -> u64 {
        self.room.bytes() / SMALL_SHARE
    }

    /// Whether the next victim is in the small queue.
    fn is_small_next(&self) -> bool {
        self.small.bytes >= self.small_target().max(1) || self.main.entries.is_empty()
    }

    /// Lets those pass that are spared, until the best victim is at the front of its queue.
    fn settle(&mut self) {
        loop {
            if self.is_small_next() {
                match self.small.front() {
                    Some(resident) if resident.uses >= PROMOTED_USES => {}
                    _ => break,
                }
                if let Some((entry, resident)) = self.small.pop_front() {
                    let resident = Resident {
                        uses: 0,
                        ..resident
                    };
                    self.main.push_back(entry, resident);
                }
            } else {
                match self.main.front() {
                    Some(resident) if resident.uses > 0 => {}
                    _ => break,
                }
                if let Some((entry, mut resident)) = self.main.pop_front() {
                    resident.uses -= 1;
                    self.main.push_back(entry, resident);
                }
            }
        }
    }
}

impl EvictionPolicy for S3Fifo {
    fn inserted(&mut self, object: Admitted<'_>) {
        let resident = Resident::from(&object);
        if self.ghosts.remove(resident.fingerprint) {
            self.main.push_back(object.id, resident);
        } else {
            self.small.push_back(object.id, resident);
        }
        self.room.note(
            self.small.bytes + self.main.bytes,
            self.small.entries.len() + self.main.entries.len(),
        );
    }

    fn accessed(&mut self, entry: EntryId) {
        let small = self.small.entries.get_mut(&entry);
        if let Some(resident) = small.or_else(|| self.main.entries.get_mut(&entry)) {
            resident.uses = MOST_USES.min(resident.uses + 1);
        }
    }

    fn removed(&mut self, entry: EntryId) {
        if let Some(resident) = self.small.remove(entry) {
            if resident.offered {
                self.ghosts.push_back(&resident);
                let of_main = self.room.bytes() - self.small_target();
                self.ghosts.trim(of_main, self.room.objects());
            }
        } else {
            self.main.remove(entry);
        }
    }

    fn victims(&mut self, visit: &mut dyn FnMut(EntryId) -> ControlFlow<()>) {
        self.settle();
        // Beyond the best victim, the order is what it would be if each of them went and nothing was spared twice.
        let target = self.small_target().max(1);
        let mut show = |(entry, resident): (&EntryId, &mut Resident)| {
            resident.offered = true;
            visit(*entry)
        };
        let is_promoted = |resident: &Resident| resident.uses >= PROMOTED_USES;
        let mut small_bytes = self.small.bytes;
        let mut passed = 0;
        for (entry, resident) in &mut self.small.entries {
            if small_bytes < target && !self.main.entries.is_empty() {
                break;
            }
            passed += 1;
            small_bytes -= resident.bytes;
            if !is_promoted(resident) && show((entry, resident)).is_break() {
                return;
            }
        }
        for uses in 0..=MOST_USES {
            let mut main = self.main.entries.iter_mut();
            let shown = main.try_for_each(|(entry, resident)| {
                if resident.uses == uses {
                    show((entry, resident))
                } else {
                    ControlFlow::Continue(())
                }
            });
            if shown.is_break() {
                return;
            }
        }
        for promoted in [false, true] {
            let small = self.small.entries.iter_mut().enumerate();
            for (at, (entry, resident)) in small {
                let is_left = promoted || at >= passed;
                if is_promoted(resident) == promoted
                    && is_left
                    && show((entry, resident)).is_break()
                {
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
        assert!(policy.main.entries.contains_key(&1));
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
        assert_eq!(policy.main.entries.len(), 3);
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
        assert!(policy.main.entries.contains_key(&4));
        assert!(
            policy.small.entries.contains_key(&5),
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
