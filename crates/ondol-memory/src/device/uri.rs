//! How a memory device is named.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::size::{SizeError, exact_size, parse_size};

/// Name of the `shm:` file where none is given.
pub const DEFAULT_SHM_NAME: &str = "ondol";

/// Ends of file names that are kept for the lock files of devices.
pub(crate) const OWNER_SUFFIXES: [&str; 3] = [".owner", ".hugetlb-owner", ".dax-owner"];

/// A memory device, by name.
///
/// | text | device |
/// |---|---|
/// | `shm:NAME?size=2GiB` | file `NAME` under `/dev/shm`; outlives the process, not the boot. Without a name `ondol`; without a size 1 GiB, or half of what is free there if that is less |
/// | `memfd:NAME?size=2GiB` | memory without a name in any directory (`NAME` is for `/proc` only and may be left out); gone with its last user |
/// | `hugetlb:/dev/hugepages/NAME?size=2GiB` | file on a mounted hugetlbfs; outlives the process, not the boot |
/// | `dir:/path?size=2GiB&region=64MiB` | files in a directory, one a region, each exactly `region` long (default 64 MiB, or the size if that is less) |
/// | `dax:/dev/dax0.0` | character device of memory; the size comes from sysfs, `size=` uses only the first so many bytes |
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum DeviceUri {
    /// A file under `/dev/shm`.
    #[non_exhaustive]
    Shm {
        /// Its name.
        name: String,
        /// Bytes; `None` for the default.
        size: Option<u64>,
    },
    /// A memory file without a name.
    #[non_exhaustive]
    Memfd {
        /// What `/proc/PID/fd` shows; may be empty.
        name: String,
        /// Bytes.
        size: u64,
    },
    /// A file on a hugetlbfs.
    #[non_exhaustive]
    Hugetlb {
        /// Its absolute path.
        path: PathBuf,
        /// Bytes.
        size: u64,
    },
    /// Files in a directory, one a region.
    #[non_exhaustive]
    Dir {
        /// The directory's absolute path.
        path: PathBuf,
        /// Bytes of all files together, at most.
        size: u64,
        /// Bytes of each file.
        region: Option<u64>,
    },
    /// A character device.
    #[non_exhaustive]
    Dax {
        /// Its absolute path.
        path: PathBuf,
        /// How much of it to use; `None` for all.
        size: Option<u64>,
    },
}

/// Why a text names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// The kind of device is unknown.
    #[error(
        "device {uri:?} has kind {scheme:?}; expected shm:NAME, memfd:, hugetlb:/PATH, dir:/PATH or dax:/dev/daxX.Y, with parameters such as ?size=2GiB"
    )]
    UnknownScheme {
        /// The text.
        uri: String,
        /// What stands before its colon.
        scheme: String,
    },
    /// Neither a device nor a size.
    #[error(
        "{found:?} is neither a size nor a device; expected a size such as 2GiB (a pool of that size in /dev/shm) or a device such as shm:NAME?size=2GiB"
    )]
    NoScheme {
        /// The text.
        found: String,
    },
    /// The kind of device has no such parameter.
    #[error("device {uri:?} has parameter {parameter:?}; {scheme}: accepts {accepted}")]
    UnknownParameter {
        /// The text.
        uri: String,
        /// The kind of device.
        scheme: &'static str,
        /// The parameter.
        parameter: String,
        /// Parameters that the kind accepts.
        accepted: &'static str,
    },
    /// A parameter is given twice.
    #[error("device {uri:?} has parameter {parameter:?} more than once")]
    Duplicate {
        /// The text.
        uri: String,
        /// The parameter.
        parameter: &'static str,
    },
    /// A size is needed here.
    #[error("device {uri:?} has no size; add ?size= with a size such as 2GiB")]
    NoSize {
        /// The text.
        uri: String,
    },
    /// A parameter has a value that is no size.
    #[error("device {uri:?}, parameter {parameter}: {source}")]
    BadSize {
        /// The text.
        uri: String,
        /// The parameter.
        parameter: &'static str,
        /// What is wrong with the value.
        source: SizeError,
    },
    /// A part of the device does not make sense.
    #[error("device {uri:?}: {reason}")]
    Bad {
        /// The text.
        uri: String,
        /// What was found and what was expected.
        reason: String,
    },
}

impl DeviceUri {
    /// The default kind of device, with the default name and this size.
    pub fn default_shm(size: Option<u64>) -> Self {
        Self::Shm {
            name: DEFAULT_SHM_NAME.to_owned(),
            size,
        }
    }

    /// A memory file without a name.
    pub fn memfd(size: u64) -> Self {
        Self::Memfd {
            name: String::new(),
            size,
        }
    }

