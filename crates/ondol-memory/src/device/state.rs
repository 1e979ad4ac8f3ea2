//! State directories that device owners name: which one is ours, and which one still has a use for a device.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::PoolId;
use crate::{LogError, PoolRecord};

/// The path by which other processes find `state`, too.
pub(super) fn full_path(state: &Path) -> PathBuf {
    fs::canonicalize(state)
        .or_else(|_| std::path::absolute(state))
        .unwrap_or_else(|_| state.to_owned())
}

/// Whether the log in the directory `state` tells what the devices of `pool` hold. If in doubt it does.
pub(super) fn has_log_of(state: &Path, pool: Option<PoolId>) -> bool {
    match PoolRecord::load(&state.join("log")) {
        Ok(Some(record)) => pool.is_none_or(|pool| record.pool == pool),
        Ok(None) => false,
        Err(LogError::Io { source, .. }) => source.kind() != io::ErrorKind::NotADirectory,
        Err(_) => true,
    }
}

/// Whether both paths lead to one directory, by whatever way.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    one == other || matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

/// A path as printable ASCII without spaces: other bytes, and `%`, become `%` and two hexadecimal digits.
pub(super) fn escape(path: &Path) -> String {
    use std::fmt::Write;
    use std::os::unix::ffi::OsStrExt;

    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_graphic() && *byte != b'%' {
            text.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Reads what [`escape`] wrote; `None` if it did not.
pub(super) fn unescape(text: &str) -> Option<PathBuf> {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn any_path_reads_back() {
        for path in [
            &b"/var/lib/ondol"[..],
            b"/a b\nend\n",
            b"/100%",
            b"/\xff/\xc3\xbc",
            b"",
        ] {
            let path = Path::new(OsStr::from_bytes(path));
            let text = escape(path);
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            assert_eq!(unescape(&text).as_deref(), Some(path));
        }
        assert_eq!(escape(Path::new("/var/lib/ondol")), "/var/lib/ondol");
        for text in ["%", "%2", "%zz", "a%"] {
            assert_eq!(unescape(text), None, "{text}");
        }
    }

    #[test]
    fn a_directory_has_a_log_of_the_pool_that_the_log_names() {
        let root = tempfile::tempdir().unwrap();
        let [ours, other] = [PoolId([1; 16]), PoolId([2; 16])].map(Some);
        assert!(!has_log_of(root.path(), ours));
        assert!(!has_log_of(&root.path().join("gone"), ours));
        fs::create_dir(root.path().join("log")).unwrap();
        assert!(!has_log_of(root.path(), ours));
        let file = root.path().join("log/pool.json");
        fs::write(
            &file,
            format!(
                r#"{{"pool":"{}","boot":"x","devices":[]}}"#,
                PoolId([1; 16])
            ),
        )
        .unwrap();
        assert!(has_log_of(root.path(), ours));
        assert!(!has_log_of(root.path(), other));
        // In doubt it has.
        assert!(has_log_of(root.path(), None));
        fs::write(&file, "{").unwrap();
        assert!(has_log_of(root.path(), other));
    }
}
