use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ondol_protocol::{SOCKET_NAME, default_state_dir};
use ondol_shm::{ForkGuard, HandleSecret, Process};
use rustix::fs::OFlags;

use crate::error::{Owner, ServerError};

const SECRET_BYTES: usize = 32;
/// How often the lock is tried while no living process is known to hold it; a tenth of a second each.
const LOCK_TRIES: u32 = 50;

/// Files that are written under one of these names and renamed when they are whole.
const DRAFTS: [&str; 1] = ["secret.new"];

/// The directory that a server owns while it runs: `lock`, `secret`, `log/`, `leases/` and, unless configured elsewhere,
/// the socket.
///
/// Ownership is an exclusive `flock` on `lock`, which ends with the process however it ends. The file stays; it
/// holds the process id of its last owner.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    lock: File,
    home: ForkGuard,
}

impl StateDir {
    /// The directory that is used if none is configured.
    pub fn default_path() -> PathBuf {
        default_state_dir()
    }

    /// Makes the directory (mode 0700) if it is not there, takes it, and removes what a killed owner left half written.
    ///
    /// # Errors
    /// [`ServerError::AlreadyRunning`] with the owner's process id if it is taken; [`ServerError::Unsafe`] if it
    /// belongs to another user or can be written by others.
    pub fn lock(path: &Path) -> Result<Self, ServerError> {
        let state = Self::borrow(path)?;
        state
            .lock
            .set_len(0)
            .and_then(|()| writeln!(&state.lock, "{}", std::process::id()))
            .map_err(ServerError::io("write", &path.join("lock")))?;
        for draft in DRAFTS {
            remove_draft(&path.join(draft))?;
        }
        Ok(state)
    }

    /// As [`lock`](Self::lock), for one who is no server: the number of the last one stays written there.
    ///
    /// # Errors
    /// As there.
    pub fn borrow(path: &Path) -> Result<Self, ServerError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(ServerError::io("make the state directory", path))?;
        check_dir(path)?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&lock_path)
            .map_err(ServerError::io("open", &lock_path))?;
        let mut tries = LOCK_TRIES;
        while let Err(refused) = lock.try_lock() {
            let error = match refused {
                TryLockError::WouldBlock => ServerError::AlreadyRunning {
                    dir: path.to_owned(),
                    owner: owner(&lock_path),
                },
                TryLockError::Error(error) => ServerError::io("lock", &lock_path)(error),
            };
            tries -= 1;
            // Without a living owner it is somebody who puts the directory in order, and is done soon.
            let will_end = matches!(
                error,
                ServerError::AlreadyRunning {
                    owner: Owner(None),
                    ..
                }
            );
            if tries == 0 || !will_end {
                return Err(error);
            }
        }
        Ok(Self {
            path: path.to_owned(),
            lock,
            home: ForkGuard::new(),
        })
    }

    /// Gives the directory to a group and lets its members reach the socket in it (mode 0750). What else lies in it stays
    /// the server's alone.
    ///
    /// # Errors
    /// If the system refuses: only root may give a file to a group that it is not a member of.
    pub fn open_to_group(&self, group: u32) -> Result<(), ServerError> {
        lchown(&self.path, None, Some(group))
            .and_then(|()| fs::set_permissions(&self.path, Permissions::from_mode(0o750)))
            .map_err(ServerError::io("give its group to", &self.path))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the write-ahead log and its checkpoints are.
    pub fn log_path(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where the books of the clients' leases are.
    pub fn leases_path(&self) -> PathBuf {
        self.path.join("leases")
    }

    /// Where the socket is if no other place is configured.
    pub fn socket_path(&self) -> PathBuf {
        self.path.join(SOCKET_NAME)
    }

    /// The secret under which this server signs region handles; made once and kept, so that handles outlive the
    /// server's process.
    ///
    /// # Errors
    /// [`ServerError::Unsafe`] if the file can be read by others or has another length.
    pub fn secret(&self) -> Result<HandleSecret, ServerError> {
        let path = self.path.join("secret");
        match OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(&path)
        {
            Ok(file) => read_secret(file, &path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make_secret(&path),
            Err(error) => Err(ServerError::io("open", &path)(error)),
        }
    }

    /// Written under another name first, so that the secret is there whole or not at all.
    fn make_secret(&self, path: &Path) -> Result<HandleSecret, ServerError> {
        let mut bytes = [0; SECRET_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| {
            ServerError::io("draw random bytes for", path)(io::Error::other(error))
        })?;
        let draft = self.path.join("secret.new");
        remove_draft(&draft)?;
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&draft, path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(ServerError::io("write", path))?;
        Ok(HandleSecret::from_bytes(bytes))
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // Closing alone would leave the lock to a child that was just forked, until it execs. A child that drops what it
        // inherited must leave the lock to its parent.
        if self.home.is_home() {
            let _ = self.lock.unlock();
        }
    }
}

fn remove_draft(draft: &Path) -> Result<(), ServerError> {
    match fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(ServerError::io("remove", draft)(error))
        }
        _ => Ok(()),
    }
}

