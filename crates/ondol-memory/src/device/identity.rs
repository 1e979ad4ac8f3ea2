//! What makes a device the one that it was.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::DeviceUri;

/// Names a pool for as long as its bytes are kept. Every device of the pool carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PoolId(pub [u8; 16]);

/// Why a text names no pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pool id is {found:?}; expected 32 hexadecimal digits")]
#[non_exhaustive]
pub struct PoolIdError {
    /// The text.
    pub found: String,
}

impl PoolId {
    /// A new name, which no other pool has.
    ///
    /// # Errors
    /// If the system has no randomness to give.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }
}

/// 32 lower-case hexadecimal digits.
impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for PoolId {
    type Err = PoolIdError;

    fn from_str(text: &str) -> Result<Self, PoolIdError> {
        let is_plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_plain);
        let number = number.ok_or_else(|| PoolIdError {
            found: text.to_owned(),
        })?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl TryFrom<String> for PoolId {
    type Error = PoolIdError;
    fn try_from(text: String) -> Result<Self, PoolIdError> {
        text.parse()
    }
}

impl From<PoolId> for String {
    fn from(id: PoolId) -> Self {
        id.to_string()
    }
}

/// Names the time from one start of a server, or one clean stop, to the next. Device and log both carry the last one, so
/// that a log from before cannot be taken for the one that tells what the device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(pub u64);

/// Why a text names no run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("run is {found:?}; expected 16 hexadecimal digits")]
#[non_exhaustive]
pub struct RunIdError {
    /// The text.
    pub found: String,
}

impl RunId {
    /// A new name, which no other run has.
    ///
    /// # Errors
    /// If the system has no randomness to give.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)?;
        Ok(Self(u64::from_le_bytes(bytes)))
    }
}

/// 16 lower-case hexadecimal digits.
impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for RunId {
    type Err = RunIdError;

    fn from_str(text: &str) -> Result<Self, RunIdError> {
        let is_plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_plain);
        number.map(Self).ok_or_else(|| RunIdError {
            found: text.to_owned(),
        })
    }
}

impl TryFrom<String> for RunId {
    type Error = RunIdError;
    fn try_from(text: String) -> Result<Self, RunIdError> {
        text.parse()
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.to_string()
    }
}

/// What the log remembers of a device, so that the next server knows it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRecord {
    pub(super) uri: DeviceUri,
    pub(super) volatile: bool,
    pub(super) files: Vec<FileRecord>,
    /// The runs that the device may name: one, or two while the next one is being written to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) runs: Vec<RunId>,
}

/// One file of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileRecord {
    /// Bytes.
    pub(super) len: u64,
    /// Its inode number; `None` for a character device, which carries the pool's name inside.
    pub(super) inode: Option<u64>,
}

impl DeviceRecord {
    /// The device, with its exact size.
    pub fn uri(&self) -> &DeviceUri {
        &self.uri
    }

    /// Whether the bytes are gone after a reboot at the latest.
    pub fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// The runs in which the device may have been used last, for this to be its record. None in the record of a version
    /// that did not name runs.
    pub fn runs(&self) -> &[RunId] {
        &self.runs
    }

    /// The device may name these runs and no other: before a new one is given to it with
    /// [`Device::set_run`](super::Device::set_run), the one that it names and the new one. Afterwards
    /// [`Device::record`](super::Device::record) lists the new one alone.
    pub fn expect_runs(&mut self, runs: impl IntoIterator<Item = RunId>) {
        self.runs = runs.into_iter().collect();
    }

    /// Whether the bytes stay when the server's process ends; not so for `memfd:`.
    pub fn outlives_process(&self) -> bool {
        !matches!(self.uri, DeviceUri::Memfd { .. })
    }
}

/// What is to become of what an earlier server left in a device. The device of a living server is never taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Predecessor {
    /// There is no log. Files of a dead server are replaced by new ones, unless another state directory has a log that
    /// tells what they hold: then the device is refused.
    #[default]
    Unknown,
    /// What a dead server left is given up, whoever it belonged to: files are replaced by new ones.
    Replace,
    /// The bytes are needed: the device must be the one of this record, last used in a run of it, and of the pool of
    /// [`OpenOptions::pool`](super::OpenOptions::pool), or it is refused and nothing is changed. The exception is
    /// `memfd:`, of which nothing can be left: a new one is made, and
    /// [`Device::was_kept`](super::Device::was_kept) says so.
    Keep(DeviceRecord),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_pool_reads_back() {
        let id = PoolId(*b"\x00\x01\x02\x03\x04\x05\x06\x07\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff");
        assert_eq!(id.to_string(), "0001020304050607f8f9fafbfcfdfeff");
        assert_eq!(id.to_string().parse(), Ok(id));
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, "\"0001020304050607f8f9fafbfcfdfeff\"");
        assert_eq!(serde_json::from_str::<PoolId>(&json).unwrap(), id);
        assert_ne!(PoolId::generate().unwrap(), PoolId::generate().unwrap());
    }

    #[test]
    fn the_name_of_a_run_reads_back() {
        let id = RunId(0x0012_3456_789a_bcde);
        assert_eq!(id.to_string(), "00123456789abcde");
        assert_eq!(id.to_string().parse(), Ok(id));
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<RunId>(&json).unwrap(), id);
        assert_ne!(RunId::generate().unwrap(), RunId::generate().unwrap());
        for text in ["", "12", "+0123456789abcde", "00123456789abcdeg"] {
            let error = text.parse::<RunId>().unwrap_err().to_string();
            assert!(error.contains("16 hexadecimal"), "{error}");
        }
    }

    #[test]
    fn what_names_no_pool_is_refused() {
        for text in [
            "",
            "0001",
            "+001020304050607f8f9fafbfcfdfeff",
            "0001020304050607f8f9fafbfcfdfeff0",
            "0001020304050607f8f9fafbfcfdfefg",
        ] {
            let error = text.parse::<PoolId>().unwrap_err().to_string();
            assert!(
                error.contains(text) && error.contains("32 hexadecimal"),
                "{error}"
            );
        }
    }
}
