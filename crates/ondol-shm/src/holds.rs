//! How many holds keep a page from reuse.
//!
//! Holds are added where nobody can remove the object (under a lock that the remover takes alone); they end anywhere.
//! Every access under a hold happens before a reuse that saw the count at zero.

use crate::fences::{Fences, Real};
#[cfg(not(loom))]
use std::sync::atomic::AtomicU32;

#[cfg(loom)]
use loom::sync::atomic::AtomicU32;

use crate::sync::Ordering;

/// A count of holds.
#[derive(Debug)]
pub struct HoldCount(AtomicU32);

impl HoldCount {
    /// No hold.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Adds a hold.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a hold.
    pub fn end(&self) {
        self.end_with::<Real>();
    }

    /// How many holds there are; zero means that every access under one is over.
    pub fn get(&self) -> u32 {
        self.get_with::<Real>()
    }

    fn end_with<F: Fences>(&self) {
        F::release();
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn get_with<F: Fences>(&self) -> u32 {
        let count = self.0.load(Ordering::Relaxed);
        F::acquire();
        count
    }
}

impl Default for HoldCount {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::fences::mutants::{NoAcquire, NoRelease};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// Two readers end their holds on different threads; the owner overwrites once none is left.
    fn readers_and_owner<F: Fences + 'static>() {
        loom::model(|| {
            let holds = Arc::new(HoldCount::new());
            let page = Arc::new(UnsafeCell::new(1_u64));
            let readers = [(); 2].map(|()| {
                holds.add();
                let (holds, page) = (Arc::clone(&holds), Arc::clone(&page));
                loom::thread::spawn(move || {
                    // SAFETY: the model reports an access that races with this one.
                    let seen = page.with(|bytes| unsafe { *bytes });
                    assert_eq!(seen, 1);
                    holds.end_with::<F>();
                })
            });
            if holds.get_with::<F>() == 0 {
                // SAFETY: as above.
                page.with_mut(|bytes| unsafe { *bytes = 2 });
            }
            readers
                .into_iter()
                .for_each(|reader| reader.join().unwrap());
        });
    }

    #[test]
    fn loom_the_last_of_two_readers_frees_the_page() {
        readers_and_owner::<Real>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_release_fence_the_owner_races() {
        readers_and_owner::<NoRelease>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_acquire_fence_the_owner_races() {
        readers_and_owner::<NoAcquire>();
    }
}
