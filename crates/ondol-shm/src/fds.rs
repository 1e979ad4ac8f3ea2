//! Descriptors over a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most descriptors that travel with one message.
pub const MAX_FDS: usize = 4;

/// Sends all of `bytes`; the descriptors travel with the first of them.
///
/// # Errors
/// Those of `sendmsg`; a peer that has gone away is an error, not a signal.
///
/// # Panics
/// If there are more than [`MAX_FDS`] descriptors, or descriptors without a byte to carry them.
pub fn send_with_fds(
    socket: &UnixStream,
    mut bytes: &[u8],
    fds: &[BorrowedFd<'_>],
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
        let sent = match sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        ) {
            Ok(sent) => sent,
            Err(rustix::io::Errno::INTR) => continue,
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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(buffer)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(rustix::io::Errno::INTR) => {}
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
}
