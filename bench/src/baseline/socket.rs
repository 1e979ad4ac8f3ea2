//! A stream of requests and answers that are lines and bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// A connection. Requests are gathered and sent together.
#[derive(Debug)]
pub(super) struct Socket<S: Read> {
    stream: BufReader<S>,
    line: Vec<u8>,
    /// What is to be sent.
    pub(super) out: Vec<u8>,
}

impl Socket<UnixStream> {
    pub(super) fn connect(path: &Path) -> Result<Self> {
        let stream =
            UnixStream::connect(path).with_context(|| format!("connect to {}", path.display()))?;
        Ok(Self::over(stream))
    }

    /// Sends what was gathered.
    pub(super) fn send(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Sends what was gathered, and `value` without a copy, and `end`.
    pub(super) fn send_value(&mut self, value: &[u8], end: &[u8]) -> Result<()> {
        self.send()?;
        self.stream.get_mut().write_all(value)?;
        self.stream.get_mut().write_all(end)?;
        Ok(())
    }
}

impl<S: Read> Socket<S> {
    pub(super) fn over(stream: S) -> Self {
        Self {
            stream: BufReader::with_capacity(64 << 10, stream),
            line: Vec::new(),
            out: Vec::new(),
        }
    }

    /// The next line, without its end.
    pub(super) fn line(&mut self) -> Result<&[u8]> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        match self.line.strip_suffix(b"\r\n") {
            Some(line) => Ok(line),
            None if self.line.is_empty() => bail!("the server closed the connection"),
            None => bail!(
                "an answer is no line: {:?}",
                String::from_utf8_lossy(&self.line)
            ),
        }
    }

    /// Reads a value of `len` bytes and the end of its line over the beginning of `into`.
    pub(super) fn value(&mut self, len: usize, into: &mut [u8]) -> Result<()> {
        let room = into.len();
        let target = into.get_mut(..len);
        let target =
            target.with_context(|| format!("a value has {len} bytes; expected at most {room}"))?;
        self.stream.read_exact(target)?;
        let mut end = [0; 2];
        self.stream.read_exact(&mut end)?;
        ensure!(end == *b"\r\n", "a value ends with {end:?}");
        Ok(())
    }
}

/// A number in a line.
pub(super) fn number(text: &[u8]) -> Result<usize> {
    let text = std::str::from_utf8(text)?;
    text.parse()
        .with_context(|| format!("{text:?} is no number"))
}
