//! `shm:` a file under `/dev/shm`.

use std::os::fd::AsFd;

use super::allocate::{fill, workers};
use super::named::NameClaim;
use super::room;
use super::{
    Device, DeviceEnv, DeviceError, DeviceUri, MIN_ALIGNMENT, OpenOptions, Predecessor,
    base_page_size, io_error, page_size_of,
};

const DEFAULT_SIZE: u64 = 1 << 30;

pub(super) fn open(
    uri: &DeviceUri,
    name: &str,
    size: Option<u64>,
    env: &DeviceEnv,
    options: &OpenOptions,
) -> Result<Device, DeviceError> {
    let root = &env.shm_root;
    let (path, lock_path) = (root.join(name), root.join(format!("{name}.owner")));
    let whole_pages = |size: u64| {
        size.checked_next_multiple_of(base_page_size())
            .ok_or_else(|| room::no_space(uri, root, size, 0))
    };
    let exact_uri = |len| DeviceUri::Shm {
        name: name.to_owned(),
        size: Some(len),
    };
    if let Predecessor::Keep(record) = &options.predecessor {
        let asked = size.map(whole_pages).transpose()?;
        let (claim, file) = NameClaim::keep(uri, path, lock_path, asked, record, options)?;
        let page_size = page_size_of(&file.file, claim.path())?;
        return Ok(claim.into_device(exact_uri(file.len), file, page_size, None));
    }

    let mut claim = NameClaim::take(path, lock_path, options)?;
    let size = match size {
        Some(size) => size,
        None => default_size(env)?,
    };
    room::check_space(uri, root, size)?;
    room::check_memory(uri, env, size)?;
    let len = whole_pages(size)?;
    let file = claim.create(options)?;
    let page_size = page_size_of(&file, claim.path())?;
    let filled = fill(file.as_fd(), len, page_size, workers())
        .map_err(|error| io_error("allocate", claim.path(), error))?;
    let file = claim.publish(file, len, options)?;
    Ok(claim.into_device(exact_uri(len), file, page_size, Some(filled)))
}

/// 1 GiB, or half of what is free if that is less.
fn default_size(env: &DeviceEnv) -> Result<u64, DeviceError> {
    let free = room::free_bytes(&env.shm_root)?;
    let available = room::available_memory(env).map_or(u64::MAX, |(bytes, _)| bytes);
    let half = free.min(available) / 2;
    let size = DEFAULT_SIZE.min(half - half % MIN_ALIGNMENT);
    // With next to nothing free the refusal shall name a size, not zero bytes.
    Ok(size.max(MIN_ALIGNMENT))
}
