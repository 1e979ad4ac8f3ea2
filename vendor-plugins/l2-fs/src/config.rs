use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};

/// Threads that are started unless the configuration says otherwise; LMCache's default.
const DEFAULT_WORKERS: usize = 4;
const MAX_WORKERS: u64 = 256;
const GIB: f64 = (1_u64 << 30) as f64;
/// The most bytes that a parameter may speak of: 1 EiB, of which floating point still has every GiB.
const MOST_BYTES: u64 = 1 << 60;

/// What a directory of objects is opened with.
///
/// Parameters that it does not know are ignored, as LMCache does.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FsConfig {
    /// The directory.
    pub base_path: PathBuf,
    /// Where files are written before they get their names, relative to `base_path`; empty for `base_path` itself.
    pub relative_tmp_dir: PathBuf,
    /// Bytes at the beginning of a file that the kernel is asked to read at once; 0 to leave it to the kernel.
    pub read_ahead_bytes: u64,
    /// Whether to bypass the page cache.
    pub direct: bool,
    /// Threads.
    pub workers: usize,
    /// Bytes that files may take; `None` for a share of what is free at the first start.
    pub capacity: Option<u64>,
    /// How files are named and what is in them.
    pub layout: LayoutKind,
    /// What is written through to the disk before an object counts as stored.
    pub fsync: Fsync,
    /// How bytes are moved.
    pub io: IoKind,
    /// Whether to make `base_path` if it is not there.
    pub create: bool,
}

/// How files are named and what is in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayoutKind {
    /// As LMCache does it: one flat directory, the bytes alone.
    #[default]
    Lmcache,
    /// Many directories, and behind the bytes a description with checksums.
    Sharded,
}

/// What is written through to the disk before an object counts as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// Nothing: the kernel writes when it sees fit.
    #[default]
    None,
    /// The bytes, so that no name ever leads to bytes that were lost.
    Data,
    /// The bytes and the name.
    Full,
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoKind {
    /// By `io_uring` where it helps and the kernel allows it, else by threads.
    #[default]
    Auto,
    /// By threads.
    Threads,
    /// By `io_uring`, or not at all.
    IoUring,
}

/// A parameter that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// It is not there.
    #[error("{field} is not given; expected {expected}")]
    Absent {
        /// Its name.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// It has another value.
    #[error("{field} is {found}; expected {expected}")]
    Value {
        /// Its name.
        field: &'static str,
        /// Its value, as JSON.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Two parameters that contradict each other.
    #[error(
        "max_capacity_gb is {gib} and max_capacity_bytes is {bytes}; expected one of them only"
    )]
    TwoCapacities {
        /// The one.
        gib: String,
        /// The other.
        bytes: String,
    },
}

impl FsConfig {
    /// The defaults for a directory.
    pub fn new(base_path: impl Into<PathBuf>) -> Self {
        Self {
            base_path: base_path.into(),
            relative_tmp_dir: PathBuf::new(),
            read_ahead_bytes: 0,
            direct: false,
            workers: DEFAULT_WORKERS,
            capacity: None,
            layout: LayoutKind::default(),
            fsync: Fsync::default(),
            io: IoKind::default(),
            create: true,
        }
    }

    /// Reads parameters as they stand in a configuration.
    ///
    /// # Errors
    /// [`ParameterError`].
    pub fn from_parameters(parameters: &Map<String, Value>) -> Result<Self, ParameterError> {
        let given = Given(parameters);
        let base_path = given.read("base_path", "a directory", |value| {
            value.as_str().filter(|path| !path.is_empty())
        })?;
        let Some(base_path) = base_path else {
            return Err(ParameterError::Absent {
                field: "base_path",
                expected: "a directory",
            });
        };
        let mut config = Self::new(base_path);
        if let Some(path) = given.read(
            "relative_tmp_dir",
            "a path below base_path, relative and without `..`",
            |value| value.as_str().map(Path::new).filter(|path| is_below(path)),
        )? {
            config.relative_tmp_dir = path.to_owned();
        }
        if let Some(bytes) = given.read(
            "read_ahead_size",
            "a number of bytes, at most 2^60",
            whole_bytes,
        )? {
            config.read_ahead_bytes = bytes;
        }
        if let Some(direct) = given.read("use_odirect", "true or false", Value::as_bool)? {
            config.direct = direct;
        }
        if let Some(workers) = given.read("num_workers", "a number from 1 to 256", |value| {
            value.as_u64().filter(|n| (1..=MAX_WORKERS).contains(n))
        })? {
            config.workers = workers as usize;
        }
        config.capacity = given.capacity()?;
        if let Some(layout) =
            given.read(
                "layout",
                "\"lmcache\" or \"sharded\"",
                |value| match value.as_str()? {
                    "lmcache" => Some(LayoutKind::Lmcache),
                    "sharded" => Some(LayoutKind::Sharded),
                    _ => None,
                },
            )?
        {
            config.layout = layout;
        }
        if let Some(fsync) =
            given.read(
                "fsync",
                "\"none\", \"data\" or \"full\"",
                |value| match value.as_str()? {
                    "none" => Some(Fsync::None),
                    "data" => Some(Fsync::Data),
                    "full" => Some(Fsync::Full),
                    _ => None,
                },
            )?
        {
            config.fsync = fsync;
        }
        if let Some(io) =
            given.read(
                "io",
                "\"auto\", \"threads\" or \"io_uring\"",
                |value| match value.as_str()? {
                    "auto" => Some(IoKind::Auto),
                    "threads" => Some(IoKind::Threads),
                    "io_uring" => Some(IoKind::IoUring),
                    _ => None,
                },
            )?
        {
            config.io = io;
        }
        if let Some(create) = given.read("create", "true or false", Value::as_bool)? {
            config.create = create;
        }
        Ok(config)
    }
}

