//! `dir:` files in a directory, one a region: a mounted FS-DAX, or any file system.
//!
//! The directory is ours while its lock file `ondol.owner` exists: then files named `ondol-000000.region` are
//! ours too. All other files in it are left alone.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, fsync, open as open_file};
use rustix::io::Errno;

use super::allocate::{Filled, allocate, fill, workers};
use super::identity::FileRecord;
use super::owner::{FileId, OwnerLock, unlink};
use super::room::{self, FileSystem};
use super::{
    Backing, Device, DeviceEnv, DeviceError, DeviceRecord, DeviceUri, Hold, MIN_ALIGNMENT, Medium,
    OpenOptions, Predecessor, RunId, Source, base_page_size, changed, check_pool, check_run,
    io_error, open_kept, page_size_of, set_access, unusable,
};
use crate::size::format_size;

pub(super) const LOCK_NAME: &str = "ondol.owner";
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
    /// Takes a directory for new files. What a dead owner left there is removed.
    fn take(path: PathBuf, options: &OpenOptions) -> Result<Self, DeviceError> {
        let mut lock = OwnerLock::acquire(path.join(LOCK_NAME), &path)?;
        let left = region_files(&path)?.into_iter().next();
        if let Some(file) = left {
            if lock.predecessor().is_none() {
                return Err(DeviceError::Foreign {
                    path: file,
                    reason: format!("no lock file {LOCK_NAME:?} says that Ondol made it"),
                });
            }
            lock.check_reserved(&path, options)?;
        }
        // Before the first file is removed or made: were this process killed then, the next would know them for its
        // own, and the last owner's server would see that they were given up.
        lock.record(None, None, options)?;
        sync_directory(&path)?;
        lock.set_disposable(true);
        let claim = Self {
            path,
            lock,
            complete: false,
        };
        sweep(&claim.path)?;
        Ok(claim)
    }

    /// Takes a directory with all its files, if they are those of the record, each `region` long.
    fn keep(
        device: &DeviceUri,
        path: PathBuf,
        count: u64,
        region: u64,
        record: &DeviceRecord,
        options: &OpenOptions,
    ) -> Result<(Self, Vec<Backing>, Option<RunId>), DeviceError> {
        let listed = record.files.len() as u64;
        let listed_len = record.files.first().map_or(0, |file| file.len);
        if (listed, listed_len) != (count, region) {
            let words =
                |count, len| format!("{count} files of {len} bytes ({}) each", format_size(len));
            return Err(changed(
                device,
                format!("{} are asked for", words(count, region)),
                words(listed, listed_len),
            ));
        }
        let mut lock = OwnerLock::acquire(path.join(LOCK_NAME), &path)?;
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
        let mut backings = Vec::with_capacity(record.files.len());
        for (index, expected) in (0..).zip(&record.files) {
            let path = path.join(region_name(index));
            backings.push(keep_file(
                device,
                path,
                record.volatile,
                *expected,
                options,
            )?);
        }
        lock.record(None, run, options)?;
        lock.set_disposable(false);
        let claim = Self {
            path,
            lock,
            complete: true,
        };
        Ok((claim, backings, run))
    }

    /// The device that these files make; one that was not filled was kept.
    fn into_device(
        self,
        backings: Vec<Backing>,
        region: u64,
        volatile: bool,
        filled: Option<Filled>,
        run: Option<RunId>,
    ) -> Result<Device, DeviceError> {
        let page_size = match backings.first() {
            Some(first) if volatile => {
                let file = first.open_read();
                let file = file.map_err(|source| io_error("open", &self.path, source))?;
                page_size_of(&file, &self.path)?
            }
            _ => base_page_size(),
        };
        Ok(Device {
            uri: DeviceUri::Dir {
                path: self.path.clone(),
                size: backings.len() as u64 * region,
                region: Some(region),
            },
            backings,
            alignment: MIN_ALIGNMENT,
            page_size,
            whole_backing_regions: true,
            volatile,
            kept: filled.is_none(),
            filled,
            run: Mutex::new(run),
            hold: Hold::Dir(self),
        })
    }

    pub(super) fn set_run(&self, run: RunId) -> Result<(), DeviceError> {
        self.lock.set_run(run)
    }

    pub(super) fn remove_files(&self) -> Result<(), DeviceError> {
        self.lock.check_home()?;
        // After a first call the directory may be another's.
        if self.lock.is_in_place() {
            sweep(&self.path)?;
        }
        self.lock.remove()
    }
}

impl Drop for DirClaim {
    fn drop(&mut self) {
        if !self.complete
            && self.lock.check_home().is_ok()
            && let Err(error) = sweep(&self.path)
        {
            tracing::warn!(%error, "a file is left behind");
            self.lock.set_disposable(false);
        }
    }
}

fn sweep(directory: &Path) -> Result<(), DeviceError> {
    for file in region_files(directory)? {
        unlink(&file).map_err(|source| io_error("remove", &file, source))?;
    }
    Ok(())
}

