//! One connection, from its hello to its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_catalog::failpoint;
use ondol_protocol::ControlError;
use ondol_protocol::wire::{
    Answer, DecodeError, FrameReader, Header, Hello, MAX_PAYLOAD_BYTES, Op, Request, encode_answer,
};
use ondol_shm::{Process, Spin, recv_with_fds_soon, send_with_fds_by};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::budget::Share;
use super::clients::{Arrival, Client};
use super::connections::Ticket;
use super::{Shared, dispatch};

/// The longest first message: nobody may make us collect more before we know who it is.
const HELLO_LIMIT: usize = 256;

/// An answer's buffer is given back beyond this size.
const KEEP: usize = 64 << 10;

/// Why a connection ended before its client closed it.
#[derive(Debug)]
enum End {
    /// A message did not come or go in time.
    Stalled(&'static str),
    /// The stream cannot be followed any further; said so already.
    Unreadable,
    /// The client was turned away; said so already.
    Refused,
    /// The messages of all connections took too much memory together; said so already.
    Busy,
    Io(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Stalled("the client does not take its answer in time"),
            _ => Self::Io(error),
        }
    }
}

/// Tells a connection that has said nothing yet why it is closed. Its first request is number 0 by the protocol.
pub(super) fn send_refusal(stream: &UnixStream, error: &ControlError, deadline: Instant) {
    let mut out = Vec::new();
    encode_answer(&mut out, Op::Hello as u8, 0, Err(error));
    if let Err(error) = send_with_fds_by(stream, &out, &[], deadline) {
        tracing::debug!(%error, "the refused connection had gone away");
    }
}

pub(super) fn serve(shared: &Arc<Shared>, ticket: Ticket, process: Process) {
    shared.counters.accepted.increment();
    let mut connection = Connection {
        shared,
        stream: ticket.stream(),
        frames: FrameReader::with_limit(HELLO_LIMIT),
        out: Vec::new(),
        share: shared.budget.share(),
        spin: Spin::new(),
        has_timeout: false,
    };
    let end = match connection.run(&ticket, process) {
        Ok(()) => return,
        Err(end) => end,
    };
    match end {
        End::Stalled(what) => {
            shared.counters.stalled.increment();
            if let Some(suppressed) = shared.warnings.stalled.pass() {
                tracing::warn!(
                    what,
                    suppressed,
                    "a connection was closed because it stalled"
                );
            }
        }
        End::Busy => {
            shared.counters.busy.increment();
            if let Some(suppressed) = shared.warnings.busy.pass() {
                tracing::warn!(
                    budget = shared.budget.limit(),
                    suppressed,
                    "a connection was closed because all messages together take as much memory as they may"
                );
            }
        }
        End::Refused => shared.counters.refused.increment(),
        End::Unreadable => {}
        End::Io(error) => tracing::debug!(%error, "a connection broke"),
    }
}

/// The descriptors that came with a hello.
#[derive(Default)]
struct Passed {
    first: Option<OwnedFd>,
    further: usize,
}

impl Passed {
    /// Keeps the first descriptor, closes and counts the others.
    fn take(&mut self, fds: Vec<OwnedFd>) {
        for fd in fds {
            match self.first {
                None => self.first = Some(fd),
                Some(_) => self.further += 1,
            }
        }
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    stream: &'a UnixStream,
    frames: FrameReader,
    out: Vec<u8>,
    /// What frames that arrive and answers that go take of the memory for messages.
    share: Share<'a>,
    /// Whether the next request tends to come soon.
    spin: Spin,
    /// Whether reads of the socket are bounded now.
    has_timeout: bool,
}

impl Connection<'_> {
    fn run(&mut self, ticket: &Ticket, process: Process) -> Result<(), End> {
        let Some(client) = self.greet(ticket, process)? else {
            return Ok(());
        };
        // Descriptors that come after the hello are of no use to anybody, and are closed as they come.
        let mut next = self.read_frame(None, |_| {});
        // A client that closes with the answer unread resets the connection.
        let is_reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
        let is_unread = matches!(&next, Err(End::Io(error)) if is_reset(error));
        self.end_greeting(&client, !is_unread);
        while next? {
            self.answer(&client)?;
            if client.is_gone() {
                self.shared.clients.forget(&client);
                self.shared.connections.close_of(client.id);
                break;
            }
            next = self.read_frame(None, |_| {});
        }
        Ok(())
    }

    fn end_greeting(&self, client: &Client, has_arrived: bool) {
        if self.shared.clients.end_greeting(client, has_arrived) {
            tracing::debug!(client = %client.id, "a client did not wait for the answer to its hello, and is forgotten");
            if let Err(error) = client.session.leave() {
                tracing::debug!(%error, client = %client.id, "it leaves when its session ends");
            }
        }
    }

