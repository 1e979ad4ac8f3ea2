use super::DecodeError;

/// Length of a [`Header`] in bytes.
pub const HEADER_BYTES: usize = 16;

/// The version of the protocol that this crate speaks.
pub const PROTOCOL_VERSION: u16 = 4;

/// What stands before every payload. Its layout is the same in every version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the payload in bytes.
    pub payload_len: u32,
    /// The operation; the number of an [`Op`], if it is a known one.
    pub op: u8,
    /// Direction and outcome; the number of a [`Status`], if it is a known one.
    pub status: u8,
    /// Version of the protocol that the sender speaks.
    pub version: u16,
    /// Number of the request, chosen by the client; its answer carries the same.
    pub sequence: u64,
}

/// Direction and outcome of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// A request.
    Request = 0x00,
    /// An answer; the payload is the operation's.
    Done = 0x80,
    /// An answer; the payload is a [`ControlError`](crate::ControlError).
    Error = 0x81,
}

/// What a frame asks for or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// The first message of a connection.
    Hello = 0x01,
    /// [`regions`](crate::ControlPlane::regions), a part at a time.
    Regions = 0x02,
    /// [`open_backing`](crate::ControlPlane::open_backing).
    OpenBacking = 0x03,
    /// [`grant`](crate::ControlPlane::grant).
    Grant = 0x04,
    /// [`return_pages`](crate::ControlPlane::return_pages).
    ReturnPages = 0x05,
    /// [`commit`](crate::ControlPlane::commit).
    Commit = 0x06,
    /// [`retrieve`](crate::ControlPlane::retrieve).
    Retrieve = 0x07,
    /// [`locate`](crate::ControlPlane::locate).
    Locate = 0x08,
    /// [`pin`](crate::ControlPlane::pin).
    Pin = 0x09,
    /// [`unpin`](crate::ControlPlane::unpin).
    Unpin = 0x0a,
    /// [`delete`](crate::ControlPlane::delete).
    Delete = 0x0b,
    /// [`list`](crate::ControlPlane::list).
    List = 0x0c,
    /// [`stats`](crate::ControlPlane::stats).
    Stats = 0x0d,
    /// [`ping`](crate::ControlPlane::ping).
    Ping = 0x0e,
    /// [`leave`](crate::ControlPlane::leave).
    Leave = 0x0f,
    /// [`prefetch`](crate::ControlPlane::prefetch).
    Prefetch = 0x10,
    /// [`index`](crate::ControlPlane::index).
    Index = 0x11,
}

impl Op {
    /// Every operation, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::Hello,
        Self::Regions,
        Self::OpenBacking,
        Self::Grant,
        Self::ReturnPages,
        Self::Commit,
        Self::Retrieve,
        Self::Locate,
        Self::Pin,
        Self::Unpin,
        Self::Delete,
        Self::List,
        Self::Stats,
        Self::Ping,
        Self::Leave,
        Self::Prefetch,
        Self::Index,
    ];

    /// The operation with this number.
    ///
    /// # Errors
    /// [`DecodeError::UnknownOp`].
    pub fn from_u8(op: u8) -> Result<Self, DecodeError> {
        let index = usize::from(op).wrapping_sub(1);
        Self::ALL
            .get(index)
            .copied()
            .ok_or(DecodeError::UnknownOp { found: op })
    }
}

impl Header {
    /// The header as it travels.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[4] = self.op;
        bytes[5] = self.status;
        bytes[6..8].copy_from_slice(&self.version.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// Reads a header. Nothing is judged here, so that a frame that is refused can be answered under its own
    /// operation and number.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [l0, l1, l2, l3, op, status, v0, v1, sequence @ ..] = *bytes;
        Self {
            payload_len: u32::from_le_bytes([l0, l1, l2, l3]),
            op,
            status,
            version: u16::from_le_bytes([v0, v1]),
            sequence: u64::from_le_bytes(sequence),
        }
    }

    /// Whether the frame can be read at all: its version is ours and its payload not longer than `limit`.
    ///
    /// # Errors
    /// [`DecodeError`] says what was found. The stream cannot be followed any further.
    pub fn check(&self, limit: usize) -> Result<(), DecodeError> {
        if self.version != PROTOCOL_VERSION {
            return Err(DecodeError::Version {
                found: self.version,
            });
        }
        if usize::try_from(self.payload_len).is_ok_and(|len| len <= limit) {
            Ok(())
        } else {
            Err(DecodeError::PayloadTooLong {
                found: self.payload_len,
                limit,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_number() {
        for op in Op::ALL {
            assert_eq!(Op::from_u8(op as u8), Ok(op));
        }
        for op in [0, 0x12, 0xff] {
            assert_eq!(Op::from_u8(op), Err(DecodeError::UnknownOp { found: op }));
        }
    }

    #[test]
    fn a_header_of_another_version_is_told_from_one_that_is_too_long() {
        let header = Header {
            payload_len: 9,
            op: 1,
            status: 0,
            version: PROTOCOL_VERSION + 1,
            sequence: u64::MAX - 1,
        };
        assert_eq!(Header::decode(&header.encode()), header);
        assert_eq!(
            header.check(9),
            Err(DecodeError::Version {
                found: PROTOCOL_VERSION + 1
            })
        );
        let header = Header {
            version: PROTOCOL_VERSION,
            ..header
        };
        assert_eq!(header.check(9), Ok(()));
        assert_eq!(
            header.check(8),
            Err(DecodeError::PayloadTooLong { found: 9, limit: 8 })
        );
    }
}
