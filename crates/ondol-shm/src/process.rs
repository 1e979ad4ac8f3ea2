//! Who a process is, and whether it still lives: by kernel objects, not by time.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fstat, fstatfs};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::PeerCredentials;

/// What a descriptor of a process says of its file system where each process has an inode of its own.
const PIDFS: u64 = 0x5049_4446;

/// A process, held by a descriptor that never comes to mean another one.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    identity: ProcessIdentity,
}

/// Who a process is, in a form that can be written down and looked up again during the same boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIdentity {
    /// Its number in `namespace`; 0 if it has none there.
    pub pid: u32,
    /// When it started, in clock ticks since boot as the time namespace of the one who wrote this down counts them; 0 if
    /// it has no number.
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
    /// The process at the other end of a connected Unix socket, as the kernel knows it. One in a PID namespace that
    /// cannot be seen from here has number 0 and start time 0, and its end is seen all the same.
    ///
    /// # Errors
    /// If the process has ended, or cannot be held (one of an invisible PID namespace before Linux 6.5).
    pub fn of_peer(socket: &UnixStream) -> io::Result<Self> {
        let pid = PeerCredentials::of(socket)?.pid;
        match peer_pidfd(socket) {
            Ok(pidfd) => Self::new(pidfd, pid),
            // Before Linux 6.5; the start time, read while the descriptor is held, then tells a reused number.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Self::of_pid(pid),
            Err(error) => Err(error),
        }
    }

    /// The process with this number.
    ///
    /// # Errors
    /// If there is none.
    pub fn of_pid(pid: u32) -> io::Result<Self> {
        Self::new(open_pid(pid)?, pid)
    }

    /// The calling process.
    ///
    /// # Errors
    /// If the system has no descriptor left, or `/proc` is not there.
    pub fn current() -> io::Result<Self> {
        Self::of_pid(std::process::id())
    }

    /// What has become of a process of this boot that was known before.
    ///
    /// # Errors
    /// If the system refuses to tell.
    pub fn find(identity: &ProcessIdentity) -> io::Result<Liveness> {
        if identity.pid == 0 || identity.namespace == 0 || identity.namespace != own_namespace()? {
            return Ok(Liveness::Unknown);
        }
        let pidfd = match open_pid(identity.pid) {
            Ok(pidfd) => pidfd,
            // The number is nobody's, or that of a thread by now.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ESRCH | libc::EINVAL | libc::ENOENT)
                ) =>
            {
                return Ok(Liveness::Dead);
            }
            Err(error) => return Err(error),
        };
        if has_ended(&pidfd) {
            return Ok(Liveness::Dead);
        }
        let inode = pidfs_inode(&pidfd)?;
        let is_same = if inode != 0 && identity.inode != 0 {
            // These alone decide: a start time reads otherwise in another time namespace.
            inode == identity.inode
        } else {
            match start_time_of(&pidfd) {
                Ok(start_time) => start_time == identity.start_time,
                Err(_) if has_ended(&pidfd) => false,
                Err(error) => return Err(error),
            }
        };
        if !is_same {
            return Ok(Liveness::Dead);
        }
        let identity = ProcessIdentity { inode, ..*identity };
        Ok(Liveness::Alive(Self { pidfd, identity }))
    }

    fn new(pidfd: OwnedFd, pid: u32) -> io::Result<Self> {
        let identity = ProcessIdentity {
            pid,
            start_time: if pid == 0 { 0 } else { start_time_of(&pidfd)? },
            namespace: own_namespace()?,
            inode: pidfs_inode(&pidfd)?,
        };
        let process = Self { pidfd, identity };
        if !process.is_alive() {
            return Err(io::Error::other(format!("process {pid} has ended")));
        }
        Ok(process)
    }

    /// Who the process is, to be written down.
    pub fn identity(&self) -> ProcessIdentity {
        self.identity
    }

    /// The process's number in the caller's PID namespace; 0 if it has none there.
    pub fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// When the process started, in clock ticks since boot; 0 if it cannot be seen from here.
    pub fn start_time(&self) -> u64 {
        self.identity.start_time
    }

    /// Whether the process is known to lie in another time namespace than this one, so that what it reads as its own
    /// start time differs from [`start_time`](Self::start_time). False also where that cannot be asked.
    pub fn counts_time_otherwise(&self) -> bool {
        let namespace =
            |process: &str| Some(fs::metadata(format!("/proc/{process}/ns/time")).ok()?.ino());
        let theirs = number_in_proc(&self.pidfd)
            .ok()
            .and_then(|pid| namespace(&pid.to_string()));
        // The number was still its own when it was used.
        theirs.is_some() && theirs != namespace("self") && self.is_alive()
    }

    /// Whether the process has not ended yet.
    pub fn is_alive(&self) -> bool {
        !has_ended(&self.pidfd)
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

fn open_pid(pid: u32) -> io::Result<OwnedFd> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let raw = raw.ok_or_else(|| io::Error::other(format!("{pid} is no process id")))?;
    Ok(pidfd_open(raw, PidfdFlags::empty())?)
}

/// A process that has ended counts as dead even if its parent has not asked for its fate.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The kernel's own number of the process; 0 where all such descriptors are one file (before Linux 6.9).
fn pidfs_inode(pidfd: &OwnedFd) -> io::Result<u64> {
    if fstatfs(pidfd)?.f_type as u64 == PIDFS {
        Ok(fstat(pidfd)?.st_ino)
    } else {
        Ok(0)
    }
}

