//! How a reader holds a page without asking the server: a hazard pointer across processes.
//!
//! The reader has found an object. It writes the object's page into a slot of its own ([`publish`]), passes a fence
//! ([`published`]) and looks once more at every word that the server changes before it reuses the page ([`is_still`]):
//! the version of the object's record, the index's state, and the index that the reader's slots may be used with. If
//! all are as they were the page is held until the slot is emptied ([`withdraw`]); else it never was.
//!
//! The server changes such a word, passes a fence ([`made_unfindable`]) and reads the slots of all readers; a page that
//! stands in none of them ([`scanned`]) is its own again.
//!
//! One of the two fences comes first. If it is the reader's, the server's scan sees the slot. If it is the server's, the
//! reader's second look sees the change. So a page that was reused is not read, and without either fence it could be,
//! which the models below show.
//!
//! Which part of its table the server has to scan a reader says in a word with a bit for each block of slots
//! ([`use_block`]). Bits are only added, before the slot is written, so the same fences order them.

use crate::fences::Fences;
use crate::sync::{AtomicU64, Ordering};

/// What an empty slot holds.
pub(crate) const EMPTY: u64 = 0;

/// The reader, before it writes a slot: the server is to scan the block that this bit stands for.
pub(crate) fn use_block(blocks: &AtomicU64, bit: u64) {
    if blocks.load(Ordering::Relaxed) & bit == 0 {
        blocks.fetch_or(bit, Ordering::Relaxed);
    }
}

/// The reader: writes a page into an empty slot.
pub(crate) fn publish(slot: &AtomicU64, page: u64) {
    slot.store(page, Ordering::Relaxed);
}

/// The reader, between the last slot that it wrote and its second look.
pub(crate) fn published<F: Fences>() {
    F::full();
}

/// The reader's second look at one word.
pub(crate) fn is_still(word: &AtomicU64, seen: u64) -> bool {
    word.load(Ordering::Relaxed) == seen
}

/// The reader: empties a slot after its last access to the page.
pub(crate) fn withdraw<F: Fences>(slot: &AtomicU64) {
    F::release();
    slot.store(EMPTY, Ordering::Relaxed);
}

/// The server, between the change of a word and the scan.
pub(crate) fn made_unfindable<F: Fences>() {
    F::full();
}

