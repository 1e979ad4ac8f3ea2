//! `memfd:` memory without a name in any directory.

use std::os::fd::AsFd;
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::allocate::{fill, workers};
use super::owner::FileId;
use super::room;
use super::{
    Backing, Device, DeviceEnv, DeviceError, DeviceUri, Hold, MIN_ALIGNMENT, Medium, Source,
    base_page_size, io_error, is_want_of_room, page_size_of,
};

pub(super) fn open(
    uri: &DeviceUri,
    name: &str,
    size: u64,
    env: &DeviceEnv,
) -> Result<Device, DeviceError> {
    room::check_memory(uri, env, size)?;
    let shown = if name.is_empty() { "ondol" } else { name };
    let path = Path::new("memfd").join(shown);
    let len = size
        .checked_next_multiple_of(base_page_size())
        .ok_or_else(|| room::no_memory(uri, size, 0, "the system".to_owned()))?;
    let file = memfd_create(shown, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|error| io_error("create", &path, error.into()))?;
    let page_size = page_size_of(&file, &path)?;
    let filled = match fill(file.as_fd(), len, page_size, workers()) {
        Ok(filled) => filled,
        Err(error) if is_want_of_room(&error) => {
            drop(file);
            let available = room::available_memory(env).map_or(0, |(bytes, _)| bytes);
            return Err(room::no_memory(
                uri,
                len,
                available,
                "the system".to_owned(),
            ));
        }
        Err(error) => return Err(io_error("allocate", &path, error)),
    };
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| io_error("seal", &path, error.into()))?;
    let id = FileId::of(&file).map_err(|source| io_error("examine", &path, source))?;
    Ok(Device {
        uri: DeviceUri::Memfd {
            name: name.to_owned(),
            size: len,
        },
        backings: vec![Backing {
            path: None,
            len,
            usable: 0..len,
            source: Source::Held(file),
            medium: Medium::Memory,
            id,
        }],
        alignment: MIN_ALIGNMENT.max(page_size),
        page_size,
        whole_backing_regions: false,
        volatile: true,
        kept: false,
        filled: Some(filled),
        run: Mutex::new(None),
        hold: Hold::Nothing,
    })
}
