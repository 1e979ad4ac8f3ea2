//! A client that says exactly what it is told to.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use ondol_protocol::wire::{Answer, FrameReader, Header, Hello, RequestRef, encode_request};
use ondol_protocol::{ClientInfo, ControlError};
use ondol_shm::{process_start_time, recv_with_fds, send_with_fds};

use crate::fake::WATCHDOG;

/// One connection.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    pub(crate) frames: FrameReader,
    pub(crate) sequence: u64,
}

impl Raw {
    pub(crate) fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        Self {
            stream,
            frames: FrameReader::new(),
            sequence: 0,
        }
    }

    /// Says hello and passes a descriptor with it.
    pub(crate) fn hello_with(
        &mut self,
        hello: &Hello,
        fds: &[BorrowedFd<'_>],
    ) -> (Result<Answer, ControlError>, Vec<OwnedFd>) {
        let mut out = Vec::new();
        encode_request(&mut out, 0, RequestRef::Hello(hello)).unwrap();
        send_with_fds(&self.stream, &out, fds).unwrap();
        self.sequence = 1;
        let (_, answer, fds) = self.receive();
        (answer, fds)
    }

    pub(crate) fn greeted(socket: &Path, instance: u8) -> (Self, ClientInfo) {
        let mut raw = Self::connect(socket);
        let (answer, fds) = raw.ask(RequestRef::Hello(&hello(instance)));
        let Ok(Answer::Hello(info)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(fds.len(), 1);
        (raw, info)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn receive(&mut self) -> (Header, Result<Answer, ControlError>, Vec<OwnedFd>) {
        let mut fds = Vec::new();
        while self.frames.frame().unwrap().is_none() {
            let len = recv_with_fds(&self.stream, self.frames.space(), &mut fds).unwrap();
            assert_ne!(len, 0, "the door closed the connection");
            self.frames.filled(len);
        }
        let frame = self.frames.frame().unwrap().unwrap();
        let (header, answer) = (frame.header, Answer::decode(&frame.header, frame.payload));
        self.frames.consume();
        (header, answer.unwrap(), fds)
    }

    pub(crate) fn ask(
        &mut self,
        request: RequestRef<'_>,
    ) -> (Result<Answer, ControlError>, Vec<OwnedFd>) {
        let mut out = Vec::new();
        encode_request(&mut out, self.sequence, request).unwrap();
        self.send(&out);
        let (header, answer, fds) = self.receive();
        assert_eq!(header.sequence, self.sequence);
        assert_eq!(header.op, request.op() as u8);
        self.sequence += 1;
        (answer, fds)
    }

    /// Waits until the door has closed this connection.
    pub(crate) fn assert_closed(&mut self) {
        match self.stream.read(&mut [0; 1]) {
            Ok(0) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            other => panic!("expected the end of the connection, got {other:?}"),
        }
    }
}

pub(crate) fn hello(instance: u8) -> Hello {
    Hello {
        instance: [instance; 16],
        start_time: process_start_time(std::process::id()).unwrap(),
        incarnation: 0,
    }
}

pub(crate) fn protocol_error(answer: Result<Answer, ControlError>) -> String {
    match answer {
        Err(ControlError::Protocol(text)) => text,
        other => panic!("expected a protocol error, got {other:?}"),
    }
}

pub(crate) fn refusal(answer: Result<Answer, ControlError>) -> String {
    match answer {
        Err(ControlError::Refused(text)) => text,
        other => panic!("expected a refusal, got {other:?}"),
    }
}
