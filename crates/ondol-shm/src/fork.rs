//! Tells a forked child from its parent without a system call.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapMut;
use rustix::mm::{Advice, madvise};

/// A page that the kernel empties in a forked child.
static MARK: OnceLock<MmapMut> = OnceLock::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Remembers the process in which it was made.
///
/// A child that `fork` made has the parent's memory but not its server connection, its leases or its grants; what
/// holds a guard can refuse to act there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGuard(u64);

impl ForkGuard {
    /// A guard of the calling process.
    pub fn new() -> Self {
        let mark = mark();
        // A child starts from 0 and takes a number that its parent, whose counter it inherited, has not used.
        let own = match mark.load(Ordering::Relaxed) {
            0 => {
                let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
                mark.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(|own| own, |_| fresh)
            }
            own => own,
        };
        Self(own)
    }

    /// Whether the calling process is the one in which the guard was made.
    pub fn is_home(self) -> bool {
        mark().load(Ordering::Relaxed) == self.0
    }
}

impl Default for ForkGuard {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(
    clippy::expect_used,
    reason = "a process that cannot map one page or lacks Linux 4.14 cannot run at all"
)]
fn mark() -> &'static AtomicU64 {
    let page = MARK.get_or_init(|| {
        let page = MmapMut::map_anon(size_of::<AtomicU64>()).expect("map one anonymous page");
        // SAFETY: the range is exactly this mapping; the advice takes effect in forked children only.
        unsafe {
            madvise(
                page.as_ptr().cast_mut().cast(),
                page.len(),
                Advice::LinuxWipeOnFork,
            )
        }
        .expect("MADV_WIPEONFORK on an anonymous page");
        page
    });
    // SAFETY: the mapping is at least 8 bytes long, page aligned, lives for ever (it is in a static), and is
    // only ever accessed through this atomic.
    unsafe { &*page.as_ptr().cast::<AtomicU64>() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_not_at_home() {
        let guard = ForkGuard::new();
        assert!(guard.is_home());
        // SAFETY: the child only reads memory and leaves with _exit; it takes no lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = ForkGuard::new();
            let status = i32::from(guard.is_home() || !own.is_home() || own == guard);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place, `child` is our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw itself as its parent");
        assert!(guard.is_home());
    }
}
