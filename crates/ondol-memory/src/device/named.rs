//! A device that is one file under a name: `shm:` and `hugetlb:`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, linkat, open};
use rustix::io::Errno;

use super::owner::{FileId, LockedFile, OwnerLock, unlink_ours};
use super::{DeviceError, OpenOptions, io_error};

/// The right to a name.
#[derive(Debug)]
pub(super) struct NameClaim {
    path: PathBuf,
    lock: OwnerLock,
    published: Option<FileId>,
}

impl NameClaim {
    /// Locks the name `path`. The file that a dead owner left there is unlinked: processes that still map it keep
    /// its bytes. A file that is in use, or that we did not make, stays.
    pub(super) fn take(path: PathBuf, lock_path: PathBuf) -> Result<Self, DeviceError> {
        let mut lock = OwnerLock::acquire(lock_path, &path)?;
        let failed = |source: io::Error| io_error("open", &path, source);
        if let Some(found) = FileId::at(&path).map_err(failed)? {
            let ours = lock.predecessor().and_then(|record| record.file) == Some(found);
            if !ours {
                return Err(DeviceError::Foreign {
                    path,
                    reason: "no lock file says that Ondol made it".to_owned(),
                });
            }
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let left = open(&path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
            let stat = fstat(&left).map_err(|error| failed(error.into()))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(DeviceError::Foreign {
                    path,
                    reason: "it is no plain file".to_owned(),
                });
            }
            // Held by a server whose lock file somebody deleted.
            let Some(_left) = LockedFile::try_lock(left).map_err(failed)? else {
                return Err(lock.also_in_use(&path));
            };
            unlink_ours(&path, found).map_err(|source| io_error("remove", &path, source))?;
        }
        // From here on the lock file names nobody's file, but tells who is about to make one.
        lock.set_disposable(true);
        lock.record(None)?;
        Ok(Self {
            path,
            lock,
            published: None,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A file in the name's directory that has no name yet: until [`NameClaim::publish`] nobody sees it, and it
    /// vanishes with this process, however that ends.
    pub(super) fn create(&self, options: &OpenOptions) -> Result<OwnedFd, DeviceError> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let mode = Mode::from_raw_mode(options.mode);
        let create = || {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = open(directory, flags, mode)?;
            // The mask of the process does not apply to what was asked for.
            fchmod(&file, mode)?;
            Ok::<_, Errno>(file)
        };
        create().map_err(|error| io_error("create a file in", directory, error.into()))
    }

    /// Locks the file and gives it the name.
    pub(super) fn publish(&mut self, file: OwnedFd) -> Result<(LockedFile, FileId), DeviceError> {
        let failed = |source: io::Error| io_error("create", &self.path, source);
        let id = FileId::of(&file).map_err(failed)?;
        let file = LockedFile::try_lock(file)
            .map_err(failed)?
            .ok_or_else(|| failed(io::Error::other("a new file is already locked")))?;
        // In this order a file that has the name is always one that the lock file names.
        self.lock.record(Some(id))?;
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
        self.published = Some(id);
        self.lock.set_disposable(false);
        Ok((file, id))
    }

    pub(super) fn remove_files(&self) -> Result<(), DeviceError> {
        self.lock.check_home()?;
        if let Some(id) = self.published {
            unlink_ours(&self.path, id).map_err(|source| io_error("remove", &self.path, source))?;
        }
        self.lock.remove()
    }
}
