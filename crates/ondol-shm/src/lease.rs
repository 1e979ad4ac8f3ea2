//! How a reader's lease ends without a message.
//!
//! Each client has a table of 64-bit words that only that client writes. A lease names a slot of the table and a
//! sequence number, one higher than the word that stands there; it ends when the client stores that number.
//! Sequence numbers only grow, so a word at or above a lease's number says that the lease has ended:
//!
//! * a reply that never arrived leaves nothing behind, as the client ends the leases it proposed;
//! * a request that the server handles after its client gave up is over before it begins.
//!
//! The reader's loads of the page happen before the release fence, the owner's reuse after the acquire fence:
//! without either fence a page could be overwritten while it is read, which the models below show.

use crate::fences::Fences;
use crate::sync::{AtomicU64, Ordering};

/// One lease: a slot of the client's table and the number that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    /// Slot in the client's table.
    pub slot: u32,
    /// The number that ends the lease.
    pub sequence: u64,
}

/// Ends a lease: the last step of its reader.
pub(crate) fn end<F: Fences>(word: &AtomicU64, sequence: u64) {
    F::release();
    word.store(sequence, Ordering::Relaxed);
}

/// Whether a lease has ended: the owner's question before it reuses the page.
pub(crate) fn has_ended<F: Fences>(word: &AtomicU64, sequence: u64) -> bool {
    let ended = word.load(Ordering::Relaxed) >= sequence;
    F::acquire();
    ended
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::fences::Real;
    use crate::fences::mutants::{NoAcquire, NoRelease};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// A reader reads a leased page and ends the lease; the owner overwrites the page once the lease has ended.
    fn reader_and_owner<F: Fences + 'static>() {
        loom::model(|| {
            let word = Arc::new(AtomicU64::new(0));
            let page = Arc::new(UnsafeCell::new(1_u64));
            let reader = loom::thread::spawn({
                let (word, page) = (Arc::clone(&word), Arc::clone(&page));
                move || {
                    // SAFETY: the model reports an access that races with this one.
                    let seen = page.with(|bytes| unsafe { *bytes });
                    assert_eq!(seen, 1);
                    end::<F>(&word, 1);
                }
            });
            if has_ended::<F>(&word, 1) {
                // SAFETY: as above.
                page.with_mut(|bytes| unsafe { *bytes = 2 });
            }
            reader.join().unwrap();
        });
    }

    /// The client reuses a slot; the owner's view of the older lease must stay ended, of the newer one live.
    #[test]
    fn loom_a_reused_slot_keeps_its_leases_apart() {
        loom::model(|| {
            let word = Arc::new(AtomicU64::new(0));
            let page = Arc::new(UnsafeCell::new(1_u64));
            end::<Real>(&word, 1);
            let reader = loom::thread::spawn({
                let (word, page) = (Arc::clone(&word), Arc::clone(&page));
                move || {
                    // SAFETY: the model reports an access that races with this one.
                    let seen = page.with(|bytes| unsafe { *bytes });
                    assert_eq!(seen, 1);
                    end::<Real>(&word, 2);
                }
            });
            assert!(has_ended::<Real>(&word, 1));
            if has_ended::<Real>(&word, 2) {
                // SAFETY: as above.
                page.with_mut(|bytes| unsafe { *bytes = 2 });
            }
            reader.join().unwrap();
        });
    }

    #[test]
    fn loom_a_page_is_not_reused_while_it_is_read() {
        reader_and_owner::<Real>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_release_fence_the_model_fails() {
        reader_and_owner::<NoRelease>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_acquire_fence_the_model_fails() {
        reader_and_owner::<NoAcquire>();
    }
}
