//! Giving objects their files.

use std::io::IoSlice;

use ondol_plugin::l2::{ObjectKey, StoreItem};
use rustix::io::Errno;

use crate::backend::Backend;
use crate::config::Fsync;
use crate::draft::Draft;
use crate::error::StoreFailure;
use crate::index::{Asked, Room as Reserved};
use crate::io::{BLOCK, Engine, Transfer};
use crate::layout::{Name, Record};
use crate::place::{Home, is_file};
use crate::space::Room;

type Stored = Result<u64, StoreFailure>;

/// An object on its way into a file.
struct Writing<'a> {
    item: &'a StoreItem,
    name: Name,
    home: Home<'a>,
    draft: Draft<'a>,
    record: Option<Record>,
    room: Reserved<'a>,
}

impl Writing<'_> {
    /// What is written, and how much of the first part goes past the page cache.
    fn parts(&self) -> ([&[u8]; 3], usize) {
        let object = &self.item.object;
        let record = self.record.as_ref().map_or(&[][..], Record::bytes);
        let direct = if self.draft.is_direct() {
            whole_blocks(object.body().len())
        } else {
            0
        };
        ([object.body(), object.trailer(), record], direct)
    }

    /// The bytes that the first request writes: the whole blocks of a direct write, else all.
    fn first(&self) -> Transfer<'_, IoSlice<'_>> {
        let (parts, direct) = self.parts();
        if direct > 0 {
            let blocks = &parts[0][..direct];
            return Transfer::new(
                self.draft.file(),
                0,
                vec![IoSlice::new(blocks)],
                direct as u64,
            );
        }
        self.all()
    }

    fn all(&self) -> Transfer<'_, IoSlice<'_>> {
        let (parts, _) = self.parts();
        let length = self.length();
        Transfer::new(self.draft.file(), 0, parts.map(IoSlice::new).into(), length)
    }

    /// What a direct write has left over: it is no whole block, so it goes through the page cache.
    fn rest(&mut self) -> rustix::io::Result<()> {
        let (_, direct) = self.parts();
        if direct == 0 {
            return Ok(());
        }
        self.draft.buffer()?;
        let ([body, trailer, record], _) = self.parts();
        let parts = [&body[direct..], trailer, record].map(IoSlice::new);
        let left = self.length() - direct as u64;
        run(Transfer::new(
            self.draft.file(),
            direct as u64,
            parts.into(),
            left,
        ))
    }

    fn length(&self) -> u64 {
        let record = self
            .record
            .as_ref()
            .map_or(0, |record| record.bytes().len());
        (self.item.object.stored_len() + record) as u64
    }

    fn failed(&self, action: &'static str, source: Errno) -> StoreFailure {
        io_failure(action, &self.name, source)
    }
}

impl Backend {
    /// Stores objects; the bytes written of each, 0 if it was there.
    pub(crate) fn store(&self, items: &[StoreItem]) -> Vec<Stored> {
        if self.room.is_full() {
            return items
                .iter()
                .map(|item| self.store_though_full(item))
                .collect();
        }
        let heals = self.room.heals();
        let items: Vec<_> = items.iter().collect();
        let mut results = self.attempt(&items);
        for (item, result) in items.iter().zip(&mut results) {
            if result.as_ref().is_err_and(StoreFailure::is_full) {
                *result = self.store_with_room_made(item, heals);
            }
        }
        results
    }

    /// Makes room, and tries once more.
    fn store_with_room_made(&self, item: &StoreItem, heals: u64) -> Stored {
        let _alone = self.room.alone();
        if self.room.heals() != heals {
            // Somebody made room since this was tried.
            let result = self.attempt_one(item);
            if !result.as_ref().is_err_and(StoreFailure::is_full) {
                return result;
            }
        }
        self.make_room_for(item)
    }

    /// For who is alone in making room.
    fn make_room_for(&self, item: &StoreItem) -> Stored {
        let wanted = Room::to_remove(item.object.stored_len() as u64);
        let victims = self.index.least_used(wanted);
        let freed: u64 = victims.into_iter().map(|victim| self.evict(victim)).sum();
        self.room.healed();
        tracing::warn!(
            freed,
            "the file system is full: objects were removed to make room"
        );
        let result = if freed > 0 {
            self.attempt_one(item)
        } else {
            Err(StoreFailure::ReadOnly)
        };
        match result {
            Err(failure) if failure.is_full() || failure == StoreFailure::ReadOnly => {
                self.room.close(freed < wanted && self.index.locked() > 0);
                Err(StoreFailure::ReadOnly)
            }
            result => result,
        }
    }

