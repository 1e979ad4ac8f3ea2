//! Files that have no name yet under which anybody would look for them.
//!
//! A writer is a process that has a directory open. It holds a lock on a file `.ondol-ID.writer` for as long as it lives, and what it
//! writes is called `.ondol-ID-N.tmp` until it is complete. Locks end with their process, also with one in another container, so
//! what is left of a dead writer can be told from what a living one is at.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use ondol_plugin::l2::ObjectKey;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, linkat, openat,
    renameat_with, statat, unlinkat,
};
use rustix::io::{Errno, Result};

use crate::place::{Home, Place, entries, is_file, open_plain, pass_over};

const FILE_MODE: u32 = 0o600;
const PREFIX: &str = ".ondol-";
const WRITER: &str = ".writer";
const DRAFT: &str = ".tmp";

/// LMCache's temporary files do not say whose they are: one that nobody has written to for so long is nobody's.
const LMCACHE_STALE: Duration = Duration::from_secs(3600);

/// The writer that this process is.
#[derive(Debug)]
pub(crate) struct Writer {
    id: String,
    /// The lock ends when this is closed.
    _lock: OwnedFd,
    next: AtomicU64,
}

/// A file that is being written. It vanishes unless it is published.
pub(crate) struct Draft<'a> {
    place: &'a Place,
    name: String,
    file: OwnedFd,
    is_direct: bool,
    is_published: bool,
}

impl Writer {
    pub(crate) fn new(place: &Place) -> Result<Self> {
        loop {
            let id = random_id();
            let flags =
                OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let lock = match openat(
                place.temporary(),
                writer_name(&id),
                flags,
                Mode::from(FILE_MODE),
            ) {
                Ok(lock) => lock,
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(error),
            };
            // Whoever sweeps may have taken it for a dead writer's before it was locked. On a file system without locks nobody can
            // tell that this writer is dead, and so nothing of it is removed.
            if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
                continue;
            }
            if fstat(&lock)?.st_nlink > 0 {
                return Ok(Self {
                    id,
                    _lock: lock,
                    next: AtomicU64::new(0),
                });
            }
        }
    }

    /// Begins a file; past the page cache if asked for and possible.
    pub(crate) fn draft<'a>(&self, place: &'a Place, direct: bool) -> Result<Draft<'a>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number:x}{DRAFT}", self.id);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = |flags| openat(place.temporary(), &*name, flags, Mode::from(FILE_MODE));
        let (file, is_direct) = if direct {
            match create(flags | OFlags::DIRECT) {
                Err(Errno::INVAL) => {
                    // Some file systems refuse only once they have made the file.
                    let _ = unlinkat(place.temporary(), &*name, AtFlags::empty());
                    (create(flags)?, false)
                }
                result => (result?, true),
            }
        } else {
            (create(flags)?, false)
        };
        Ok(Draft {
            place,
            name,
            file,
            is_direct,
            is_published: false,
        })
    }

    /// Says that this writer writes nothing any more.
    pub(crate) fn retire(&self, place: &Place) {
        let _ = unlinkat(place.temporary(), writer_name(&self.id), AtFlags::empty());
    }

    /// Removes what dead writers have left; how many files, and what belongs to writers that seem to live.
    pub(crate) fn sweep(&self, place: &Place, stop: &dyn Fn() -> bool) -> Result<(u64, Suspects)> {
        let mut writers: HashMap<String, Vec<String>> = HashMap::new();
        let mut removed = 0;
        let own_directory = place.has_own_temporary();
        for entry in entries(place.temporary(), ".")? {
            let entry = entry?;
            if stop() {
                break;
            }
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            match id_of(name) {
                Some(id) if id == self.id => {}
                Some(id) => {
                    let drafts = writers.entry(id.to_owned()).or_default();
                    if name.ends_with(DRAFT) {
                        drafts.push(name.to_owned());
                    }
                }
                None if is_lmcaches(name, own_directory) && is_old(place.temporary(), name) => {
                    removed += remove(place, name);
                }
                None => {}
            }
        }
        let mut suspects = Suspects(writers);
        removed += suspects.sweep(place);
        Ok((removed, suspects))
    }
}

