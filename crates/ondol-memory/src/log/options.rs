use std::fmt;
use std::str::FromStr;

/// What a flush of the log promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// The changes survive the end of the process, however it comes: they are with the kernel.
    #[default]
    None,
    /// The changes survive the end of the machine as well: they are on the disk.
    Fsync,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Fsync => "fsync",
        })
    }
}

/// A text names no [`Durability`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("durability is {0:?}; expected `none` or `fsync`")]
pub struct UnknownDurability(pub String);

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(text: &str) -> Result<Self, UnknownDurability> {
        match text {
            "none" => Ok(Self::None),
            "fsync" => Ok(Self::Fsync),
            _ => Err(UnknownDurability(text.to_owned())),
        }
    }
}

/// How a log is kept.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogOptions {
    /// What a flush promises.
    pub durability: Durability,
    /// Length of a segment file in bytes, 16 MiB by default; what is not between 4 KiB and 1 GiB is taken as the nearer.
    pub segment_bytes: u64,
    /// A checkpoint is made when the closed segments since the last one have more bytes than this. Without a number:
    /// 64 MiB or the size of the last checkpoint, whichever is more.
    pub compact_bytes: Option<u64>,
}

impl LogOptions {
    pub(super) fn segment_len(&self) -> u64 {
        self.segment_bytes
            .clamp(4096, 1 << 30)
            .next_multiple_of(4096)
    }

    /// How many bytes the closed segments may have when the last checkpoint has `checkpoint` bytes.
    pub(super) fn compact_limit(&self, checkpoint: u64) -> u64 {
        self.compact_bytes.unwrap_or(checkpoint.max(64 << 20))
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            durability: Durability::None,
            segment_bytes: 16 << 20,
            compact_bytes: None,
        }
    }
}
