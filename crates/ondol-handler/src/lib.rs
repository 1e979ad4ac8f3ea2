//! The client library that an inference engine embeds.

#![forbid(unsafe_code)]

mod socket;

pub use socket::{SocketOptions, SocketPlane};