    fn store_though_full(&self, item: &StoreItem) -> Stored {
        let bytes = item.object.stored_len() as u64;
        let Some(probe) = self.room.probe(&self.place, bytes) else {
            return Err(StoreFailure::ReadOnly);
        };
        match self.attempt_one(item) {
            Ok(0) => Ok(0),
            Ok(bytes) => {
                self.room.open();
                Ok(bytes)
            }
            Err(failure) if failure.is_full() => {
                if !probe.may_heal {
                    return Err(StoreFailure::ReadOnly);
                }
                let result = self.make_room_for(item);
                if result.is_ok() {
                    self.room.open();
                }
                result
            }
            Err(failure) => Err(failure),
        }
    }

    fn attempt_one(&self, item: &StoreItem) -> Stored {
        self.attempt(&[item]).remove(0)
    }

    /// Stores objects whose bytes the engine moves at once.
    fn attempt(&self, items: &[&StoreItem]) -> Vec<Stored> {
        let mut results = Vec::with_capacity(items.len());
        let mut writing = Vec::with_capacity(items.len());
        for item in items {
            results.push(match self.begin_store(item) {
                Ok(Some(begun)) => {
                    writing.push((results.len(), begun));
                    Ok(0)
                }
                Ok(None) => Ok(0),
                Err(failure) => Err(failure),
            });
        }
        let written = self.write(&mut writing);
        let writing = keep(writing, written, &mut results);
        let synced = self.sync(&writing);
        let writing = keep(writing, synced, &mut results);
        for (place, begun) in writing {
            results[place] = self.publish(begun);
        }
        results
    }

    /// Begins a file for an object; `None` if it is there already.
    fn begin_store<'a>(&'a self, item: &'a StoreItem) -> Result<Option<Writing<'a>>, StoreFailure> {
        let key = self.place.layout.canonical(&item.key);
        let name = self.place.layout.name(&key)?;
        if self.is_there(&key, &name)? {
            return Ok(None);
        }
        let home = self.place.make_home(&name, self.fsync == Fsync::Full);
        let home = home.map_err(|source| io_failure("make the directory of", &name, source))?;
        let object = &item.object;
        let length = object.stored_len() as u64 + self.place.layout.record_len(&key);
        let room = self.reserve(length)?;
        let direct =
            self.direct && whole_blocks(object.body().len()) > 0 && self.is_aligned(object.body());
        let draft = self.writer.draft(&self.place, direct);
        let draft = draft.map_err(|source| io_failure("begin the file for", &name, source))?;
        if direct && !draft.is_direct() {
            self.say_buffered("the file system refuses it");
        }
        let record = self
            .place
            .layout
            .record(&key, [object.body(), object.trailer()]);
        Ok(Some(Writing {
            item,
            name,
            home,
            draft,
            record,
            room,
        }))
    }

    fn is_there(&self, key: &ObjectKey, name: &Name) -> Result<bool, StoreFailure> {
        let claim = self.index.claim(key);
        let found = self.place.look(name);
        match found.map_err(|source| io_failure("look for", name, source))? {
            Some(stat) if is_file(&stat) => {
                let bytes = stat.st_size.cast_unsigned();
                if bytes < self.place.layout.record_len(key) {
                    // Cut off, as a power failure may leave it; it would stand in the way for ever.
                    drop(claim);
                    self.damaged(
                        key,
                        Some(&stat),
                        format!("it is cut off after {bytes} bytes"),
                    );
                    return Ok(false);
                }
                claim.set_present(bytes);
                Ok(true)
            }
            found => {
                // Somebody else may have removed it.
                if claim.is_known() {
                    claim.set_absent();
                }
                match found {
                    Some(_) => Err(io_failure("replace what is no file at", name, Errno::EXIST)),
                    None => Ok(false),
                }
            }
        }
    }

