use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether `path` is a directory that may be swept: a real one, not a link to one, of this process's user, that nobody else
/// can write.
///
/// # Errors
/// What it is instead, in words; [`io::ErrorKind::NotFound`] if there is nothing.
pub fn check_own_dir(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let uid = rustix::process::geteuid().as_raw();
    let mode = found.mode() & 0o7777;
    if found.is_dir() && found.uid() == uid && mode & 0o022 == 0 {
        return Ok(());
    }
    let kind = match found.file_type() {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_symlink() => "a symbolic link",
        _ => "a file",
    };
    Err(io::Error::other(format!(
        "it is {kind} of user {} with mode {mode:04o}; expected a directory of user {uid} that nobody else can write: move it away",
        found.uid()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_a_real_directory_of_our_own_is_ours() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("dir");
        assert_eq!(
            check_own_dir(&dir).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        check_own_dir(&dir).unwrap();
        let link = root.path().join("link");
        symlink(&dir, &link).unwrap();
        let text = check_own_dir(&link).unwrap_err().to_string();
        assert!(text.contains("a symbolic link"), "{text}");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
        let text = check_own_dir(&dir).unwrap_err().to_string();
        assert!(text.contains("mode 0770"), "{text}");
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(check_own_dir(&file).is_err());
    }
}
