//! A device that is one file under a name: `shm:` and `hugetlb:`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use ondol_catalog::failpoint;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, linkat, open};
use rustix::io::Errno;

use super::allocate::Filled;
use super::owner::{FileId, LockedFile, OwnerLock, unlink_ours};
use super::{
    Backing, Device, DeviceError, DeviceRecord, DeviceUri, Hold, MIN_ALIGNMENT, Medium,
    OpenOptions, RunId, Source, changed, check_pool, check_run, io_error, open_kept, set_access,
};
use crate::size::format_size;

/// The right to a name.
#[derive(Debug)]
pub(super) struct NameClaim {
    path: PathBuf,
    lock: OwnerLock,
    published: Option<FileId>,
}

/// The file that has a claimed name.
#[derive(Debug)]
pub(super) struct NamedFile {
    pub(super) file: LockedFile,
    pub(super) id: FileId,
    pub(super) len: u64,
    /// When it was used last, where that is known.
    run: Option<RunId>,
}

impl NameClaim {
    /// Locks the name `path`. The file that a dead owner left there is unlinked: processes that still map it keep
    /// its bytes. A file that is in use, or reserved, or that we did not make, stays.
    pub(super) fn take(
        path: PathBuf,
        lock_path: PathBuf,
        options: &OpenOptions,
    ) -> Result<Self, DeviceError> {
        let mut lock = OwnerLock::acquire(lock_path, &path)?;
        let left = lock_left_file(&lock, &path)?;
        if let Some((_left, id)) = &left {
            lock.check_reserved(&path, options)?;
            // Were this process killed now, the next one would know the file for its own, and the last owner's server
            // would see that it was given up.
            lock.record(Some(*id), None, options)?;
            unlink_ours(&path, *id).map_err(|source| io_error("remove", &path, source))?;
        }
        // From here on the lock file names nobody's file, but tells who is about to make one.
        lock.set_disposable(true);
        lock.record(None, None, options)?;
        Ok(Self {
            path,
            lock,
            published: None,
        })
    }

