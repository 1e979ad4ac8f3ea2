//! What a client writes down about everything it does, in a file that survives it.
//!
//! A line is written before a change is asked for and another one when the answer is there, so a killed client leaves
//! a change without an answer, whose outcome is not known. Times are nanoseconds of the monotonic clock, which all
//! processes share.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A moment, in nanoseconds.
pub(crate) type Moment = u64;

/// Now.
pub(crate) fn now() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// What became of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreOutcome {
    /// The object is visible.
    New,
    /// The key was there; this writer's bytes are not.
    Present,
    /// Certainly not done.
    Refused,
    /// The answer was lost.
    Unknown,
}

/// What became of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeleteOutcome {
    /// The object is gone.
    Deleted,
    /// Nothing was changed.
    Unchanged,
    /// The answer was lost.
    Unknown,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes that are not the object's.
    Corrupt,
    /// An object that should not be there.
    Phantom,
    /// Something acknowledged that is not there.
    Lost,
    /// Something held by nobody.
    Leaked,
    /// Anything else that must not be, such as a process that ends by itself.
    Broken,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A store is about to be asked for.
    Store {
        writer: u64,
        key: String,
        at: Moment,
    },
    /// A store was answered.
    Stored {
        writer: u64,
        outcome: StoreOutcome,
        at: Moment,
    },
    /// A delete is about to be asked for.
    Delete {
        number: u64,
        key: String,
        at: Moment,
    },
    /// A delete was answered.
    Deleted {
        number: u64,
        outcome: DeleteOutcome,
        at: Moment,
    },
    /// Whole bytes of this writer's were read, in a call from `from` to `to`.
    Read {
        key: String,
        writer: u64,
        from: Moment,
        to: Moment,
    },
    /// The same, of an object that was not in memory before.
    Brought {
        key: String,
        writer: u64,
        from: Moment,
        to: Moment,
    },
    /// A key was not found in a call from `from` to `to`.
    Miss {
        key: String,
        from: Moment,
        to: Moment,
    },
    /// The client itself has seen what must not be.
    Fault { kind: Kind, what: String },
}

macro_rules! words {
    ($type:ty { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $type {
            pub(crate) fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            fn of(word: &str) -> Option<Self> {
                Some(match word { $($word => Self::$variant,)+ _ => return None })
            }
        }
    };
}

words!(StoreOutcome { New = "new", Present = "present", Refused = "refused", Unknown = "unknown" });
words!(DeleteOutcome { Deleted = "deleted", Unchanged = "unchanged", Unknown = "unknown" });
words!(Kind {
    Corrupt = "corrupt",
    Phantom = "phantom",
    Lost = "lost",
    Leaked = "leaked",
    Broken = "broken",
});

impl Entry {
    fn line(&self) -> String {
        match self {
            Self::Store { writer, key, at } => format!("store {writer} {key} {at}\n"),
            Self::Stored {
                writer,
                outcome,
                at,
            } => format!("stored {writer} {} {at}\n", outcome.word()),
            Self::Delete { number, key, at } => format!("delete {number} {key} {at}\n"),
            Self::Deleted {
                number,
                outcome,
                at,
            } => format!("deleted {number} {} {at}\n", outcome.word()),
            Self::Read {
                key,
                writer,
                from,
                to,
            } => format!("read {key} {writer} {from} {to}\n"),
            Self::Brought {
                key,
                writer,
                from,
                to,
            } => format!("brought {key} {writer} {from} {to}\n"),
            Self::Miss { key, from, to } => format!("miss {key} {from} {to}\n"),
            Self::Fault { kind, what } => {
                format!("fault {} {}\n", kind.word(), what.replace('\n', " "))
            }
        }
    }

    fn parse(line: &str) -> Option<Self> {
        if let Some(fault) = line.strip_prefix("fault ") {
            let (kind, what) = fault.split_once(' ')?;
            return Some(Self::Fault {
                kind: Kind::of(kind)?,
                what: what.to_owned(),
            });
        }
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().ok();
        Some(match words[..] {
            ["store", writer, key, at] => Self::Store {
                writer: number(writer)?,
                key: key.to_owned(),
                at: number(at)?,
            },
            ["stored", writer, outcome, at] => Self::Stored {
                writer: number(writer)?,
                outcome: StoreOutcome::of(outcome)?,
                at: number(at)?,
            },
            ["delete", count, key, at] => Self::Delete {
                number: number(count)?,
                key: key.to_owned(),
                at: number(at)?,
            },
            ["deleted", count, outcome, at] => Self::Deleted {
                number: number(count)?,
                outcome: DeleteOutcome::of(outcome)?,
                at: number(at)?,
            },
            ["read", key, writer, from, to] => Self::Read {
                key: key.to_owned(),
                writer: number(writer)?,
                from: number(from)?,
                to: number(to)?,
            },
            ["brought", key, writer, from, to] => Self::Brought {
                key: key.to_owned(),
                writer: number(writer)?,
                from: number(from)?,
                to: number(to)?,
            },
            ["miss", key, from, to] => Self::Miss {
                key: key.to_owned(),
                from: number(from)?,
                to: number(to)?,
            },
            _ => return None,
        })
    }
}

/// The file of one client. Each line is one `write`, so that no line of a killed client is half there.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    next: AtomicU64,
}

