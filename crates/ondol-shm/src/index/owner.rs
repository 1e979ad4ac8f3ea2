//! Whether the server that keeps an index still lives, in a word of the index.
//!
//! A server that is killed says nothing, and a client cannot look for it without a system call. So a thread of the server
//! tells the kernel that the word is a *robust futex* which it holds (`set_robust_list(2)`): however that thread ends, the
//! kernel marks the word. It does so before anybody can wait for the process.

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use crate::ForkGuard;

/// Whether the thread that the word names has not ended; 0 names none.
#[inline]
pub(super) fn is_kept(word: &AtomicU32) -> bool {
    let word = word.load(Ordering::Relaxed);
    word != 0 && word & libc::FUTEX_OWNER_DIED == 0
}

/// Keeps a word marked as that of a living process.
#[derive(Debug)]
pub(super) struct OwnerMark {
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    home: ForkGuard,
}

/// A futex that a thread holds, as the kernel's `struct robust_list`.
#[repr(C)]
struct Held {
    next: Cell<*const Self>,
}

/// The futexes that a thread holds, as the kernel's `struct robust_list_head`.
#[repr(C)]
struct HeldHead {
    first: Held,
    /// From a `Held` to its word.
    word_offset: libc::c_long,
    pending: *const Held,
}

/// A word that a thread may use beyond the borrow that it comes from.
struct Word(*const AtomicU32);

// SAFETY: the word is an atomic; `OwnerMark::start`'s caller vouches for its life.
unsafe impl Send for Word {}

impl OwnerMark {
    /// Marks the word until the result is dropped or the process ends.
    ///
    /// # Safety
    /// The word stays mapped for writing until the result is dropped, and only this and [`is_kept`] access it.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) unsafe fn start(word: &AtomicU32) -> io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let (started, has_started) = channel();
        let word = Word(word);
        let keep = move || {
            let Word(address) = { word };
            // SAFETY: the caller keeps the word until this thread has ended.
            let word = unsafe { &*address };
            hold(word, || {
                let _ = started.send(());
                // An error: the other end is gone, as it is to be.
                let _ = stopped.recv();
            });
        };
        let thread = thread::Builder::new()
            .name("ondol-owner".to_owned())
            .stack_size(64 << 10)
            .spawn(keep)?;
        let mark = Self {
            stop: Some(stop),
            thread: Some(thread),
            home: ForkGuard::new(),
        };
        has_started.recv().map_err(io::Error::other)?;
        Ok(mark)
    }
}

impl Drop for OwnerMark {
    fn drop(&mut self) {
        let (stop, thread) = (self.stop.take(), self.thread.take());
        // The thread is the parent's, which a forked child cannot wait for.
        if !self.home.is_home() {
            let _ = ManuallyDrop::new((stop, thread));
            return;
        }
        drop(stop);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// Calls `wait` while the word is this thread's.
fn hold(word: &AtomicU32, wait: impl FnOnce()) {
    let held = Held {
        next: Cell::new(ptr::null()),
    };
    let entry = &raw const held;
    let head = HeldHead {
        first: Held {
            next: Cell::new(entry),
        },
        word_offset: ptr::from_ref(word).addr().wrapping_sub(entry.addr()) as libc::c_long,
        pending: ptr::null(),
    };
    // The list is a ring.
    held.next.set(&raw const head.first);
    let before = robust_list().unwrap_or(ptr::null());
    // SAFETY: asks for the caller's own number.
    let own = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    word.store(own, Ordering::Relaxed);
    // Without it a server that is killed is noticed later.
    let _ = set_robust_list(&raw const head);
    wait();
    let _ = set_robust_list(before);
    word.store(0, Ordering::Relaxed);
}

/// What the thread's list was, which is the C library's.
fn robust_list() -> Option<*const HeldHead> {
    let mut head: *const HeldHead = ptr::null();
    let mut len: usize = 0;
    // SAFETY: both places are valid for what the call writes: a pointer and a length.
    let result =
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut len) };
    (result == 0).then_some(head)
}

fn set_robust_list(head: *const HeldHead) -> io::Result<()> {
    // SAFETY: the list is the C library's own, or none, or one that lives until it is replaced by either; the kernel looks
    // at it when the thread ends.
    match unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<HeldHead>()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WriteMapping;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::io::Read;
    use std::os::fd::{AsFd, AsRawFd};
    use std::process::{Command, Stdio};

    const FILE: &str = "ONDOL_TEST_OWNED_FILE";

    fn word(mapping: &WriteMapping) -> &AtomicU32 {
        // SAFETY: the mapping is at least as long, begins at a page and is accessed through this only.
        unsafe { &*mapping.word(0).cast() }
    }

    /// The other process: keeps the word until it is killed. Run by itself, it does nothing.
    #[test]
    fn entry() {
        let Some(path) = std::env::var_os(FILE) else {
            return;
        };
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).open(path).unwrap();
        let mapping = WriteMapping::new(file.as_fd(), 8).unwrap();
        // SAFETY: the mapping is dropped after the mark.
        let mark = unsafe { OwnerMark::start(word(&mapping)) }.unwrap();
        println!("\nkept");
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
        drop(mark);
        println!("\nleft");
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }

    /// A process that keeps the word, and the mapping of it.
    fn kept_elsewhere() -> (WriteMapping, std::process::Child) {
        let file = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "index::owner::tests::entry", "--nocapture"])
            .env(FILE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut text = Vec::new();
        let out = child.stdout.as_mut().unwrap();
        while !text.ends_with(b"\nkept\n") {
            let mut byte = [0];
            assert_eq!(out.read(&mut byte).unwrap(), 1, "{text:?}");
            text.push(byte[0]);
        }
        let mapping = WriteMapping::new(file.as_fd(), 8).unwrap();
        (mapping, child)
    }

    #[test]
    fn a_process_that_was_killed_keeps_nothing() {
        let (mapping, mut child) = kept_elsewhere();
        assert!(is_kept(word(&mapping)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_kept(word(&mapping)));
        assert_ne!(
            word(&mapping).load(Ordering::Relaxed),
            0,
            "marked, not cleared"
        );
    }

    #[test]
    fn a_process_that_ends_keeps_nothing() {
        let (mapping, mut child) = kept_elsewhere();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_kept(word(&mapping)));
    }

    #[test]
    fn a_mark_is_there_as_long_as_its_owner() {
        let word = AtomicU32::new(0);
        assert!(!is_kept(&word));
        // SAFETY: the word lives longer than the mark.
        let mark = unsafe { OwnerMark::start(&word) }.unwrap();
        assert!(is_kept(&word));
        drop(mark);
        assert!(!is_kept(&word));
    }

    #[test]
    fn a_forked_child_leaves_the_mark_to_its_parent() {
        let word = AtomicU32::new(0);
        // SAFETY: the word lives longer than the mark.
        let mark = unsafe { OwnerMark::start(&word) }.unwrap();
        // SAFETY: the child drops the mark, which does nothing there, and leaves with _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(mark);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place, `child` is our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(is_kept(&word));
    }
}