    /// Locks the name `path` and the file that it stands for, if that is the one of the record, as long as it was and
    /// `asked` bytes long where that is said.
    pub(super) fn keep(
        device: &DeviceUri,
        path: PathBuf,
        lock_path: PathBuf,
        asked: Option<u64>,
        record: &DeviceRecord,
        options: &OpenOptions,
    ) -> Result<(Self, NamedFile), DeviceError> {
        let [expected] = record.files[..] else {
            let found = format!("the log lists {} files", record.files.len());
            return Err(changed(device, found, "one"));
        };
        if let Some(asked) = asked
            && asked != expected.len
        {
            return Err(changed(
                device,
                format!("{asked} bytes ({}) are asked for", format_size(asked)),
                format!("{} bytes ({})", expected.len, format_size(expected.len)),
            ));
        }
        let mut lock = OwnerLock::acquire(lock_path, &path)?;
        let Some(owner) = lock.predecessor() else {
            return Err(changed(
                device,
                format!("{} is gone or empty", lock.path().display()),
                "the lock file that names the pool",
            ));
        };
        lock.check_reserved(&path, options)?;
        check_pool(device, owner.pool, options)?;
        let run = owner.run;
        check_run(device, run, record)?;
        let failed = |source: io::Error| io_error("open", &path, source);
        let file = open_kept(device, &path, true, expected)?;
        let id = FileId::of(&file).map_err(failed)?;
        if owner.file != Some(id) {
            return Err(changed(
                device,
                format!(
                    "{} is not the file that {} names",
                    path.display(),
                    lock.path().display()
                ),
                "the file of the pool",
            ));
        }
        let Some(file) = LockedFile::try_lock(file).map_err(failed)? else {
            return Err(lock.also_in_use(&path));
        };
        set_access(&file, &path, options)?;
        lock.record(Some(id), run, options)?;
        lock.set_disposable(false);
        let claim = Self {
            path,
            lock,
            published: Some(id),
        };
        let len = expected.len;
        Ok((claim, NamedFile { file, id, len, run }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A file in the name's directory that has no name yet: until [`NameClaim::publish`] nobody sees it, and it
    /// vanishes with this process, however that ends.
    pub(super) fn create(&self, options: &OpenOptions) -> Result<OwnedFd, DeviceError> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(directory, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| io_error("create a file in", directory, error.into()))?;
        set_access(&file, &self.path, options)?;
        Ok(file)
    }

    /// Locks the file and gives it the name.
    pub(super) fn publish(
        &mut self,
        file: OwnedFd,
        len: u64,
        options: &OpenOptions,
    ) -> Result<NamedFile, DeviceError> {
        let failed = |source: io::Error| io_error("create", &self.path, source);
        let id = FileId::of(&file).map_err(failed)?;
        let file = LockedFile::try_lock(file)
            .map_err(failed)?
            .ok_or_else(|| failed(io::Error::other("a new file is already locked")))?;
        // In this order a file that has the name is always one that the lock file names.
        self.lock.record(Some(id), None, options)?;
        let unnamed = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        match linkat(CWD, unnamed, CWD, &self.path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                return Err(DeviceError::Foreign {
                    path: self.path.clone(),
                    reason: "it appeared while the device was being allocated".to_owned(),
                });
            }
            Err(error) => return Err(failed(error.into())),
        }
        failpoint!("device.link");
        self.published = Some(id);
        self.lock.set_disposable(false);
        Ok(NamedFile {
            file,
            id,
            len,
            run: None,
        })
    }

    /// The device that the name's file makes; one that was not filled was kept.
    pub(super) fn into_device(
        self,
        uri: DeviceUri,
        file: NamedFile,
        page_size: u64,
        filled: Option<Filled>,
    ) -> Device {
        Device {
            uri,
            backings: vec![Backing {
                path: Some(self.path.clone()),
                len: file.len,
                usable: 0..file.len,
                source: Source::Locked(file.file),
                medium: Medium::Memory,
                id: file.id,
            }],
            alignment: MIN_ALIGNMENT.max(page_size),
            page_size,
            whole_backing_regions: false,
            volatile: true,
            kept: filled.is_none(),
            filled,
            run: Mutex::new(file.run),
            hold: Hold::Name(self),
        }
    }

    pub(super) fn set_run(&self, run: RunId) -> Result<(), DeviceError> {
        self.lock.set_run(run)
    }

    pub(super) fn remove_files(&self) -> Result<(), DeviceError> {
        self.lock.check_home()?;
        if let Some(id) = self.published {
            unlink_ours(&self.path, id).map_err(|source| io_error("remove", &self.path, source))?;
        }
        self.lock.remove()
    }
}

/// The file that the last owner left at `path`, locked; `None` if there is none.
fn lock_left_file(
    lock: &OwnerLock,
    path: &Path,
) -> Result<Option<(LockedFile, FileId)>, DeviceError> {
    let failed = |source: io::Error| io_error("open", path, source);
    let Some(found) = FileId::at(path).map_err(failed)? else {
        return Ok(None);
    };
    let foreign = |reason: &str| DeviceError::Foreign {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    if lock.predecessor().and_then(|record| record.file) != Some(found) {
        return Err(foreign("no lock file says that Ondol made it"));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let left = open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let stat = fstat(&left).map_err(|error| failed(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(foreign("it is no plain file"));
    }
    // Held by a server whose lock file somebody deleted.
    let left = LockedFile::try_lock(left).map_err(failed)?;
    let left = left.ok_or_else(|| lock.also_in_use(path))?;
    Ok(Some((left, found)))
}

/// Unlinks what a dead owner left under the name `path`, and its lock file. What is not ours stays.
pub(super) fn remove_left(lock: OwnerLock, path: &Path) -> Result<(), DeviceError> {
    match lock_left_file(&lock, path) {
        Ok(Some((_left, id))) => {
            unlink_ours(path, id).map_err(|source| io_error("remove", path, source))?;
        }
        Ok(None) | Err(DeviceError::Foreign { .. }) => {}
        Err(error) => return Err(error),
    }
    lock.remove()
}
