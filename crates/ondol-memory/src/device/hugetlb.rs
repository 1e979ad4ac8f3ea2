//! `hugetlb:` a file on a mounted hugetlbfs.
//!
//! Files there cannot be written with `write`, so the lock file lies with those of `shm:` devices.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::allocate::{fill, workers};
use super::named::NameClaim;
use super::room::FileSystem;
use super::{
    Device, DeviceEnv, DeviceError, DeviceUri, OpenOptions, Predecessor, io_error, is_want_of_room,
    unusable,
};

const LOCK_SUFFIX: &str = ".hugetlb-owner";

pub(super) fn open(
    uri: &DeviceUri,
    path: &Path,
    size: u64,
    env: &DeviceEnv,
    options: &OpenOptions,
) -> Result<Device, DeviceError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(unusable(uri, "the path names no file".to_owned()));
    };
    // One file has one lock, by whatever path it is reached.
    let parent = fs::canonicalize(parent).map_err(|source| io_error("examine", parent, source))?;
    let FileSystem::HugePages(page_size) = FileSystem::of(&parent)? else {
        return Err(unusable(
            uri,
            format!(
                "{} is not on a hugetlbfs; mount one (mount -t hugetlbfs none DIRECTORY) or use shm:",
                parent.display()
            ),
        ));
    };
    let path = parent.join(name);
    let lock_path = env.shm_root.join(lock_name(&path));
    let len = size
        .checked_next_multiple_of(page_size)
        .ok_or_else(|| no_pages(uri, size, env, page_size))?;
    let exact_uri = DeviceUri::Hugetlb {
        path: path.clone(),
        size: len,
    };
    if let Predecessor::Keep(record) = &options.predecessor {
        let (claim, file) = NameClaim::keep(uri, path, lock_path, Some(len), record, options)?;
        return Ok(claim.into_device(exact_uri, file, page_size, None));
    }

    let mut claim = NameClaim::take(path, lock_path, options)?;
    if free_pages(env, page_size).is_some_and(|free| len / page_size > free) {
        return Err(no_pages(uri, len, env, page_size));
    }
    let file = claim.create(options)?;
    let filled = match fill(file.as_fd(), len, page_size, workers()) {
        Ok(filled) => filled,
        Err(error) if is_want_of_room(&error) => {
            drop(file);
            return Err(no_pages(uri, len, env, page_size));
        }
        Err(error) => return Err(io_error("allocate", claim.path(), error)),
    };
    let file = claim.publish(file, len, options)?;
    Ok(claim.into_device(exact_uri, file, page_size, Some(filled)))
}

/// What [`lock_name`] was made of.
pub(super) fn path_of_lock(name: &str) -> Option<PathBuf> {
    let escaped = name.strip_suffix(LOCK_SUFFIX)?;
    let path = escaped.replace('-', "/").replace("%2D", "-");
    Some(PathBuf::from(format!("/{}", path.replace("%25", "%"))))
}

/// The path as one file name: `/` becomes `-`, and what would make two paths alike is escaped.
pub(super) fn lock_name(path: &Path) -> String {
    let text = path.display().to_string();
    let escaped = text.replace('%', "%25").replace('-', "%2D");
    format!(
        "{}{LOCK_SUFFIX}",
        escaped.trim_start_matches('/').replace('/', "-")
    )
}

/// Huge pages that nobody has or was promised, with those that the system may still make.
fn free_pages(env: &DeviceEnv, page_size: u64) -> Option<u64> {
    let directory = env.sysfs_root.join(format!(
        "kernel/mm/hugepages/hugepages-{}kB",
        page_size / 1024
    ));
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(directory.join(name)).ok()?;
        text.trim().parse().ok()
    };
    let free = number("free_hugepages")?.saturating_sub(number("resv_hugepages")?);
    let more = number("nr_overcommit_hugepages")?.saturating_sub(number("surplus_hugepages")?);
    Some(free.saturating_add(more))
}

fn no_pages(uri: &DeviceUri, asked: u64, env: &DeviceEnv, page_size: u64) -> DeviceError {
    let free = free_pages(env, page_size)
        .map_or_else(|| "too few".to_owned(), |pages| format!("{pages} pages"));
    unusable(
        uri,
        format!(
            "{} huge pages of {} KiB are needed, but {free} are free (the mount may have a limit of its own, too); raise vm.nr_hugepages or choose a smaller size",
            asked.div_ceil(page_size),
            page_size / 1024
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_never_share_a_lock() {
        let names = ["/a/b", "/a-b", "/a%2Db", "/a%252Db", "/a/%b"];
        let locks: std::collections::BTreeSet<_> = names
            .iter()
            .map(|name| lock_name(Path::new(name)))
            .collect();
        assert_eq!(locks.len(), names.len(), "{locks:?}");
        for name in names {
            let path = Path::new(name);
            assert_eq!(path_of_lock(&lock_name(path)).as_deref(), Some(path));
        }
        assert_eq!(
            lock_name(Path::new("/dev/hugepages/pool")),
            "dev-hugepages-pool.hugetlb-owner"
        );
    }
}
