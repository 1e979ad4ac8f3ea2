//! The two ends of the ring by which a client gives pages back, one place a page.
//!
//! The client writes places and then the position after the last one ([`given`]); the server reads them and then writes
//! the position after the last one that it has dealt with ([`release_places`], and a store). The client writes a place
//! again only when the server's position is beyond it ([`taken`]). Each side's position thus hands places over to the
//! other.
//!
//! A position counts modulo 2³². Its word has the complement in the upper half, so that it shows when a part of it is
//! missing.

use crate::fences::Fences;
use crate::sync::{AtomicU64, Ordering};

/// A position as a word.
pub(crate) const fn position_word(position: u32) -> u64 {
    ((!position as u64) << 32) | position as u64
}

/// The position that a word holds, if it is whole.
pub(crate) const fn word_position(word: u64) -> Option<u32> {
    let position = word as u32;
    if position_word(position) == word {
        Some(position)
    } else {
        None
    }
}

/// The client: the places before this position are the server's to read.
pub(crate) fn given<F: Fences>(word: &AtomicU64, position: u32) {
    F::release();
    word.store(position_word(position), Ordering::Relaxed);
}

/// The client: how far the server has got, so that places before this position can be written again.
pub(crate) fn taken<F: Fences>(word: &AtomicU64) -> Option<u32> {
    let taken = word_position(word.load(Ordering::Relaxed));
    F::acquire();
    taken
}

/// The server, between reading the client's position and reading places before it.
pub(crate) fn acquire_places<F: Fences>() {
    F::acquire();
}

/// The server, between reading places and writing the position after them.
pub(crate) fn release_places<F: Fences>() {
    F::release();
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_position_of_which_a_part_was_copied_is_none() {
        for (before, after) in [(0, 1), (0xff, 0x100), (0xffff_ffff, 0), (77, 0x0102_0304)] {
            let [before, after] = [before, after].map(|at| position_word(at).to_le_bytes());
            for copied in 0..=8 {
                let mut word = before;
                word[..copied].copy_from_slice(&after[..copied]);
                let found = word_position(u64::from_le_bytes(word));
                let is_whole = word == before || word == after;
                assert_eq!(found.is_some(), is_whole, "{word:02x?}");
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::fences::Real;
    use crate::fences::mutants::{NoAcquire, NoRelease};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// A ring of one place, through which two values go.
    fn client_and_server<C: Fences + 'static, S: Fences + 'static>() {
        loom::model(|| {
            let end = Arc::new(AtomicU64::new(position_word(0)));
            let done = Arc::new(AtomicU64::new(position_word(0)));
            let place = Arc::new(UnsafeCell::new(0_u32));
            let client = loom::thread::spawn({
                let (end, done, place) = (Arc::clone(&end), Arc::clone(&done), Arc::clone(&place));
                move || {
                    for value in 1..=2 {
                        if taken::<C>(&done) == Some(value - 1) {
                            // SAFETY: the model reports an access that races with this one.
                            place.with_mut(|place| unsafe { *place = value });
                            given::<C>(&end, value);
                        }
                    }
                }
            });
            if word_position(end.load(Ordering::Relaxed)) == Some(1) {
                acquire_places::<S>();
                // SAFETY: as above.
                let value = place.with(|place| unsafe { *place });
                assert_eq!(value, 1);
                release_places::<S>();
                done.store(position_word(1), Ordering::Relaxed);
            }
            client.join().unwrap();
        });
    }

    #[test]
    fn loom_a_place_is_read_before_it_is_written_again() {
        client_and_server::<Real, Real>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_clients_release_fence_a_place_is_read_too_early() {
        client_and_server::<NoRelease, Real>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_servers_acquire_fence_a_place_is_read_too_early() {
        client_and_server::<Real, NoAcquire>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_servers_release_fence_a_place_is_written_too_early() {
        client_and_server::<Real, NoRelease>();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_clients_acquire_fence_a_place_is_written_too_early() {
        client_and_server::<NoAcquire, Real>();
    }
}
