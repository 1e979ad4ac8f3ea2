//! How much memory and disk there is to take.

use std::fs;
use std::path::{Component, Path};

use rustix::fs::{statfs, statvfs};

use super::{DeviceEnv, DeviceError, DeviceUri, io_error};
use crate::size::format_size;

const TMPFS: u32 = 0x0102_1994;
const RAMFS: u32 = 0x8584_58f6;
const HUGETLBFS: u32 = 0x9584_58f6;

/// A file system, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystem {
    /// Files are memory.
    Memory,
    /// Files are huge pages of so many bytes.
    HugePages(u64),
    /// Files lie on a device.
    Device,
}

impl FileSystem {
    pub(super) fn of(path: &Path) -> Result<Self, DeviceError> {
        let found = statfs(path).map_err(|error| io_error("examine", path, error.into()))?;
        // The field's type differs between architectures, the number is one of 32 bits.
        Ok(match found.f_type as u32 {
            TMPFS | RAMFS => Self::Memory,
            HUGETLBFS => Self::HugePages(found.f_bsize as u64),
            _ => Self::Device,
        })
    }
}

/// Bytes that can still be allocated on the file system of `path`.
pub(super) fn free_bytes(path: &Path) -> Result<u64, DeviceError> {
    let found = statvfs(path).map_err(|error| io_error("examine", path, error.into()))?;
    // A tmpfs without a limit says that it has no block at all.
    if found.f_blocks == 0 {
        return Ok(u64::MAX);
    }
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

pub(super) fn no_space(device: &DeviceUri, root: &Path, asked: u64, free: u64) -> DeviceError {
    DeviceError::NoSpace {
        device: device.clone(),
        root: root.to_owned(),
        asked: format_size(asked),
        free: format_size(free),
    }
}

/// Refuses what does not fit the file system of `root`.
pub(super) fn check_space(device: &DeviceUri, root: &Path, asked: u64) -> Result<(), DeviceError> {
    let free = free_bytes(root)?;
    if asked > free {
        return Err(no_space(device, root, asked, free));
    }
    Ok(())
}

/// Refuses what does not fit memory. Without this the system would grant the pages and then kill a process.
pub(super) fn check_memory(
    device: &DeviceUri,
    env: &DeviceEnv,
    asked: u64,
) -> Result<(), DeviceError> {
    match available_memory(env) {
        Some((available, limit)) if asked > available => {
            Err(no_memory(device, asked, available, limit))
        }
        _ => Ok(()),
    }
}

pub(super) fn no_memory(
    device: &DeviceUri,
    asked: u64,
    available: u64,
    limit: String,
) -> DeviceError {
    DeviceError::NoMemory {
        device: device.clone(),
        asked: format_size(asked),
        available: format_size(available),
        limit,
    }
}

/// Bytes that this process can still take, and what sets the limit; `None` if the system does not tell.
pub(super) fn available_memory(env: &DeviceEnv) -> Option<(u64, String)> {
    let machine = machine_available(env).map(|bytes| (bytes, "the machine".to_owned()));
    machine
        .into_iter()
        .chain(cgroup_available(env))
        .min_by_key(|(bytes, _)| *bytes)
}

fn machine_available(env: &DeviceEnv) -> Option<u64> {
    let text = fs::read_to_string(env.proc_root.join("meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// Names of a control group's files, by version.
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    cache: [&'static str; 2],
}

const GROUP_V1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: ["total_active_file", "total_inactive_file"],
};

const GROUP_V2: GroupFiles = GroupFiles {
    limit: "memory.max",
    usage: "memory.current",
    cache: ["active_file", "inactive_file"],
};

/// What the tightest memory limit of a control group above this process leaves.
fn cgroup_available(env: &DeviceEnv) -> Option<(u64, String)> {
    let text = fs::read_to_string(env.proc_root.join("self/cgroup")).ok()?;
    let mount = env.sysfs_root.join("fs/cgroup");
    let mut tightest = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (base, files) = if controllers.is_empty() {
            (mount.clone(), GROUP_V2)
        } else if controllers.split(',').any(|name| name == "memory") {
            (mount.join("memory"), GROUP_V1)
        } else {
            continue;
        };
        // The path may be the host's and not exist here; its parents, up to the mount, count either way.
        let plain = Path::new(group)
            .components()
            .filter(|part| matches!(part, Component::Normal(_)));
        let group = base.join(plain.collect::<std::path::PathBuf>());
        for directory in group.ancestors().take_while(|path| path.starts_with(&base)) {
            let Some(left) = group_available(directory, &files) else {
                continue;
            };
            let limit = format!("the limit of control group {}", directory.display());
            if tightest.as_ref().is_none_or(|(bytes, _)| left < *bytes) {
                tightest = Some((left, limit));
            }
        }
    }
    tightest
}

fn group_available(directory: &Path, files: &GroupFiles) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(directory.join(name)).ok()?;
        text.trim().parse().ok()
    };
    let limit = number(files.limit)?;
    let usage = number(files.usage)?;
    // Cached file contents count as usage but give way; shared memory is not among them.
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let cached: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| files.cache.contains(name))
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .sum();
    Some(limit.saturating_sub(usage.saturating_sub(cached)))
}
