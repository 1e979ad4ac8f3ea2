//! Which pages of a region this process is writing: one bit a page.
//!
//! Whoever sets a bit may write the page; clearing it hands the page on. What the last holder wrote happens before
//! what the next one does.

use crate::fences::Fences;
#[cfg(not(loom))]
use crate::fences::Real;
use crate::sync::{AtomicU64, Ordering};

#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Claims(Box<[AtomicU64]>);

#[cfg(not(loom))]
impl Claims {
    /// No claim on any of `pages` pages.
    pub(crate) fn new(pages: u64) -> Self {
        Self((0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Claims a page; `false` if it is claimed.
    pub(crate) fn take(&self, index: u32) -> bool {
        take::<Real>(&self.0[index as usize / 64], 1 << (index % 64))
    }

    /// Ends the claim on a page.
    pub(crate) fn give(&self, index: u32) {
        give::<Real>(&self.0[index as usize / 64], 1 << (index % 64));
    }
}

fn take<F: Fences>(word: &AtomicU64, bit: u64) -> bool {
    let taken = word.fetch_or(bit, Ordering::Relaxed) & bit == 0;
    F::acquire();
    taken
}

fn give<F: Fences>(word: &AtomicU64, bit: u64) {
    F::release();
    word.fetch_and(!bit, Ordering::Relaxed);
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::fences::Real;
    use crate::fences::mutants::{NoAcquire, NoRelease};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// Two threads each write the page if they can claim it.
    fn two_writers<F: Fences + 'static>() {
        loom::model(|| {
            let word = Arc::new(AtomicU64::new(0));
            let page = Arc::new(UnsafeCell::new(0_u64));
            let write = |word: &AtomicU64, page: &UnsafeCell<u64>| {
                if take::<F>(word, 2) {
                    // SAFETY: the model reports an access that races with this one.
                    page.with_mut(|bytes| unsafe { *bytes += 1 });
                    give::<F>(word, 2);
                }
            };
            let other = loom::thread::spawn({
                let (word, page) = (Arc::clone(&word), Arc::clone(&page));
                move || write(&word, &page)
            });
            write(&word, &page);
            other.join().unwrap();
        });
    }

    #[test]
    fn loom_a_page_has_one_writer_at_a_time() {
        two_writers::<Real>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_release_fence_writers_race() {
        two_writers::<NoRelease>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_acquire_fence_writers_race() {
        two_writers::<NoAcquire>();
    }
}
