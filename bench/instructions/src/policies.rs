//! Eviction policies: what a use costs, and what it costs that one object goes for another.

use std::ops::ControlFlow;

use ondol_catalog::{Admitted, EvictionPolicy, Policy, PolicyContext};

use crate::Path;

const OBJECTS: u64 = 4096;
/// Coprime to the number of objects, so that all are used, in an order that no policy has.
const STEP: u64 = 2731;

pub(crate) fn paths() -> Vec<Path> {
    let both = |policy: &&Policy| [use_all(policy), replace(policy)];
    ondol_catalog::policies().iter().flat_map(both).collect()
}

fn full(policy: &Policy) -> Box<dyn EvictionPolicy> {
    let mut full = (policy.build)(&PolicyContext::default());
    (0..OBJECTS).for_each(|id| insert(&mut *full, id));
    full
}

fn insert(policy: &mut dyn EvictionPolicy, id: u64) {
    policy.inserted(Admitted {
        id,
        fingerprint: id,
        bytes: 1,
        salt: "",
    });
}

fn use_all(policy: &Policy) -> Path {
    let mut full = full(policy);
    let work = move || (0..OBJECTS).for_each(|turn| full.accessed(turn * STEP % OBJECTS));
    Path::new(
        format!("policy.{}.use", policy.name),
        OBJECTS as usize,
        work,
    )
}

fn replace(policy: &Policy) -> Path {
    let mut full = full(policy);
    let mut next = OBJECTS;
    let work = move || {
        for _ in 0..OBJECTS {
            let mut victim = None;
            full.victims(&mut |id| {
                victim = Some(id);
                ControlFlow::Break(())
            });
            full.removed(victim.expect("it is full"));
            insert(&mut *full, next);
            next += 1;
        }
    };
    Path::new(
        format!("policy.{}.replace", policy.name),
        OBJECTS as usize,
        work,
    )
}
