//! The socket's file: made with its final mode, never stolen from a living server.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ondol_shm::{ForkGuard, PeerCredentials};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::ServerError;
use crate::error::Owner;

/// `sun_path` has 108 bytes, the last of them NUL.
const PATH_LIMIT: usize = 107;

/// How long the servers before us may take to open their sockets.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A socket file that we made; unlinked when dropped, unless somebody put another one in its place or we are a
/// forked child of its owner.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    home: ForkGuard,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.home.is_home() {
            return;
        }
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|stat| (stat.dev(), stat.ino()) == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(socket = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

pub(super) fn listen(
    path: &Path,
    mode: u32,
    group: Option<u32>,
) -> Result<(UnixListener, SocketFile), ServerError> {
    let _lock = lock_parent(path)?;
    let (socket, file) = bind(path, mode, group)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(ServerError::io("set the mode of the socket", path))?;
    let failed = ServerError::io("listen at the socket", path);
    rustix::net::listen(&socket, 1024).map_err(|error| failed(error.into()))?;
    Ok((UnixListener::from(socket), file))
}

/// Makes the socket and removes it again, to know that it can be made.
pub(super) fn rehearse(path: &Path, mode: u32, group: Option<u32>) -> Result<(), ServerError> {
    let _lock = lock_parent(path)?;
    bind(path, mode, group).map(drop)
}

/// Keeps other servers, whatever their state directories, from looking for a dead one's socket in the same directory: one
/// that is bound and does not listen yet looks like one that is left over. Ends with the value.
fn lock_parent(path: &Path) -> Result<OwnedFd, ServerError> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let failed = |error: Errno| ServerError::io("lock the socket's directory", dir)(error.into());
    let lock = open(dir, flags, Mode::empty()).map_err(failed)?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

fn bind(path: &Path, mode: u32, group: Option<u32>) -> Result<(OwnedFd, SocketFile), ServerError> {
    let failed = |action| {
        let wrap = ServerError::io(action, path);
        move |error: Errno| wrap(error.into())
    };
    if path.as_os_str().len() > PATH_LIMIT {
        return Err(ServerError::SocketPathTooLong {
            path: path.to_owned(),
            limit: PATH_LIMIT,
        });
    }
    let address = SocketAddrUnix::new(path).map_err(failed("use the socket path"))?;
    remove_stale(path, &address)?;

    let socket = new_socket().map_err(failed("make the socket"))?;
    // The file takes the socket's mode, less the umask: it is never wider than asked, not even for a moment, nor open to
    // the group that it has before it gets its own.
    let first_mode = if group.is_some() { mode & !0o070 } else { mode };
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(first_mode))
        .map_err(failed("make the socket"))?;
    rustix::net::bind(&socket, &address).map_err(failed("bind the socket"))?;
    let stat = fs::symlink_metadata(path).map_err(ServerError::io("look at the socket", path))?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: (stat.dev(), stat.ino()),
        home: ForkGuard::new(),
    };
    if group.is_some() {
        lchown(path, None, group).map_err(ServerError::io("give its group to the socket", path))?;
    }
    Ok((socket, file))
}

fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Removes what a dead server left at the path; the caller holds the lock of the socket's directory.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ServerError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ServerError::io("look at", path)(error)),
        Ok(stat) if !stat.file_type().is_socket() => {
            return Err(ServerError::Unsafe {
                path: path.to_owned(),
                found: "a file that is no socket".to_owned(),
                expected: "nothing, or a socket that a dead server left".to_owned(),
                remedy: "move it away, or choose another socket".to_owned(),
            });
        }
        Ok(_) => {}
    }
    let failed = |error: Errno| ServerError::io("probe the socket", path)(error.into());
    let probe = new_socket().map_err(failed)?;
    match rustix::net::connect(&probe, address) {
        // A full queue is a sign of life, too.
        Ok(()) | Err(Errno::AGAIN) => {
            let owner = PeerCredentials::of(&UnixStream::from(probe))
                .ok()
                .map(|peer| peer.pid)
                .filter(|pid| *pid != 0);
            Err(ServerError::SocketInUse {
                path: path.to_owned(),
                owner: Owner(owner),
            })
        }
        Err(Errno::CONNREFUSED) => {
            tracing::debug!(socket = %path.display(), "removing a socket that a dead server left");
            fs::remove_file(path).map_err(ServerError::io("remove the stale socket", path))
        }
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}