impl<'de> Deserialize<'de> for FsConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let parameters = Map::deserialize(from)?;
        Self::from_parameters(&parameters).map_err(de::Error::custom)
    }
}

struct Given<'a>(&'a Map<String, Value>);

impl<'a> Given<'a> {
    /// A parameter; `null` counts as not given, as in LMCache.
    fn read<T>(
        &self,
        field: &'static str,
        expected: &'static str,
        accept: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ParameterError> {
        let Some(value) = self.0.get(field).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        match accept(value) {
            Some(read) => Ok(Some(read)),
            None => Err(ParameterError::Value {
                field,
                found: value.to_string(),
                expected,
            }),
        }
    }

    /// Zero means that nothing is said, as in LMCache.
    fn capacity(&self) -> Result<Option<u64>, ParameterError> {
        let gib = self.read(
            "max_capacity_gb",
            "a number of GiB from 1 byte (1e-9) to 1 EiB (2^30), or 0 for a share of what is free",
            |value| {
                let bytes = value.as_f64()? * GIB;
                let is_size = bytes == 0.0 || (1.0..=MOST_BYTES as f64).contains(&bytes);
                is_size.then_some(bytes as u64)
            },
        )?;
        let bytes = self.read(
            "max_capacity_bytes",
            "a number of bytes, at most 2^60, 0 for a share of what is free",
            whole_bytes,
        )?;
        let gib = gib.filter(|bytes| *bytes > 0);
        let bytes = bytes.filter(|bytes| *bytes > 0);
        if gib.is_some() && bytes.is_some() && gib != bytes {
            return Err(ParameterError::TwoCapacities {
                gib: self.0["max_capacity_gb"].to_string(),
                bytes: self.0["max_capacity_bytes"].to_string(),
            });
        }
        Ok(bytes.or(gib))
    }
}

fn whole_bytes(value: &Value) -> Option<u64> {
    value.as_u64().filter(|bytes| *bytes <= MOST_BYTES)
}

fn is_below(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<FsConfig, ParameterError> {
        FsConfig::from_parameters(value.as_object().unwrap())
    }

    #[test]
    fn lmcaches_parameters_are_read_and_unknown_ones_ignored() {
        let config = read(json!({
            "type": "fs_native", "base_path": "/data/kv", "relative_tmp_dir": "tmp", "read_ahead_size": 4096,
            "use_odirect": true, "num_workers": 8, "max_capacity_gb": 1.5, "eviction": {"eviction_policy": "LRU"},
            "something_new": [1],
        }))
        .unwrap();
        let mut expected = FsConfig::new("/data/kv");
        expected.relative_tmp_dir = "tmp".into();
        expected.read_ahead_bytes = 4096;
        expected.direct = true;
        expected.workers = 8;
        expected.capacity = Some(3 << 29);
        assert_eq!(config, expected);
        let nothing = json!({"base_path": "/d", "relative_tmp_dir": null, "max_capacity_gb": 0});
        assert_eq!(read(nothing).unwrap(), FsConfig::new("/d"));
    }

    #[test]
    fn a_wrong_value_is_named_with_what_was_expected() {
        for (field, value) in [
            ("base_path", json!("")),
            ("relative_tmp_dir", json!("/tmp")),
            ("relative_tmp_dir", json!("a/../..")),
            ("read_ahead_size", json!(-1)),
            ("use_odirect", json!("yes")),
            ("num_workers", json!(0)),
            ("read_ahead_size", json!(u64::MAX)),
            ("max_capacity_gb", json!(-2)),
            ("max_capacity_gb", json!(1e-300)),
            ("max_capacity_gb", json!(1e30)),
            ("max_capacity_bytes", json!(u64::MAX)),
            ("max_capacity_bytes", json!(1.5)),
            ("layout", json!("flat")),
            ("fsync", json!(true)),
            ("io", json!("aio")),
            ("create", json!(1)),
        ] {
            let mut parameters = json!({"base_path": "/d"});
            parameters[field] = value.clone();
            let error = read(parameters).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
            assert!(error.contains(&value.to_string()), "{error}");
            assert!(error.contains("expected "), "{error}");
        }
        let error = read(json!({})).unwrap_err().to_string();
        assert_eq!(error, "base_path is not given; expected a directory");
        let both = json!({"base_path": "/d", "max_capacity_gb": 1, "max_capacity_bytes": 5});
        assert!(matches!(
            read(both),
            Err(ParameterError::TwoCapacities { .. })
        ));
    }
}
