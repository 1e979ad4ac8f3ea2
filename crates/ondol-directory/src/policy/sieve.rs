use std::ops::ControlFlow;

use ondol_catalog::{
    Admitted, EntryId, EvictionPolicy, POLICIES, Policy, linkme::distributed_slice,
};

use super::lists::{Lists, Place, Resident};

#[distributed_slice(POLICIES)]
#[linkme(crate = ondol_catalog::linkme)]
static SIEVE: Policy = Policy {
    name: "sieve",
    summary: "In turn, what was not used since its last turn.",
    build: |_| Box::new(Sieve::default()),
};

/// One queue, first in first out, and a hand that goes through it from the oldest to the newest and begins again: it takes
/// what was not used since it last came by, and spares the rest once (Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024).
///
/// The hand moves when a victim goes; held objects that the victim was preferred to are passed like spared ones, so
/// that none of them makes the hand wait.
#[derive(Debug, Default)]
struct Sieve {
    /// The oldest first. Of uses since the hand last came by, one is counted.
    queue: Lists<1>,
    /// What it comes to next; nothing only if there is nothing.
    hand: Option<Place>,
}

const QUEUE: usize = 0;

impl Sieve {
    /// What the hand comes to after this.
    fn behind(&self, place: Place) -> Option<Place> {
        self.queue.next(place).or_else(|| self.queue.first(QUEUE))
    }

    /// Moves the hand over the object that it is at.
    fn pass(&mut self, place: Place) {
        let resident = self.queue.get_mut(place);
        resident.uses = 0;
        resident.offered = false;
        self.hand = self.behind(place);
    }

    /// Moves the hand to an object that goes.
    fn go_to(&mut self, victim: Place) {
        if self.queue.get(victim).uses > 0 {
            // All others are held: the hand went round once and spared what was used.
            let mut next = self.queue.first(QUEUE);
            while let Some(place) = next {
                self.queue.get_mut(place).uses = 0;
                next = self.queue.next(place);
            }
        }
        while let Some(place) = self.hand.filter(|place| *place != victim) {
            self.pass(place);
        }
    }
}

impl EvictionPolicy for Sieve {
    fn inserted(&mut self, object: Admitted<'_>) {
        self.queue.push(QUEUE, object.id, Resident::from(&object));
        self.hand = self.hand.or_else(|| self.queue.first(QUEUE));
    }

    fn accessed(&mut self, entry: EntryId) {
        if let Some(place) = self.queue.find(entry) {
            let resident = self.queue.get_mut(place);
            resident.uses = 1;
            resident.offered = false;
        }
    }

    fn removed(&mut self, entry: EntryId) {
        let Some(place) = self.queue.find(entry) else {
            return;
        };
        if self.queue.get(place).offered {
            self.go_to(place);
        }
        if self.hand == Some(place) {
            self.hand = self.behind(place).filter(|behind| *behind != place);
        }
        self.queue.remove(entry);
    }

