//! When an index that does not hold an object says that there is none.
//!
//! The writer counts the visible objects that it has not indexed: before they become visible, until they are indexed. A
//! reader that finds a count of 0 before it searches finds what was counted until then.

use crate::fences::Fences;
use crate::sync::{AtomicU64, Ordering};

/// The writer: so many visible objects are not indexed; the others are.
pub(crate) fn set_unindexed<F: Fences>(count: &AtomicU64, objects: u64) {
    F::release();
    count.store(objects, Ordering::Relaxed);
}

/// The reader, before it searches: whether all visible objects are indexed.
#[inline]
pub(crate) fn is_complete<F: Fences>(count: &AtomicU64) -> bool {
    let is_complete = count.load(Ordering::Relaxed) == 0;
    F::acquire();
    is_complete
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::fences::Real;
    use crate::fences::mutants::{NoAcquire, NoRelease};
    use loom::sync::Arc;

    /// A visible object is indexed while a reader searches for it.
    fn reader_and_writer<W: Fences + 'static, R: Fences + 'static>() {
        loom::model(|| {
            let words = Arc::new((AtomicU64::new(1), AtomicU64::new(0)));
            let writer = loom::thread::spawn({
                let words = Arc::clone(&words);
                move || {
                    let (unindexed, slot) = &*words;
                    slot.store(7, Ordering::Relaxed);
                    set_unindexed::<W>(unindexed, 0);
                }
            });
            let (unindexed, slot) = &*words;
            if is_complete::<R>(unindexed) {
                assert_eq!(slot.load(Ordering::Relaxed), 7, "taken for absent");
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_a_visible_object_is_not_taken_for_absent() {
        reader_and_writer::<Real, Real>();
    }

    #[test]
    #[should_panic(expected = "taken for absent")]
    fn loom_without_the_writers_fence_an_object_is_missed() {
        reader_and_writer::<NoRelease, Real>();
    }

    #[test]
    #[should_panic(expected = "taken for absent")]
    fn loom_without_the_readers_fence_an_object_is_missed() {
        reader_and_writer::<Real, NoAcquire>();
    }
}
