//! What servers left of their devices, for people who clean up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;

use super::owner::{self, FileId, OwnerLock, OwnerRecord};
use super::{DeviceEnv, DeviceError, PoolId, dir, hugetlb, io_error, named, state};

/// Whether somebody needs a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Standing {
    /// A process holds it.
    Living,
    /// Its server is gone, but left a log that tells what it holds: the next start of that server expects it.
    Warm,
    /// Nobody will come back for it.
    Orphan,
}

/// A device that a server used, as its lock file tells.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leftover {
    /// The lock file.
    pub owner_file: PathBuf,
    /// The file, directory or device node that the lock file guards.
    pub device: PathBuf,
    /// How many files of the server are there.
    pub files: usize,
    /// Bytes of these files.
    pub bytes: u64,
    /// Whether somebody needs it.
    pub standing: Standing,
    /// The process that used it last; `None` if that was killed before it could write its number.
    pub pid: Option<u32>,
    /// Whether that process still runs, as far as can be seen from here. It may have given up the device.
    pub is_running: bool,
    /// The pool that it belongs to.
    pub pool: Option<PoolId>,
    /// The state directory of the server.
    pub state: Option<PathBuf>,
    /// Whether that directory still has a log of the pool.
    pub has_log: bool,
    kind: Kind,
    record: Option<OwnerRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shm,
    Hugetlb,
    Dir,
    Dax,
}

/// Every `shm:`, `hugetlb:` and `dax:` device that has a lock file under [`DeviceEnv::shm_root`], sorted by lock file.
/// Lock files that this user may not read are left out; so is what only has the name of one.
///
/// # Errors
/// [`DeviceError::Io`] if the directory cannot be listed or the system refuses to look at a file.
pub fn find_leftovers(env: &DeviceEnv) -> Result<Vec<Leftover>, DeviceError> {
    let root = &env.shm_root;
    let failed = |source: io::Error| io_error("list", root, source);
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        if let Some((kind, device)) = name.to_str().and_then(|name| guarded(root, name)) {
            found.extend(examine(root.join(name), device, kind)?);
        }
    }
    found.sort_by(|one, other| one.owner_file.cmp(&other.owner_file));
    Ok(found)
}

/// The `dir:` device in a directory, if a server used that as one.
///
/// # Errors
/// [`DeviceError::Io`] if the system refuses to look at a file.
pub fn find_leftover_dir(directory: &Path) -> Result<Option<Leftover>, DeviceError> {
    examine(
        directory.join(dir::LOCK_NAME),
        directory.to_owned(),
        Kind::Dir,
    )
}

/// What a lock file of this name guards; `None` if it is none.
fn guarded(root: &Path, name: &str) -> Option<(Kind, PathBuf)> {
    if let Some(device) = name.strip_suffix(".owner") {
        Some((Kind::Shm, root.join(device)))
    } else if let Some(device) = name.strip_suffix(".dax-owner") {
        Some((Kind::Dax, Path::new("/dev").join(device)))
    } else {
        hugetlb::path_of_lock(name).map(|path| (Kind::Hugetlb, path))
    }
}

fn examine(
    owner_file: PathBuf,
    device: PathBuf,
    kind: Kind,
) -> Result<Option<Leftover>, DeviceError> {
    let failed = |error: Errno| io_error("examine", &owner_file, error.into());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match open(&owner_file, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let stat = fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let is_locked = owner::is_locked(&file).map_err(failed)?;
    let record = owner::read(&file).map_err(|source| io_error("read", &owner_file, source))?;
    if record.is_none() && stat.st_size != 0 {
        return Ok(None);
    }
    let (pool, state) = record
        .as_ref()
        .map_or((None, None), |record| (record.pool, record.state.clone()));
    let has_log = state
        .as_deref()
        .is_some_and(|state| state::has_log_of(state, pool));
    let files = match kind {
        Kind::Shm | Kind::Hugetlb => named_file(&device, record.as_ref())?,
        Kind::Dir => dir::region_files(&device)?,
        Kind::Dax => Vec::new(),
    };
    Ok(Some(Leftover {
        files: files.len(),
        bytes: files
            .iter()
            .filter_map(|file| fs::symlink_metadata(file).ok())
            .map(|found| found.len())
            .sum(),
        standing: match (is_locked, has_log) {
            (true, _) => Standing::Living,
            (false, true) => Standing::Warm,
            (false, false) => Standing::Orphan,
        },
        pid: record.as_ref().map(OwnerRecord::pid),
        is_running: record.as_ref().is_some_and(OwnerRecord::is_visible_process),
        pool,
        state,
        has_log,
        owner_file,
        device,
        kind,
        record,
    }))
}

/// The file of a device that is one, if it is the one that the lock file names.
fn named_file(device: &Path, record: Option<&OwnerRecord>) -> Result<Vec<PathBuf>, DeviceError> {
    let named = record.and_then(|record| record.file);
    let found = FileId::at(device).map_err(|source| io_error("examine", device, source))?;
    Ok(found
        .filter(|found| Some(*found) == named)
        .map(|_| device.to_owned())
        .into_iter()
        .collect())
}

impl Leftover {
    /// What kind of device it is: `shm`, `hugetlb`, `dir` or `dax`.
    pub fn scheme(&self) -> &'static str {
        match self.kind {
            Kind::Shm => "shm",
            Kind::Hugetlb => "hugetlb",
            Kind::Dir => "dir",
            Kind::Dax => "dax",
        }
    }

    /// Removes the files that the server made, and its lock file; of a `dax:` device the lock file only. What is cached
    /// in a [`Standing::Warm`] device is lost.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] if a process holds the device, [`DeviceError::Io`] if the system refuses or another server
    /// used the device since this value was made.
    pub fn remove(&self) -> Result<(), DeviceError> {
        let lock = OwnerLock::acquire(self.owner_file.clone(), &self.device)?;
        if lock.predecessor() != self.record.as_ref() {
            let reason = "it is no longer what it was when it was examined; examine it again";
            return Err(io_error(
                "remove",
                &self.owner_file,
                io::Error::other(reason),
            ));
        }
        match self.kind {
            Kind::Shm | Kind::Hugetlb => named::remove_left(lock, &self.device),
            Kind::Dir => dir::remove_left(lock, &self.device),
            Kind::Dax => lock.remove(),
        }
    }
}
