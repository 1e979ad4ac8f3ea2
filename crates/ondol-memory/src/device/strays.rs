//! Files of a pool whose lock file is gone: known by what the log remembers of them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

use super::owner::{FileId, LockedFile, OwnerLock, unlink_ours};
use super::{DeviceEnv, DeviceError, DeviceRecord, DeviceUri, dir, hugetlb, io_error};

/// The files of a device that are where the log says, though no lock file need speak of them.
#[derive(Debug)]
pub struct Strays {
    /// The file or directory that the device is.
    pub device: PathBuf,
    /// Bytes of the files that are there.
    pub bytes: u64,
    /// The lock file that a server made with them.
    pub owner_file: PathBuf,
    files: Vec<(PathBuf, FileId)>,
    is_whole: bool,
}

/// The files of a device, found by their names, inodes and lengths, which are those of the log. Of a device that is none,
/// or is a character device, there are none. After a reboot the inodes of a volatile device mean nothing.
///
/// # Errors
/// [`DeviceError::Io`] if the system refuses to look.
pub fn find_strays(record: &DeviceRecord, env: &DeviceEnv) -> Result<Option<Strays>, DeviceError> {
    let (device, owner_file) = match record.uri() {
        DeviceUri::Shm { name, .. } => (
            env.shm_root.join(name),
            env.shm_root.join(format!("{name}.owner")),
        ),
        DeviceUri::Hugetlb { path, .. } => {
            (path.clone(), env.shm_root.join(hugetlb::lock_name(path)))
        }
        DeviceUri::Dir { path, .. } => (path.clone(), path.join(dir::LOCK_NAME)),
        _ => return Ok(None),
    };
    let candidates = match record.uri() {
        DeviceUri::Dir { path, .. } if !path.is_dir() => Vec::new(),
        DeviceUri::Dir { path, .. } => dir::region_files(path)?,
        _ => vec![device.clone()],
    };
    let mut files = Vec::new();
    let mut bytes = 0;
    for path in candidates {
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(io_error("examine", &path, error)),
        };
        let is_recorded = record
            .files
            .iter()
            .any(|file| file.inode == Some(found.ino()) && file.len == found.len());
        if found.is_file() && is_recorded {
            bytes += found.len();
            let id = FileId {
                dev: found.dev(),
                ino: found.ino(),
            };
            files.push((path, id));
        }
    }
    Ok((!files.is_empty()).then_some(Strays {
        is_whole: files.len() == record.files.len(),
        device,
        bytes,
        owner_file,
        files,
    }))
}

impl Strays {
    /// Whether every file of the device is there.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Removes the files. What is cached in them is lost.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] if a process holds the device or one of the files, [`DeviceError::Io`] if the system refuses,
    /// or if there is a lock file by now, which says whose they are.
    pub fn remove(&self) -> Result<(), DeviceError> {
        let lock = OwnerLock::acquire(self.owner_file.clone(), &self.device)?;
        if lock.predecessor().is_some() {
            let reason =
                "there is a lock file again, which says whose the files are; examine it again";
            return Err(io_error("remove", &self.device, io::Error::other(reason)));
        }
        for (path, id) in &self.files {
            remove_file(&lock, path, *id)?;
        }
        lock.remove()
    }
}

/// Unlinks a file unless a server holds it, whose lock file somebody deleted.
fn remove_file(lock: &OwnerLock, path: &Path, id: FileId) -> Result<(), DeviceError> {
    let failed = |source: io::Error| io_error("remove", path, source);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    if FileId::of(&file).map_err(failed)? != id {
        return Ok(());
    }
    let _held = LockedFile::try_lock(file)
        .map_err(failed)?
        .ok_or_else(|| lock.also_in_use(path))?;
    unlink_ours(path, id).map_err(failed)
}
