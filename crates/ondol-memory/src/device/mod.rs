//! Memory devices: where the bytes of a pool lie.
//!
//! A device is opened once, by the server, and stays locked for the server's life. Its backings are allocated
//! when it is opened, so that no access faults later for want of memory or disk, and are never shrunk.
//!
//! Every kind with a name has a lock file, described in `owner.rs`: `/dev/shm/NAME.owner` for `shm:NAME`,
//! `ondol.owner` in the directory of a `dir:` device, and for `hugetlb:/dev/hugepages/NAME` and `dax:/dev/dax0.0`
//! the files `dev-hugepages-NAME.hugetlb-owner` and `dax0.0.dax-owner` in `/dev/shm`.

mod allocate;
mod dax;
mod dir;
mod header;
mod hugetlb;
mod identity;
mod leftovers;
mod memfd;
mod named;
mod owner;
mod report;
mod room;
mod shm;
mod state;
mod strays;
#[cfg(test)]
mod tests;
mod uri;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ondol_catalog::failpoint;
use ondol_shm::{ReadMapping, write_back};
use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, OFlags, fchmod, fdatasync, fstat, openat};
use rustix::io::Errno;

use crate::size::format_size;
use allocate::Filled;
use identity::FileRecord;
pub use identity::{DeviceRecord, PoolId, PoolIdError, Predecessor, RunId, RunIdError};
pub use leftovers::{Leftover, Standing, find_leftover_dir, find_leftovers};
use owner::{FileId, LockedFile};
pub use strays::{Strays, find_strays};
pub use uri::{DEFAULT_SHM_NAME, DeviceUri, UriError};

/// Regions begin at multiples of this, so that huge pages can back them.
const MIN_ALIGNMENT: u64 = 2 << 20;

/// Where devices look for the system's files; tests put other roots here.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceEnv {
    /// Where `shm:` files lie, and the lock files of `hugetlb:` and `dax:` devices.
    pub shm_root: PathBuf,
    /// Where sysfs is mounted.
    pub sysfs_root: PathBuf,
    /// Where procfs is mounted.
    pub proc_root: PathBuf,
    /// Whether a plain file may stand in for a character device.
    pub plain_file_as_dax: bool,
}

impl Default for DeviceEnv {
    fn default() -> Self {
        Self {
            shm_root: PathBuf::from("/dev/shm"),
            sysfs_root: PathBuf::from("/sys"),
            proc_root: PathBuf::from("/proc"),
            plain_file_as_dax: false,
        }
    }
}

/// How a device is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Permission bits of the files; 0600 unless clients of other users shall map them.
    pub mode: u32,
    /// Group id that the files are given, for clients of other users.
    pub group: Option<u32>,
    /// The pool that the device belongs to from now on.
    pub pool: Option<PoolId>,
    /// The state directory that will hold the log of the pool.
    pub state: Option<PathBuf>,
    /// What is to become of what an earlier server left.
    pub predecessor: Predecessor,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            mode: 0o600,
            group: None,
            pool: None,
            state: None,
            predecessor: Predecessor::Unknown,
        }
    }
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The system refused a call.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process holds the device.
    #[error(
        "{} is in use by {owner}; stop that process or choose another name", path.display()
    )]
    InUse {
        /// The file that is in use.
        path: PathBuf,
        /// Who holds it, in words.
        owner: String,
        /// Its process id, where its lock file tells.
        pid: Option<u32>,
    },
    /// The name belongs to somebody else.
    #[error(
        "{} exists, but {reason}, so it is left alone; choose another name, or delete it if nothing needs it", path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// How that was seen.
        reason: String,
    },
    /// Another server, which is stopped, will come back for the device.
    #[error(
        "{} belongs to the stopped server of {}, whose log tells what it holds; start that one, choose another name, or give up what is cached there with `ondol serve --fresh`", path.display(), state.display()
    )]
    Reserved {
        /// The file.
        path: PathBuf,
        /// The other server's state directory.
        state: PathBuf,
    },
    /// The files cannot be given to the group that was asked for.
    #[error(
        "cannot give {} to group {group}: {source}; add the server's user to that group, run the server as root, or choose a group that the user is in", path.display()
    )]
    Group {
        /// The file.
        path: PathBuf,
        /// The group's id.
        group: u32,
        /// The system's answer.
        source: io::Error,
    },
    /// The file system has not enough room.
    #[error(
        "{device} needs {asked}; free in {}: {free}; choose a smaller size or make room", root.display()
    )]
    NoSpace {
        /// The device.
        device: DeviceUri,
        /// Where room is missing.
        root: PathBuf,
        /// Bytes asked for, in words.
        asked: String,
        /// Bytes free, in words.
        free: String,
    },
    /// The machine has not enough memory.
    #[error(
        "{device} needs {asked} of memory, but {limit} leaves only {available}; choose a smaller size"
    )]
    NoMemory {
        /// The device.
        device: DeviceUri,
        /// Bytes asked for, in words.
        asked: String,
        /// Bytes available, in words.
        available: String,
        /// Which limit counts.
        limit: String,
    },
    /// The device is not the one that the log tells of.
    #[error(
        "{device} is not as the last server left it: {found}; expected {expected}; bring back what was there, or give up what was cached and start empty with `ondol serve --fresh`"
    )]
    Changed {
        /// The device.
        device: DeviceUri,
        /// What was found.
        found: String,
        /// What the log says.
        expected: String,
    },
    /// The device does not fit what the system has.
    #[error("{device}: {reason}")]
    Unusable {
        /// The device.
        device: DeviceUri,
        /// What was found, what was expected, and what to do.
        reason: String,
    },
}

