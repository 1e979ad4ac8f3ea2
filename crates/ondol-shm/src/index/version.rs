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

/// Ends a record: from here on its words may change.
pub(crate) fn close<F: Fences>(version: &AtomicU64) {
    let last = version.load(Ordering::Relaxed);
    version.store(last | 1, Ordering::Relaxed);
    F::release();
}

/// Begins a record, as its words are written.
pub(crate) fn publish<F: Fences>(version: &AtomicU64) {
    let last = version.load(Ordering::Relaxed);
    F::release();
    version.store((last | 1) + 1, Ordering::Relaxed);
}
