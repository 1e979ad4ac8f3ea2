//! Who holds a directory that belongs to a server or a replay.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Whose a directory with a file `lock` is at this moment.
#[derive(Debug)]
pub(super) enum Hold {
    /// A process that runs, with its number where the file tells.
    Running(Option<u32>),
    /// Nobody; a process whose number this is had it last. Nobody takes it while there is a file here.
    Free(Option<u32>, Option<File>),
    /// Nobody ever.
    Never,
}

impl Hold {
    /// Looks at `dir/lock`, and makes none.
    pub(super) fn of(dir: &Path) -> io::Result<Self> {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(dir.join("lock"));
        let lock = match opened {
            Ok(lock) => lock,
            Err(error) if is_absence(&error) => return Ok(Self::Never),
            Err(error) => return Err(error),
        };
        let pid = io::read_to_string(&lock)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        match lock.try_lock_shared() {
            Ok(()) => Ok(Self::Free(pid, Some(lock))),
            Err(TryLockError::WouldBlock) => Ok(Self::Running(pid)),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Hold {
    /// Lets servers start again.
    pub(super) fn let_go(&mut self) {
        if let Self::Free(_, lock) = self {
            *lock = None;
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }
}

/// Whether there is nothing, rather than something that cannot be reached.
pub(super) fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
