use ondol_plugin::KeyError;

use crate::ControlError;

use super::{HELLO_MAGIC, MAX_BATCH, MAX_PAYLOAD_BYTES, PROTOCOL_VERSION};

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The other side speaks another version.
    #[error(
        "the frame is of protocol version {found}; expected {PROTOCOL_VERSION}: run client and server of the same release"
    )]
    Version {
        /// The version found.
        found: u16,
    },
    /// The status byte is not one that is known in this direction.
    #[error("frame status is {found:#04x}; expected {expected}")]
    Status {
        /// The byte found.
        found: u8,
        /// What would have been right.
        expected: &'static str,
    },
    /// The payload is longer than is allowed.
    #[error("the frame announces a payload of {found} bytes; expected at most {limit}")]
    PayloadTooLong {
        /// The length announced.
        found: u32,
        /// The limit at this point of the conversation.
        limit: usize,
    },
    /// No such operation.
    #[error("operation {found:#04x} is unknown; expected 0x01 to 0x0f")]
    UnknownOp {
        /// The number found.
        found: u8,
    },
    /// The payload ends too early.
    #[error("{what}: {needed} bytes are needed, {left} are left in the payload")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// The payload goes on behind the message.
    #[error("{left} bytes are left behind the end of the message")]
    Trailing {
        /// How many.
        left: usize,
    },
    /// More elements than one message may carry.
    #[error("{what}: {found} elements; expected at most {MAX_BATCH}")]
    TooMany {
        /// The field.
        what: &'static str,
        /// The count found.
        found: u32,
    },
    /// A field holds a value that means nothing.
    #[error("{what} is {found}; expected {expected}")]
    Value {
        /// The field.
        what: &'static str,
        /// The value found.
        found: u64,
        /// What would have been right.
        expected: &'static str,
    },
    /// The first message does not begin with the magic.
    #[error(
        "the first message begins with {found:02x?}; expected {HELLO_MAGIC:02x?}: this is not an Ondol client"
    )]
    Magic {
        /// The bytes found.
        found: [u8; 8],
    },
    /// A key is not one.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// A text is not UTF-8.
    #[error("{what} is not UTF-8")]
    NotText {
        /// The field.
        what: &'static str,
    },
    /// The statistics cannot be read.
    #[error("statistics: {0}")]
    Stats(String),
}

/// Why a request cannot be put into a frame; nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// More elements than one message may carry.
    #[error("the batch has {found} elements; expected at most {MAX_BATCH}: ask in parts")]
    TooMany {
        /// How many there are.
        found: usize,
    },
    /// The message is longer than a frame may be.
    #[error("the message has {found} bytes; expected at most {MAX_PAYLOAD_BYTES}: ask in parts")]
    TooLong {
        /// How long it is.
        found: usize,
    },
    /// Keys and leases do not pair.
    #[error("{keys} keys come with {leases} leases; expected one lease for each key")]
    Unpaired {
        /// How many keys there are.
        keys: usize,
        /// How many leases there are.
        leases: usize,
    },
}

impl From<DecodeError> for ControlError {
    fn from(error: DecodeError) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl From<EncodeError> for ControlError {
    fn from(error: EncodeError) -> Self {
        Self::Refused(error.to_string())
    }
}
