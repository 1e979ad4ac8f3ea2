//! One connection, from its hello to its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_protocol::ControlError;
use ondol_protocol::wire::{
    Answer, DecodeError, FrameReader, Header, Hello, MAX_PAYLOAD_BYTES, Op, Request, encode_answer,
};
use ondol_shm::{Process, recv_with_fds, send_with_fds};

use super::clients::Client;
use super::connections::Ticket;
use super::{Shared, dispatch};

/// The longest first message: nobody may make us collect more before we know who it is.
const HELLO_LIMIT: usize = 256;

/// An answer's buffer is given back beyond this size.
const KEEP: usize = 256 << 10;

/// Why a connection ended before its client closed it.
#[derive(Debug)]
enum End {
    /// A message did not come or go in time.
    Stalled(&'static str),
    /// The stream cannot be followed any further; said so already.
    Unreadable,
    /// The client was turned away; said so already.
    Refused,
    Io(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock => Self::Stalled("the client takes no answers"),
            _ => Self::Io(error),
        }
    }
}

/// Tells a connection that has said nothing yet why it is closed. Its first request is number 0 by the protocol.
pub(super) fn send_refusal(stream: &UnixStream, error: &ControlError) {
    let mut out = Vec::new();
    encode_answer(&mut out, Op::Hello as u8, 0, Err(error));
    if let Err(error) = send_with_fds(stream, &out, &[]) {
        tracing::debug!(%error, "the refused connection had gone away");
    }
}

