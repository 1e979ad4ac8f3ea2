//! memcached over a Unix socket, by its meta commands.

use std::io::{Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use ondol::Key;
use tempfile::TempDir;

use super::Peer;
use super::socket::{Socket, number};
use crate::daemon::{Daemon, find_program};

/// Values from this length on are sent one by one, so that neither side waits for the other to read.
const LARGE: usize = 16 << 10;
/// Memory that it may use, in MiB: more than any scenario gives it.
const MEMORY: &str = "4096";

/// A server of its own.
#[derive(Debug)]
pub(super) struct Memcached {
    socket: Socket<UnixStream>,
    daemon: Daemon,
    name: String,
    _dir: TempDir,
}

impl Memcached {
    pub(super) fn start(program: Option<&Path>) -> Result<Self> {
        let program = match program {
            Some(program) => program.to_owned(),
            None => find_program(&["memcached"])?,
        };
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("memcached.sock");
        let socket = path.to_string_lossy().into_owned();
        // It refuses to run as root unless that is said.
        let user: &[&str] = if rustix::process::geteuid().is_root() {
            &["-u", "root"]
        } else {
            &[]
        };
        let arguments = ["-s", &socket, "-m", MEMORY, "-I", "8m", "-t", "2"];
        let arguments = arguments.into_iter().chain(user.iter().copied());
        let mut daemon = Daemon::start(&program, arguments, dir.path().join("said"))?;
        daemon.wait_for(&path)?;
        let version = Command::new(&program).arg("-V").output()?;
        Ok(Self {
            socket: Socket::connect(&path)?,
            daemon,
            name: String::from_utf8_lossy(&version.stdout).trim().to_owned(),
            _dir: dir,
        })
    }

    fn line(&mut self, words: &[&[u8]]) {
        let out = &mut self.socket.out;
        for (index, word) in words.iter().enumerate() {
            if index > 0 {
                out.push(b' ');
            }
            out.extend_from_slice(word);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn all_stored(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            match reply(&mut self.socket, &mut [])? {
                Reply::Done => {}
                other => bail!("ms is answered with {other:?}"),
            }
        }
        Ok(())
    }

    fn count(&mut self, asked: usize, into: &mut [u8]) -> Result<usize> {
        self.socket.send()?;
        let mut found = 0;
        for _ in 0..asked {
            match reply(&mut self.socket, into)? {
                Reply::Done | Reply::Value => found += 1,
                Reply::Nothing => {}
            }
        }
        Ok(found)
    }
}

/// An answer, as far as the benchmark's commands get any.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Done,
    /// Its bytes are in the caller's buffer.
    Value,
    Nothing,
}

fn reply(socket: &mut Socket<impl Read>, into: &mut [u8]) -> Result<Reply> {
    let line = socket.line()?;
    if let Some(rest) = line.strip_prefix(b"VA ") {
        let len = rest.split(|byte| *byte == b' ').next().unwrap_or_default();
        let len = number(len)?;
        socket.value(len, into)?;
        return Ok(Reply::Value);
    }
    match line {
        b"HD" | b"MN" | b"OK" => Ok(Reply::Done),
        b"EN" => Ok(Reply::Nothing),
        line => bail!("the server says {:?}", String::from_utf8_lossy(line)),
    }
}

impl Peer for Memcached {
    fn name(&self) -> &str {
        &self.name
    }

    fn server(&self) -> Option<u32> {
        Some(self.daemon.pid())
    }

    fn put(&mut self, keys: &[Key], value: &[u8]) -> Result<()> {
        let mut len = Vec::new();
        write!(len, "{}", value.len())?;
        for key in keys {
            self.line(&[b"ms", key.bytes(), &len]);
            if value.len() < LARGE {
                self.line(&[value]);
            } else {
                self.socket.send_value(value, b"\r\n")?;
                self.all_stored(1)?;
            }
        }
        if value.len() < LARGE {
            self.socket.send()?;
            self.all_stored(keys.len())?;
        }
        Ok(())
    }

    fn get(&mut self, keys: &[Key], into: &mut [u8]) -> Result<usize> {
        for key in keys {
            self.line(&[b"mg", key.bytes(), b"v"]);
        }
        self.count(keys.len(), into)
    }

    fn exists(&mut self, keys: &[Key]) -> Result<usize> {
        for key in keys {
            self.line(&[b"mg", key.bytes()]);
        }
        self.count(keys.len(), &mut [])
    }

    fn ping(&mut self) -> Option<Result<()>> {
        self.line(&[b"mn"]);
        Some(self.count(1, &mut []).map(drop))
    }

    fn clear(&mut self) -> Result<()> {
        self.line(&[b"flush_all"]);
        self.count(1, &mut []).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_apart() {
        let mut socket = Socket::over(
            &b"HD\r\nEN\r\nVA 3 s3\r\n\r\nx\r\nMN\r\nSERVER_ERROR out of memory\r\n"[..],
        );
        let mut value = [0; 4];
        let mut next = |socket: &mut _| reply(socket, &mut value);
        assert_eq!(next(&mut socket).unwrap(), Reply::Done);
        assert_eq!(next(&mut socket).unwrap(), Reply::Nothing);
        assert_eq!(next(&mut socket).unwrap(), Reply::Value);
        assert_eq!(next(&mut socket).unwrap(), Reply::Done);
        let error = format!("{:#}", next(&mut socket).unwrap_err());
        assert_eq!(error, "the server says \"SERVER_ERROR out of memory\"");
        assert_eq!(&value, b"\r\nx\0", "bytes of a value are no line");
    }
}