/// The PID namespace of this process.
fn own_namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

fn start_time_of(pidfd: &OwnedFd) -> io::Result<u64> {
    start_time_in(&format!("/proc/{}/stat", number_in_proc(pidfd)?))
}

/// The number under which `/proc` knows the process: it may number processes as another PID namespace does.
fn number_in_proc(pidfd: &OwnedFd) -> io::Result<i32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    info.lines()
        .find_map(|line| line.strip_prefix("Pid:"))
        .and_then(|pid| pid.trim().parse::<i32>().ok())
        .filter(|pid| *pid > 0)
        .ok_or_else(|| io::Error::other("the process has ended or cannot be seen from here"))
}

/// When the process with this number started, in clock ticks since boot (field 22 of `/proc/PID/stat`). Right for the
/// calling process also where `/proc` numbers processes as another PID namespace does.
///
/// # Errors
/// If there is no such process.
pub fn process_start_time(pid: u32) -> io::Result<u64> {
    if pid == std::process::id() {
        return start_time_in("/proc/self/stat");
    }
    start_time_in(&format!("/proc/{pid}/stat"))
}

fn start_time_in(path: &str) -> io::Result<u64> {
    let stat = fs::read_to_string(path)?;
    // The name in parentheses may hold anything, so the fields are counted from its last parenthesis.
    let field = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19));
    field
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::other(format!("{path} has no start time: {stat:?}")))
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
    use std::env;
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
    fn found(identity: ProcessIdentity) -> Liveness {
        Process::find(&identity).unwrap()
    }

    #[test]
    fn a_process_is_found_again_for_as_long_as_it_lives() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let identity = Process::of_pid(child.id()).unwrap().identity();
        let Liveness::Alive(again) = found(identity) else {
            panic!("the child lives");
        };
        assert_eq!(again.identity(), identity);
        // Stopped is not dead.
        let pid = Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        assert!(matches!(found(identity), Liveness::Alive(_)));
        child.kill().unwrap();
        let ended = || matches!(found(identity), Liveness::Dead);
        while !ended() {
            std::thread::yield_now();
        }
        // A zombie first, nobody at all then.
        child.wait().unwrap();
        assert!(ended());
    }

    #[test]
    fn another_process_of_the_same_number_is_not_taken_for_it() {
        let own = Process::current().unwrap().identity();
        assert!(matches!(found(own), Liveness::Alive(_)));
        let other = ProcessIdentity {
            start_time: own.start_time - 1,
            inode: 0,
            ..own
        };
        assert!(matches!(found(other), Liveness::Dead), "{other:?}");
        if own.inode != 0 {
            let other = ProcessIdentity {
                inode: own.inode + 1,
                ..own
            };
            assert!(matches!(found(other), Liveness::Dead));
        }
        let without = ProcessIdentity { inode: 0, ..own };
        assert!(matches!(found(without), Liveness::Alive(_)));
    }

    /// Set for a child process: the inode of the process that it looks for.
    const INODE: &str = "ONDOL_TEST_INODE";

    /// What this binary does as a child of the test below.
    #[test]
    fn looking_child() {
        if env::var_os(INODE).is_none() {
            return;
        }
        let number = |name| env::var(name).unwrap().parse().unwrap();
        let parent = number("ONDOL_TEST_PID") as u32;
        let identity = ProcessIdentity {
            pid: parent,
            start_time: number("ONDOL_TEST_START"),
            namespace: own_namespace().unwrap(),
            inode: number(INODE),
        };
        assert_ne!(
            process_start_time(parent).unwrap(),
            identity.start_time,
            "the namespace shifts no time"
        );
        assert!(matches!(found(identity), Liveness::Alive(_)));
        let other = ProcessIdentity {
            inode: identity.inode + 1,
            ..identity
        };
        assert!(matches!(found(other), Liveness::Dead));
        assert!(Process::of_pid(parent).unwrap().counts_time_otherwise());
        assert!(!Process::current().unwrap().counts_time_otherwise());
        println!("\nfound");
    }

    #[test]
    fn a_process_is_the_same_in_another_time_namespace() {
        let own = Process::current().unwrap();
        assert!(!own.counts_time_otherwise());
        let identity = own.identity();
        let output = Command::new("unshare")
            .args(["--time", "--boottime", "100000", "--"])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "process::tests::looking_child", "--nocapture"])
            .env(INODE, identity.inode.to_string())
            .env("ONDOL_TEST_PID", identity.pid.to_string())
            .env("ONDOL_TEST_START", identity.start_time.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        if identity.inode == 0 || errors.contains("unshare failed") {
            eprintln!("SKIPPED: no time namespace or no pidfs here: {errors}");
            return;
        }
        assert!(text.contains("found"), "{text}{errors}");
    }

    #[test]
    fn nothing_is_said_of_another_pid_namespace() {
        let own = Process::current().unwrap().identity();
        for other in [
            ProcessIdentity {
                namespace: own.namespace + 1,
                ..own
            },
            ProcessIdentity {
                namespace: 0,
                ..own
            },
            ProcessIdentity { pid: 0, ..own },
        ] {
            assert!(matches!(found(other), Liveness::Unknown), "{other:?}");
        }
    }
}
