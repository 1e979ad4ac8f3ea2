//! Filling pages from the files of objects.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use ondol_plugin::l2::{LoadItem, LoadOutcome, Loaded, ObjectKey, PageMut, StoredTooLong};
use rustix::fs::{OFlags, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use rustix::io::Errno;

use crate::backend::Backend;
use crate::io::{BLOCK, Engine, Transfer};
use crate::layout::Record;
use crate::place::{open_plain, pass_over};
use crate::store::whole_blocks;

/// An object on its way into a page.
struct Reading {
    key: ObjectKey,
    file: OwnedFd,
    stat: Stat,
    /// Bytes of the object.
    length: usize,
    /// Bytes that go straight into the body; the rest of a direct read takes the way through `bounce`.
    straight: usize,
    bounce: Option<Bounce>,
    record: Vec<u8>,
}

/// Memory on the boundaries that direct reads need.
struct Bounce {
    bytes: Vec<u8>,
    start: usize,
}

impl Bounce {
    /// Room for `bytes`, rounded up to whole blocks.
    fn new(bytes: usize) -> Self {
        let bytes = vec![0; bytes.next_multiple_of(BLOCK) + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start }
    }

    fn room(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - BLOCK + self.start;
        &mut self.bytes[self.start..end]
    }
}

impl Reading {
    /// How much of the object goes into the body, and how much into the trailer.
    fn split(&self, page: &PageMut) -> (usize, usize) {
        let body = self.length.min(page.parts().0.len());
        (body, self.length - body)
    }

    fn wanted(&self) -> u64 {
        (self.length + self.record.len()) as u64
    }

    fn transfer<'a>(&'a mut self, page: &'a mut PageMut) -> Transfer<'a, IoSliceMut<'a>> {
        let wanted = self.wanted();
        let (body_len, trailer_len) = self.split(page);
        let (body, trailer) = page.parts_mut();
        let parts = match &mut self.bounce {
            Some(bounce) => vec![
                IoSliceMut::new(&mut body[..self.straight]),
                IoSliceMut::new(bounce.room()),
            ],
            None => vec![
                IoSliceMut::new(&mut body[..body_len]),
                IoSliceMut::new(&mut trailer[..trailer_len]),
                IoSliceMut::new(&mut self.record),
            ],
        };
        Transfer::new(self.file.as_fd(), 0, parts, wanted)
    }

    /// Copies what took the way through the bounce to where it belongs.
    fn settle(&mut self, page: &mut PageMut) {
        let (body_len, trailer_len) = self.split(page);
        let Some(mut bounce) = self.bounce.take() else {
            return;
        };
        let (body, trailer) = page.parts_mut();
        let (in_body, rest) = bounce.room().split_at(body_len - self.straight);
        let (in_trailer, rest) = rest.split_at(trailer_len);
        body[self.straight..body_len].copy_from_slice(in_body);
        trailer[..trailer_len].copy_from_slice(in_trailer);
        let record = self.record.len();
        self.record.copy_from_slice(&rest[..record]);
    }
}

impl Backend {
    /// Loads objects whose bytes the engine moves at once.
    pub(crate) fn load(&self, items: Vec<LoadItem>) -> Vec<Loaded> {
        let mut pages = Vec::with_capacity(items.len());
        let mut opened = Vec::with_capacity(items.len());
        for LoadItem { key, page } in items {
            opened.push(self.begin_load(&key, &page));
            pages.push(page);
        }
        let moved = {
            let reading = opened.iter_mut().zip(&mut pages);
            let mut transfers: Vec<_> = reading
                .filter_map(|(opened, page)| Some(opened.as_mut().ok()?.transfer(page)))
                .collect();
            self.reads().run(&mut transfers);
            transfers.iter().map(Transfer::moved).collect::<Vec<_>>()
        };
        let mut moved = moved.into_iter();
        let finish = |(opened, mut page): (Result<Reading, LoadOutcome>, PageMut)| {
            let outcome = match opened {
                Err(outcome) => outcome,
                Ok(reading) => match moved.next() {
                    Some(moved) => self.finish_load(reading, &mut page, moved),
                    None => LoadOutcome::Failed("it was not read".into()),
                },
            };
            Loaded {
                page: Some(page),
                outcome,
            }
        };
        opened.into_iter().zip(pages).map(finish).collect()
    }

