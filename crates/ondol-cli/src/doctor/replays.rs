//! What replays that were killed left: the directories that they make for their sockets.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::hold::Hold;

const PREFIX: &str = "ondol-replay-";

/// The directories of this user's replays in `temp` that nobody holds any more. Each is locked, so that no replay takes
/// it meanwhile.
pub(super) fn find(temp: &Path) -> io::Result<Vec<(PathBuf, Hold)>> {
    let own = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for entry in fs::read_dir(temp)? {
        let entry = entry?;
        let is_ours = || {
            // Of the entry itself: a link is nobody's directory.
            let stat = entry.metadata().ok()?;
            Some(stat.is_dir() && stat.uid() == own)
        };
        let named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if !named || is_ours() != Some(true) {
            continue;
        }
        let path = entry.path();
        // One without a lock has just been made.
        if let Ok(hold @ Hold::Free(..)) = Hold::of(&path) {
            found.push((path, hold));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondol_server::StateDir;

    #[test]
    fn only_what_nobody_holds_is_left_over() {
        let temp = tempfile::tempdir().unwrap();
        let dir = |name: &str| temp.path().join(name);
        for name in ["ondol-replay-dead", "other", "ondol-replay-alive"] {
            fs::create_dir(dir(name)).unwrap();
            fs::write(dir(name).join("lock"), "1\n").unwrap();
        }
        fs::create_dir(dir("ondol-replay-new")).unwrap();
        fs::write(dir("ondol-replay-file"), "").unwrap();
        std::os::unix::fs::symlink(dir("other"), dir("ondol-replay-link")).unwrap();
        let _alive = StateDir::lock(&dir("ondol-replay-alive")).unwrap();

        let found = find(temp.path()).unwrap();
        let paths: Vec<_> = found.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, [&dir("ondol-replay-dead")]);
        // While it is held, no replay can take it.
        StateDir::lock(&dir("ondol-replay-dead")).unwrap_err();
        drop(found);
        StateDir::lock(&dir("ondol-replay-dead")).unwrap();
    }
}