pub(super) fn serve(shared: &Arc<Shared>, ticket: Ticket) {
    shared.counters.accepted.increment();
    let mut connection = Connection {
        shared,
        stream: ticket.stream(),
        frames: FrameReader::with_limit(HELLO_LIMIT),
        out: Vec::new(),
        has_timeout: false,
    };
    let end = match connection.run(&ticket) {
        Ok(()) => return,
        Err(end) => end,
    };
    match end {
        End::Stalled(what) => {
            shared.counters.stalled.increment();
            tracing::warn!(what, "a connection was closed because it stalled");
        }
        End::Refused => shared.counters.refused.increment(),
        End::Unreadable => {}
        End::Io(error) => tracing::debug!(%error, "a connection broke"),
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    stream: &'a UnixStream,
    frames: FrameReader,
    out: Vec<u8>,
    /// Whether reads of the socket are bounded now.
    has_timeout: bool,
}

impl Connection<'_> {
    fn run(&mut self, ticket: &Ticket) -> Result<(), End> {
        let Some(client) = self.greet(ticket)? else {
            return Ok(());
        };
        while self.read_frame(None)? {
            self.answer(&client)?;
            if client.is_gone() {
                self.shared.clients.forget(&client);
                self.shared.connections.close_of(client.id);
                break;
            }
        }
        Ok(())
    }

    /// Lets the client in; nothing if it closed without a word.
    fn greet(&mut self, ticket: &Ticket) -> Result<Option<Client>, End> {
        let deadline = Instant::now() + self.shared.config.hello_timeout;
        if !self.read_frame(Some(deadline))? {
            return Ok(None);
        }
        let (header, request) = self.take_request()?;
        let joined = match request {
            Ok(Request::Hello(hello)) => {
                self.join(&hello).and_then(|client| {
                    ticket.belongs_to(client.id);
                    // Asked after the line above: a process that ends later closes this connection.
                    if !self.shared.clients.is_known(&client) {
                        let text = "the client's process has ended".to_owned();
                        return Err(ControlError::Refused(text));
                    }
                    let table = client.session.lease_table()?;
                    Ok((client, table))
                })
            }
            Ok(_) => Err(ControlError::Protocol(
                "the first message of a connection must be a hello".to_owned(),
            )),
            Err(error) => Err(error),
        };
        match joined {
            Ok((client, table)) => {
                let info = client.session.client();
                self.send(&header, Ok(&Answer::Hello(info)), &[table.as_fd()])?;
                self.frames.set_limit(MAX_PAYLOAD_BYTES);
                Ok(Some(client))
            }
            Err(error) => {
                tracing::warn!(%error, "a client was refused");
                self.send(&header, Err(&error), &[])?;
                Err(End::Refused)
            }
        }
    }

    fn join(&self, hello: &Hello) -> Result<Client, ControlError> {
        let process = Process::of_peer(self.stream).map_err(|error| {
            ControlError::Failed(format!(
                "the server cannot see the client's process: {error}"
            ))
        })?;
        self.shared.clients.join(hello, process)
    }

    /// Answers the request that has arrived.
    fn answer(&mut self, client: &Client) -> Result<(), End> {
        let (header, request) = self.take_request()?;
        let leaves = matches!(request, Ok(Request::Leave));
        let result =
            request.and_then(|request| dispatch::carry_out(client.session.as_ref(), request));
        if leaves && result.is_ok() && client.leave() {
            self.shared.counters.left.increment();
        }
        let (answer, file): (_, Option<OwnedFd>) = match result {
            Ok((answer, file)) => (Ok(answer), file),
            Err(error) => (Err(error), None),
        };
        let fds = file.as_ref().map(AsFd::as_fd);
        // Counted first, so that a client which has its answer is in the count.
        self.shared.counters.requests.increment();
        self.send(&header, answer.as_ref(), fds.as_slice())
    }

    fn send(
        &mut self,
        header: &Header,
        answer: Result<&Answer, &ControlError>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), End> {
        encode_answer(&mut self.out, header.op, header.sequence, answer);
        send_with_fds(self.stream, &self.out, fds)?;
        if self.out.capacity() > KEEP {
            self.out = Vec::new();
        }
        Ok(())
    }

    /// Takes the frame that has arrived. One whose content is bad can be answered, and the next one read.
    fn take_request(&mut self) -> Result<(Header, Result<Request, ControlError>), End> {
        let Ok(Some(frame)) = self.frames.frame() else {
            return Err(End::Unreadable);
        };
        let header = frame.header;
        let request = Request::decode(&header, frame.payload).map_err(|error| {
            self.shared.counters.bad_frames.increment();
            error.into()
        });
        self.frames.consume();
        Ok((header, request))
    }

    /// Reads until a frame is there, false if the client closed instead. A frame may begin at any time before
    /// `deadline`; once it has begun it must go on.
    fn read_frame(&mut self, mut deadline: Option<Instant>) -> Result<bool, End> {
        loop {
            match self.frames.frame() {
                Ok(Some(_)) => break,
                Ok(None) => {}
                Err(error) => return self.give_up(&error),
            }
            if self.frames.is_started() && deadline.is_none() {
                deadline = Some(Instant::now() + self.shared.config.frame_timeout);
            }
            self.bound_reads(deadline)?;
            // Nothing in the protocol sends descriptors this way; those that come are closed here.
            let mut fds = Vec::new();
            match recv_with_fds(self.stream, self.frames.space(), &mut fds) {
                Ok(0) => return Ok(false),
                Ok(len) => self.frames.filled(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(End::Stalled("a request did not arrive whole"));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn give_up(&mut self, error: &DecodeError) -> Result<bool, End> {
        self.shared.counters.bad_frames.increment();
        tracing::warn!(%error, "a connection was closed because its stream cannot be read");
        if let Some(header) = self.frames.header() {
            self.send(&header, Err(&ControlError::from(error.clone())), &[])?;
        }
        Err(End::Unreadable)
    }

    fn bound_reads(&mut self, deadline: Option<Instant>) -> Result<(), End> {
        let Some(deadline) = deadline else {
            if self.has_timeout {
                self.stream.set_read_timeout(None)?;
                self.has_timeout = false;
            }
            return Ok(());
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(End::Stalled("a request did not arrive whole"));
        }
        // The kernel's clock is coarser, and nothing would mean no bound at all.
        self.stream
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        self.has_timeout = true;
        Ok(())
    }
}