fn check_dir(path: &Path) -> Result<(), ServerError> {
    let found = fs::symlink_metadata(path).map_err(ServerError::io("look at", path))?;
    let uid = rustix::process::geteuid().as_raw();
    let mode = found.mode() & 0o7777;
    if found.is_dir() && found.uid() == uid && mode & 0o022 == 0 {
        return Ok(());
    }
    Err(ServerError::Unsafe {
        path: path.to_owned(),
        found: format!(
            "{} of user {} with mode {mode:04o}",
            match found.file_type() {
                kind if kind.is_dir() => "a directory",
                kind if kind.is_symlink() => "a symbolic link",
                _ => "a file",
            },
            found.uid()
        ),
        expected: format!("a directory of user {uid} that nobody else can write"),
        remedy: format!(
            "run `chown {uid} {0} && chmod 700 {0}`, or choose another state directory",
            path.display()
        ),
    })
}

fn read_secret(file: File, path: &Path) -> Result<HandleSecret, ServerError> {
    let refuse = |found: String, expected: &str, remedy: String| ServerError::Unsafe {
        path: path.to_owned(),
        found,
        expected: expected.to_owned(),
        remedy,
    };
    let stat = file.metadata().map_err(ServerError::io("look at", path))?;
    let mode = stat.mode() & 0o7777;
    if !stat.is_file() {
        return Err(refuse(
            "something that is no plain file".to_owned(),
            "a plain file of mode 0600",
            "delete it; the next start makes a new one".to_owned(),
        ));
    }
    if mode & 0o077 != 0 {
        return Err(refuse(
            format!("mode {mode:04o}"),
            "a file of mode 0600, as whoever can read it can forge region handles",
            format!(
                "delete it for a new one if others may have read it, else run `chmod 600 {}`",
                path.display()
            ),
        ));
    }
    let mut bytes = Vec::with_capacity(SECRET_BYTES + 1);
    (&file)
        .take(SECRET_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(ServerError::io("read", path))?;
    match <[u8; SECRET_BYTES]>::try_from(bytes.as_slice()) {
        Ok(bytes) => Ok(HandleSecret::from_bytes(bytes)),
        Err(_) => Err(refuse(
            format!("{} bytes", stat.len()),
            "32 bytes",
            "delete it; a new one is made at the next start".to_owned(),
        )),
    }
}

/// The owner writes its number after it has the lock, so for a moment an older number may stand there.
fn owner(lock_path: &Path) -> Owner {
    for _ in 0..20 {
        let pid = fs::read_to_string(lock_path)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .filter(|pid| Process::of_pid(*pid).is_ok());
        if pid.is_some() {
            return Owner(pid);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Owner(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_ends_with_its_owner_though_a_child_inherited_the_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let state = StateDir::lock(&path).unwrap();
        // What `fork` leaves in a child until it execs.
        let inherited = state.lock.try_clone().unwrap();
        StateDir::lock(&path).unwrap_err();
        drop(state);
        StateDir::lock(&path).unwrap();
        drop(inherited);
    }
}
