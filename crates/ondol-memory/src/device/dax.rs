//! `dax:` a character device of memory. Tested with a made-up sysfs and a plain file; untried on hardware.
//!
//! The first block, as long as the device's alignment, is not given out: it starts with the header by which Maru knows
//! the device on several hosts, which is not written here, and behind it our own, described in `header.rs`.
//!
//! The lock is on the device's node. Two containers that have a node each for one device do not see each other's.

use std::fs;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

use ondol_shm::ReadMapping;
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open as open_file};

use super::header::{self, Found, Header, MAX_STATE};
use super::owner::{self, FileId, LockedFile, OwnerLock};
use super::{
    Backing, Device, DeviceEnv, DeviceError, DeviceRecord, DeviceUri, Hold, MIN_ALIGNMENT, Medium,
    OpenOptions, Predecessor, RunId, Source, changed, check_pool, check_run, io_error, state,
    unusable,
};
use crate::size::format_size;

const DEFAULT_ALIGN: u64 = 2 << 20;

pub(super) fn open(
    uri: &DeviceUri,
    path: &Path,
    size: Option<u64>,
    env: &DeviceEnv,
    options: &OpenOptions,
) -> Result<Device, DeviceError> {
    // The name in sysfs is the node's own, not that of a link to it.
    let path = fs::canonicalize(path).map_err(|source| io_error("open", path, source))?;
    let file = open_file(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| io_error("open", &path, error.into()))?;
    let stat = fstat(&file).map_err(|error| io_error("examine", &path, error.into()))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let stands_in = env.plain_file_as_dax && kind == FileType::RegularFile;
    if kind != FileType::CharacterDevice && !stands_in {
        return Err(unusable(
            uri,
            format!(
                "{} is no character device; expected one such as /dev/dax0.0 (for a file or a mounted pmem device use dir:)",
                path.display()
            ),
        ));
    }

    let name = path.file_name().unwrap_or_default();
    let by_name = env.sysfs_root.join("bus/dax/devices").join(name);
    let by_number = env.sysfs_root.join(format!(
        "dev/char/{}:{}",
        major(stat.st_rdev),
        minor(stat.st_rdev)
    ));
    let sizes = [by_name.join("size"), by_number.join("size")];
    let device_len = sizes.iter().find_map(|path| number(path)).ok_or_else(|| {
        unusable(
            uri,
            format!(
                "neither {} nor {} tells the device's size; is it in device-dax mode (daxctl list)?",
                sizes[0].display(),
                sizes[1].display()
            ),
        )
    })?;
    let align_path = by_name.join("align");
    let align = if align_path.exists() {
        number(&align_path)
            .filter(|align| align.is_power_of_two())
            .ok_or_else(|| {
                unusable(
                    uri,
                    format!("{} holds no power of two", align_path.display()),
                )
            })?
    } else {
        DEFAULT_ALIGN
    };
    let asked = size.unwrap_or(device_len);
    if asked > device_len {
        return Err(unusable(
            uri,
            format!(
                "{} are asked for, but the device has {}; leave the size out to use all",
                format_size(asked),
                format_size(device_len)
            ),
        ));
    }
    let len = asked - asked % align;
    if len <= align {
        return Err(unusable(
            uri,
            format!(
                "{} leave nothing to use: the first {} are the device's header",
                format_size(asked),
                format_size(align)
            ),
        ));
    }
    if stands_in && (stat.st_size as u64) < len {
        return Err(unusable(
            uri,
            format!(
                "the file that stands in has {} bytes; expected {len}",
                stat.st_size
            ),
        ));
    }

    let lock_name = format!("{}.dax-owner", name.display());
    let mut lock = OwnerLock::acquire(env.shm_root.join(lock_name), &path)?;
    let file = LockedFile::try_lock(file).map_err(|source| io_error("lock", &path, source))?;
    let Some(file) = file else {
        return Err(lock.also_in_use(&path));
    };
    let mapping = ReadMapping::new(file.as_fd(), len);
    let mapping = mapping.map_err(|source| io_error("map", &path, source))?;
    let id = FileId::of(&file).map_err(|source| io_error("examine", &path, source))?;
    let found = Header::read(file.as_fd(), align);
    let found = found.map_err(|source| io_error("read the header of", &path, source))?;
    let (kept, run) = match &options.predecessor {
        Predecessor::Keep(record) => {
            check_header(uri, &path, &found, align..len, record, options)?;
            let run = header::read_run(file.as_fd(), align);
            let run = run.map_err(|source| io_error("read the header of", &path, source))?;
            check_run(uri, run, record)?;
            (true, run)
        }
        Predecessor::Unknown | Predecessor::Replace => {
            check_not_needed(uri, &path, &found, options)?;
            write_header(uri, &path, &file, align, len, options)?;
            (false, None)
        }
    };
    // The run stands in the header, which outlives the lock file.
    lock.record(None, None, options)?;
    lock.set_disposable(false);
    Ok(Device {
        uri: DeviceUri::Dax {
            path: path.clone(),
            size: Some(len),
        },
        backings: vec![Backing {
            path: Some(path),
            len,
            usable: align..len,
            source: Source::Locked(file),
            medium: Medium::Dax(mapping),
            id,
        }],
        alignment: MIN_ALIGNMENT.max(align),
        page_size: align,
        whole_backing_regions: false,
        volatile: false,
        kept,
        filled: None,
        run: Mutex::new(run),
        hold: Hold::Dax(lock),
    })
}

