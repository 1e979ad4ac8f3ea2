//! The server's side of memory: devices, the pool over them, regions and pages.
#![forbid(unsafe_code)]

mod device;
mod size;

pub use device::{
    Backing, DEFAULT_SHM_NAME, Device, DeviceEnv, DeviceError, DeviceUri, OpenOptions, UriError,
};
pub use size::{SizeError, format_size, parse_size};
