//! Asking the processor for memory before it is needed.

use std::mem::size_of_val;

const LINE_BYTES: usize = 64;

/// Begins to load the cache lines of these values, without waiting and without reading them.
#[inline]
pub(crate) fn prefetch<T>(values: &[T]) {
    let first = values.as_ptr().cast::<u8>();
    let skew = first.addr() % LINE_BYTES;
    for offset in (0..skew + size_of_val(values)).step_by(LINE_BYTES) {
        prefetch_line(first.wrapping_sub(skew).wrapping_add(offset));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch_line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint; it neither faults nor changes anything, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch_line(_address: *const u8) {}
