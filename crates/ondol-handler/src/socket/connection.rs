//! One connection: a request, its answer, one at a time.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ondol_protocol::ControlError;
use ondol_protocol::wire::{Answer, FrameReader, RequestRef, encode_request};
use ondol_shm::{PeerCredentials, Spin, recv_with_fds_soon, send_with_fds_by};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::SocketOptions;

/// A request's buffer is given back beyond this size.
const KEEP: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    frames: FrameReader,
    out: Vec<u8>,
    /// Whether answers tend to come soon.
    spin: Spin,
    sequence: u64,
    timeout: Duration,
    /// Of the server at the other end; 0 until it has answered a hello.
    pub(super) incarnation: u64,
}

/// An answer and the descriptors that came with it, as many as it says.
pub(super) type Answered = (Answer, Vec<OwnedFd>);

/// The connection is of no use any more.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) error: ControlError,
    /// Whether the server had closed the connection before the request, so that another one may serve.
    pub(super) was_closed: bool,
}

impl Connection {
    /// Connects, without a word yet, to a server that runs as this user, as root or as one of `trusted`.
    pub(super) fn open(
        path: &Path,
        SocketOptions {
            timeout,
            server_uids: trusted,
            ..
        }: &SocketOptions,
    ) -> Result<Self, ControlError> {
        let timeout = *timeout;
        let absent = |error: Errno| ControlError::Disconnected {
            reason: why_absent(path, error, timeout),
            sent: false,
        };
        let address = SocketAddrUnix::new(path).map_err(absent)?;
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(absent)?;
        // No timeout at all is what the kernel makes of 0.
        let timeout = timeout.max(Duration::from_millis(1));
        for which in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, which, Some(timeout)).map_err(absent)?;
        }
        loop {
            match connect(&socket, &address) {
                Err(Errno::INTR) => {}
                result => break result.map_err(absent)?,
            }
        }
        let stream = UnixStream::from(socket);
        let server = PeerCredentials::of(&stream)
            .map_err(|error| absent(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?
            .uid;
        let own = rustix::process::geteuid().as_raw();
        if server != own && server != 0 && !trusted.contains(&server) {
            return Err(ControlError::Refused(format!(
                "the server at {} runs as user {server}; expected user {own}, root, or one that this client trusts",
                path.display()
            )));
        }
        Ok(Self {
            stream,
            frames: FrameReader::new(),
            out: Vec::new(),
            spin: Spin::new(),
            sequence: 0,
            timeout,
            incarnation: 0,
        })
    }

    /// Asks and waits for the answer. The inner error is the server's; after an outer one the connection must be
    /// dropped, so that a late answer can not be taken for another request's.
    pub(super) fn ask(
        &mut self,
        path: &Path,
        request: RequestRef<'_>,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Result<Answered, ControlError>, Broken> {
        let sequence = self.sequence;
        if let Err(error) = encode_request(&mut self.out, sequence, request) {
            return Ok(Err(error.into()));
        }
        self.sequence += 1;
        let deadline = Instant::now() + self.timeout;
        let sent = send_with_fds_by(&self.stream, &self.out, descriptor.as_slice(), deadline);
        if self.out.capacity() > KEEP {
            self.out = Vec::new();
        }
        if let Err(error) = sent {
            // A request that did not go out whole is never carried out.
            let broken = self.broken(path, &error, false);
            if sequence > 0 {
                return Err(broken);
            }
            // A server that turns a connection away says why before it closes.
            return match self.receive(path, request, sequence) {
                Err(Broken {
                    error: ControlError::Disconnected { .. } | ControlError::TimedOut { .. },
                    ..
                }) => Err(broken),
                said => said,
            };
        }
        reach_sent(request);
        self.receive(path, request, sequence)
    }

    fn receive(
        &mut self,
        path: &Path,
        request: RequestRef<'_>,
        sequence: u64,
    ) -> Result<Result<Answered, ControlError>, Broken> {
        let mut fds = Vec::new();
        let begun = Instant::now();
        loop {
            match self.frames.frame() {
                // The kernel bounds each wait; together they are bounded here, whatever trickles in.
                Ok(None) if begun.elapsed() > self.timeout => {
                    return Err(self.broken(path, &io::ErrorKind::WouldBlock.into(), true));
                }
                Ok(None) => {}
                Ok(Some(_)) => break,
                Err(error) => return Err(foreign(path, &error)),
            }
            match recv_with_fds_soon(&self.stream, &mut self.spin, self.frames.space(), &mut fds) {
                Ok(0) => {
                    let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return Err(self.broken(path, &error, true));
                }
                Ok(len) => self.frames.filled(len),
                Err(error) => return Err(self.broken(path, &error, true)),
            }
        }
        let Ok(Some(frame)) = self.frames.frame() else {
            return Err(foreign(path, &"no frame"));
        };
        let header = frame.header;
        if (header.op, header.sequence) != (request.op() as u8, sequence) {
            let text = format!(
                "the answer is to operation {:#04x}, request {}; expected {:#04x}, request {sequence}",
                header.op,
                header.sequence,
                request.op() as u8
            );
            return Err(foreign(path, &text));
        }
        let answer =
            Answer::decode(&header, frame.payload).map_err(|error| foreign(path, &error))?;
        self.frames.consume();
        let expected = answer.as_ref().map_or(0, Answer::descriptors);
        if fds.len() != expected {
            let text = format!(
                "{} descriptors came with the answer; expected {expected}",
                fds.len()
            );
            return Err(foreign(path, &text));
        }
        Ok(answer.map(|answer| (answer, fds)))
    }

    fn broken(&self, path: &Path, error: &io::Error, sent: bool) -> Broken {
        if matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ) {
            return Broken {
                error: ControlError::TimedOut {
                    waited_ms: self.timeout.as_millis().try_into().unwrap_or(u64::MAX),
                },
                was_closed: false,
            };
        }
        let reason = match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => format!(
                "the server at {} closed the connection; if it has ended, start it with `ondol serve`",
                path.display()
            ),
            _ => format!("{}: {error}", path.display()),
        };
        Broken {
            error: ControlError::Disconnected { reason, sent },
            was_closed: !sent,
        }
    }
}