/// An opened memory device, locked for as long as this value lives.
#[derive(Debug)]
pub struct Device {
    uri: DeviceUri,
    backings: Vec<Backing>,
    alignment: u64,
    page_size: u64,
    whole_backing_regions: bool,
    volatile: bool,
    kept: bool,
    /// How a new device came by its memory, or its place on a disk.
    filled: Option<Filled>,
    run: Mutex<Option<RunId>>,
    // After the backings, so that the lock goes last.
    hold: Hold,
}

/// What keeps a device this process's.
#[derive(Debug)]
enum Hold {
    Nothing,
    Name(named::NameClaim),
    Dir(dir::DirClaim),
    Dax(owner::OwnerLock),
}

impl Device {
    /// Opens a device: locks it, and keeps what a dead predecessor left, or replaces it by new files of which every byte
    /// is allocated. No file is ever shrunk or rewritten in place, as clients may map it; what is replaced is unlinked.
    ///
    /// # Errors
    /// [`DeviceError`]; then no new file is left behind, and nobody else's is touched. A device that cannot be kept is
    /// left as it is.
    pub fn open(
        uri: &DeviceUri,
        env: &DeviceEnv,
        options: &OpenOptions,
    ) -> Result<Self, DeviceError> {
        let device = Self::open_kind(uri, env, options)
            .map_err(|error| explain_want_of_room(error, uri, env))?;
        report::log(&device, env);
        Ok(device)
    }

    fn open_kind(
        uri: &DeviceUri,
        env: &DeviceEnv,
        options: &OpenOptions,
    ) -> Result<Self, DeviceError> {
        if let Predecessor::Keep(record) = &options.predecessor
            && record.uri.scheme() != uri.scheme()
        {
            return Err(changed(
                uri,
                format!("a {}: device is asked for", uri.scheme()),
                record.uri.to_string(),
            ));
        }
        match uri {
            DeviceUri::Shm { name, size } => shm::open(uri, name, *size, env, options),
            DeviceUri::Memfd { name, size } => memfd::open(uri, name, *size, env),
            DeviceUri::Hugetlb { path, size } => hugetlb::open(uri, path, *size, env, options),
            DeviceUri::Dir { path, size, region } => {
                dir::open(uri, path, *size, *region, env, options)
            }
            DeviceUri::Dax { path, size } => dax::open(uri, path, *size, env, options),
        }
    }

    /// The device's name, with the size it really has where the name left it open.
    pub fn uri(&self) -> &DeviceUri {
        &self.uri
    }

    /// The files of the device; at least one.
    pub fn backings(&self) -> &[Backing] {
        &self.backings
    }

    /// What offset and length of a region must be multiples of, unless a region is a whole backing.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Size of the pages of memory under the device.
    pub fn page_size(&self) -> u64 {
        self.page_size
    }

    /// Whether a region is exactly a backing (`dir:`) and not a part of one.
    pub fn whole_backing_regions(&self) -> bool {
        self.whole_backing_regions
    }