/// Writers that seem to live, and what they are writing. The lock of one that was killed a moment ago may not have ended yet: the
/// kernel first ends what it did for it.
#[derive(Debug)]
pub(crate) struct Suspects(HashMap<String, Vec<String>>);

impl Suspects {
    /// Removes what is left of those that are dead; how many files.
    pub(crate) fn sweep(&mut self, place: &Place) -> u64 {
        let mut removed = 0;
        self.0.retain(|id, drafts| {
            let _lock = match fate(place.temporary(), id) {
                Fate::Lives => return true,
                Fate::Dead(lock) => lock,
                Fate::Unknown => {
                    pass_over(&place.temporary_path(&writer_name(id)));
                    return false;
                }
            };
            removed += drafts.iter().map(|draft| remove(place, draft)).sum::<u64>();
            // It goes last, as a draft without it is a dead writer's.
            remove(place, &writer_name(id));
            false
        });
        removed
    }

    /// Whether there are none whose files might still have to go.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Removes a file; how many that are.
fn remove(place: &Place, name: &str) -> u64 {
    u64::from(unlinkat(place.temporary(), name, AtFlags::empty()).is_ok())
}

impl Draft<'_> {
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether writes pass the page cache by.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Lets further writes go through the page cache.
    pub(crate) fn buffer(&mut self) -> Result<()> {
        self.is_direct = false;
        rustix::fs::fcntl_setfl(&self.file, OFlags::empty())
    }

    /// Gives the file its name; `false`, and the file vanishes, if another one has it.
    pub(crate) fn publish(mut self, home: &Home<'_>, name: &str) -> Result<bool> {
        let from = self.place.temporary();
        let renamed = renameat_with(from, &*self.name, home, name, RenameFlags::NOREPLACE);
        match renamed {
            Ok(()) => self.is_published = true,
            Err(Errno::EXIST) => {}
            // A file system that cannot rename without replacing can link.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                match linkat(from, &*self.name, home, name, AtFlags::empty()) {
                    Ok(()) => return Ok(true),
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
        Ok(self.is_published)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.is_published {
            let _ = unlinkat(self.place.temporary(), &*self.name, AtFlags::empty());
        }
    }
}

/// A number that no other writer has; collisions are found when the file is made.
pub(crate) fn random_id() -> String {
    format!("{:016x}", RandomState::new().hash_one(SystemTime::now()))
}

fn writer_name(id: &str) -> String {
    format!("{PREFIX}{id}{WRITER}")
}

/// The writer that a file belongs to.
fn id_of(name: &str) -> Option<&str> {
    let rest = name.strip_prefix(PREFIX)?;
    let id = match rest.strip_suffix(WRITER) {
        Some(id) => id,
        None => rest.strip_suffix(DRAFT)?.split_once('-')?.0,
    };
    (id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// What is known of a writer.
enum Fate {
    Lives,
    /// It is dead; with its lock if it has left the file.
    Dead(Option<OwnedFd>),
    /// Something else has the name of its lock, so nobody can tell.
    Unknown,
}

fn fate(directory: BorrowedFd<'_>, id: &str) -> Fate {
    match open_plain(directory, writer_name(id), OFlags::RDWR) {
        Ok(Some((lock, _))) => match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Fate::Dead(Some(lock)),
            Err(_) => Fate::Lives,
        },
        Ok(None) => Fate::Unknown,
        Err(Errno::NOENT) => Fate::Dead(None),
        Err(_) => Fate::Lives,
    }
}

fn is_lmcaches(name: &str, own_directory: bool) -> bool {
    let data = match name.strip_suffix(DRAFT) {
        Some(stem) => format!("{stem}.data"),
        None if own_directory => name.to_owned(),
        None => return false,
    };
    ObjectKey::from_file_name(&data).is_some()
}

fn is_old(directory: BorrowedFd<'_>, name: &str) -> bool {
    let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return false;
    };
    let written = Duration::from_secs(stat.st_mtime.max(0).cast_unsigned());
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + written);
    is_file(&stat) && age.is_ok_and(|age| age >= LMCACHE_STALE)
}
