//! Where client and server meet if nobody says otherwise.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Name of the socket within the state directory.
pub const SOCKET_NAME: &str = "ondol.sock";

/// The directory in which a server of this user keeps its state: `$XDG_RUNTIME_DIR/ondol`, else `/run/ondol` for
/// root and `/tmp/ondol-UID` for anybody else.
pub fn default_state_dir() -> PathBuf {
    let runtime_dir = env::var_os("XDG_RUNTIME_DIR");
    state_dir(runtime_dir.as_deref(), rustix::process::geteuid().as_raw())
}

/// The socket of that server.
pub fn default_socket() -> PathBuf {
    default_state_dir().join(SOCKET_NAME)
}

fn state_dir(runtime_dir: Option<&OsStr>, uid: u32) -> PathBuf {
    match runtime_dir.map(Path::new) {
        Some(dir) if dir.is_absolute() => dir.join("ondol"),
        _ if uid == 0 => PathBuf::from("/run/ondol"),
        _ => PathBuf::from(format!("/tmp/ondol-{uid}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_directory_comes_first() {
        let dir = |runtime_dir: Option<&str>, uid| state_dir(runtime_dir.map(OsStr::new), uid);
        assert_eq!(dir(Some("/run/user/7"), 7), Path::new("/run/user/7/ondol"));
        assert_eq!(dir(Some(""), 7), Path::new("/tmp/ondol-7"));
        assert_eq!(dir(Some("relative"), 0), Path::new("/run/ondol"));
        assert_eq!(dir(None, 7), Path::new("/tmp/ondol-7"));
    }
}