/// Removes the files that a dead owner left in a directory, and its lock file.
pub(super) fn remove_left(lock: OwnerLock, directory: &Path) -> Result<(), DeviceError> {
    if lock.predecessor().is_some() {
        sweep(directory)?;
    }
    lock.remove()
}

fn region_name(index: u64) -> String {
    format!("ondol-{index:06}.region")
}

fn is_region_name(name: &str) -> bool {
    name.strip_prefix("ondol-")
        .and_then(|rest| rest.strip_suffix(".region"))
        .is_some_and(|digits| digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Files in a directory that have the name of one of ours.
pub(super) fn region_files(directory: &Path) -> Result<Vec<PathBuf>, DeviceError> {
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
    let is_kept = matches!(options.predecessor, Predecessor::Keep(_));
    let path = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_kept => {
            let found = format!("there is no directory {}", path.display());
            return Err(changed(
                uri,
                found,
                "the one with the pool's files, mounted",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let reason = format!("there is no directory {}; make it first", path.display());
            return Err(unusable(uri, reason));
        }
        path_of => path_of.map_err(|source| io_error("open", path, source))?,
    };
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

    let volatile = file_system == FileSystem::Memory;
    if let Predecessor::Keep(record) = &options.predecessor {
        let (claim, backings, run) = DirClaim::keep(uri, path, count, region, record, options)?;
        return claim.into_device(backings, region, volatile, None, run);
    }

    let mut claim = DirClaim::take(path, options)?;
    room::check_space(uri, &claim.path, size)?;
    if volatile {
        room::check_memory(uri, env, size)?;
    }
    let began = Instant::now();
    let (backings, refused_huge_pages) =
        create_files(uri, &claim.path, volatile, count, region, options)?;
    let filled = Filled {
        seconds: began.elapsed().as_secs_f64(),
        refused_huge_pages,
    };
    sync_directory(&claim.path)?;
    claim.complete = true;
    claim.lock.set_disposable(false);
    claim.into_device(backings, region, volatile, Some(filled), None)
}

fn sync_directory(path: &Path) -> Result<(), DeviceError> {
    let sync = || fs::File::open(path)?.sync_all();
    sync().map_err(|source| io_error("sync", path, source))
}

/// Makes all files, by several threads. With them comes what kept the system from giving some of them huge pages.
fn create_files(
    uri: &DeviceUri,
    directory: &Path,
    volatile: bool,
    count: u64,
    region: u64,
    options: &OpenOptions,
) -> Result<(Vec<Backing>, Option<io::Error>), DeviceError> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut made = Vec::new();
        let mut refused = None;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok((made, refused));
            }
            match create_file(uri, directory, volatile, index, region, options) {
                Ok((backing, why)) => {
                    made.push((index, backing));
                    refused = refused.or(why);
                }
                Err(error) => {
                    next.store(count, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let mut made = Vec::new();
    let mut refused = None;
    thread::scope(|scope| {
        let threads = usize::try_from(count).unwrap_or(usize::MAX).min(workers());
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            match thread.join() {
                Ok(part) => {
                    let (part, why) = part?;
                    made.extend(part);
                    refused = refused.take().or(why);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok::<_, DeviceError>(())
    })?;
    made.sort_by_key(|(index, _)| *index);
    let backings = made.into_iter().map(|(_, backing)| backing).collect();
    Ok((backings, refused))
}

fn create_file(
    uri: &DeviceUri,
    directory: &Path,
    volatile: bool,
    index: u64,
    region: u64,
    options: &OpenOptions,
) -> Result<(Backing, Option<io::Error>), DeviceError> {
    let path = directory.join(region_name(index));
    let failed = |error: Errno| io_error("create", &path, error.into());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open_file(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    set_access(&file, &path, options)?;
    let page_size = page_size_of(&file, &path)?;
    let refused = if volatile {
        // The other files have the other processors.
        fill(file.as_fd(), region, page_size, 1).map(|filled| filled.refused_huge_pages)
    } else {
        allocate(file.as_fd(), region, base_page_size()).map(|()| None)
    };
    let refused = refused.map_err(|error| {
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
    if !volatile {
        // Were the length lost with the power, the next start would find another file than it left.
        fsync(&file).map_err(|error| io_error("sync", &path, error.into()))?;
    }
    Ok((backing(path, id, region, volatile), refused))
}

fn backing(path: PathBuf, id: FileId, len: u64, volatile: bool) -> Backing {
    Backing {
        path: Some(path),
        len,
        usable: 0..len,
        source: Source::ByPath,
        medium: if volatile {
            Medium::Memory
        } else {
            Medium::Disk {
                has_failed: AtomicBool::new(false),
            }
        },
        id,
    }
}

fn keep_file(
    device: &DeviceUri,
    path: PathBuf,
    volatile: bool,
    expected: FileRecord,
    options: &OpenOptions,
) -> Result<Backing, DeviceError> {
    let file = open_kept(device, &path, volatile, expected)?;
    set_access(&file, &path, options)?;
    let id = FileId::of(&file).map_err(|source| io_error("examine", &path, source))?;
    Ok(backing(path, id, expected.len, volatile))
}
