//! Who holds a device, and which file is ours.
//!
//! Beside every named device lies a small lock file. While a server runs, it holds an exclusive `flock` on it.
//! Its text tells people and the next server who that is, and which file the device's name stood for:
//!
//! ```text
//! ondol-owner 1
//! pid 4711
//! start 815234
//! boot 0d5c7f0e-…
//! file 26 1037
//! pool 5d3b2a…
//! state /var/lib/ondol
//! run 91c03e…
//! end
//! ```
//!
//! `start` is the process's start time in clock ticks since boot; `file` is device and inode number of the file,
//! and stands only where the device is one file. A file at the device's name that no lock file names was not
//! made by us. `pool` and `state` stand where a log tells what the device holds, and say where that lies; `run` says when
//! the device was used last, and stands where no header in the device does.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::Duration;

use ondol_catalog::failpoint;
use ondol_shm::{ForkGuard, boot_id, process_start_time};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, ftruncate, open};
use rustix::io::Errno;

use super::{DeviceError, OpenOptions, PoolId, Predecessor, RunId, io_error, state};

const MAGIC: &str = "ondol-owner 1";

/// More than the longest record has.
const MAX_RECORD: usize = 16 << 10;

/// How often, and how long apart, a lock is tried that no other process is seen to hold: who only looks whether it is
/// held holds it for a moment.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// A file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    pub(super) dev: u64,
    pub(super) ino: u64,
}

