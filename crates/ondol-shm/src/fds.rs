//! Descriptors over a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::Spin;

/// The most descriptors that travel with one message.
pub const MAX_FDS: usize = 4;

/// Sends all of `bytes`; the descriptors travel with the first of them.
///
/// # Errors
/// Those of `sendmsg`; a peer that has gone away is an error, not a signal.
///
/// # Panics
/// If there are more than [`MAX_FDS`] descriptors, or descriptors without a byte to carry them.
pub fn send_with_fds(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send(socket, bytes, fds, SendFlags::NOSIGNAL, || {
        // The socket's own timeout has passed.
        Err(io::ErrorKind::WouldBlock.into())
    })
}

/// As [`send_with_fds`], but gives up at `deadline`, however slowly the peer makes room.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] at the deadline, else as [`send_with_fds`].
///
/// # Panics
/// As [`send_with_fds`].
pub fn send_with_fds_by(
    socket: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    deadline: Instant,
) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    send(socket, bytes, fds, flags, || {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut room = [PollFd::new(socket, PollFlags::OUT)];
        match poll(&mut room, Some(&timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })
}

fn send(
    socket: &UnixStream,
    mut bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
    mut wait: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    assert!(
        fds.len() <= MAX_FDS && (fds.is_empty() || !bytes.is_empty()),
        "{} descriptors",
        fds.len()
    );
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    while !bytes.is_empty() {
        let sent = match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Ok(sent) => sent,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                wait()?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        ancillary.clear();
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// Reads into `buffer` what is there, at least one byte unless the peer has closed; descriptors that came along are
/// appended to `fds`, closed on `exec`.
///
/// # Errors
/// Those of `recvmsg`.
pub fn recv_with_fds(
    socket: &UnixStream,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    recv(socket, buffer, fds, RecvFlags::CMSG_CLOEXEC)
}

/// As [`recv_with_fds`], but looks for a short while, if `spin` knows that to pay, before it sleeps.
///
/// # Errors
/// As [`recv_with_fds`].
pub fn recv_with_fds_soon(
    socket: &UnixStream,
    spin: &mut Spin,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let came = spin.until(|| match recv(socket, buffer, fds, flags) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        result => Some(result),
    });
    came.unwrap_or_else(|| recv_with_fds(socket, buffer, fds))
}

fn recv(
    socket: &UnixStream,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    flags: RecvFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(buffer)],
            &mut ancillary,
            flags,
        ) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn a_descriptor_arrives_with_its_message() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send_with_fds(&ours, b"fd", &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut fds = Vec::new();
        let mut buffer = [0; 8];
        assert_eq!(recv_with_fds(&theirs, &mut buffer, &mut fds).unwrap(), 2);
        let mut writer = std::fs::File::from(fds.pop().unwrap());
        writer.write_all(b"through").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert_eq!(
            send_with_fds(&ours, b"x", &[]).unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
        assert_eq!(
            recv_with_fds(&ours, &mut [0; 1], &mut Vec::new()).unwrap(),
            0
        );
    }

    #[test]
    fn what_comes_late_and_what_comes_soon_is_received_alike() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut spin = Spin::new();
        for pause in [0, 20, 0, 20, 0].map(Duration::from_millis) {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(pause);
                    theirs.write_all(b"late").unwrap();
                });
                let mut buffer = [0; 8];
                let mut fds = Vec::new();
                let len = recv_with_fds_soon(&ours, &mut spin, &mut buffer, &mut fds).unwrap();
                assert_eq!(&buffer[..len], b"late");
            });
        }
        drop(theirs);
        let end = recv_with_fds_soon(&ours, &mut spin, &mut [0; 1], &mut Vec::new());
        assert_eq!(end.unwrap(), 0);
    }

    #[test]
    fn what_is_sent_slowly_arrives_whole_before_the_deadline_and_not_at_all_after_it() {
        let long = vec![7; 4 << 20];
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(60);
                send_with_fds_by(&ours, &long, &[], deadline).unwrap();
                ours.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut found = Vec::new();
            theirs.read_to_end(&mut found).unwrap();
            assert_eq!(found, long);
        });

        // A peer that always makes some room, but not in time.
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut some = [0; 1024];
                while theirs.read(&mut some).is_ok_and(|len| len > 0) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let deadline = Instant::now() + Duration::from_millis(50);
            let error = send_with_fds_by(&ours, &long, &[], deadline).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(ours);
        });
    }
}
