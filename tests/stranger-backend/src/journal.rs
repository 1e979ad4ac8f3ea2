use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ondol_plugin::l2::ObjectKey;

use crate::record::{HEAD_BYTES, Head, Kind, MAGIC};

/// How long to wait for whoever has the file: a thread of an adapter that was dropped may hold its backend a moment longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The file, and what is in it. Records are only ever appended, so that whoever reads one waits for nobody.
#[derive(Debug)]
pub struct Journal {
    file: File,
    /// Held while a record is appended.
    writer: Mutex<Writer>,
    index: Mutex<Index>,
    cut_bytes: u64,
}

#[derive(Debug)]
struct Writer {
    end: u64,
    /// Why nothing can be appended any more.
    broken: Option<String>,
}

/// Where each object is, and totals of all of them.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) objects: BTreeMap<ObjectKey, Slot>,
    pub(crate) bytes: u64,
    pub(crate) bytes_by_salt: BTreeMap<String, u64>,
    /// Bytes of the records of these objects.
    record_bytes: u64,
}

/// A record that holds an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    at: u64,
    head: Head,
}

impl Slot {
    /// The length of the object.
    pub(crate) fn object_bytes(&self) -> u64 {
        self.head.object_bytes
    }
}

/// What the figures of a journal are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) file_bytes: u64,
    pub(crate) dead_bytes: u64,
    pub(crate) cut_bytes: u64,
    pub(crate) broken: Option<String>,
}

/// What reading an object found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The record is not what was written.
    Damaged(String),
    /// It could not be read.
    Unreadable(String),
}

impl Journal {
    /// Opens a journal, or makes an empty one, and reads which objects it has. A record at its end that is not whole is cut
    /// off; if more than half of the file is dead, it is written anew.
    ///
    /// # Errors
    /// If the file cannot be opened or read, is in use, or is something else than a journal.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true);
        let file = options.open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        lock(&file, path)?;
        let length = file.metadata()?.len();
        let mut magic = [0; MAGIC.len()];
        let begun = &mut magic[..length.min(MAGIC.len() as u64) as usize];
        file.read_exact_at(begun, 0)?;
        // Less than that is what a process left that died while it made the file.
        if !MAGIC.starts_with(begun) {
            bail!(
                "{} is no journal; choose another path, or remove it if nothing needs it",
                path.display()
            );
        }
        file.write_all_at(&MAGIC, 0)?;