    /// Whether the bytes are gone after a reboot at the latest.
    pub fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// Whether the bytes stay when this process ends.
    pub fn outlives_process(&self) -> bool {
        !matches!(self.uri, DeviceUri::Memfd { .. })
    }

    /// Whether the bytes are those that the last server left: then the device was opened under [`Predecessor::Keep`].
    /// Otherwise they are new, and nothing that a log says of them holds.
    pub fn was_kept(&self) -> bool {
        self.kept
    }

    /// What a log must remember for [`Predecessor::Keep`].
    pub fn record(&self) -> DeviceRecord {
        DeviceRecord {
            uri: self.uri.clone(),
            volatile: self.volatile,
            files: self.backings.iter().map(Backing::record).collect(),
            runs: self.run().into_iter().collect(),
        }
    }

    /// The run that the device names; `None` if it is new, or was last used by a version that did not name runs.
    pub fn run(&self) -> Option<RunId> {
        *self.run.lock()
    }

    /// Writes to the device that it is used in `run` from now on, so that no record of an earlier run fits it any more.
    /// The record that the next server will read must list that run before, by [`DeviceRecord::expect_runs`].
    ///
    /// # Errors
    /// [`DeviceError::Io`] if the system refuses. Then the device names the new run or the one before.
    pub fn set_run(&self, run: RunId) -> Result<(), DeviceError> {
        let mut last = self.run.lock();
        match &self.hold {
            // Nobody can find it once this process is gone.
            Hold::Nothing => return Ok(()),
            Hold::Name(claim) => claim.set_run(run)?,
            Hold::Dir(claim) => claim.set_run(run)?,
            Hold::Dax(lock) => {
                for backing in &self.backings {
                    dax::set_run(lock, backing, run)?;
                }
            }
        }
        failpoint!("device.run_set");
        *last = Some(run);
        Ok(())
    }

    /// Makes every byte durable, as far as the device can: nothing is done for one that is memory.
    ///
    /// # Errors
    /// [`DeviceError::Io`] if the system cannot write; then nothing is known of the bytes since the last success.
    pub fn sync(&self) -> Result<(), DeviceError> {
        self.backings.iter().try_for_each(|backing| {
            let path = backing.path().unwrap_or(Path::new("memory"));
            backing
                .sync()
                .map_err(|source| io_error("sync", path, source))
        })
    }

    /// Bytes that regions can lie in.
    pub fn capacity(&self) -> u64 {
        self.backings
            .iter()
            .map(|backing| backing.usable.end - backing.usable.start)
            .sum()
    }

    /// Unlinks the device's files, for users who want nothing to stay. Mappings of them stay valid. Without this
    /// call the files of all kinds but `memfd:` outlive the value and the process. A `dax:` device is not touched.
    ///
    /// # Errors
    /// If the system refuses to unlink one.
    pub fn remove_files(&self) -> Result<(), DeviceError> {
        match &self.hold {
            Hold::Nothing => Ok(()),
            Hold::Name(claim) => claim.remove_files(),
            Hold::Dir(claim) => claim.remove_files(),
            Hold::Dax(lock) => lock.remove(),
        }
    }
}

/// One file or character device that regions lie in.
#[derive(Debug)]
pub struct Backing {
    path: Option<PathBuf>,
    len: u64,
    usable: Range<u64>,
    source: Source,
    medium: Medium,
    id: FileId,
}

/// How a backing is reached.
#[derive(Debug)]
enum Source {
    Held(OwnedFd),
    Locked(LockedFile),
    /// By its path: a `dir:` device may have more files than a process may have descriptors.
    ByPath,
}

/// What a backing is made of.
#[derive(Debug)]
enum Medium {
    /// Memory that is gone after a reboot at the latest.
    Memory,
    /// A file on a disk, or on anything else that the system itself makes durable.
    Disk { has_failed: AtomicBool },
    /// A character device of memory, mapped.
    Dax(ReadMapping),
}

impl Backing {
    /// Its path, where it has one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Bytes to map, from its start.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: a device without a byte cannot be opened.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that regions may lie in; starts behind the header block of a `dax:` device.
    pub fn usable(&self) -> Range<u64> {
        self.usable.clone()
    }

