use std::ops::ControlFlow;

use ondol_catalog::{
    Admitted, EntryId, EvictionPolicy, POLICIES, Policy, PolicyContext, linkme::distributed_slice,
};

use super::lists::{Ghosts, Lists, Resident, Room};

#[distributed_slice(POLICIES)]
#[linkme(crate = ondol_catalog::linkme)]
static ARC: Policy = Policy {
    name: "arc",
    summary: "Adapts between what was used last and what was used often, by what comes back.",
    build: |context| Box::new(AdaptiveReplacement::new(context)),
};

/// The list of what was used once, the least recently used first (T1).
const RECENT: usize = 0;
/// The list of what was used more often, the least recently used first (T2).
const FREQUENT: usize = 1;

/// Adaptive replacement (Megiddo and Modha, FAST 2003), in bytes.
#[derive(Debug)]
struct AdaptiveReplacement {
    lists: Lists<2>,
    /// Evicted from [`RECENT`] (B1).
    recent_ghosts: Ghosts,
    /// Evicted from [`FREQUENT`] (B2).
    frequent_ghosts: Ghosts,
    /// The bytes that [`RECENT`] should have (p).
    recent_target: u64,
    room: Room,
}

impl AdaptiveReplacement {
    fn new(context: &PolicyContext) -> Self {
        Self {
            lists: Lists::default(),
            recent_ghosts: Ghosts::default(),
            frequent_ghosts: Ghosts::default(),
            recent_target: 0,
            room: Room::new(context.capacity_bytes),
        }
    }

    fn trim(&mut self) {
        let (room, objects) = (self.room.bytes(), self.room.objects());
        let of_recent = room.saturating_sub(self.lists.bytes_of(RECENT));
        self.recent_ghosts.trim(of_recent, objects);
        let others = self.lists.bytes() + self.recent_ghosts.bytes();
        let of_frequent = room.saturating_mul(2).saturating_sub(others);
        self.frequent_ghosts.trim(of_frequent, objects);
    }
}

/// By how much a hit among one sort of ghosts moves the target.
fn step(bytes: u64, hit: &Ghosts, other: &Ghosts) -> u64 {
    let ratio = (other.bytes() / hit.bytes().max(1)).max(1);
    bytes.saturating_mul(ratio)
}

impl EvictionPolicy for AdaptiveReplacement {
    fn inserted(&mut self, object: Admitted<'_>) {
        let resident = Resident::from(&object);
        let (recent, frequent) = (&mut self.recent_ghosts, &mut self.frequent_ghosts);
        if recent.contains(resident.fingerprint) {
            let target = self
                .recent_target
                .saturating_add(step(resident.bytes, recent, frequent));
            self.recent_target = target.min(self.room.bytes());
            recent.remove(resident.fingerprint);
            self.lists.push(FREQUENT, object.id, resident);
        } else if frequent.contains(resident.fingerprint) {
            let step = step(resident.bytes, frequent, recent);
            self.recent_target = self.recent_target.saturating_sub(step);
            frequent.remove(resident.fingerprint);
            self.lists.push(FREQUENT, object.id, resident);
        } else {
            self.lists.push(RECENT, object.id, resident);
        }
        self.room.note(self.lists.bytes(), self.lists.len());
        self.trim();
    }

    fn accessed(&mut self, entry: EntryId) {
        if let Some(place) = self.lists.find(entry) {
            self.lists.move_to(FREQUENT, place);
        }
    }

    fn removed(&mut self, entry: EntryId) {
        match self.lists.remove(entry) {
            Some((RECENT, resident)) if resident.offered => {
                self.recent_ghosts.push_back(&resident);
            }
            Some((_, resident)) if resident.offered => self.frequent_ghosts.push_back(&resident),
            _ => {}
        }
        self.trim();
    }