    /// Reads what a `--pool` option takes: a device, or a bare size for the default device.
    ///
    /// # Errors
    /// [`UriError`], which says what was found and what is accepted.
    pub fn parse_pool_arg(text: &str) -> Result<Self, UriError> {
        if text.contains(':') {
            return text.parse();
        }
        match parse_size(text) {
            Ok(0) => Err(UriError::Bad {
                uri: text.to_owned(),
                reason: "the size is 0; expected more".to_owned(),
            }),
            Ok(size) => Ok(Self::default_shm(Some(size))),
            Err(SizeError::NoNumber { .. }) => Err(UriError::NoScheme {
                found: text.to_owned(),
            }),
            Err(source) => Err(UriError::BadSize {
                uri: text.to_owned(),
                parameter: "size",
                source,
            }),
        }
    }

    /// What stands before the colon.
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Shm { .. } => "shm",
            Self::Memfd { .. } => "memfd",
            Self::Hugetlb { .. } => "hugetlb",
            Self::Dir { .. } => "dir",
            Self::Dax { .. } => "dax",
        }
    }
}

impl FromStr for DeviceUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let uri = || text.to_owned();
        let bad = |reason: String| UriError::Bad { uri: uri(), reason };
        let (scheme, rest) = text
            .split_once(':')
            .ok_or_else(|| UriError::NoScheme { found: uri() })?;
        let (target, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (scheme, accepted) = match scheme {
            "shm" => ("shm", "size="),
            "memfd" => ("memfd", "size="),
            "hugetlb" => ("hugetlb", "size="),
            "dir" => ("dir", "size= and region="),
            "dax" => ("dax", "size="),
            _ => {
                return Err(UriError::UnknownScheme {
                    uri: uri(),
                    scheme: scheme.to_owned(),
                });
            }
        };

        let (mut size, mut region) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, slot) = match name {
                "size" => ("size", &mut size),
                "region" if scheme == "dir" => ("region", &mut region),
                _ => {
                    return Err(UriError::UnknownParameter {
                        uri: uri(),
                        scheme,
                        parameter: name.to_owned(),
                        accepted,
                    });
                }
            };
            let value = parse_size(value).map_err(|source| UriError::BadSize {
                uri: uri(),
                parameter: name,
                source,
            })?;
            if value == 0 {
                return Err(bad(format!("{name} is 0; expected more")));
            }
            if slot.replace(value).is_some() {
                return Err(UriError::Duplicate {
                    uri: uri(),
                    parameter: name,
                });
            }
        }

        let needed = size.ok_or_else(|| UriError::NoSize { uri: uri() });
        match scheme {
            "shm" => {
                let name = if target.is_empty() {
                    DEFAULT_SHM_NAME
                } else {
                    target
                };
                check_name(name).map_err(bad)?;
                Ok(Self::Shm {
                    name: name.to_owned(),
                    size,
                })
            }
            "memfd" => {
                if !target.is_empty() {
                    check_name(target).map_err(bad)?;
                }
                Ok(Self::Memfd {
                    name: target.to_owned(),
                    size: needed?,
                })
            }
            "hugetlb" => {
                let path = check_path(target).map_err(bad)?;
                let name = path.file_name().and_then(|name| name.to_str());
                check_name(name.unwrap_or_default()).map_err(bad)?;
                Ok(Self::Hugetlb {
                    path,
                    size: needed?,
                })
            }
            "dir" => {
                let size = needed?;
                if let Some(region) = region
                    && region > size
                {
                    return Err(bad(format!(
                        "a region of {region} bytes does not fit a size of {size} bytes"
                    )));
                }
                Ok(Self::Dir {
                    path: check_path(target).map_err(bad)?,
                    size,
                    region,
                })
            }
            _ => Ok(Self::Dax {
                path: check_path(target).map_err(bad)?,
                size,
            }),
        }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let plain = !name.is_empty()
        && !name.starts_with('.')
        && name.len() <= 200
        && !name.contains(|c: char| c == '/' || c.is_control());
    if !plain {
        return Err(format!(
            "the name {name:?} is no plain file name; expected up to 200 bytes, without '/' and without '.' at the start"
        ));
    }
    if let Some(suffix) = OWNER_SUFFIXES.iter().find(|suffix| name.ends_with(*suffix)) {
        return Err(format!(
            "the name {name:?} ends in {suffix:?}, which is kept for lock files; choose another"
        ));
    }
    Ok(())
}

fn check_path(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if !path.is_absolute() || text.contains('\0') {
        return Err(format!("the path {text:?} is not absolute"));
    }
    Ok(path.to_owned())
}

