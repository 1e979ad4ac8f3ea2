//! Who a process is, and whether it still lives: by kernel objects, not by time.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process, held by a descriptor that never comes to mean another one.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    pid: u32,
    start_time: u64,
}

/// Who a process is, in a form that can be written down and looked up again during the same boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIdentity {
    /// Its number in `namespace`; 0 if it has none there.
    pub pid: u32,
    /// When it started, in clock ticks since boot; 0 if it has no number.
    pub start_time: u64,
    /// The PID namespace of the one who wrote this down, as an inode number.
    pub namespace: u64,
    /// The kernel's own number of the process (an inode number of pidfs); 0 on a kernel before Linux 6.9.
    pub inode: u64,
}

/// What can be said of a process that was known before.
#[derive(Debug)]
pub enum Liveness {
    /// It lives.
    Alive(Process),
    /// It has ended.
    Dead,
    /// It lies in another PID namespace, so that neither can be proven.
    Unknown,
}

impl Process {
    /// The process at the other end of a connected Unix socket, as the kernel knows it.
    ///
    /// # Errors
    /// If the process has ended or cannot be seen from here (a foreign PID namespace without `/proc`).
    pub fn of_peer(socket: &UnixStream) -> io::Result<Self> {
        let credentials = rustix::net::sockopt::socket_peercred(socket)?;
        let pidfd = match peer_pidfd(socket) {
            Ok(pidfd) => pidfd,
            // Before Linux 6.5; the start time, read while the descriptor is held, then tells a reused number.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                pidfd_open(credentials.pid, PidfdFlags::empty())?
            }
            Err(error) => return Err(error),
        };
        Self::new(
            pidfd,
            credentials.pid.as_raw_nonzero().get().cast_unsigned(),
        )
    }

    /// The process with this number.
    ///
    /// # Errors
    /// If there is none.
    pub fn of_pid(pid: u32) -> io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw = raw.ok_or_else(|| io::Error::other(format!("{pid} is no process id")))?;
        Self::new(pidfd_open(raw, PidfdFlags::empty())?, pid)
    }

    fn new(pidfd: OwnedFd, pid: u32) -> io::Result<Self> {
        let start_time = process_start_time(pid)?;
        let process = Self {
            pidfd,
            pid,
            start_time,
        };
        if !process.is_alive() {
            return Err(io::Error::other(format!("process {pid} has ended")));
        }
        Ok(process)
    }

    /// The process's number in the caller's PID namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When the process started, in clock ticks since boot.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Whether the process has not ended yet.
    pub fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready == 0)
    }
}

/// Readable once the process has ended.
impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn peer_pidfd(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointers lead to a `c_int` and to its length, as SO_PEERPIDFD wants them.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor for us and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// When the process with this number started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
///
/// # Errors
/// If there is no such process.
pub fn process_start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything, so the fields are counted from its last parenthesis.
    let field = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19));
    field
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has no start time: {stat:?}")))
}

/// The identity of this boot of the machine.
///
/// # Errors
/// If the kernel does not tell.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_end_of_a_process_is_seen() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::of_pid(child.id()).unwrap();
        assert!(process.is_alive());
        assert_eq!(
            process.start_time(),
            process_start_time(child.id()).unwrap()
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive());
        assert!(Process::of_pid(child.id()).is_err());
    }

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Process::of_peer(&ours).unwrap();
        assert_eq!(peer.pid(), std::process::id());
        assert_eq!(
            peer.start_time(),
            process_start_time(std::process::id()).unwrap()
        );
    }
}
