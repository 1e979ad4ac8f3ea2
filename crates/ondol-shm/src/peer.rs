//! Who is at the other end of a Unix socket.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The process that connected, as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its number in the caller's PID namespace; 0 if it has none there.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl PeerCredentials {
    /// The credentials of the other end of a connected socket.
    ///
    /// # Errors
    /// If the socket is not connected.
    pub fn of(socket: &UnixStream) -> io::Result<Self> {
        // Not `rustix`'s: it takes the number for one that is never 0.
        let mut found = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the pointers lead to a `ucred` and to its length, as SO_PEERCRED wants them.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            pid: found.pid.cast_unsigned(),
            uid: found.uid,
            gid: found.gid,
        })
    }
}

/// The supplementary groups of the process at the other end of a connected socket, as they were when it connected.
///
/// # Errors
/// If the socket is not connected.
pub fn peer_groups(socket: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 32];
    loop {
        let room = size_of_val(groups.as_slice());
        let mut len = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
        // SAFETY: the pointers lead to `len` bytes of group numbers and to their length, as SO_PEERGROUPS wants them.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let count = len as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel has said how long the list is.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = PeerCredentials::of(&ours).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
        let groups = rustix::process::getgroups().unwrap();
        let groups: Vec<_> = groups.iter().map(|group| group.as_raw()).collect();
        assert_eq!(peer_groups(&ours).unwrap(), groups);
    }
}
