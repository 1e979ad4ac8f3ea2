//! Memory to copy from and to, and the ways to copy: what the limits of memory are measured with.

use anyhow::{Context, Result};
use memmap2::{Advice, MmapMut, MmapOptions};
use ondol_shm::CopyKernel;

const PAGE: usize = 4096;
const SHM: &str = "/dev/shm";

/// Shared memory of which nothing is there yet: what is touched first costs a page fault.
#[expect(
    unsafe_code,
    reason = "a map of a file has no safe form; nothing else of the benchmark is unsafe"
)]
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

/// All ways to copy that this processor has, with their names.
pub(crate) fn kernels() -> impl Iterator<Item = (&'static str, CopyKernel)> {
    let all = CopyKernel::ALL
        .into_iter()
        .filter(|kernel| kernel.is_available());
    all.map(|kernel| {
        let name = match kernel {
            CopyKernel::Plain => "memcpy",
            CopyKernel::Sse2 => "SSE2 past the caches",
            CopyKernel::Avx2 => "AVX2 past the caches",
            CopyKernel::Avx512 => "AVX-512 past the caches",
        };
        (name, kernel)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn there_is_always_a_way_to_copy() {
        assert_eq!(kernels().next().unwrap().1, CopyKernel::Plain);
    }
}