    fn begin_load(&self, key: &ObjectKey, page: &PageMut) -> Result<Reading, LoadOutcome> {
        let layout = self.place.layout;
        let key = layout.canonical(key).into_owned();
        // What has no name was never stored.
        let name = layout.name(&key).map_err(|_| LoadOutcome::Missing)?;
        let (body, _) = page.parts();
        let home = self.place.home(&name);
        let open = |flags| {
            let home = home.as_ref().map_err(|error| *error)?;
            open_plain(home, &*name.file, flags)
        };
        let mut direct = self.direct && whole_blocks(body.len()) > 0 && self.is_aligned(body);
        let mut opened = open(if direct {
            OFlags::RDONLY | OFlags::DIRECT
        } else {
            OFlags::RDONLY
        });
        if direct && matches!(opened, Err(Errno::INVAL)) {
            direct = false;
            opened = open(OFlags::RDONLY);
            if matches!(opened, Ok(Some(_))) {
                self.say_buffered("the file system refuses it");
            }
        }
        let opened = opened.map_err(|error| self.cannot_open(&key, error))?;
        let Some((file, stat)) = opened else {
            pass_over(&self.place.path(name.shard.as_deref(), &name.file));
            self.learn(&key);
            return Err(LoadOutcome::Missing);
        };
        let found = stat.st_size.cast_unsigned();
        match self.index.bytes(&key) {
            Some(known) if found < known => {
                let reason = format!("it has {found} bytes; expected {known}");
                return Err(self.damaged(&key, Some(&stat), reason));
            }
            Some(known) if found == known => {}
            // Somebody else has stored it, or stored it anew.
            _ => self.learn(&key),
        }
        let record = layout.record_len(&key);
        let Some(length) = found.checked_sub(record) else {
            return Err(self.damaged(&key, Some(&stat), "it is cut off".into()));
        };
        let (length, room) = (length as usize, page.room());
        if length > room {
            let error = StoredTooLong {
                found: length,
                room,
            };
            return Err(LoadOutcome::Failed(error.to_string()));
        }
        let record = vec![0; record as usize];
        let straight = whole_blocks(length.min(body.len()));
        let direct = direct && straight > 0;
        let bounce = direct.then(|| Bounce::new(length - straight + record.len()));
        if !direct && self.read_ahead > 0 {
            let bytes = std::num::NonZeroU64::new(self.read_ahead);
            // A hint, and nothing is lost without it.
            let _ = rustix::fs::fadvise(&file, 0, bytes, rustix::fs::Advice::WillNeed);
        }
        if self.direct && !direct {
            // A file without one whole block may have been opened for direct reads all the same.
            let _ = rustix::fs::fcntl_setfl(&file, OFlags::empty());
        }
        Ok(Reading {
            key,
            file,
            stat,
            length,
            straight,
            bounce,
            record,
        })
    }

    fn cannot_open(&self, key: &ObjectKey, error: Errno) -> LoadOutcome {
        match error {
            Errno::NOENT | Errno::LOOP | Errno::NOTDIR => {
                self.learn(key);
                LoadOutcome::Missing
            }
            Errno::IO => self.damaged(key, None, error.to_string()),
            error => LoadOutcome::Failed(error.to_string()),
        }
    }

    fn finish_load(
        &self,
        mut reading: Reading,
        page: &mut PageMut,
        mut moved: rustix::io::Result<u64>,
    ) -> LoadOutcome {
        if moved == Err(Errno::INVAL) && reading.bounce.is_some() {
            self.say_buffered("the disk refuses it");
            reading.bounce = None;
            moved = rustix::fs::fcntl_setfl(&reading.file, OFlags::empty()).and_then(|()| {
                let mut transfer = reading.transfer(page);
                Engine::Threads.run(std::slice::from_mut(&mut transfer));
                transfer.moved()
            });
        }
        let wanted = reading.wanted();
        let damaged = |reason| self.damaged(&reading.key, Some(&reading.stat), reason);
        match moved {
            Err(Errno::IO) => return damaged(Errno::IO.to_string()),
            Err(error) => return LoadOutcome::Failed(error.to_string()),
            Ok(moved) if moved < wanted => {
                let reason = format!("it ends after {moved} bytes; expected {wanted}");
                return damaged(reason);
            }
            Ok(_) => reading.settle(page),
        }
        if !reading.record.is_empty() {
            let (body_len, trailer_len) = reading.split(page);
            let (body, trailer) = page.parts();
            let parts = [&body[..body_len], &trailer[..trailer_len]];
            if let Err(bad) = Record::check(&reading.record, &reading.key, parts) {
                let reason = bad.to_string();
                return self.damaged(&reading.key, Some(&reading.stat), reason);
            }
        }
        if self.index.used(&reading.key) {
            note_use(&reading.file);
        }
        LoadOutcome::Found(reading.length as u64)
    }
}

/// Keeps the time of use as the time of change, for the order after a restart.
fn note_use(file: &OwnedFd) {
    let at = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps {
        last_access: at(UTIME_OMIT),
        last_modification: at(UTIME_NOW),
    };
    // On a file of somebody else's the order is a little worse.
    let _ = futimens(file, &times);
}
