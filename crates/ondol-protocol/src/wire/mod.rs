//! Ondol's own protocol: every call of a [`ControlPlane`](crate::ControlPlane) as one frame each way.
//!
//! A frame is a [`Header`] of 16 bytes and a payload; `docs/protocol.md` draws both byte by byte. The codec knows no
//! socket: who reads one puts what arrives into a [`FrameReader`], who writes one sends what
//! [`encode_request`] or [`encode_answer`] put into a buffer.
//!
//! Nothing that arrives is trusted: every count is held against the bytes that are left before anything is
//! allocated for it, and bytes left over are an error.

mod answer;
mod error;
mod frame;
mod header;
mod reader;
mod request;
mod value;

pub use answer::{Answer, encode_answer};
pub use error::{DecodeError, EncodeError};
pub use frame::{Frame, FrameReader};
pub use header::{HEADER_BYTES, Header, Op, PROTOCOL_VERSION, Status};
pub use request::{HELLO_MAGIC, Hello, Request, RequestRef, encode_request};

/// The longest payload of a frame, in bytes, either way.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;

/// The most elements that one message carries.
pub const MAX_BATCH: usize = 65_536;

/// The longest text of an error and the longest path, in bytes.
pub const MAX_TEXT_BYTES: usize = 4096;
