//! Redis or Valkey over a Unix socket, by RESP2.

use std::io::{Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use ondol::Key;
use tempfile::TempDir;

use super::Peer;
use super::socket::{Socket, number};
use crate::daemon::{Daemon, find_program};

/// Values from this length on are sent one by one, so that neither side waits for the other to read.
const LARGE: usize = 16 << 10;

/// A server of its own, which keeps nothing on disk.
#[derive(Debug)]
pub(super) struct Redis {
    socket: Socket<UnixStream>,
    daemon: Daemon,
    name: String,
    _dir: TempDir,
}

impl Redis {
    pub(super) fn start(program: Option<&Path>) -> Result<Self> {
        let program = match program {
            Some(program) => program.to_owned(),
            None => find_program(&["redis-server", "valkey-server"])?,
        };
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("redis.sock");
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let arguments = [
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "no",
            "--daemonize",
            "no",
            "--dir",
            &text(dir.path()),
            "--unixsocket",
            &text(&path),
        ];
        let mut daemon = Daemon::start(&program, arguments, dir.path().join("said"))?;
        daemon.wait_for(&path)?;
        Ok(Self {
            socket: Socket::connect(&path)?,
            daemon,
            name: version(&program)?,
            _dir: dir,
        })
    }

    fn command(&mut self, words: &[&[u8]]) -> Result<()> {
        head(&mut self.socket.out, words.len());
        words
            .iter()
            .for_each(|word| bulk(&mut self.socket.out, word));
        Ok(())
    }
}

/// `Redis server v=7.0.15 …` or `Valkey server v=…`.
fn version(program: &Path) -> Result<String> {
    let said = Command::new(program).arg("--version").output()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let name = said.split(' ').next().context("a name")?;
    let version = said
        .split("v=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    Ok(format!(
        "{name} {}",
        version.unwrap_or("of unknown version")
    ))
}

fn head(out: &mut Vec<u8>, words: usize) {
    let _ = write!(out, "*{words}\r\n");
}

fn bulk(out: &mut Vec<u8>, word: &[u8]) {
    let _ = write!(out, "${}\r\n", word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// An answer, as far as the benchmark's commands get any.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Simple,
    Integer(usize),
    /// Its bytes are in the caller's buffer.
    Value,
    Nothing,
}

fn reply(socket: &mut Socket<impl Read>, into: &mut [u8]) -> Result<Reply> {
    let line = socket.line()?;
    match line {
        [b'+', ..] => Ok(Reply::Simple),
        [b':', value @ ..] => Ok(Reply::Integer(number(value)?)),
        b"$-1" => Ok(Reply::Nothing),
        [b'$', len @ ..] => {
            let len = number(len)?;
            socket.value(len, into)?;
            Ok(Reply::Value)
        }
        line => bail!("the server says {:?}", String::from_utf8_lossy(line)),
    }
}

impl Peer for Redis {
    fn name(&self) -> &str {
        &self.name
    }

    fn server(&self) -> Option<u32> {
        Some(self.daemon.pid())
    }

    fn put(&mut self, keys: &[Key], value: &[u8]) -> Result<()> {
        let simple = |socket: &mut Socket<UnixStream>| match reply(socket, &mut [])? {
            Reply::Simple => Ok(()),
            other => bail!("SET is answered with {other:?}"),
        };
        for key in keys {
            if value.len() < LARGE {
                self.command(&[b"SET", key.bytes(), value])?;
            } else {
                head(&mut self.socket.out, 3);
                bulk(&mut self.socket.out, b"SET");
                bulk(&mut self.socket.out, key.bytes());
                let _ = write!(self.socket.out, "${}\r\n", value.len());
                self.socket.send_value(value, b"\r\n")?;
                simple(&mut self.socket)?;
            }
        }
        if value.len() < LARGE {
            self.socket.send()?;
            for _ in keys {
                simple(&mut self.socket)?;
            }
        }
        Ok(())
    }

    fn get(&mut self, keys: &[Key], into: &mut [u8]) -> Result<usize> {
        for key in keys {
            self.command(&[b"GET", key.bytes()])?;
        }
        self.socket.send()?;
        let mut found = 0;
        for _ in keys {
            match reply(&mut self.socket, into)? {
                Reply::Value => found += 1,
                Reply::Nothing => {}
                other => bail!("GET is answered with {other:?}"),
            }
        }
        Ok(found)
    }

    fn exists(&mut self, keys: &[Key]) -> Result<usize> {
        for key in keys {
            self.command(&[b"EXISTS", key.bytes()])?;
        }
        self.socket.send()?;
        let mut found = 0;
        for _ in keys {
            match reply(&mut self.socket, &mut [])? {
                Reply::Integer(count) => found += count,
                other => bail!("EXISTS is answered with {other:?}"),
            }
        }
        Ok(found)
    }

    fn ping(&mut self) -> Option<Result<()>> {
        let ping = |redis: &mut Self| {
            redis.command(&[b"PING"])?;
            redis.socket.send()?;
            reply(&mut redis.socket, &mut []).map(drop)
        };
        Some(ping(self))
    }

    fn clear(&mut self) -> Result<()> {
        self.command(&[b"FLUSHALL"])?;
        self.socket.send()?;
        reply(&mut self.socket, &mut []).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_apart() {
        let mut socket =
            Socket::over(&b"+OK\r\n:12\r\n$-1\r\n$5\r\nhe\r\no\r\n-ERR unknown\r\n$9\r\n"[..]);
        let mut value = [0; 5];
        let mut next = |socket: &mut _| reply(socket, &mut value);
        assert_eq!(next(&mut socket).unwrap(), Reply::Simple);
        assert_eq!(next(&mut socket).unwrap(), Reply::Integer(12));
        assert_eq!(next(&mut socket).unwrap(), Reply::Nothing);
        assert_eq!(next(&mut socket).unwrap(), Reply::Value);
        let error = format!("{:#}", next(&mut socket).unwrap_err());
        assert_eq!(error, "the server says \"-ERR unknown\"");
        let error = format!("{:#}", next(&mut socket).unwrap_err());
        assert_eq!(error, "a value has 9 bytes; expected at most 5");
        next(&mut socket).expect_err("nothing is left");
        assert_eq!(&value, b"he\r\no", "bytes of a value are no line");
    }

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        head(&mut out, 2);
        bulk(&mut out, b"GET");
        bulk(&mut out, b"");
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n");
    }
}