        let (index, end) = scan(&file, length)
            .with_context(|| format!("cannot read the journal {}", path.display()))?;
        file.set_len(end)?;
        let cut_bytes = length.saturating_sub(end);
        if cut_bytes > 0 {
            tracing::warn!(path = %path.display(), cut_bytes, "a record is not whole: the journal ends before it now");
        }
        let journal = Self {
            file,
            writer: Mutex::new(Writer { end, broken: None }),
            index: Mutex::new(index),
            cut_bytes,
        };
        let figures = journal.figures();
        if figures.dead_bytes <= figures.file_bytes / 2 {
            return Ok(journal);
        }
        // The journal is right as it is, so a disk that has no room for another one is no reason to give up.
        Ok(journal.compacted(path).unwrap_or(journal))
    }

    /// A journal at the same path that has what lives of this one, and nothing else.
    fn compacted(&self, path: &Path) -> anyhow::Result<Self> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(".compact");
        let draft = PathBuf::from(draft);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&draft)?;
        let copied = self.copy_to(&file).and_then(|copied| {
            file.sync_all()?;
            lock(&file, &draft)?;
            std::fs::rename(&draft, path)?;
            Ok(copied)
        });
        if copied.is_err() {
            let _ = std::fs::remove_file(&draft);
        }
        let (index, end) = copied?;
        Ok(Self {
            file,
            writer: Mutex::new(Writer { end, broken: None }),
            index: Mutex::new(index),
            cut_bytes: self.cut_bytes,
        })
    }

    fn copy_to(&self, mut to: &File) -> anyhow::Result<(Index, u64)> {
        io::copy(&mut MAGIC.as_slice(), &mut to)?;
        let mut end = MAGIC.len() as u64;
        let mut index = Index::default();
        for (key, slot) in &self.index().objects {
            let bytes = slot.head.record_bytes();
            let mut from = &self.file;
            from.seek(SeekFrom::Start(slot.at))?;
            if io::copy(&mut from.take(bytes), &mut to)? != bytes {
                bail!("the journal became shorter");
            }
            index.insert(key.clone(), Slot { at: end, ..*slot });
            end += bytes;
        }
        Ok((index, end))
    }

    /// Appends an object whose bytes are these parts; `None` if it is there already. With `room`, what is stored must not
    /// exceed it.
    pub(crate) fn store(
        &self,
        key: &ObjectKey,
        parts: [&[u8]; 2],
        room: Option<u64>,
    ) -> io::Result<Option<u64>> {
        let bytes = (parts[0].len() + parts[1].len()) as u64;
        let name = key.to_string();
        let head = Head::new(Kind::Stored, &name, bytes)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
        let mut writer = self.writer();
        {
            let index = self.index();
            if index.objects.contains_key(key) {
                return Ok(None);
            }
            let used = index.bytes;
            if let Some(room) = room.filter(|room| used.saturating_add(bytes) > *room) {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    format!("{used} of {room} bytes are used"),
                ));
            }
        }
        let front = [&head.encode(), name.as_bytes()].concat();
        let at = self.append(&mut writer, &[&front, parts[0], parts[1]])?;
        self.index().insert(key.clone(), Slot { at, head });
        Ok(Some(bytes))
    }

    /// The length of an object.
    pub(crate) fn find(&self, key: &ObjectKey) -> Option<u64> {
        let index = self.index();
        let slot = index.objects.get(key)?;
        Some(slot.head.object_bytes)
    }

    /// Reads an object into two buffers, which are together at most as long as it is; `None` if it is not there.
    pub(crate) fn load<'a>(
        &self,
        key: &ObjectKey,
        into: impl FnOnce(usize) -> Result<[&'a mut [u8]; 2], String>,
    ) -> Option<Result<u64, Wrong>> {
        let slot = *self.index().objects.get(key)?;
        let loaded = self.read(slot, into);
        if matches!(loaded, Err(Wrong::Damaged(_))) {
            // Not by a record of its own: the next start sees by itself that this one is damaged.
            let mut index = self.index();
            if index.objects.get(key) == Some(&slot) {
                index.remove(key);
            }
        }
        Some(loaded)
    }

    fn read<'a>(
        &self,
        slot: Slot,
        into: impl FnOnce(usize) -> Result<[&'a mut [u8]; 2], String>,
    ) -> Result<u64, Wrong> {
        let wrong = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                Wrong::Damaged(format!("the journal ends within the record at {}", slot.at))
            }
            _ => Wrong::Unreadable(error.to_string()),
        };
        let mut head = [0; HEAD_BYTES];
        self.file.read_exact_at(&mut head, slot.at).map_err(wrong)?;
        if head != slot.head.encode() {
            return Err(Wrong::Damaged(format!(
                "the record at {} begins differently than it was written",
                slot.at
            )));
        }
        let bytes = slot.head.object_bytes;
        let mut at = slot.at + HEAD_BYTES as u64 + u64::from(slot.head.name_bytes);
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        for part in into(length).map_err(Wrong::Unreadable)? {
            self.file.read_exact_at(part, at).map_err(wrong)?;
            at += part.len() as u64;
        }
        Ok(bytes)
    }

    /// Deletes an object; whether it was there.
    pub(crate) fn delete(&self, key: &ObjectKey) -> io::Result<bool> {
        let mut writer = self.writer();
        if self.find(key).is_none() {
            return Ok(false);
        }
        let name = key.to_string();
        let head = Head::new(Kind::Deleted, &name, 0)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
        self.append(&mut writer, &[&[&head.encode(), name.as_bytes()].concat()])?;
        self.index().remove(key);
        Ok(true)
    }

    /// Appends a record, and returns where it is.
    fn append(&self, writer: &mut Writer, parts: &[&[u8]]) -> io::Result<u64> {
        if let Some(reason) = &writer.broken {
            return Err(io::Error::other(reason.clone()));
        }
        let at = writer.end;
        let mut end = at;
        let appended = parts.iter().try_for_each(|part| {
            self.file.write_all_at(part, end)?;
            end += part.len() as u64;
            Ok(())
        });
        match appended {
            Ok(()) => writer.end = end,
            Err(error) => {
                // Or else the next record would lie in the middle of this one's rest.
                if let Err(error) = self.file.set_len(at) {
                    writer.broken = Some(format!("a record cannot be taken back: {error}"));
                }
                return Err(error);
            }
        }
        Ok(at)
    }

    pub(crate) fn figures(&self) -> Figures {
        let writer = self.writer();
        let live = MAGIC.len() as u64 + self.index().record_bytes;
        Figures {
            file_bytes: writer.end,
            dead_bytes: writer.end.saturating_sub(live),
            cut_bytes: self.cut_bytes,
            broken: writer.broken.clone(),
        }
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn insert(&mut self, key: ObjectKey, slot: Slot) {
        self.remove(&key);
        let bytes = slot.head.object_bytes;
        self.bytes += bytes;
        self.record_bytes += slot.head.record_bytes();
        let salt = key.cache_salt().to_owned();
        *self.bytes_by_salt.entry(salt).or_default() += bytes;
        self.objects.insert(key, slot);
    }

    fn remove(&mut self, key: &ObjectKey) {
        let Some(slot) = self.objects.remove(key) else {
            return;
        };
        let bytes = slot.head.object_bytes;
        self.bytes -= bytes;
        self.record_bytes -= slot.head.record_bytes();
        if let Some(left) = self.bytes_by_salt.get_mut(key.cache_salt()) {
            *left -= bytes;
            if *left == 0 {
                self.bytes_by_salt.remove(key.cache_salt());
            }
        }
    }
}

fn lock(file: &File, path: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => bail!(
                "{} is in use by another backend; give each its own path",
                path.display()
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

/// What lives in a file of this length, and where its last whole record ends.
fn scan(file: &File, length: u64) -> io::Result<(Index, u64)> {
    let mut index = Index::default();
    let mut at = MAGIC.len() as u64;
    let mut head = [0; HEAD_BYTES];
    let mut name = Vec::new();
    while at + HEAD_BYTES as u64 <= length {
        file.read_exact_at(&mut head, at)?;
        let Some(head) = Head::decode(&head) else {
            break;
        };
        let end = at.checked_add(head.record_bytes());
        let Some(end) = end.filter(|end| *end <= length) else {
            break;
        };
        name.resize(head.name_bytes as usize, 0);
        file.read_exact_at(&mut name, at + HEAD_BYTES as u64)?;
        let Some(key) = head.key(&name) else {
            break;
        };
        match head.kind {
            Kind::Stored => index.insert(key, Slot { at, head }),
            Kind::Deleted => index.remove(&key),
        }
        at = end;
    }
    Ok((index, at))
}