    /// Makes every byte durable: `fdatasync` for a file on a disk, writing back of cached lines for a `dax:` device,
    /// nothing for memory. For parts of a large `dax:` device see [`Backing::sync_ranges`].
    ///
    /// # Errors
    /// If the system cannot write, or the file of a `dir:` device was removed or replaced; then nothing is known of
    /// the bytes since the last success. A file that could not be written once fails from then on: the system tells of
    /// such a failure once, and forgets which bytes it lost.
    pub fn sync(&self) -> io::Result<()> {
        self.sync_ranges(std::iter::once(0..self.len))
    }

    /// [`Backing::sync`] for the bytes of `ranges`, which cost less than all only on a `dax:` device.
    ///
    /// # Errors
    /// As [`Backing::sync`], and if a range does not lie in a `dax:` device.
    pub fn sync_ranges(&self, mut ranges: impl Iterator<Item = Range<u64>>) -> io::Result<()> {
        failpoint!("device.sync", Err(io::Error::other("a failpoint said so")));
        match &self.medium {
            Medium::Memory => Ok(()),
            Medium::Disk { has_failed } => {
                if has_failed.load(Ordering::Relaxed) {
                    return Err(io::Error::other(
                        "the file could not be written before, so that not all of it may be on the disk; restart the server once the disk works",
                    ));
                }
                let file = self.open_read()?;
                Ok(fdatasync(file).inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?)
            }
            Medium::Dax(mapping) => ranges.try_for_each(|range| write_back(mapping, range)),
        }
    }

    fn record(&self) -> FileRecord {
        FileRecord {
            len: self.len,
            inode: (!matches!(self.medium, Medium::Dax(_))).then_some(self.id.ino),
        }
    }

    /// A new descriptor that cannot be mapped for writing. It carries no lock, so it may be given to clients.
    ///
    /// # Errors
    /// If the system has no descriptor left, or the file of a `dir:` device was removed or replaced.
    pub fn open_read(&self) -> io::Result<OwnedFd> {
        self.reopen(OFlags::RDONLY)
    }

    /// A new descriptor to map for writing. It carries no lock, so it may be given to clients.
    ///
    /// # Errors
    /// If the system has no descriptor left, or the file of a `dir:` device was removed or replaced.
    pub fn open_write(&self) -> io::Result<OwnedFd> {
        self.reopen(OFlags::RDWR)
    }

    /// A duplicate would share access mode and lock with the original; a file opened anew shares neither.
    fn reopen(&self, access: OFlags) -> io::Result<OwnedFd> {
        let flags = access | OFlags::CLOEXEC;
        match &self.source {
            Source::Held(file) => reopen(file.as_fd(), flags),
            Source::Locked(file) => reopen(file.as_fd(), flags),
            Source::ByPath => {
                let path = self.path.as_deref().unwrap_or(Path::new(""));
                let file = openat(CWD, path, flags | OFlags::NOFOLLOW, Mode::empty())?;
                if FileId::of(&file)? != self.id {
                    return Err(io::Error::other(format!(
                        "{} was replaced by another file since the device was opened",
                        path.display()
                    )));
                }
                Ok(file)
            }
        }
    }
}