/// Between a request and its answer; only tests stop here.
fn reach_sent(request: RequestRef<'_>) {
    use ondol_catalog::failpoint;
    match request {
        RequestRef::Hello(_) => {
            failpoint!("client.hello.sent");
        }
        RequestRef::Grant(_) => {
            failpoint!("client.alloc.sent");
        }
        RequestRef::ReturnPages(_) => {
            failpoint!("client.return.sent");
        }
        RequestRef::Commit(_) => {
            failpoint!("client.store.sent");
        }
        RequestRef::Retrieve(_) => {
            failpoint!("client.retrieve.sent");
        }
        RequestRef::Pin(_) => {
            failpoint!("client.pin.sent");
        }
        RequestRef::Unpin(_) => {
            failpoint!("client.unpin.sent");
        }
        RequestRef::Delete(_) => {
            failpoint!("client.delete.sent");
        }
        RequestRef::Leave => {
            failpoint!("client.close.sent");
        }
        _ => {}
    }
}

fn foreign(path: &Path, error: &dyn std::fmt::Display) -> Broken {
    Broken {
        error: ControlError::Protocol(format!("{}: {error}", path.display())),
        was_closed: false,
    }
}

fn why_absent(path: &Path, error: Errno, timeout: Duration) -> String {
    let path = path.display();
    match error {
        Errno::NOENT | Errno::CONNREFUSED => {
            format!("nobody listens at {path}; start the server with `ondol serve`")
        }
        Errno::ACCESS | Errno::PERM => format!(
            "this user may not connect to {path}; run as the server's user, or ask for access"
        ),
        Errno::AGAIN => format!(
            "the server at {path} accepted no connection within {} ms; it is stopped or overloaded",
            timeout.as_millis()
        ),
        Errno::NAMETOOLONG => format!("the socket path {path} is longer than 107 bytes"),
        error => format!("cannot connect to {path}: {error}"),
    }
}