    /// Room within the capacity.
    fn reserve(&self, bytes: u64) -> Result<Reserved<'_>, StoreFailure> {
        loop {
            match self.index.ask(bytes) {
                Asked::Granted(room) => return Ok(room),
                Asked::TooLarge { capacity } => {
                    return Err(StoreFailure::TooLarge {
                        found: bytes,
                        capacity,
                    });
                }
                Asked::Held { capacity } => return Err(StoreFailure::AllLocked { capacity }),
                Asked::Evict(victims) => {
                    let capacity = self.index.usage().capacity_bytes.unwrap_or(0);
                    let freed: u64 = victims.into_iter().map(|victim| self.evict(victim)).sum();
                    if freed == 0 {
                        return Err(StoreFailure::AllLocked { capacity });
                    }
                }
            }
        }
    }

    /// Writes what is begun, directly also through `io_uring`, other than it is read.
    ///
    /// A process that is killed while a direct write is on its way through `io_uring` does not wait for it, and its pages may
    /// be another's before the disk has read them. That harms nobody: the wrong bytes are in a draft, which gets its name only
    /// from the writer, after the answer to the write; that of a dead writer is removed. [`reads`](Self::reads) has the other way.
    fn write(&self, writing: &mut [(usize, Writing<'_>)]) -> Vec<Stored> {
        let mut transfers: Vec<_> = writing.iter().map(|(_, begun)| begun.first()).collect();
        self.engine.run(&mut transfers);
        let moved: Vec<_> = transfers.iter().map(Transfer::moved).collect();
        drop(transfers);
        let finish = |(moved, (_, begun)): (rustix::io::Result<u64>, &mut (usize, Writing<'_>))| {
            let done = match moved {
                Err(Errno::INVAL) if begun.draft.is_direct() => {
                    self.say_buffered("the disk refuses it");
                    begun.draft.buffer().and_then(|()| run(begun.all()))
                }
                Err(error) => Err(error),
                Ok(_) => begun.rest(),
            };
            match done {
                Ok(()) => Ok(begun.length()),
                Err(source) => Err(begun.failed("write", source)),
            }
        };
        moved.into_iter().zip(writing).map(finish).collect()
    }

    fn sync(&self, writing: &[(usize, Writing<'_>)]) -> Vec<Stored> {
        if self.fsync == Fsync::None || writing.is_empty() {
            return writing.iter().map(|_| Ok(0)).collect();
        }
        let files: Vec<_> = writing
            .iter()
            .map(|(_, begun)| begun.draft.file())
            .collect();
        let synced = self.engine.sync(&files, self.fsync == Fsync::Full);
        let result =
            |(synced, (_, begun)): (rustix::io::Result<()>, &(usize, Writing<'_>))| match synced {
                Ok(()) => Ok(0),
                Err(source) => Err(begun.failed("write through to the disk", source)),
            };
        synced.into_iter().zip(writing).map(result).collect()
    }

    /// Gives a file that is complete its name.
    fn publish(&self, begun: Writing<'_>) -> Stored {
        let length = begun.length();
        let transferred = begun.item.object.stored_len() as u64;
        let Writing {
            item,
            name,
            home,
            draft,
            room,
            ..
        } = begun;
        let key = self.place.layout.canonical(&item.key);
        let claim = self.index.claim(&key);
        let published = draft.publish(&home, &name.file);
        match published.map_err(|source| io_failure("give its name to", &name, source))? {
            true => claim.set_present_in(room, length),
            false => {
                drop((claim, room));
                // Another writer was faster, and what it stored is the same object; unless it is no object.
                return match self.is_there(&key, &name)? {
                    true => Ok(0),
                    false => Err(io_failure("give its name to", &name, Errno::AGAIN)),
                };
            }
        }
        drop(claim);
        if self.fsync == Fsync::Full {
            let synced = rustix::fs::fsync(&home);
            synced.map_err(|source| {
                io_failure("write the name through to the disk of", &name, source)
            })?;
        }
        Ok(transferred)
    }
}

/// Notes failures where they belong, and keeps the others.
fn keep<'a>(
    writing: Vec<(usize, Writing<'a>)>,
    done: Vec<Stored>,
    results: &mut [Stored],
) -> Vec<(usize, Writing<'a>)> {
    let mut kept = Vec::with_capacity(writing.len());
    for ((place, begun), done) in writing.into_iter().zip(done) {
        match done {
            Ok(_) => kept.push((place, begun)),
            Err(failure) => results[place] = Err(failure),
        }
    }
    kept
}

fn run(mut transfer: Transfer<'_, IoSlice<'_>>) -> rustix::io::Result<()> {
    Engine::Threads.run(std::slice::from_mut(&mut transfer));
    transfer.moved().map(drop)
}

fn io_failure(action: &'static str, name: &Name, source: Errno) -> StoreFailure {
    StoreFailure::Io {
        action,
        file: name.file.clone(),
        source,
    }
}

/// Bytes of the whole blocks in so many bytes.
pub(crate) fn whole_blocks(bytes: usize) -> usize {
    bytes - bytes % BLOCK
}