impl FileId {
    pub(super) fn of(file: impl AsFd) -> io::Result<Self> {
        let stat = fstat(file)?;
        Ok(Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
        })
    }

    /// What `path` stands for now, links not followed; `None` if there is nothing.
    pub(super) fn at(path: &Path) -> io::Result<Option<Self>> {
        match rustix::fs::lstat(path) {
            Ok(stat) => Ok(Some(Self {
                dev: stat.st_dev,
                ino: stat.st_ino,
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Unlinks `path` if it stands for the file `id`; whatever took the name since then stays.
pub(super) fn unlink_ours(path: &Path, id: FileId) -> io::Result<()> {
    if FileId::at(path)? != Some(id) {
        return Ok(());
    }
    unlink(path)
}

/// Unlinks `path`, if it is there.
pub(super) fn unlink(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    failpoint!("device.unlink");
    Ok(())
}

/// Whether somebody holds the exclusive lock of a file. Others who ask at the same time do not disturb.
pub(super) fn is_locked(file: impl AsFd) -> Result<bool, Errno> {
    let ask = || flock(&file, FlockOperation::NonBlockingLockShared);
    match rustix::io::retry_on_intr(ask) {
        Ok(()) => flock(&file, FlockOperation::Unlock).map(|()| false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error),
    }
}

/// An open file with an exclusive lock on it.
#[derive(Debug)]
pub(super) struct LockedFile {
    file: OwnedFd,
    home: ForkGuard,
}

impl LockedFile {
    /// Takes the lock of an open file; `None` if somebody holds it.
    pub(super) fn try_lock(file: OwnedFd) -> io::Result<Option<Self>> {
        match rustix::io::retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Some(Self {
                file,
                home: ForkGuard::new(),
            })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether this is the process that took the lock, and not a child that it forked.
    pub(super) fn is_home(&self) -> bool {
        self.home.is_home()
    }
}

impl AsFd for LockedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing alone would leave the lock to a child that was just forked, until it execs. A child that drops
        // what it inherited must leave the lock to its parent.
        if self.is_home() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// The text of a lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnerRecord {
    pid: u32,
    start: u64,
    boot: String,
    /// The file that the device's name stood for.
    pub(super) file: Option<FileId>,
    pub(super) pool: Option<PoolId>,
    /// The state directory whose log tells what the device holds.
    pub(super) state: Option<PathBuf>,
    /// The run in which the device was used last.
    pub(super) run: Option<RunId>,
}

impl OwnerRecord {
    fn of_this_process(
        file: Option<FileId>,
        run: Option<RunId>,
        options: &OpenOptions,
    ) -> io::Result<Self> {
        let pid = process::id();
        Ok(Self {
            pid,
            start: process_start_time(pid)?,
            boot: boot_id()?,
            file,
            pool: options.pool,
            state: options.state.as_deref().map(state::full_path),
            run,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) {
            return None;
        }
        let (mut pid, mut start, mut boot) = (None, None, None);
        let (mut file, mut pool, mut state, mut run) = (None, None, None, None);
        for line in lines {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            match name {
                "pid" => pid = Some(value.parse().ok()?),
                "start" => start = Some(value.parse().ok()?),
                "boot" => boot = Some(value.to_owned()),
                "file" => {
                    let (dev, ino) = value.split_once(' ')?;
                    file = Some(FileId {
                        dev: dev.parse().ok()?,
                        ino: ino.parse().ok()?,
                    });
                }
                "pool" => pool = Some(value.parse().ok()?),
                "state" => state = Some(state::unescape(value)?),
                "run" => run = Some(value.parse().ok()?),
                // What follows is the rest of a longer record, if the writer was killed before it cut the file.
                "end" => {
                    return Some(Self {
                        pid: pid?,
                        start: start?,
                        boot: boot?,
                        file,
                        pool,
                        state,
                        run,
                    });
                }
                _ => return None,
            }
        }
        None
    }

    /// Whether the process that wrote this still lives, as far as can be seen from here.
    pub(super) fn is_visible_process(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot)
            && process_start_time(self.pid).is_ok_and(|start| start == self.start)
    }
}

impl fmt::Display for OwnerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{MAGIC}\npid {}\nstart {}\nboot {}",
            self.pid, self.start, self.boot
        )?;
        if let Some(file) = self.file {
            writeln!(f, "file {} {}", file.dev, file.ino)?;
        }
        if let Some(pool) = self.pool {
            writeln!(f, "pool {pool}")?;
        }
        if let Some(state) = &self.state {
            writeln!(f, "state {}", state::escape(state))?;
        }
        if let Some(run) = self.run {
            writeln!(f, "run {run}")?;
        }
        writeln!(f, "end")
    }
}

/// The lock of a device, held for as long as this value lives.
#[derive(Debug)]
pub(super) struct OwnerLock {
    path: PathBuf,
    id: FileId,
    file: LockedFile,
    /// What the last owner left.
    predecessor: Option<OwnerRecord>,
    /// Whether the lock file names nothing and goes when the lock does.
    disposable: bool,
}

impl OwnerLock {
    /// Locks `path`, the lock file of `device`.
    pub(super) fn acquire(path: PathBuf, device: &Path) -> Result<Self, DeviceError> {
        let failed = |source: io::Error| io_error("lock", &path, source);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut attempt = 1;
        loop {
            let created = open(
                &path,
                flags | OFlags::CREATE | OFlags::EXCL,
                Mode::RUSR | Mode::WUSR,
            );
            let (file, disposable) = match created {
                Ok(file) => (file, true),
                Err(Errno::EXIST) => match open(&path, flags, Mode::empty()) {
                    Ok(file) => (file, false),
                    Err(Errno::NOENT) => continue,
                    Err(error) => return Err(failed(error.into())),
                },
                Err(error) => return Err(failed(error.into())),
            };
            let id = FileId::of(&file).map_err(failed)?;
            let Some(file) = LockedFile::try_lock(file).map_err(failed)? else {
                let record = open(&path, flags, Mode::empty()).map(|file| read(&file));
                let record = record.ok().and_then(Result::ok).flatten();
                let is_seen = record.as_ref().is_some_and(|record| {
                    record.pid != process::id() && record.is_visible_process()
                });
                if attempt < LOCK_ATTEMPTS && !is_seen {
                    attempt += 1;
                    thread::sleep(LOCK_PAUSE);
                    continue;
                }
                return Err(in_use(device, record.as_ref()));
            };
            // Whoever held the lock may have unlinked the file meanwhile; then this lock guards nothing.
            if FileId::at(&path).map_err(failed)? != Some(id) {
                continue;
            }
            let predecessor = read(&file).map_err(failed)?;
            if predecessor.is_none() && fstat(&file).map_err(|e| failed(e.into()))?.st_size != 0 {
                return Err(DeviceError::Foreign {
                    path,
                    reason: format!(
                        "it is no lock file (expected a first line {MAGIC:?}), though its name says so"
                    ),
                });
            }
            failpoint!("device.lock");
            return Ok(Self {
                path,
                id,
                file,
                predecessor,
                disposable,
            });
        }
    }

    /// What the last owner left; `None` if the lock file is new.
    pub(super) fn predecessor(&self) -> Option<&OwnerRecord> {
        self.predecessor.as_ref()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a device whose bytes another state directory has a use for.
    pub(super) fn check_reserved(
        &self,
        device: &Path,
        options: &OpenOptions,
    ) -> Result<(), DeviceError> {
        match &self.predecessor {
            Some(record) => check_reserved(device, record.pool, record.state.as_deref(), options),
            None => Ok(()),
        }
    }

    /// Writes that this process owns the device, which is now `file`, and was last used in `run`.
    pub(super) fn record(
        &self,
        file: Option<FileId>,
        run: Option<RunId>,
        options: &OpenOptions,
    ) -> Result<(), DeviceError> {
        OwnerRecord::of_this_process(file, run, options)
            .and_then(|record| self.write(&record))
            .map_err(|source| io_error("write", &self.path, source))?;
        failpoint!("device.record");
        Ok(())
    }

    /// Writes that the device is used in `run` from now on.
    pub(super) fn set_run(&self, run: RunId) -> Result<(), DeviceError> {
        self.check_home()?;
        let write = || {
            let record = read(&self.file)?;
            let mut record = record
                .ok_or_else(|| io::Error::other("somebody else has written to this lock file"))?;
            record.run = Some(run);
            self.write(&record)
        };
        write().map_err(|source| io_error("write", &self.path, source))
    }

    fn write(&self, record: &OwnerRecord) -> io::Result<()> {
        let text = record.to_string();
        let written = rustix::io::pwrite(&self.file, text.as_bytes(), 0)?;
        if written != text.len() {
            return Err(Errno::NOSPC.into());
        }
        ftruncate(&self.file, text.len() as u64)?;
        // On a disk the record must not be lost while the files that it names are kept.
        rustix::fs::fsync(&self.file)?;
        Ok(())
    }

    /// Whether the lock file is unlinked with this value, as there is nothing left that it could name.
    pub(super) fn set_disposable(&mut self, disposable: bool) {
        self.disposable = disposable;
    }

    /// Whether the lock file still has its name, so that the lock keeps others away.
    pub(super) fn is_in_place(&self) -> bool {
        FileId::at(&self.path).is_ok_and(|found| found == Some(self.id))
    }

    /// Refuses to act in a forked child, which has a copy of this value but is not the owner.
    pub(super) fn check_home(&self) -> Result<(), DeviceError> {
        if self.file.is_home() {
            return Ok(());
        }
        let reason = "this is a forked child of the process that owns the device";
        Err(io_error("change", &self.path, io::Error::other(reason)))
    }

    /// Unlinks the lock file. The lock stays, but no longer keeps others from the name.
    pub(super) fn remove(&self) -> Result<(), DeviceError> {
        self.check_home()?;
        unlink_ours(&self.path, self.id).map_err(|source| io_error("remove", &self.path, source))
    }

    /// The error for a file that somebody locks although this value holds the device's lock.
    pub(super) fn also_in_use(&self, device: &Path) -> DeviceError {
        in_use(device, self.predecessor.as_ref())
    }
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        if self.disposable
            && self.file.is_home()
            && let Err(error) = self.remove()
        {
            tracing::warn!(%error, "a lock file is left behind");
        }
    }
}

/// Refuses a device of `pool` if the log in `state`, which is another server's directory, tells what it holds.
pub(super) fn check_reserved(
    device: &Path,
    pool: Option<PoolId>,
    state: Option<&Path>,
    options: &OpenOptions,
) -> Result<(), DeviceError> {
    let Some(state) = state else {
        return Ok(());
    };
    let is_ours = options
        .state
        .as_deref()
        .is_some_and(|ours| state::is_same(ours, state));
    if is_ours || options.predecessor == Predecessor::Replace || !state::has_log_of(state, pool) {
        return Ok(());
    }
    Err(DeviceError::Reserved {
        path: device.to_owned(),
        state: state.to_owned(),
    })
}

/// The text of a lock file; `None` if it is none.
pub(super) fn read(file: impl AsFd) -> io::Result<Option<OwnerRecord>> {
    let mut buffer = [0; MAX_RECORD];
    let len = rustix::io::pread(file, &mut buffer, 0)?;
    Ok(std::str::from_utf8(&buffer[..len])
        .ok()
        .and_then(OwnerRecord::parse))
}

fn in_use(device: &Path, record: Option<&OwnerRecord>) -> DeviceError {
    let owner = match record {
        Some(record) if record.is_visible_process() => format!("process {}", record.pid),
        Some(record) => format!(
            "another process (the lock file names process {}, which cannot be seen from here; `lslocks` may tell)",
            record.pid
        ),
        None => "another process (`lslocks` tells which)".to_owned(),
    };
    DeviceError::InUse {
        path: device.to_owned(),
        owner,
        pid: record.map(|record| record.pid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_the_rest_of_a_longer_one_is_ignored() {
        let with_log = OpenOptions {
            pool: Some(PoolId([7; 16])),
            state: Some(PathBuf::from("/no such/place\nend")),
            ..OpenOptions::default()
        };
        for (file, run, options) in [
            (None, None, &OpenOptions::default()),
            (
                Some(FileId { dev: 26, ino: 1037 }),
                Some(RunId(0x91)),
                &with_log,
            ),
        ] {
            let record = OwnerRecord::of_this_process(file, run, options).unwrap();
            assert_eq!((record.pool, &record.state), (options.pool, &options.state));
            assert_eq!(
                OwnerRecord::parse(&record.to_string()),
                Some(record.clone())
            );
            let torn = format!("{record}1037\nend\n");
            assert_eq!(OwnerRecord::parse(&torn), Some(record));
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let record = OwnerRecord::of_this_process(None, None, &OpenOptions::default());
        let record = record.unwrap().to_string();
        for text in [
            "",
            "hello\n",
            record.trim_end().strip_suffix("end").unwrap(),
            &record.replace("owner 1", "owner 2"),
            &record.replace("pid ", "pid x"),
            &record.replace("end", "pool 12\nend"),
            &record.replace("end", "state %\nend"),
            &record.replace("end", "run 12\nend"),
        ] {
            assert_eq!(OwnerRecord::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_lock_ends_with_its_owner_though_a_child_inherited_the_descriptor() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.owner");
        let lock = OwnerLock::acquire(path.clone(), &path).unwrap();
        // What `fork` leaves in a child until it execs.
        let inherited = rustix::io::dup(&lock.file).unwrap();
        drop(lock);
        OwnerLock::acquire(path.clone(), &path).unwrap();
        drop(inherited);
    }

    #[test]
    fn a_lock_that_is_unlinked_as_it_goes_is_still_held_by_one_at_a_time() {
        use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.owner");
        let (held, times) = (AtomicBool::new(false), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while times.load(Ordering::Relaxed) < 2000 {
                        let Ok(mut lock) = OwnerLock::acquire(path.clone(), &path) else {
                            continue;
                        };
                        assert!(!held.swap(true, Ordering::SeqCst), "held twice");
                        times.fetch_add(1, Ordering::Relaxed);
                        lock.set_disposable(true);
                        held.store(false, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
