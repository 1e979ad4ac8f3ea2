//! What holds of every policy, and what each is chosen for.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use ondol_catalog::{Admitted, EntryId, EvictionPolicy, PolicyContext, policy};
use ondol_plugin::{Key, KeyTag};
use proptest::prelude::*;

const ALL: [&str; 5] = ["arc", "isolated-lru", "lru", "s3-fifo", "sieve"];

pub(super) fn admitted(id: EntryId, fingerprint: u64, bytes: u64) -> Admitted<'static> {
    Admitted {
        id,
        fingerprint,
        bytes,
        salt: "",
    }
}

pub(super) fn order(policy: &mut dyn EvictionPolicy) -> Vec<EntryId> {
    let mut order = Vec::new();
    policy.victims(&mut |entry| {
        order.push(entry);
        ControlFlow::Continue(())
    });
    order
}

pub(super) fn first(policy: &mut dyn EvictionPolicy) -> Option<EntryId> {
    let mut first = None;
    policy.victims(&mut |entry| {
        assert_eq!(first, None, "it was asked to stop");
        first = Some(entry);
        ControlFlow::Break(())
    });
    first
}

fn build(name: &str, capacity_bytes: Option<u64>) -> Box<dyn EvictionPolicy> {
    let row = policy(name).unwrap();
    (row.build)(&PolicyContext {
        capacity_bytes,
        ..PolicyContext::default()
    })
}

#[test]
fn only_lmcaches_names_have_a_salt() {
    let salted = |tag, bytes: &str| {
        let key = Key::new(tag, bytes.as_bytes()).unwrap();
        super::salt(&key).to_owned()
    };
    assert_eq!(
        salted(KeyTag::LmCache, "m/n@01000100@0@abab@tenant"),
        "tenant"
    );
    assert_eq!(salted(KeyTag::LmCache, "m/n@01000100@0@abab"), "");
    assert_eq!(salted(KeyTag::LmCache, "nonsense"), "");
    assert_eq!(salted(KeyTag::Raw, "m/n@01000100@0@abab@tenant"), "");
}

#[test]
fn every_policy_is_in_the_catalogue() {
    let names: Vec<_> = ondol_catalog::policies()
        .iter()
        .map(|row| row.name)
        .collect();
    assert_eq!(names, ALL);
}

// Any order of events.

#[derive(Clone, Debug)]
enum Event {
    Insert {
        fingerprint: u64,
        bytes: u64,
        salt: u8,
    },
    Access(prop::sample::Index),
    Remove(prop::sample::Index),
    Evict {
        skipped: usize,
        count: usize,
    },
    AccessUnknown,
    RemoveUnknown,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..60_u64, 0..5_u64, 0..4_u8).prop_map(|(fingerprint, bytes, salt)| Event::Insert { fingerprint, bytes, salt }),
        4 => any::<prop::sample::Index>().prop_map(Event::Access),
        1 => any::<prop::sample::Index>().prop_map(Event::Remove),
        2 => (0..3_usize, 0..4_usize).prop_map(|(skipped, count)| Event::Evict { skipped, count }),
        1 => Just(Event::AccessUnknown),
        1 => Just(Event::RemoveUnknown),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_object_that_is_there_is_offered_once_and_no_other(events in proptest::collection::vec(event(), 0..200), capacity in proptest::option::of(0..100_u64)) {
        for name in ALL {
            let mut policy = build(name, capacity);
            let mut there = BTreeSet::new();
            let mut next = 1;
            for event in &events {
                let pick = |at: &prop::sample::Index| {
                    let ids: Vec<_> = there.iter().copied().collect();
                    (!ids.is_empty()).then(|| *at.get(&ids))
                };
                match event {
                    Event::Insert { fingerprint, bytes, salt } => {
                        let salt = ["", "a", "b", "c"][usize::from(*salt)];
                        policy.inserted(Admitted { id: next, fingerprint: *fingerprint, bytes: *bytes, salt });
                        there.insert(next);
                        next += 1;
                    }
                    Event::Access(at) => {
                        if let Some(id) = pick(at) {
                            policy.accessed(id);
                        }
                    }
                    Event::Remove(at) => {
                        if let Some(id) = pick(at) {
                            policy.removed(id);
                            there.remove(&id);
                        }
                    }
                    Event::Evict { skipped, count } => {
                        let mut victims = Vec::new();
                        policy.victims(&mut |id| {
                            victims.push(id);
                            if victims.len() < skipped + count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                        });
                        for id in victims.into_iter().skip(*skipped) {
                            prop_assert!(there.remove(&id), "{name} offers {id}");
                            policy.removed(id);
                        }
                    }
                    Event::AccessUnknown => policy.accessed(next + 1000),
                    Event::RemoveUnknown => policy.removed(next + 1000),
                }
            }
            let offered = order(&mut *policy);
            let distinct: BTreeSet<_> = offered.iter().copied().collect();
            prop_assert_eq!(offered.len(), distinct.len(), "{}", name);
            prop_assert_eq!(&distinct, &there, "{}", name);
            prop_assert_eq!(order(&mut *policy), offered, "{} asked twice", name);
        }
    }

    #[test]
    fn lru_is_exact(events in proptest::collection::vec(event(), 0..200)) {
        let mut policy = build("lru", None);
        let mut model: Vec<EntryId> = Vec::new();
        let mut next = 1;
        for event in events {
            match event {
                Event::Insert { fingerprint, bytes, .. } => {
                    policy.inserted(admitted(next, fingerprint, bytes));
                    model.push(next);
                    next += 1;
                }
                Event::Access(at) if !model.is_empty() => {
                    let id = model.remove(at.index(model.len()));
                    policy.accessed(id);
                    model.push(id);
                }
                Event::Remove(at) if !model.is_empty() => {
                    policy.removed(model.remove(at.index(model.len())));
                }
                _ => {}
            }
            prop_assert_eq!(&order(&mut *policy), &model);
        }
    }
}