    fn victims(&mut self, visit: &mut dyn FnMut(EntryId) -> ControlFlow<()>) {
        let lists = &mut self.lists;
        let mut recent_bytes = lists.bytes_of(RECENT);
        let mut recent = lists.first(RECENT);
        let mut frequent = lists.first(FREQUENT);
        loop {
            let from_recent = recent_bytes >= self.recent_target || frequent.is_none();
            let next = match recent {
                Some(place) if from_recent => {
                    recent_bytes -= lists.get(place).bytes;
                    recent = lists.next(place);
                    place
                }
                _ => {
                    let Some(place) = frequent else { break };
                    frequent = lists.next(place);
                    place
                }
            };
            lists.get_mut(next).offered = true;
            if visit(lists.entry(next)).is_break() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{admitted, first, order};
    use super::*;

    fn policy(room: u64) -> AdaptiveReplacement {
        AdaptiveReplacement::new(&PolicyContext {
            capacity_bytes: Some(room),
            ..PolicyContext::default()
        })
    }

    impl AdaptiveReplacement {
        fn list_of(&self, entry: EntryId) -> Option<usize> {
            self.lists.find(entry).map(|place| self.lists.list(place))
        }
    }

    fn evict(policy: &mut AdaptiveReplacement) -> EntryId {
        let victim = first(policy).unwrap();
        policy.removed(victim);
        victim
    }

    #[test]
    fn what_was_used_twice_outlives_what_was_used_once() {
        let mut policy = policy(4);
        (1..=4).for_each(|id| policy.inserted(admitted(id, id, 1)));
        policy.accessed(1);
        policy.accessed(3);
        assert_eq!(order(&mut policy), [2, 4, 1, 3]);
    }

    #[test]
    fn what_comes_back_is_known_by_its_fingerprint_and_moves_the_target() {
        let mut policy = policy(4);
        (1..=2).for_each(|id| policy.inserted(admitted(id, 100 + id, 1)));
        policy.accessed(2);
        (3..=4).for_each(|id| policy.inserted(admitted(id, 100 + id, 1)));
        assert_eq!(evict(&mut policy), 1);
        assert_eq!(policy.recent_ghosts.len(), 1);
        policy.inserted(admitted(5, 101, 1));
        assert_eq!((policy.recent_ghosts.len(), policy.recent_target), (0, 1));
        assert_eq!(policy.list_of(5), Some(FREQUENT));
        // Evicted from among the frequent, it moves the target back when it comes again.
        evict(&mut policy);
        evict(&mut policy);
        policy.recent_target = 4;
        assert_eq!(evict(&mut policy), 2);
        assert_eq!(policy.frequent_ghosts.len(), 1);
        policy.inserted(admitted(6, 102, 1));
        assert!(policy.recent_target < 4);
        assert_eq!(policy.list_of(6), Some(FREQUENT));
    }

    #[test]
    fn what_was_deleted_leaves_no_ghost() {
        let mut policy = policy(4);
        policy.inserted(admitted(1, 1, 1));
        policy.removed(1);
        assert_eq!(policy.recent_ghosts.len(), 0);
        policy.inserted(admitted(2, 1, 1));
        assert_eq!(policy.list_of(2), Some(RECENT));
    }

    #[test]
    fn ghosts_have_no_more_bytes_than_the_room_nor_are_more_than_objects_were() {
        for bytes in [0, 1, 7] {
            let mut policy = policy(1000);
            for id in 0..10_000 {
                policy.inserted(admitted(id, id, bytes));
                if id % 3 == 0 {
                    policy.accessed(id);
                }
                if id >= 50 {
                    evict(&mut policy);
                }
                let (recent, frequent) = (&policy.recent_ghosts, &policy.frequent_ghosts);
                assert!(policy.lists.bytes_of(RECENT) + recent.bytes() <= 1000);
                assert!(recent.bytes() + frequent.bytes() <= 2000);
                assert!(recent.len() <= 51 && frequent.len() <= 51);
            }
            assert!(policy.recent_ghosts.len() > 10);
        }
    }
}
