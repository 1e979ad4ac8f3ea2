use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that becomes readable when somebody is to look: an eventfd.
///
/// Make what is to be seen visible first, then [`notify`](Self::notify).
#[derive(Debug)]
pub struct EventNotifier(OwnedFd);

impl EventNotifier {
    /// A descriptor that is not readable yet.
    ///
    /// # Errors
    /// If the system has none left.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self(eventfd(0, flags)?))
    }

    /// Makes the descriptor readable. Signals that nobody has seen yet become one.
    pub fn notify(&self) {
        // It fails only when the counter is full, and then the descriptor is readable.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable; whether it was readable.
    pub fn consume(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for EventNotifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
