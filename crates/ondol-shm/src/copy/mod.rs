//! Copies into and out of shared memory, at the speed of the memory.
//!
//! # The rule
//! An ordinary store reads a line of memory before it writes it, and leaves it in the caches, where it displaces what
//! somebody needs. A non-temporal store does neither; but a line that was in a cache is thrown out of it. So what counts is
//! whether the target is in a cache, which a program cannot ask, and follows from what the target is:
//!
//! * A *page* of the pool is cold, unless the pool is smaller than a cache: [`copy`] and [`copy_with_checksum`] use
//!   non-temporal stores from 16 KiB.
//! * A *reader's buffer* is used again and again, and read at once: [`copy_out`] uses them only from 1 MiB, where it does not fit
//!   the cache of a core. A copy that is verified is always an ordinary one.
//!
//! # What the rule was made from
//! Gigabytes per second of one core of an Intel server (Emerald Rapids, 2 MiB of second-level cache a core, 260 MiB of third-level
//! cache), into populated shared memory of 4 KiB pages, kernels in turns. `cargo bench -p ondol-shm --bench copy` measures it
//! anew.
//!
//! | from | to | with | 4 KiB | 16 KiB | 64 KiB | 256 KiB | 2 MiB |
//! |---|---|---|---|---|---|---|---|
//! | cold | cold page | `memcpy` | 6.8 | 7.0 | 7.0 | 7.1 | 7.1 |
//! | | | AVX-512, non-temporal | 8.3 | 10.4 | 11.5 | 12.0 | 12.0 |
//! | | | the same with a checksum | 7.6 | 9.8 | 10.7 | 10.9 | 11.1 |
//! | hot | cold page | `memcpy` | 9.3 | 11.0 | 11.5 | 11.7 | 9.6 |
//! | | | AVX-512, non-temporal | 11.9 | 18.4 | 19.2 | 19.8 | 18.2 |
//! | | | the same with a checksum | 11.4 | 17.6 | 16.3 | 17.1 | 15.4 |
//! | cold page | hot buffer | `memcpy` | 14.0 | 13.1 | 12.2 | 11.9 | 9.9 |
//! | | | AVX-512, non-temporal | 7.3 | 10.5 | 11.3 | 11.6 | 11.6 |
//! | | | ordinary stores with a checksum | 8.7 | 12.1 | 11.8 | 11.5 | 10.0 |
//! | hot | hot page | `memcpy` | 136 | 179 | 42 | 39 | 12 |
//! | | | AVX-512, non-temporal | 11 | 19 | 19 | 20 | 19 |
//!
//! On an AMD server (Zen 4, 32 MiB of third-level cache) non-temporal stores of AVX2 copied 2 MiB from cold to cold memory at 22.7,
//! `memcpy` at 9.9; of 256 KiB two threads 43.6 and 19.1; 2 MiB from cold memory into one hot buffer took them 22 and
//! `memcpy` 5.3. So the rule holds there, too.
//!
//! `memcpy` has a threshold of its own for non-temporal stores, three quarters of the third-level cache. It is of no use
//! where that is shared by tenants who cannot use most of it.

mod kernel;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;
mod xxh3;

pub use kernel::{CopyKernel, checksum};

/// Bytes from which a copy to a page goes past the caches.
const PAGE_STREAM_BYTES: usize = 16 << 10;

/// Bytes from which a copy to a reader's buffer goes past the caches.
const READER_STREAM_BYTES: usize = 1 << 20;

/// Bytes that are asked for ahead of a copy, a page of memory: where the next one begins the processor does not know.
const AHEAD: usize = 4096;

/// Copies `source` to a page of the pool. It is complete, for every other processor, when the call returns.
///
/// # Panics
/// If the lengths differ.
pub fn copy(page: &mut [u8], source: &[u8]) {
    CopyKernel::for_len(source.len(), PAGE_STREAM_BYTES).copy(page, source);
}

/// Copies `source` to a page of the pool as [`copy`] does, and returns its [`checksum`], made in the same pass.
///
/// # Panics
/// If the lengths differ.
pub fn copy_with_checksum(page: &mut [u8], source: &[u8]) -> u64 {
    CopyKernel::for_len(source.len(), PAGE_STREAM_BYTES).copy_with_checksum(page, source)
}

/// Copies an object out of the pool to a buffer of its reader's.
///
/// # Panics
/// If the lengths differ.
pub fn copy_out(buffer: &mut [u8], object: &[u8]) {
    CopyKernel::for_len(object.len(), READER_STREAM_BYTES).copy(buffer, object);
}

/// Copies an object out of the pool to a buffer of its reader's, which will use it at once, and compares it with the
/// [`checksum`] that it should have, in the same pass.
///
/// # Errors
/// The checksum that it has, if that is another one. Then the buffer holds bytes that are not the object's.
///
/// # Panics
/// If the lengths differ.
pub fn copy_out_verified(buffer: &mut [u8], object: &[u8], expected: u64) -> Result<(), u64> {
    match CopyKernel::Plain.copy_with_checksum(buffer, object) {
        found if found == expected => Ok(()),
        found => Err(found),
    }
}

/// Asks for the byte that lies [`AHEAD`] of `at`, or for the last one.
#[inline(always)]
fn prefetch(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let ahead = (at + AHEAD).min(bytes.len().saturating_sub(1));
        // SAFETY: part of every x86-64 processor; it changes nothing, and asking for what cannot be had is no fault.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(ahead).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}
