//! The optimum: what goes is what is needed again last (Belady, "A study of replacement algorithms for a virtual-storage
//! computer", IBM Systems Journal 1966), known by looking ahead.
//!
//! A block may also be kept out, which no policy may do: so no policy finds more blocks. Among blocks of one
//! later request the end of the prompt is needed last and goes first, so that prefixes stay whole.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;
use ondol_cli::workload::Workload;

use super::Tally;

/// The place of a use among all uses; there is none behind `NEVER`.
type Use = usize;
const NEVER: Use = usize::MAX;

/// Replays the workload with room for `capacity` blocks.
pub(super) fn replay(capacity: usize, workload: &Workload) -> Tally {
    let uses: Vec<u64> = workload.requests.iter().flatten().copied().collect();
    let next = next_uses(&uses);
    // What is there, by when it is needed next. A use is one block's, so that those that are needed again have one each.
    let mut there: BTreeSet<Use> = BTreeSet::new();
    let mut tally = Tally::default();
    let mut place = 0;
    for request in &workload.requests {
        let found = request.iter().map(|_| {
            let hit = there.remove(&place);
            if next[place] != NEVER {
                there.insert(next[place]);
                if there.len() > capacity {
                    there.pop_last();
                }
            }
            place += 1;
            hit
        });
        tally.count(&found.collect::<Vec<_>>());
    }
    tally
}

/// For each use, when the same block is used again.
fn next_uses(uses: &[u64]) -> Vec<Use> {
    let mut next = vec![NEVER; uses.len()];
    let mut last: HashMap<u64, Use, FixedState> = HashMap::default();
    for (place, block) in uses.iter().enumerate().rev() {
        next[place] = last.insert(*block, place).unwrap_or(NEVER);
    }
    next
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Order, cache};
    use super::*;

    fn workload(requests: Vec<Vec<u64>>) -> Workload {
        Workload {
            name: "test".into(),
            requests,
        }
    }

    /// The most hits of all choices there are, found by trying all.
    fn most_hits(uses: &[u64], there: &BTreeSet<u64>, capacity: usize) -> u64 {
        let Some((block, rest)) = uses.split_first() else {
            return 0;
        };
        let hit = u64::from(there.contains(block));
        let mut with = there.clone();
        with.insert(*block);
        let choices: Vec<BTreeSet<u64>> = if with.len() <= capacity {
            vec![with]
        } else {
            let without = |gone: &u64| {
                let mut left = with.clone();
                left.remove(gone);
                left
            };
            with.iter().map(without).collect()
        };
        let best = choices
            .iter()
            .map(|there| most_hits(rest, there, capacity))
            .max();
        hit + best.unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_other_choice_of_victims_finds_more(uses in proptest::collection::vec(0..6_u64, 0..12), capacity in 1..4_usize) {
            let found = replay(capacity, &workload(uses.iter().map(|block| vec![*block]).collect()));
            prop_assert_eq!(found.hits, most_hits(&uses, &BTreeSet::new(), capacity));
        }

        #[test]
        fn no_policy_finds_more(requests in proptest::collection::vec(proptest::collection::btree_set(0..40_u64, 0..8), 0..60), capacity in 8..20_usize) {
            let requests = requests.into_iter().map(|request| request.into_iter().collect()).collect();
            let workload = workload(requests);
            let optimum = replay(capacity, &workload);
            for policy in ondol_catalog::policies() {
                for (uses, stores) in [(Order::Prompt, Order::Prompt), (Order::Reverse, Order::Reverse)] {
                    let tally = cache::replay(policy, capacity, &workload, uses, stores);
                    prop_assert_eq!(tally.blocks, optimum.blocks);
                    prop_assert!(tally.hits <= optimum.hits, "{}: {:?}, optimum {:?}", policy.name, tally, optimum);
                    prop_assert!(tally.prefix_hits <= tally.hits);
                }
            }
        }
    }

    #[test]
    fn with_room_for_all_only_the_first_use_of_a_block_misses() {
        let requests = vec![vec![1, 2, 3], vec![1, 2, 4], vec![9, 1], vec![]];
        let workload = workload(requests);
        let expected = Tally {
            blocks: 8,
            hits: 3,
            prefix_hits: 2,
        };
        assert_eq!(replay(5, &workload), expected);
        for policy in ondol_catalog::policies() {
            let tally = cache::replay(policy, 5, &workload, Order::Prompt, Order::Prompt);
            assert_eq!(tally, expected, "{}", policy.name);
        }
    }

    #[test]
    fn lru_finds_what_it_must() {
        let lru = ondol_catalog::policy("lru").unwrap();
        let workload = workload(vec![vec![1, 2, 3], vec![4], vec![1, 2, 3]]);
        let hits = |order| cache::replay(lru, 3, &workload, order, order);
        assert_eq!(
            (hits(Order::Prompt).hits, hits(Order::Prompt).prefix_hits),
            (2, 0)
        );
        assert_eq!(
            (hits(Order::Reverse).hits, hits(Order::Reverse).prefix_hits),
            (2, 2)
        );
    }
}
