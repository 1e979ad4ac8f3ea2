//! Memory to copy from and to, and the copies themselves: the limits that figures are printed beside.
//!
//! The kernels here are the benchmark's own, so that a limit is not what Ondol happens to reach.

#![allow(
    unsafe_code,
    reason = "mapping a file and storing past the caches have no safe form; nothing else of the benchmark needs any"
)]

use anyhow::{Context, Result};
use memmap2::{Advice, MmapMut, MmapOptions};

const PAGE: usize = 4096;
const SHM: &str = "/dev/shm";

/// Shared memory of which nothing is there yet: what is touched first costs a page fault.
pub(crate) fn shared(len: usize) -> Result<MmapMut> {
    let file = tempfile::tempfile_in(SHM).with_context(|| format!("make a file in {SHM}"))?;
    file.set_len(len as u64)?;
    // SAFETY: the file has no name and its one descriptor is closed when this returns, so that this is the only map of it,
    // and nobody can write or shorten it behind the map's back.
    Ok(unsafe { MmapOptions::new().len(len).map_mut(&file)? })
}

/// Shared memory that is there: every page was written, and is mapped in this process.
pub(crate) fn populated(len: usize) -> Result<MmapMut> {
    let mut map = shared(len)?;
    touch(&mut map);
    Ok(map)
}

/// Memory of this process alone with some content, in huge pages where the system gives any, as engines' buffers are.
pub(crate) fn private(len: usize) -> Result<MmapMut> {
    let mut map = MmapOptions::new().len(len).map_anon()?;
    // Not every kernel has them.
    let _ = map.advise(Advice::HugePage);
    for (word, bytes) in map.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(
            &(word as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_le_bytes(),
        );
    }
    Ok(map)
}

/// Writes a byte of every page.
pub(crate) fn touch(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(PAGE) {
        page[0] = 1;
    }
}

/// A way to copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyKernel {
    pub(crate) name: &'static str,
    copy: fn(&mut [u8], &[u8]),
}

impl CopyKernel {
    /// Copies all of `source` to `target`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn copy(self, target: &mut [u8], source: &[u8]) {
        assert_eq!(
            target.len(),
            source.len(),
            "a copy is as long as its source"
        );
        (self.copy)(target, source);
    }
}

/// All ways to copy that this processor knows.
pub(crate) fn kernels() -> Vec<CopyKernel> {
    let mut kernels = vec![CopyKernel {
        name: "memcpy",
        copy: |target, source| target.copy_from_slice(source),
    }];
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") {
            kernels.push(CopyKernel {
                name: "AVX2 past the caches",
                copy: x86::avx2,
            });
        }
        if is_x86_feature_detected!("avx512f") {
            kernels.push(CopyKernel {
                name: "AVX-512 past the caches",
                copy: x86::avx512,
            });
        }
    }
    kernels
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _MM_HINT_NTA, _mm_prefetch, _mm_sfence, _mm256_loadu_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    const STEP: usize = 256;
    /// How far ahead of the copy the source is asked for, in bytes.
    const AHEAD: usize = 2048;
    const LINE: usize = 64;

    pub(super) fn avx2(target: &mut [u8], source: &[u8]) {
        // SAFETY: kernels() lists this function only where the processor has AVX2.
        split(target, source, |target, source| unsafe {
            stream256(target, source)
        });
    }

    pub(super) fn avx512(target: &mut [u8], source: &[u8]) {
        // SAFETY: kernels() lists this function only where the processor has AVX-512F.
        split(target, source, |target, source| unsafe {
            stream512(target, source)
        });
    }

    /// Copies whole steps of aligned target by `stream`, and what lies before and behind them as usual.
    fn split(target: &mut [u8], source: &[u8], stream: impl Fn(&mut [u8], &[u8])) {
        let head = target.as_ptr().align_offset(LINE).min(target.len());
        let body = (target.len() - head) / STEP * STEP;
        let (first, target) = target.split_at_mut(head);
        let (aligned, last) = target.split_at_mut(body);
        first.copy_from_slice(&source[..head]);
        stream(aligned, &source[head..head + body]);
        last.copy_from_slice(&source[head + body..]);
    }

    fn prefetch(source: &[u8], offset: usize) {
        for line in (0..STEP).step_by(LINE) {
            let address = source.as_ptr().wrapping_add(offset + AHEAD + line);
            // SAFETY: a prefetch of any address, mapped or not, has no effect that a program can see.
            unsafe { _mm_prefetch::<_MM_HINT_NTA>(address.cast()) };
        }
    }

    /// # Safety
    /// The processor has AVX2; `target` begins at a multiple of 64, and both have the same length, a multiple of `STEP`.
    #[target_feature(enable = "avx2")]
    unsafe fn stream256(target: &mut [u8], source: &[u8]) {
        for offset in (0..source.len()).step_by(STEP) {
            prefetch(source, offset);
            for part in (offset..offset + STEP).step_by(size_of::<__m256i>()) {
                let from = source.as_ptr().wrapping_add(part).cast();
                // SAFETY: 32 bytes from `part` lie in `source`, as its length is a multiple of STEP and STEP one of 32.
                let word = unsafe { _mm256_loadu_si256(from) };
                let to = target.as_mut_ptr().wrapping_add(part).cast();
                // SAFETY: the same of `target`, which is as long, begins at a multiple of 64, and is borrowed mutably.
                unsafe { _mm256_stream_si256(to, word) };
            }
        }
        _mm_sfence();
    }

    /// # Safety
    /// The processor has AVX-512F; otherwise as [`stream256`].
    #[target_feature(enable = "avx512f")]
    unsafe fn stream512(target: &mut [u8], source: &[u8]) {
        for offset in (0..source.len()).step_by(STEP) {
            prefetch(source, offset);
            for part in (offset..offset + STEP).step_by(size_of::<__m512i>()) {
                let from = source.as_ptr().wrapping_add(part).cast();
                // SAFETY: 64 bytes from `part` lie in `source`, as its length is a multiple of STEP and STEP one of 64.
                let word = unsafe { _mm512_loadu_si512(from) };
                let to = target.as_mut_ptr().wrapping_add(part).cast();
                // SAFETY: the same of `target`, which is as long, begins at a multiple of 64, and is borrowed mutably.
                unsafe { _mm512_stream_si512(to, word) };
            }
        }
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_copies_every_byte_and_no_other() {
        let source: Vec<u8> = (0..5000u32).map(|index| (index * 7 + 1) as u8).collect();
        for kernel in kernels() {
            for (skip, len) in [
                (0, 0),
                (1, 1),
                (3, 63),
                (0, 256),
                (5, 1000),
                (64, 4096),
                (7, 4500),
            ] {
                let mut target = vec![0xee; 5000];
                kernel.copy(&mut target[skip..skip + len], &source[1..1 + len]);
                let said = format!("{} of {len} bytes at {skip}", kernel.name);
                assert_eq!(target[skip..skip + len], source[1..1 + len], "{said}");
                let around = target[..skip].iter().chain(&target[skip + len..]);
                assert!(around.copied().all(|byte| byte == 0xee), "{said}");
            }
        }
    }

    #[test]
    fn memory_is_there() {
        assert!(
            populated(3 * PAGE)
                .unwrap()
                .chunks(PAGE)
                .all(|page| page[0] == 1)
        );
        assert!(private(PAGE).unwrap().iter().any(|byte| *byte != 0));
    }
}