// Traces.

/// A cache of so many bytes under a policy.
struct Cache {
    policy: Box<dyn EvictionPolicy>,
    capacity: u64,
    used: u64,
    /// By key: id and bytes.
    there: HashMap<u64, (EntryId, u64)>,
    keys: HashMap<EntryId, u64>,
    next: EntryId,
    hits: u64,
}

impl Cache {
    fn new(policy: &str, capacity: u64) -> Self {
        Self {
            policy: build(policy, None),
            capacity,
            used: 0,
            there: HashMap::new(),
            keys: HashMap::new(),
            next: 1,
            hits: 0,
        }
    }

    fn get(&mut self, key: u64) {
        if let Some((id, _)) = self.there.get(&key) {
            self.hits += 1;
            self.policy.accessed(*id);
            return;
        }
        let bytes = 1 + key % 3;
        while self.used + bytes > self.capacity {
            let victim = first(&mut *self.policy).unwrap();
            let key = self.keys.remove(&victim).unwrap();
            let (_, freed) = self.there.remove(&key).unwrap();
            self.used -= freed;
            self.policy.removed(victim);
        }
        self.policy.inserted(admitted(self.next, key, bytes));
        self.there.insert(key, (self.next, bytes));
        self.keys.insert(self.next, key);
        self.used += bytes;
        self.next += 1;
    }
}

/// Numbers below `bound`, always the same ones for a seed (xorshift64*).
fn numbers(seed: u64, bound: u64) -> impl Iterator<Item = u64> {
    let mut state = seed * 2 + 1;
    std::iter::repeat_with(move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    })
}

fn hits(policy: &str, capacity: u64, trace: &[u64]) -> u64 {
    let mut cache = Cache::new(policy, capacity);
    trace.iter().for_each(|key| cache.get(*key));
    cache.hits
}

/// Prefixes that many requests share, among documents that are read one after the other and are too many.
fn loop_with_hot_set(seed: u64) -> Vec<u64> {
    let hot = numbers(seed, 60);
    let coin = numbers(seed + 100, 2);
    let mut scan = (1000..2000).cycle();
    coin.zip(hot)
        .take(20_000)
        .map(|(coin, hot)| if coin == 0 { hot } else { scan.next().unwrap() })
        .collect()
}

#[test]
fn a_loop_that_is_too_large_does_not_push_out_what_is_hot() {
    for seed in 0..8 {
        let trace = loop_with_hot_set(seed);
        let lru = hits("lru", 160, &trace);
        for name in ["arc", "s3-fifo", "sieve"] {
            let found = hits(name, 160, &trace);
            assert!(
                found * 10 > lru * 12,
                "{name}: {found} hits, lru: {lru}, seed {seed}"
            );
        }
    }
}

#[test]
fn one_scan_does_not_push_out_what_is_hot() {
    let warm: Vec<u64> = (0..50).cycle().take(500).collect();
    let scan = 1000..3000;
    for (name, survivors) in [
        ("lru", 0..=0),
        ("arc", 30..=50),
        ("s3-fifo", 30..=50),
        ("sieve", 50..=50),
    ] {
        let mut cache = Cache::new(name, 200);
        warm.iter().for_each(|key| cache.get(*key));
        scan.clone().for_each(|key| cache.get(key));
        let there = (0..50).filter(|key| cache.there.contains_key(key)).count();
        assert!(survivors.contains(&there), "{name} keeps {there} of 50");
    }
}

/// What comes back after it was evicted has a new id; a policy that did not know it again would never learn.
#[test]
fn what_comes_back_is_worth_more_than_what_is_new() {
    for (name, expected) in [("lru", 0), ("arc", 3), ("s3-fifo", 3), ("sieve", 0)] {
        let mut cache = Cache::new(name, 100);
        (0..25).chain(0..25).for_each(|key| cache.get(key));
        (1000..1100).for_each(|key| cache.get(key));
        let mut gone: Vec<_> = (1000..1100)
            .filter(|key| !cache.there.contains_key(key))
            .collect();
        let gone = gone.split_off(gone.len() - 3);
        gone.iter().for_each(|key| cache.get(*key));
        (3000..3200).for_each(|key| cache.get(key));
        let kept = gone.iter().filter(|key| cache.there.contains_key(key));
        assert_eq!(kept.count(), expected, "{name}");
    }
}