/// The server, between the scan and the reuse of a page that it did not find.
pub(crate) fn scanned<F: Fences>() {
    F::acquire();
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::fences::Real;
    use crate::fences::mutants::{NoAcquire, NoFull, NoRelease, WeakFull};
    use crate::index::version;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// The page's word, as a slot holds it.
    const PAGE: u64 = 1;
    const BLOCK: u64 = 4;
    /// The version of the object's record.
    const WHOLE: u64 = 2;
    /// The name of the only index.
    const INCARNATION: u64 = 7;
    const CURRENT: u64 = 1;
    const RETIRED: u64 = 2;

    /// Two processes' memory: an object that holds 1, in the only page.
    struct Shared {
        version: AtomicU64,
        state: AtomicU64,
        incarnation: AtomicU64,
        blocks: AtomicU64,
        slot: AtomicU64,
        page: UnsafeCell<u64>,
    }

    impl Shared {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                version: AtomicU64::new(WHOLE),
                state: AtomicU64::new(CURRENT),
                incarnation: AtomicU64::new(INCARNATION),
                blocks: AtomicU64::new(0),
                slot: AtomicU64::new(EMPTY),
                page: UnsafeCell::new(1),
            })
        }

        /// A reader finds the object, holds it by a slot, and reads it if the hold is confirmed.
        fn read<F: Fences>(&self, looks: Looks) {
            let Some(seen) = version::read::<F>(&self.version) else {
                return;
            };
            use_block(&self.blocks, BLOCK);
            publish(&self.slot, PAGE);
            published::<F>();
            let is_held = (!looks.version || version::is_unchanged(&self.version, seen))
                && (!looks.state || is_still(&self.state, CURRENT))
                && (!looks.incarnation || is_still(&self.incarnation, INCARNATION));
            if is_held {
                // SAFETY: the model reports an access that races with this one.
                let bytes = self.page.with(|bytes| unsafe { *bytes });
                assert_eq!(bytes, 1);
            }
            withdraw::<F>(&self.slot);
        }

        /// The server has made the object unfindable, and reuses its page if nobody holds it.
        fn reuse<F: Fences>(&self) {
            made_unfindable::<F>();
            let is_held = self.blocks.load(Ordering::Relaxed) & BLOCK != 0
                && self.slot.load(Ordering::Relaxed) == PAGE;
            scanned::<F>();
            if !is_held {
                // SAFETY: as above.
                self.page.with_mut(|bytes| unsafe { *bytes = 2 });
            }
        }
    }

    /// What a reader's second look is at.
    #[derive(Clone, Copy)]
    struct Looks {
        version: bool,
        state: bool,
        incarnation: bool,
    }

    const ALL: Looks = Looks {
        version: true,
        state: true,
        incarnation: true,
    };

    /// How the server makes the object unfindable in the index that the reader uses.
    #[derive(Clone, Copy)]
    enum Change {
        /// It ends the object's record.
        Remove,
        /// It has replaced the index, and removes the object from the new one.
        Retire,
        /// It is another server, which knows the clients' tables and not the index.
        Restart,
    }

    fn model<R: Fences + 'static, S: Fences + 'static>(change: Change, looks: Looks) {
        loom::model(move || {
            let shared = Shared::new();
            let reader = loom::thread::spawn({
                let shared = Arc::clone(&shared);
                move || shared.read::<R>(looks)
            });
            match change {
                Change::Remove => version::close::<S>(&shared.version, WHOLE),
                Change::Retire => shared.state.store(RETIRED, Ordering::Relaxed),
                Change::Restart => shared.incarnation.store(0, Ordering::Relaxed),
            }
            shared.reuse::<S>();
            reader.join().unwrap();
        });
    }

    /// One model for each way to make an object unfindable, and for each step that keeps it right one without it.
    macro_rules! models {
        ($change:ident, $holds:ident, $($mutant:ident: $reader:ty, $server:ty, $looks:expr;)*) => {
            #[test]
            fn $holds() {
                model::<Real, Real>(Change::$change, ALL);
            }
            $(
                #[test]
                #[should_panic(expected = "Causality violation")]
                fn $mutant() {
                    model::<$reader, $server>(Change::$change, $looks);
                }
            )*
        };
    }

    models! {
        Remove, loom_a_page_of_a_removed_object_is_not_reused_while_it_is_read,
        loom_removal_needs_the_readers_full_fence: NoFull, Real, ALL;
        loom_removal_needs_the_servers_full_fence: Real, NoFull, ALL;
        loom_removal_needs_more_than_acquire_and_release_of_the_reader: WeakFull, Real, ALL;
        loom_removal_needs_more_than_acquire_and_release_of_the_server: Real, WeakFull, ALL;
        loom_removal_needs_the_readers_release_fence: NoRelease, Real, ALL;
        loom_removal_needs_the_servers_acquire_fence: Real, NoAcquire, ALL;
        loom_removal_needs_the_second_look_at_the_version: Real, Real, Looks { version: false, ..ALL };
    }

    models! {
        Retire, loom_a_page_of_a_replaced_index_is_not_reused_while_it_is_read,
        loom_a_replaced_index_needs_the_readers_full_fence: NoFull, Real, ALL;
        loom_a_replaced_index_needs_the_servers_full_fence: Real, NoFull, ALL;
        loom_a_replaced_index_needs_the_readers_release_fence: NoRelease, Real, ALL;
        loom_a_replaced_index_needs_the_servers_acquire_fence: Real, NoAcquire, ALL;
        loom_a_replaced_index_needs_the_second_look_at_its_state: Real, Real, Looks { state: false, ..ALL };
    }

    models! {
        Restart, loom_a_new_server_does_not_reuse_a_page_that_a_client_of_the_last_one_reads,
        loom_a_restart_needs_the_readers_full_fence: NoFull, Real, ALL;
        loom_a_restart_needs_the_servers_full_fence: Real, NoFull, ALL;
        loom_a_restart_needs_the_readers_release_fence: NoRelease, Real, ALL;
        loom_a_restart_needs_the_servers_acquire_fence: Real, NoAcquire, ALL;
        loom_a_restart_needs_the_second_look_at_the_incarnation: Real, Real, Looks { incarnation: false, ..ALL };
    }

    /// The reader finds that another thread of its process has said that the block is in use.
    #[test]
    fn loom_threads_of_a_client_share_a_block() {
        loom::model(|| {
            let shared = Shared::new();
            let threads: [Box<dyn FnOnce(&Shared) + Send>; 2] = [
                Box::new(|shared| use_block(&shared.blocks, BLOCK)),
                Box::new(|shared| shared.read::<Real>(ALL)),
            ];
            let threads = threads.map(|run| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || run(&shared))
            });
            version::close::<Real>(&shared.version, WHOLE);
            shared.reuse::<Real>();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        });
    }
}