/// Refuses a device whose bytes somebody else may need. A damaged header is what a start leaves that was cut off.
fn check_not_needed(
    uri: &DeviceUri,
    path: &Path,
    found: &Found,
    options: &OpenOptions,
) -> Result<(), DeviceError> {
    match found {
        Found::Header(header) => {
            owner::check_reserved(path, header.pool, header.state.as_deref(), options)
        }
        Found::OtherVersion(version) if options.predecessor == Predecessor::Unknown => {
            Err(unusable(
                uri,
                format!(
                    "its header has version {version}, which another version of Ondol wrote; use that one, or give up what the device holds with `ondol serve --fresh`"
                ),
            ))
        }
        Found::OtherVersion(_) | Found::Damaged | Found::Nothing => Ok(()),
    }
}

/// Refuses a device that is not the one of the record.
fn check_header(
    uri: &DeviceUri,
    path: &Path,
    found: &Found,
    usable: Range<u64>,
    record: &DeviceRecord,
    options: &OpenOptions,
) -> Result<(), DeviceError> {
    let words = |usable: &Range<u64>| {
        format!(
            "bytes {} to {} ({})",
            usable.start,
            usable.end,
            format_size(usable.end.saturating_sub(usable.start))
        )
    };
    let other = |what: &str| changed(uri, format!("its header {what}"), "that of the pool");
    let header = match found {
        Found::Header(header) => header,
        Found::Nothing => return Err(other("is gone")),
        Found::Damaged => return Err(other("is damaged")),
        Found::OtherVersion(version) => return Err(other(&format!("has version {version}"))),
    };
    owner::check_reserved(path, header.pool, header.state.as_deref(), options)?;
    check_pool(uri, header.pool, options)?;
    if header.usable != usable {
        let found = format!("{} are there or asked for", words(&usable));
        return Err(changed(uri, found, words(&header.usable)));
    }
    let listed = record.files.first().map_or(0, |file| file.len);
    if listed != usable.end {
        let found = format!("{} bytes are there or asked for", usable.end);
        return Err(changed(uri, found, format!("{listed} bytes")));
    }
    Ok(())
}

/// The device is the pool's from here on. It is one and has no second name, so this cannot be done beside what is there.
fn write_header(
    uri: &DeviceUri,
    path: &Path,
    file: &LockedFile,
    align: u64,
    len: u64,
    options: &OpenOptions,
) -> Result<(), DeviceError> {
    let state = options.state.as_deref().map(state::full_path);
    if let Some(state) = &state
        && state.as_os_str().len() > MAX_STATE
    {
        return Err(unusable(
            uri,
            format!(
                "the path of the state directory has {} bytes; the device's header holds at most {MAX_STATE}",
                state.as_os_str().len()
            ),
        ));
    }
    let header = Header {
        pool: options.pool,
        usable: align..len,
        state,
    };
    header
        .write(file.as_fd(), align)
        .map_err(|source| io_error("write the header of", path, source))
}

/// Writes that the device is used in `run` from now on.
pub(super) fn set_run(lock: &OwnerLock, backing: &Backing, run: RunId) -> Result<(), DeviceError> {
    lock.check_home()?;
    let write = || header::write_run(backing.open_write()?.as_fd(), backing.usable.start, run);
    let path = backing.path().unwrap_or(Path::new("memory"));
    write().map_err(|source| io_error("write the header of", path, source))
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
