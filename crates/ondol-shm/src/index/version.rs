//! The version of a record: a sequence lock whose number only grows.
//!
//! Even: the record is whole. Odd or 0: it is none, or not yet one. A record's words are read between two looks at its
//! version, which must be the same even number. The writer changes them only while the version is odd.

use crate::fences::Fences;
use crate::sync::{AtomicU64, Ordering};

/// The version of a whole record, before its words are read.
#[inline]
pub(crate) fn read<F: Fences>(version: &AtomicU64) -> Option<u64> {
    let found = version.load(Ordering::Relaxed);
    F::acquire();
    (found != 0 && found.is_multiple_of(2)).then_some(found)
}

/// Whether the words that were read since [`read`] are those of one record.
#[inline]
pub(crate) fn is_still<F: Fences>(version: &AtomicU64, seen: u64) -> bool {
    F::acquire();
    is_unchanged(version, seen)
}

/// Whether the record is still the one that was read; a fence of the caller's orders this.
#[inline]
pub(crate) fn is_unchanged(version: &AtomicU64, seen: u64) -> bool {
    version.load(Ordering::Relaxed) == seen
}

/// Ends a record whose version is `last`: from here on its words may change.
pub(crate) fn close<F: Fences>(version: &AtomicU64, last: u64) {
    version.store(last | 1, Ordering::Relaxed);
    F::release();
}

/// Begins a record, as its words are written, where the version was `last` before.
pub(crate) fn publish<F: Fences>(version: &AtomicU64, last: u64) {
    F::release();
    version.store((last | 1) + 1, Ordering::Relaxed);
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::fences::Real;
    use crate::fences::mutants::{NoAcquire, NoRelease};
    use loom::sync::Arc;

    /// A record of two words, which are the same in each version of it.
    #[derive(Default)]
    struct Record {
        version: AtomicU64,
        words: [AtomicU64; 2],
    }

    impl Record {
        fn write<F: Fences>(&self, value: u64, last: u64) {
            for word in &self.words {
                word.store(value, Ordering::Relaxed);
            }
            publish::<F>(&self.version, last);
        }

        fn look<R: Fences, S: Fences>(&self) -> Option<(u64, [u64; 2])> {
            let seen = read::<R>(&self.version)?;
            let words = [0, 1].map(|word: usize| self.words[word].load(Ordering::Relaxed));
            is_still::<S>(&self.version, seen).then_some((seen, words))
        }
    }

    /// A record ends and another one begins in its place while a reader looks.
    fn reader_and_writer<C, P, R, S>()
    where
        C: Fences + 'static,
        P: Fences + 'static,
        R: Fences + 'static,
        S: Fences + 'static,
    {
        loom::model(|| {
            let record = Arc::new(Record::default());
            record.write::<Real>(1, 0);
            let writer = loom::thread::spawn({
                let record = Arc::clone(&record);
                move || {
                    close::<C>(&record.version, 2);
                    record.write::<P>(2, 3);
                }
            });
            if let Some((version, words)) = record.look::<R, S>() {
                let expected = version / 2;
                assert_eq!(words, [expected; 2], "torn record");
            }
            writer.join().unwrap();
            assert_eq!(record.look::<Real, Real>(), Some((4, [2; 2])));
        });
    }

    #[test]
    fn loom_a_record_is_read_whole_or_not_at_all() {
        reader_and_writer::<Real, Real, Real, Real>();
    }

    #[test]
    #[should_panic(expected = "torn record")]
    fn loom_without_the_fence_of_close_the_model_fails() {
        reader_and_writer::<NoRelease, Real, Real, Real>();
    }

    #[test]
    #[should_panic(expected = "torn record")]
    fn loom_without_the_fence_of_publish_the_model_fails() {
        reader_and_writer::<Real, NoRelease, Real, Real>();
    }

    #[test]
    #[should_panic(expected = "torn record")]
    fn loom_without_the_fence_of_read_the_model_fails() {
        reader_and_writer::<Real, Real, NoAcquire, Real>();
    }

    #[test]
    #[should_panic(expected = "torn record")]
    fn loom_without_the_fence_of_is_still_the_model_fails() {
        reader_and_writer::<Real, Real, Real, NoAcquire>();
    }
}
