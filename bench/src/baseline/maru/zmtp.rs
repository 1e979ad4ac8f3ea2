//! The requesting side of ZMTP 3.0 without security: what a REQ socket of ZeroMQ says (RFC 23/ZMTP).

use std::io::{BufReader, Read, Write};

use anyhow::{Context, Result, bail, ensure};

const GREETING: usize = 64;
/// In a greeting: version 3.0, and behind it the mechanism's name, filled up to 20 bytes.
const VERSION: [u8; 2] = [3, 0];
const MECHANISM: &[u8] = b"NULL";

const MORE: u8 = 0x01;
const LONG: u8 = 0x02;
const COMMAND: u8 = 0x04;

/// The longest frame that is taken.
const LONGEST: u64 = 64 << 20;

/// A connection on which one question at a time is asked.
#[derive(Debug)]
pub(super) struct Requester<S: Read> {
    stream: BufReader<S>,
    frame: Vec<u8>,
    out: Vec<u8>,
}

impl<S: Read + Write> Requester<S> {
    /// Exchanges greetings and the `READY` commands.
    pub(super) fn greet(stream: S) -> Result<Self> {
        let mut requester = Self {
            stream: BufReader::with_capacity(64 << 10, stream),
            frame: Vec::new(),
            out: Vec::new(),
        };
        requester.stream.get_mut().write_all(&greeting())?;
        let mut theirs = [0; GREETING];
        requester
            .stream
            .read_exact(&mut theirs)
            .context("no greeting came")?;
        ensure!(
            theirs[0] == 0xff && theirs[9] == 0x7f,
            "what answers does not speak ZMTP"
        );
        ensure!(
            theirs[10] >= VERSION[0],
            "the server speaks ZMTP {}; expected 3 or later",
            theirs[10]
        );
        ensure!(
            theirs[12..].starts_with(MECHANISM) && theirs[16] == 0,
            "the server demands security; expected the mechanism NULL"
        );
        let ready = ready();
        requester.stream.get_mut().write_all(&ready)?;
        let flags = requester.read_frame()?;
        ensure!(
            flags & COMMAND != 0 && requester.frame.starts_with(b"\x05READY"),
            "the server is not ready: {:?}",
            String::from_utf8_lossy(&requester.frame)
        );
        Ok(requester)
    }

    /// Asks and waits for the answer.
    pub(super) fn ask(&mut self, question: &[u8]) -> Result<&[u8]> {
        let Self { stream, out, .. } = self;
        out.clear();
        // The empty frame that ends an envelope of which there is none.
        out.extend_from_slice(&[MORE, 0]);
        head(out, 0, question.len());
        out.extend_from_slice(question);
        stream.get_mut().write_all(out)?;
        let mut frames = 0;
        loop {
            let flags = self.read_frame()?;
            if flags & COMMAND != 0 {
                continue;
            }
            frames += 1;
            if flags & MORE == 0 {
                ensure!(
                    frames == 2,
                    "an answer has {frames} frames; expected an empty one and one with the answer"
                );
                return Ok(&self.frame);
            }
        }
    }

    /// Reads a frame and says its flags.
    fn read_frame(&mut self) -> Result<u8> {
        let mut flags = [0];
        self.stream
            .read_exact(&mut flags)
            .context("the server closed the connection")?;
        let [flags] = flags;
        let len = if flags & LONG == 0 {
            let mut len = [0];
            self.stream.read_exact(&mut len)?;
            len[0].into()
        } else {
            let mut len = [0; 8];
            self.stream.read_exact(&mut len)?;
            u64::from_be_bytes(len)
        };
        if len > LONGEST {
            bail!("a frame has {len} bytes; expected at most {LONGEST}");
        }
        self.frame.resize(len as usize, 0);
        self.stream.read_exact(&mut self.frame)?;
        Ok(flags)
    }
}

fn greeting() -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10..12].copy_from_slice(&VERSION);
    greeting[12..12 + MECHANISM.len()].copy_from_slice(MECHANISM);
    greeting
}

fn ready() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(b"\x05READY");
    for (name, value) in [("Socket-Type", "REQ"), ("Identity", "")] {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value.as_bytes());
    }
    let mut frame = Vec::new();
    head(&mut frame, COMMAND, body.len());
    frame.extend_from_slice(&body);
    frame
}

fn head(out: &mut Vec<u8>, flags: u8, len: usize) {
    match u8::try_from(len) {
        Ok(len) => out.extend_from_slice(&[flags, len]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// What a server has said, and what it heard.
    struct Recorded {
        said: &'static [u8],
        heard: Vec<u8>,
    }

    impl Read for Recorded {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.said.read(into)
        }
    }

    impl Write for Recorded {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.heard.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A REP socket of libzmq 4.3.5: its greeting, `READY`, and an answer of two frames.
    const REP: &[u8] = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL\
        \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
        \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
        \x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03REP\
        \x01\x00\x00\x02hi";

    #[test]
    fn a_question_is_answered() {
        let stream = Recorded {
            said: REP,
            heard: Vec::new(),
        };
        let mut requester = Requester::greet(stream).unwrap();
        assert_eq!(requester.ask(b"hello").unwrap(), b"hi");
        let heard = &requester.stream.get_ref().heard;
        assert_eq!(heard[..GREETING], greeting());
        assert!(
            heard[GREETING..].starts_with(b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x03REQ")
        );
        assert!(heard.ends_with(b"\x01\x00\x00\x05hello"));
        requester
            .ask(b"more")
            .expect_err("the server has closed the connection");
    }

    #[test]
    fn who_does_not_speak_zmtp_is_found_out() {
        let stream = Recorded {
            said: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            heard: Vec::new(),
        };
        let Err(error) = Requester::greet(stream) else {
            panic!("it is no server")
        };
        assert_eq!(error.to_string(), "what answers does not speak ZMTP");
    }

    #[test]
    fn long_frames_have_long_lengths() {
        let mut out = Vec::new();
        head(&mut out, 0, 255);
        head(&mut out, 0, 256);
        assert_eq!(out, [0, 255, LONG, 0, 0, 0, 0, 0, 0, 1, 0]);
    }
}
