//! `dir:` files in a directory, one a region: a mounted FS-DAX, or any file system.
//!
//! The directory is ours while its lock file `ondol.owner` exists: then files named `ondol-000000.region` are
//! ours too. All other files in it are left alone.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::fs::{Mode, OFlags, fchmod, fsync, open as open_file};
use rustix::io::Errno;

use super::allocate::{allocate, workers};
use super::owner::{FileId, OwnerLock};
use super::room::{self, FileSystem};
use super::{
    Backing, Device, DeviceEnv, DeviceError, DeviceUri, Hold, MIN_ALIGNMENT, Medium, OpenOptions,
    Source, base_page_size, io_error, page_size_of, unusable,
};

const LOCK_NAME: &str = "ondol.owner";
const DEFAULT_REGION: u64 = 64 << 20;
const MAX_FILES: u64 = 1_000_000;

/// A directory whose region files are this process's.
#[derive(Debug)]
pub(super) struct DirClaim {
    path: PathBuf,
    lock: OwnerLock,
    /// Whether the files stay when this value goes.
    complete: bool,
}

impl DirClaim {
    fn take(path: PathBuf) -> Result<Self, DeviceError> {
        let mut lock = OwnerLock::acquire(path.join(LOCK_NAME), &path)?;
        if lock.predecessor().is_none()
            && let Some(file) = region_files(&path)?.into_iter().next()
        {
            return Err(DeviceError::Foreign {
                path: file,
                reason: format!("no lock file {LOCK_NAME:?} says that Ondol made it"),
            });
        }
        // Before the first file is made: were this process killed then, the next would know them for its own.
        lock.record(None)?;
        lock.set_disposable(true);
        let claim = Self {
            path,
            lock,
            complete: false,
        };
        claim.sweep()?;
        Ok(claim)
    }

    fn sweep(&self) -> Result<(), DeviceError> {
        for file in region_files(&self.path)? {
            fs::remove_file(&file).map_err(|source| io_error("remove", &file, source))?;
        }
        Ok(())
    }

    pub(super) fn remove_files(&self) -> Result<(), DeviceError> {
        self.lock.check_home()?;
        // After a first call the directory may be another's.
        if self.lock.is_in_place() {
            self.sweep()?;
        }
        self.lock.remove()
    }
}

impl Drop for DirClaim {
    fn drop(&mut self) {
        if !self.complete
            && self.lock.check_home().is_ok()
            && let Err(error) = self.sweep()
        {
            tracing::warn!(%error, "a file is left behind");
            self.lock.set_disposable(false);
        }
    }
}

fn region_name(index: u64) -> String {
    format!("ondol-{index:06}.region")
}

fn is_region_name(name: &str) -> bool {
    name.strip_prefix("ondol-")
        .and_then(|rest| rest.strip_suffix(".region"))
        .is_some_and(|digits| digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit()))
}

fn region_files(directory: &Path) -> Result<Vec<PathBuf>, DeviceError> {
    let failed = |source: io::Error| io_error("list", directory, source);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_str().is_some_and(is_region_name) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

pub(super) fn open(
    uri: &DeviceUri,
    path: &Path,
    size: u64,
    region: Option<u64>,
    env: &DeviceEnv,
    options: &OpenOptions,
) -> Result<Device, DeviceError> {
    let path = fs::canonicalize(path).map_err(|source| io_error("open", path, source))?;
    if !path.is_dir() {
        return Err(unusable(
            uri,
            format!(
                "{} is no directory; expected one that exists",
                path.display()
            ),
        ));
    }
    let file_system = FileSystem::of(&path)?;
    if matches!(file_system, FileSystem::HugePages(_)) {
        return Err(unusable(
            uri,
            format!("{} is a hugetlbfs; use hugetlb:", path.display()),
        ));
    }
    let page = base_page_size();
    let region = region.unwrap_or_else(|| DEFAULT_REGION.min(size));
    if !region.is_multiple_of(page) {
        return Err(unusable(
            uri,
            format!("a region has {region} bytes; expected a multiple of the page size, {page}"),
        ));
    }
    let count = size / region;
    if count > MAX_FILES {
        return Err(unusable(
            uri,
            format!(
                "that makes {count} files; expected at most {MAX_FILES}: choose larger regions"
            ),
        ));
    }
    let size = count * region;

    let mut claim = DirClaim::take(path)?;
    room::check_space(uri, &claim.path, size)?;
    if file_system == FileSystem::Memory {
        room::check_memory(uri, env, size)?;
    }
    let backings = create_files(uri, &claim.path, file_system, count, region, options)?;
    let sync = || fs::File::open(&claim.path)?.sync_all();
    sync().map_err(|source| io_error("sync", &claim.path, source))?;
    let page_size = match file_system {
        FileSystem::Memory => {
            let file = backings[0].open_read();
            let file = file.map_err(|source| io_error("open", &claim.path, source))?;
            page_size_of(&file, &claim.path)?
        }
        _ => page,
    };
    claim.complete = true;
    claim.lock.set_disposable(false);
    Ok(Device {
        uri: DeviceUri::Dir {
            path: claim.path.clone(),
            size,
            region: Some(region),
        },
        backings,
        alignment: MIN_ALIGNMENT,
        page_size,
        whole_backing_regions: true,
        volatile: file_system == FileSystem::Memory,
        kept: false,
        hold: Hold::Dir(claim),
    })
}

fn create_files(
    uri: &DeviceUri,
    directory: &Path,
    file_system: FileSystem,
    count: u64,
    region: u64,
    options: &OpenOptions,
) -> Result<Vec<Backing>, DeviceError> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(made);
            }
            match create_file(uri, directory, file_system, index, region, options) {
                Ok(backing) => made.push((index, backing)),
                Err(error) => {
                    next.store(count, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let mut made = Vec::new();
    thread::scope(|scope| {
        let threads = usize::try_from(count).unwrap_or(usize::MAX).min(workers());
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            match thread.join() {
                Ok(part) => made.extend(part?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok::<_, DeviceError>(())
    })?;
    made.sort_by_key(|(index, _)| *index);
    Ok(made.into_iter().map(|(_, backing)| backing).collect())
}

fn create_file(
    uri: &DeviceUri,
    directory: &Path,
    file_system: FileSystem,
    index: u64,
    region: u64,
    options: &OpenOptions,
) -> Result<Backing, DeviceError> {
    let path = directory.join(region_name(index));
    let failed = |error: Errno| io_error("create", &path, error.into());
    let mode = Mode::from_raw_mode(options.mode);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open_file(&path, flags, mode).map_err(failed)?;
    fchmod(&file, mode).map_err(failed)?;
    allocate(file.as_fd(), region, base_page_size()).map_err(|error| {
        if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) {
            unusable(
                uri,
                format!(
                    "the file system of {} cannot allocate files ahead; use one that can, such as ext4, xfs or tmpfs",
                    directory.display()
                ),
            )
        } else {
            io_error("allocate", &path, error)
        }
    })?;
    let id = FileId::of(&file).map_err(|source| io_error("examine", &path, source))?;
    let medium = match file_system {
        FileSystem::Memory => Medium::Memory,
        _ => {
            // Were the length lost with the power, the next start would find another file than it left.
            fsync(&file).map_err(|error| io_error("sync", &path, error.into()))?;
            Medium::Disk
        }
    };
    Ok(Backing {
        path: Some(path),
        len: region,
        usable: 0..region,
        source: Source::ByPath,
        medium,
        id,
    })
}