impl Journal {
    /// A new journal of the client with this number, from which the numbers of its stores follow.
    pub(crate) fn create(path: &Path, client: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self {
            file,
            next: AtomicU64::new(client << 32 | 1),
        })
    }

    /// A number that no other store or delete of any client has.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes it down.
    ///
    /// # Panics
    /// If it cannot be written: what is not written down cannot be checked.
    pub(crate) fn write(&self, entry: &Entry) {
        self.write_all(std::slice::from_ref(entry));
    }

    /// Writes them down with one call.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    pub(crate) fn write_all(&self, entries: &[Entry]) {
        let lines: String = entries.iter().map(Entry::line).collect();
        (&self.file)
            .write_all(lines.as_bytes())
            .expect("a written journal");
    }
}

/// Reads a journal that somebody else is writing, from where it was left the last time.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    at: u64,
}

impl Reader {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, at: 0 }
    }

    /// What has been written since; a last line without an end is left for the next time.
    ///
    /// # Errors
    /// What the file system says, and a line that is none.
    pub(crate) fn news(&mut self) -> io::Result<Vec<Entry>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        file.seek(SeekFrom::Start(self.at))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.at += whole as u64;
        let parse = |line: &str| {
            Entry::parse(line).ok_or_else(|| {
                io::Error::other(format!(
                    "{}: {line:?} is no line of a journal",
                    self.path.display()
                ))
            })
        };
        text[..whole].lines().map(parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut reader = Reader::new(path.clone());
        assert_eq!(reader.news().unwrap(), []);
        let journal = Journal::create(&path, 7).unwrap();
        let writer = journal.number();
        assert_eq!(writer >> 32, 7);
        let key = || "k1".to_owned();
        let entries = [
            Entry::Store {
                writer,
                key: key(),
                at: 1,
            },
            Entry::Stored {
                writer,
                outcome: StoreOutcome::New,
                at: 2,
            },
            Entry::Delete {
                number: 9,
                key: key(),
                at: 3,
            },
            Entry::Deleted {
                number: 9,
                outcome: DeleteOutcome::Unchanged,
                at: 4,
            },
            Entry::Read {
                key: key(),
                writer,
                from: 5,
                to: 6,
            },
            Entry::Brought {
                key: key(),
                writer,
                from: 6,
                to: 7,
            },
            Entry::Miss {
                key: key(),
                from: 7,
                to: 8,
            },
            Entry::Fault {
                kind: Kind::Corrupt,
                what: "byte 7\nof 9".to_owned(),
            },
        ];
        journal.write_all(&entries[..3]);
        assert_eq!(reader.news().unwrap(), entries[..3]);
        entries[3..7].iter().for_each(|entry| journal.write(entry));
        (&journal.file).write_all(b"fault corrupt byte 7").unwrap();
        assert_eq!(reader.news().unwrap(), entries[3..7]);
        (&journal.file).write_all(b" of 9\n").unwrap();
        let Entry::Fault { what, .. } = &reader.news().unwrap()[0] else {
            panic!("a fault")
        };
        assert_eq!(what, "byte 7 of 9");
    }
}