    fn victims(&mut self, visit: &mut dyn FnMut(EntryId) -> ControlFlow<()>) {
        while let Some(place) = self.hand.filter(|place| self.queue.get(*place).uses > 0) {
            self.pass(place);
        }
        // As if each of them went: this turn and the next one, and the one after it for what was used.
        for uses in [0, 1] {
            let mut next = self.hand;
            while let Some(place) = next {
                next = self.behind(place).filter(|place| Some(*place) != self.hand);
                let resident = self.queue.get_mut(place);
                if resident.uses == uses {
                    resident.offered = true;
                    if visit(self.queue.entry(place)).is_break() {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::super::tests::{admitted, first, order};
    use super::*;

    fn policy(count: u64) -> Sieve {
        let mut policy = Sieve::default();
        (1..=count).for_each(|id| policy.inserted(admitted(id, id, 1)));
        policy
    }

    fn evict(policy: &mut Sieve) -> EntryId {
        let victim = first(policy).unwrap();
        policy.removed(victim);
        victim
    }

    #[test]
    fn what_was_used_is_spared_once_where_it_stands() {
        let mut policy = policy(4);
        policy.accessed(1);
        policy.accessed(3);
        assert_eq!(evict(&mut policy), 2);
        policy.inserted(admitted(5, 5, 1));
        assert_eq!(evict(&mut policy), 4);
        assert_eq!(
            evict(&mut policy),
            5,
            "the hand goes on, it does not go back"
        );
        assert_eq!(order(&mut policy), [1, 3]);
    }

    #[test]
    fn what_is_held_does_not_stop_the_hand() {
        let mut policy = policy(1000);
        (2..900).for_each(|id| policy.accessed(id));
        let mut skip_one = None;
        policy.victims(&mut |id| {
            skip_one = Some(id);
            if id == 1 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        assert_eq!(skip_one, Some(900));
        policy.removed(900);
        assert_eq!(policy.queue.len(), 999);
        assert_eq!(evict(&mut policy), 901);
        policy.removed(1);
        assert_eq!(evict(&mut policy), 902, "it was not offered since");
    }

    #[test]
    fn a_victim_behind_one_that_was_preferred_to_it_does_not_turn_the_hand() {
        let mut policy = policy(100);
        let mut shown = Vec::new();
        policy.victims(&mut |id| {
            shown.push(id);
            if shown.len() < 5 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        policy.removed(5);
        policy.removed(2);
        assert_eq!(first(&mut policy), Some(6));
    }

    /// The paper's words: one list, a bit for each object, a hand.
    #[derive(Clone, Debug, Default)]
    struct Model {
        /// The oldest first.
        queue: Vec<(EntryId, bool)>,
        hand: usize,
    }

    impl Model {
        fn accessed(&mut self, id: EntryId) {
            for (entry, used) in &mut self.queue {
                *used |= *entry == id;
            }
        }

        fn removed(&mut self, id: EntryId) {
            let at = self.queue.iter().position(|(entry, _)| *entry == id);
            let at = at.unwrap();
            self.queue.remove(at);
            self.hand -= usize::from(at < self.hand);
            self.wrap();
        }

        fn wrap(&mut self) {
            if self.hand >= self.queue.len() {
                self.hand = 0;
            }
        }

        /// Moves the hand to what is not used.
        fn spare(&mut self) {
            while self.queue.get(self.hand).is_some_and(|(_, used)| *used) {
                self.queue[self.hand].1 = false;
                self.hand += 1;
                self.wrap();
            }
        }

        fn evict(&mut self, held: &BTreeSet<EntryId>) -> Option<EntryId> {
            self.spare();
            if self.queue.iter().all(|(id, _)| held.contains(id)) {
                return None;
            }
            while held.contains(&self.queue[self.hand].0) {
                self.hand += 1;
                self.wrap();
                self.spare();
            }
            let victim = self.queue[self.hand].0;
            self.removed(victim);
            Some(victim)
        }

        fn order(&self) -> Vec<EntryId> {
            let mut rest = self.clone();
            std::iter::from_fn(|| rest.evict(&BTreeSet::new())).collect()
        }
    }

    #[derive(Clone, Debug)]
    enum Event {
        Insert,
        Access(Index),
        Remove(Index),
        /// While every object whose number leaves this remainder is held.
        Evict {
            divisor: u64,
            remainder: u64,
        },
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => Just(Event::Insert),
            6 => any::<Index>().prop_map(Event::Access),
            1 => any::<Index>().prop_map(Event::Remove),
            3 => (1..6_u64, 0..6_u64).prop_map(|(divisor, remainder)| Event::Evict { divisor, remainder }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]

        #[test]
        fn sieve_is_exact(events in proptest::collection::vec(event(), 0..200)) {
            let (mut policy, mut model) = (Sieve::default(), Model::default());
            let mut next = 1;
            for event in events {
                match event {
                    Event::Insert => {
                        policy.inserted(admitted(next, next, 1));
                        model.queue.push((next, false));
                        next += 1;
                    }
                    Event::Access(at) if !model.queue.is_empty() => {
                        let id = at.get(&model.queue).0;
                        policy.accessed(id);
                        model.accessed(id);
                    }
                    Event::Remove(at) if !model.queue.is_empty() => {
                        let id = at.get(&model.queue).0;
                        // Otherwise it would count as evicted.
                        let place = policy.queue.find(id).unwrap();
                        if !policy.queue.get(place).offered {
                            policy.removed(id);
                            model.removed(id);
                        }
                    }
                    Event::Evict { divisor, remainder } => {
                        let is_held = |id: &EntryId| *id % divisor == remainder;
                        let mut victim = None;
                        policy.victims(&mut |id| {
                            if is_held(&id) {
                                return ControlFlow::Continue(());
                            }
                            victim = Some(id);
                            ControlFlow::Break(())
                        });
                        if let Some(victim) = victim {
                            policy.removed(victim);
                        }
                        let held = model.queue.iter().map(|(id, _)| *id).filter(is_held);
                        let held = held.collect();
                        prop_assert_eq!(victim, model.evict(&held));
                    }
                    _ => {}
                }
                prop_assert_eq!(policy.queue.len(), model.queue.len());
            }
            prop_assert_eq!(order(&mut policy), model.order());
        }
    }
}