fn reopen(file: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> DeviceError {
    DeviceError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

fn unusable(device: &DeviceUri, reason: String) -> DeviceError {
    DeviceError::Unusable {
        device: device.clone(),
        reason,
    }
}

fn changed(
    device: &DeviceUri,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> DeviceError {
    DeviceError::Changed {
        device: device.clone(),
        found: found.into(),
        expected: expected.into(),
    }
}

/// Refuses a device that the owner's record or header does not show to be of our pool.
fn check_pool(
    device: &DeviceUri,
    found: Option<PoolId>,
    options: &OpenOptions,
) -> Result<(), DeviceError> {
    if found == options.pool {
        return Ok(());
    }
    let words = |pool: Option<PoolId>| {
        pool.map_or_else(|| "no pool".to_owned(), |pool| format!("pool {pool}"))
    };
    Err(changed(
        device,
        format!("it belongs to {}", words(found)),
        words(options.pool),
    ))
}

/// Refuses a device that was used since the record was written, or another one in its place. One that names no run was
/// last used by a version that did not name runs.
fn check_run(
    device: &DeviceUri,
    found: Option<RunId>,
    record: &DeviceRecord,
) -> Result<(), DeviceError> {
    let Some(found) = found.filter(|run| !record.runs.contains(run)) else {
        return Ok(());
    };
    let known = match &record.runs[..] {
        [] => "none".to_owned(),
        runs => {
            let runs: Vec<_> = runs.iter().map(|run| format!("run {run}")).collect();
            runs.join(" or ")
        }
    };
    Err(changed(
        device,
        format!("it was last used in run {found}"),
        format!(
            "{known}, the last one that the state directory knows: that is an older copy, or the device was used with \
             another one since. Its log does not tell what the device holds now"
        ),
    ))
}

/// Opens the file of the record, or refuses what is in its place.
fn open_kept(
    device: &DeviceUri,
    path: &Path,
    volatile: bool,
    expected: FileRecord,
) -> Result<OwnedFd, DeviceError> {
    let shown = path.display();
    let other = |what: &str| changed(device, format!("{shown} is {what}"), "the file of the pool");
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Err(other("gone")),
        Err(Errno::LOOP) => return Err(other("a symbolic link")),
        Err(Errno::ISDIR | Errno::NXIO) => return Err(other("no plain file")),
        Err(error) => return Err(io_error("open", path, error.into())),
    };
    let found = fstat(&file).map_err(|error| io_error("examine", path, error.into()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(other("no plain file"));
    }
    if let Some(inode) = expected.inode
        && inode != found.st_ino
    {
        return Err(changed(
            device,
            format!("{shown} is another file, inode {}", found.st_ino),
            format!("inode {inode}"),
        ));
    }
    if found.st_size as u64 != expected.len {
        return Err(changed(
            device,
            format!("{shown} has {} bytes", found.st_size),
            format!("{} bytes", expected.len),
        ));
    }
    // Who writes to a hole when memory is full is killed. On a disk the system may compress what looks like one.
    if volatile && (found.st_blocks as u64).saturating_mul(512) < expected.len {
        return Err(changed(
            device,
            format!("parts of {shown} were cut out"),
            "a file without holes",
        ));
    }
    Ok(file)
}

/// Gives a file the permissions and the group that were asked for, where it has others.
fn set_access(file: impl AsFd, path: &Path, options: &OpenOptions) -> Result<(), DeviceError> {
    let failed = |error: Errno| io_error("set the permissions of", path, error.into());
    let found = fstat(&file).map_err(failed)?;
    if let Some(group) = options.group
        && group != found.st_gid
    {
        std::os::unix::fs::fchown(&file, None, Some(group)).map_err(|source| {
            DeviceError::Group {
                path: path.to_owned(),
                group,
                source,
            }
        })?;
    }
    // The mask of the process does not apply to what was asked for.
    if found.st_mode & 0o7777 != options.mode {
        fchmod(&file, Mode::from_raw_mode(options.mode)).map_err(failed)?;
    }
    Ok(())
}

fn is_want_of_room(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSPC | Errno::NOMEM | Errno::DQUOT)
    )
}

/// Says how much was asked for where the system only says that there is no room. The device's files are gone by
/// now, so what is free is counted without the part that was allocated.
fn explain_want_of_room(error: DeviceError, uri: &DeviceUri, env: &DeviceEnv) -> DeviceError {
    let DeviceError::Io { source, .. } = &error else {
        return error;
    };
    let (root, size) = match uri {
        _ if !is_want_of_room(source) => return error,
        DeviceUri::Shm { size, .. } => (&env.shm_root, *size),
        DeviceUri::Dir { path, size, .. } => (path, Some(*size)),
        _ => return error,
    };
    let Ok(free) = room::free_bytes(root) else {
        return error;
    };
    DeviceError::NoSpace {
        device: uri.clone(),
        root: root.clone(),
        asked: size.map_or_else(|| "its default size".to_owned(), format_size),
        free: if size.is_some_and(|size| size <= free) {
            let free = format_size(free);
            format!("{free} (now; it ran out of blocks, inodes or quota before)")
        } else {
            format_size(free)
        },
    }
}

fn base_page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Size of the pages that back a file of memory; the kernel gives it as the file's best unit of I/O.
fn page_size_of(file: impl AsFd, path: &Path) -> Result<u64, DeviceError> {
    let stat = fstat(file).map_err(|error| io_error("examine", path, error.into()))?;
    Ok((stat.st_blksize as u64).max(base_page_size()))
}