    /// Lets the client in; nothing if it closed without a word.
    fn greet(&mut self, ticket: &Ticket, process: Process) -> Result<Option<Client>, End> {
        let deadline = Instant::now() + self.shared.config.hello_timeout;
        let mut passed = Passed::default();
        if !self.read_frame(Some(deadline), |fds| passed.take(fds))? {
            return Ok(None);
        }
        let (header, request) = self.take_request()?;
        let joined = match request {
            Ok(Request::Hello(hello)) => {
                self.join(&hello, passed, process).and_then(|client| {
                    ticket.belongs_to(client.id);
                    // Asked after the line above: a process that ends later closes this connection.
                    let table = if self.shared.clients.is_known(&client) {
                        client.session.lease_table()
                    } else {
                        let text = "the client's process has ended".to_owned();
                        Err(ControlError::Refused(text))
                    };
                    if table.is_err() {
                        self.end_greeting(&client, false);
                    }
                    Ok((client, table?))
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
                let sent = self.send(&header, Ok(&Answer::Hello(info)), &[table.as_fd()]);
                if sent.is_err() {
                    self.end_greeting(&client, false);
                }
                sent?;
                self.frames.set_limit(MAX_PAYLOAD_BYTES);
                Ok(Some(client))
            }
            Err(error) => {
                if let Some(suppressed) = self.shared.warnings.refused.pass() {
                    tracing::warn!(%error, suppressed, "a client was refused");
                }
                self.send(&header, Err(&error), &[])?;
                Err(End::Refused)
            }
        }
    }

    fn join(
        &self,
        hello: &Hello,
        passed: Passed,
        process: Process,
    ) -> Result<Client, ControlError> {
        if passed.further > 0 {
            return Err(ControlError::Protocol(format!(
                "{} descriptors came with the hello; expected at most 1",
                passed.further + 1
            )));
        }
        let pid = process.pid();
        let counters = &self.shared.counters;
        let joined = self.shared.clients.join(hello, passed.first, process);
        match &joined {
            Ok((client, Arrival::Resumed)) => {
                counters.resumed.increment();
                tracing::debug!(
                    client = %client.id,
                    pid,
                    "a client of the server before this one is back with what it held"
                );
            }
            Err(ControlError::UnknownClient(_)) => counters.unknown.increment(),
            _ => {}
        }
        joined.map(|(client, _)| client)
    }

    /// Answers the request that has arrived.
    fn answer(&mut self, client: &Client) -> Result<(), End> {
        let (header, request) = self.take_request()?;
        let leaves = matches!(request, Ok(Request::Leave));
        // Who has given up may have asked again by another connection, and gone on from there: what comes late must not
        // undo that. To leave is never too late.
        if !leaves && self.is_abandoned() {
            return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
        }
        let result =
            request.and_then(|request| dispatch::carry_out(client.session.as_ref(), request));
        if leaves && result.is_ok() && client.leave() {
            self.shared.counters.left.increment();
        }
        let (answer, files) = match result {
            Ok((answer, files)) => (Ok(answer), files),
            Err(error) => (Err(error), Vec::new()),
        };
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        failpoint!("answer.before_send");
        // Counted first, so that a client which has its answer is in the count.
        self.shared.counters.requests.increment();
        self.send(&header, answer.as_ref(), &fds)
    }

    /// Whether the client has closed the connection, so that no answer can reach it.
    fn is_abandoned(&self) -> bool {
        let mut stream = [PollFd::new(self.stream, PollFlags::empty())];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut stream, Some(&now)).is_ok() && stream[0].revents().contains(PollFlags::HUP)
    }

    fn send(
        &mut self,
        header: &Header,
        answer: Result<&Answer, &ControlError>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), End> {
        encode_answer(&mut self.out, header.op, header.sequence, answer);
        let has_room = self.share.hold(self.frames.room() + self.out.len());
        let fds = if has_room {
            fds
        } else {
            let error = ControlError::Failed(format!(
                "the server is busy: the answer has {} bytes, and the messages of all connections may take {} together; \
                 ask again, for less at once",
                self.out.len(),
                self.shared.budget.limit()
            ));
            self.out = Vec::new();
            encode_answer(&mut self.out, header.op, header.sequence, Err(&error));
            &[]
        };
        let deadline = Instant::now() + self.shared.config.write_timeout;
        send_with_fds_by(self.stream, &self.out, fds, deadline)?;
        if self.out.capacity() > KEEP {
            self.out = Vec::new();
        }
        if !has_room {
            return Err(End::Busy);
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
    fn read_frame(
        &mut self,
        mut deadline: Option<Instant>,
        mut passed: impl FnMut(Vec<OwnedFd>),
    ) -> Result<bool, End> {
        loop {
            match self.frames.frame() {
                Ok(Some(_)) => break,
                Ok(None) => {}
                Err(error) => return self.give_up(&error),
            }
            if self.frames.is_started() && deadline.is_none() {
                deadline = Some(Instant::now() + self.shared.config.frame_timeout);
            }
            if !self.share.hold(self.frames.room_wanted()) {
                return self.turn_busy();
            }
            self.bound_reads(deadline)?;
            let mut fds = Vec::new();
            match recv_with_fds_soon(self.stream, &mut self.spin, self.frames.space(), &mut fds) {
                Ok(0) => return Ok(false),
                Ok(len) => {
                    self.frames.filled(len);
                    passed(fds);
                }
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
        if let Some(suppressed) = self.shared.warnings.unreadable.pass() {
            tracing::warn!(
                %error,
                suppressed,
                "a connection was closed because its stream cannot be read"
            );
        }
        if let Some(header) = self.frames.header() {
            self.send(&header, Err(&ControlError::from(error.clone())), &[])?;
        }
        Err(End::Unreadable)
    }

    /// Refuses the frame that is arriving, for which there is no memory.
    fn turn_busy(&mut self) -> Result<bool, End> {
        if let Some(header) = self.frames.header() {
            let error = ControlError::Refused(format!(
                "the server is busy: the messages of all connections may take {} bytes together, and there is no room for \
                 one of {} bytes; nothing was done, connect and ask again, for less at once",
                self.shared.budget.limit(),
                header.payload_len
            ));
            self.frames = FrameReader::new();
            self.send(&header, Err(&error), &[])?;
        }
        Err(End::Busy)
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
