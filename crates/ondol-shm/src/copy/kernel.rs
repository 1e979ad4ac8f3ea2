#[cfg(target_arch = "x86_64")]
use super::x86;
#[cfg(not(target_arch = "x86_64"))]
use super::xxh3;

/// A way to copy. [`copy`](crate::copy) and its relatives choose one; to name one is for tests and measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKernel {
    /// The standard library's copy, which is the system's `memcpy`.
    Plain,
    /// Non-temporal stores of 16 bytes, which every x86-64 processor has.
    Sse2,
    /// Non-temporal stores of 32 bytes.
    Avx2,
    /// Non-temporal stores of 64 bytes.
    Avx512,
}

impl CopyKernel {
    /// All kernels, the widest last.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Sse2, Self::Avx2, Self::Avx512];

    /// Whether this processor has the kernel. The answer is looked up once and remembered.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Self::Plain | Self::Sse2 => true,
            Self::Avx2 => std::is_x86_feature_detected!("avx2"),
            Self::Avx512 => std::is_x86_feature_detected!("avx512f"),
        };
        #[cfg(not(target_arch = "x86_64"))]
        return self == Self::Plain;
    }

    /// The widest kernel that this processor has.
    pub fn widest() -> Self {
        let widest = Self::ALL.into_iter().rfind(|kernel| kernel.is_available());
        widest.unwrap_or(Self::Plain)
    }

    /// The kernel for `len` bytes to where non-temporal stores pay from `stream_bytes` on.
    pub(super) fn for_len(len: usize, stream_bytes: usize) -> Self {
        if len < stream_bytes {
            Self::Plain
        } else {
            Self::widest()
        }
    }

    /// Copies `source`; complete for every other processor when the call returns.
    ///
    /// # Panics
    /// If the lengths differ, or this processor has not the kernel.
    pub fn copy(self, target: &mut [u8], source: &[u8]) {
        self.check();
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::Plain => {}
            // SAFETY: part of every x86-64 processor.
            Self::Sse2 => return unsafe { x86::sse2::copy(target, source) },
            // SAFETY: the processor has AVX2, as was checked.
            Self::Avx2 => return unsafe { x86::avx2::copy(target, source) },
            // SAFETY: the processor has AVX-512, as was checked.
            Self::Avx512 => return unsafe { x86::avx512::copy(target, source) },
        }
        target.copy_from_slice(source);
    }

    /// Copies `source` as [`copy`](Self::copy) does, and returns its [`checksum`](crate::checksum).
    ///
    /// # Panics
    /// If the lengths differ, or this processor has not the kernel.
    pub fn copy_with_checksum(self, target: &mut [u8], source: &[u8]) -> u64 {
        self.check();
        #[cfg(target_arch = "x86_64")]
        return match self {
            Self::Plain => copy_and_sum(target, source),
            // SAFETY: part of every x86-64 processor.
            Self::Sse2 => unsafe { x86::sse2::copy_with_checksum(target, source) },
            // SAFETY: the processor has AVX2, as was checked.
            Self::Avx2 => unsafe { x86::avx2::copy_with_checksum(target, source) },
            // SAFETY: the processor has AVX-512, as was checked.
            Self::Avx512 => unsafe { x86::avx512::copy_with_checksum(target, source) },
        };
        #[cfg(not(target_arch = "x86_64"))]
        {
            target.copy_from_slice(source);
            xxh3::portable(target)
        }
    }

    fn check(self) {
        assert!(self.is_available(), "this processor has no {self:?}");
    }
}

/// The xxh3-64 of `bytes`: what [`ObjectMeta::checksum`](crate::ObjectMeta::checksum) holds.
pub fn checksum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    return match CopyKernel::widest() {
        // SAFETY: the processor has AVX-512, as was looked up.
        CopyKernel::Avx512 => unsafe { x86::avx512::checksum(bytes) },
        // SAFETY: the processor has AVX2, as was looked up.
        CopyKernel::Avx2 => unsafe { x86::avx2::checksum(bytes) },
        // SAFETY: part of every x86-64 processor.
        CopyKernel::Sse2 | CopyKernel::Plain => unsafe { x86::sse2::checksum(bytes) },
    };
    #[cfg(not(target_arch = "x86_64"))]
    xxh3::portable(bytes)
}

/// Copies with ordinary stores.
#[cfg(target_arch = "x86_64")]
fn copy_and_sum(target: &mut [u8], source: &[u8]) -> u64 {
    match CopyKernel::widest() {
        // SAFETY: the processor has AVX-512, as was looked up.
        CopyKernel::Avx512 => unsafe { x86::avx512::copy_and_sum(target, source) },
        // SAFETY: the processor has AVX2, as was looked up.
        CopyKernel::Avx2 => unsafe { x86::avx2::copy_and_sum(target, source) },
        // SAFETY: part of every x86-64 processor.
        CopyKernel::Sse2 | CopyKernel::Plain => unsafe { x86::sse2::copy_and_sum(target, source) },
    }
}