/// The text from which the same device is read back.
impl fmt::Display for DeviceUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme())?;
        let size = match self {
            Self::Shm { name, size } => {
                f.write_str(name)?;
                *size
            }
            Self::Memfd { name, size } => {
                f.write_str(name)?;
                Some(*size)
            }
            Self::Hugetlb { path, size } | Self::Dir { path, size, .. } => {
                write!(f, "{}", path.display())?;
                Some(*size)
            }
            Self::Dax { path, size } => {
                write!(f, "{}", path.display())?;
                *size
            }
        };
        if let Some(size) = size {
            write!(f, "?size={}", exact_size(size))?;
        }
        if let Self::Dir {
            region: Some(region),
            ..
        } = self
        {
            write!(f, "&region={}", exact_size(*region))?;
        }
        Ok(())
    }
}

impl TryFrom<String> for DeviceUri {
    type Error = UriError;
    fn try_from(text: String) -> Result<Self, UriError> {
        text.parse()
    }
}

impl From<DeviceUri> for String {
    fn from(uri: DeviceUri) -> Self {
        uri.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_read_back_from_their_text() {
        for (text, shown) in [
            ("shm:pool?size=2GiB", "shm:pool?size=2GiB"),
            ("shm:", "shm:ondol"),
            ("shm:?size=65537", "shm:ondol?size=65537"),
            ("memfd:?size=1.5GiB", "memfd:?size=1536MiB"),
            ("memfd:kv?size=4K", "memfd:kv?size=4096"),
            (
                "hugetlb:/dev/hugepages/kv?size=2M",
                "hugetlb:/dev/hugepages/kv?size=2MiB",
            ),
            ("dir:/mnt/pmem?size=1T", "dir:/mnt/pmem?size=1TiB"),
            (
                "dir:/a?region=1M&size=10M&",
                "dir:/a?size=10MiB&region=1MiB",
            ),
            ("dax:/dev/dax0.0", "dax:/dev/dax0.0"),
            ("dax:/dev/dax0.0?size=4G", "dax:/dev/dax0.0?size=4GiB"),
        ] {
            let uri: DeviceUri = text.parse().unwrap();
            assert_eq!(uri.to_string(), shown);
            assert_eq!(shown.parse(), Ok(uri.clone()));
            let json = serde_json::to_string(&uri).unwrap();
            assert_eq!(json, format!("{shown:?}"));
            assert_eq!(serde_json::from_str::<DeviceUri>(&json).unwrap(), uri);
        }
        assert!(serde_json::from_str::<DeviceUri>("\"disk:/x\"").is_err());
    }

    #[test]
    fn a_pool_is_a_size_or_a_device() {
        let shown = |text| DeviceUri::parse_pool_arg(text).unwrap().to_string();
        assert_eq!(shown("2GiB"), "shm:ondol?size=2GiB");
        assert_eq!(shown("65536"), "shm:ondol?size=65536");
        assert_eq!(shown("memfd:?size=1M"), "memfd:?size=1MiB");
        for (text, said) in [
            ("pool", "neither a size nor a device"),
            ("2XB", "\"XB\""),
            ("0", "expected more"),
            ("disk:x", "expected shm:NAME"),
        ] {
            let error = DeviceUri::parse_pool_arg(text).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_names_no_device_is_refused_with_what_would() {
        for (text, said) in [
            ("pool", "neither a size nor a device"),
            (
                "disk:/x?size=1G",
                "kind \"disk\"; expected shm:NAME, memfd:",
            ),
            ("SHM:x", "kind \"SHM\""),
            ("shm:x?sise=1G", "\"sise\"; shm: accepts size="),
            ("shm:x?region=1M", "\"region\"; shm: accepts size="),
            (
                "dir:/x?depth=1",
                "\"depth\"; dir: accepts size= and region=",
            ),
            ("shm:x?size=1G&size=2G", "more than once"),
            ("shm:x?size=", "parameter size: size \"\" has no number"),
            ("shm:x?size", "parameter size"),
            ("shm:x?size=0", "expected more"),
            ("memfd:", "has no size"),
            ("hugetlb:/dev/hugepages/x", "has no size"),
            ("dir:/x", "has no size"),
            ("dir:/x?size=1M&region=2M", "does not fit"),
            ("shm:a/b", "no plain file name"),
            ("shm:..", "no plain file name"),
            ("shm:.hidden", "no plain file name"),
            ("shm:a.owner", "kept for lock files"),
            ("shm:a.dax-owner", "kept for lock files"),
            ("memfd:a/b?size=1M", "no plain file name"),
            ("hugetlb:x?size=2M", "not absolute"),
            ("hugetlb:/?size=2M", "no plain file name"),
            ("dir:x?size=2M", "not absolute"),
            ("dax:dax0.0", "not absolute"),
        ] {
            let error = text.parse::<DeviceUri>().unwrap_err().to_string();
            assert!(
                error.contains(said) && error.contains(text),
                "{text}: {error}"
            );
        }
    }
}
