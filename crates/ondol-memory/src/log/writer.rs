//! Recording and flushing.
//!
//! A record goes into the *tail*, a buffer in memory, under a short lock. A flush is done by one caller for all who
//! wait: it takes the tail as one *batch*, writes it, and wakes the others. A batch that could not be written is kept as
//! it is, and is written again, byte for byte, before anything that was recorded after it. So the files never hold a
//! batch without every batch before it, which is what recovery relies on to tell a torn tail from a damaged middle.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use super::codec::put_change;
use super::error::LogError;
use super::files::{Segment, Span};
use super::format::{
    ALIGNMENT, CLOSED, END, FILE_HEADER, Identity, RECORD_HEADER, begin_record, finish_record,
};
use super::options::{Durability, LogOptions};
use super::recovery::{Base, sync_file};
use super::stats::LogStats;
use crate::{Change, JournalError, Pool, Position};

/// Room that is always left in a segment: for the mark of a clean stop, and for the record that ends the segment.
const KEPT_ROOM: u64 = 2 * RECORD_HEADER as u64;
/// While nothing can be written, no more than this many bytes wait in memory.
const MAX_WAITING: usize = 64 << 20;
/// A tail of this many bytes is flushed in the background, should nobody wait for it.
const LARGE_TAIL: usize = 1 << 20;
/// A buffer that grew beyond this gives its memory back when it is written.
const KEPT_CAPACITY: usize = 4 * LARGE_TAIL;

/// Bytes that are to be written, and where.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    /// Each part begins at this byte, and goes to this place of the log in this segment.
    parts: Vec<Part>,
    /// Where the log ends with it.
    end: u64,
}

#[derive(Debug)]
struct Part {
    start: usize,
    position: u64,
    segment: Arc<Segment>,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_CAPACITY);
        self.parts.clear();
    }
}

/// What was recorded and not yet taken to be written.
#[derive(Debug)]
struct Tail {
    batch: Batch,
    /// Where the batch begins.
    begin: u64,
    segment: Arc<Segment>,
    closed: bool,
    /// Whether the last record is the mark of a clean stop.
    marked: bool,
}

/// The segment that comes next. The lock is held while one is made, so that none is made twice.
#[derive(Debug)]
struct Ahead {
    /// The last segment that was made.
    last: Span,
    ready: Option<Arc<Segment>>,
}

/// What the one who writes needs.
#[derive(Debug)]
struct Writing {
    batch: Batch,
    /// Whether the next write is synced, whatever is promised: it takes the meaning from the mark of a clean stop.
    sync_next: bool,
}

#[derive(Debug)]
struct Flushed {
    durable: u64,
    someone_writes: bool,
    /// Number of attempts that ended.
    attempts: u64,
    /// Why the last one failed.
    error: Option<JournalError>,
}

/// Work for the threads in the background.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) stop: bool,
    pub(super) spare: bool,
    pub(super) flush: bool,
    pub(super) compact: bool,
}

/// Segments that are on the disk and full, and the checkpoint that they go on from.
#[derive(Debug)]
pub(super) struct Archive {
    pub(super) checkpoint: Base,
    pub(super) closed: VecDeque<(Span, PathBuf)>,
}

impl Archive {
    pub(super) fn closed_bytes(&self) -> u64 {
        self.closed.iter().map(|(span, _)| span.len).sum()
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) checkpoints: AtomicU64,
    pub(super) failed_checkpoints: AtomicU64,
    flushes: AtomicU64,
    failed_flushes: AtomicU64,
    refused_records: AtomicU64,
}

/// What the log and its threads share.
///
/// Locks are taken in the order `writing`, `tail`, `ahead`, `archive`, `no_room`, `work`, and `flushed` alone. The tail is
/// locked while a file is written only if the next segment is not there when it is needed.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) dir: PathBuf,
    pub(super) identity: Identity,
    pub(super) options: LogOptions,
    pub(super) empty: Pool,
    tail: Mutex<Tail>,
    /// The end of what was recorded.
    position: AtomicU64,
    ahead: Mutex<Ahead>,
    writing: Mutex<Writing>,
    flushed: Mutex<Flushed>,
    attempt_ended: Condvar,
    pub(super) archive: Mutex<Archive>,
    /// Why the last segment could not be made.
    no_room: Mutex<Option<String>>,
    pub(super) work: Mutex<Work>,
    pub(super) work_came: Condvar,
    /// The same as `stop` in `work`, to be asked in the middle of long work.
    pub(super) stopping: AtomicBool,
    pub(super) counters: Counters,
    #[cfg(test)]
    pub(super) faults: super::faults::Faults,
}

/// Where a log goes on.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) archive: Archive,
    pub(super) segment: Segment,
    pub(super) end: u64,
    pub(super) clean: bool,
}

impl Shared {
    pub(super) fn new(
        dir: PathBuf,
        identity: Identity,
        options: LogOptions,
        empty: Pool,
        start: Start,
    ) -> Self {
        let last = start.segment.span;
        Self {
            dir,
            identity,
            options,
            empty,
            tail: Mutex::new(Tail {
                batch: Batch::default(),
                begin: start.end,
                segment: Arc::new(start.segment),
                closed: false,
                marked: start.clean,
            }),
            position: AtomicU64::new(start.end),
            ahead: Mutex::new(Ahead { last, ready: None }),
            writing: Mutex::new(Writing {
                batch: Batch::default(),
                sync_next: start.clean,
            }),
            flushed: Mutex::new(Flushed {
                durable: start.end,
                someone_writes: false,
                attempts: 0,
                error: None,
            }),
            attempt_ended: Condvar::new(),
            archive: Mutex::new(start.archive),
            no_room: Mutex::new(None),
            work: Mutex::new(Work {
                spare: true,
                compact: true,
                ..Work::default()
            }),
            work_came: Condvar::new(),
            stopping: AtomicBool::new(false),
            counters: Counters::default(),
            #[cfg(test)]
            faults: Default::default(),
        }
    }

    pub(super) fn position(&self) -> Position {
        Position(self.position.load(Ordering::Acquire))
    }

    pub(super) fn record(&self, change: &Change) -> Result<(), JournalError> {
        let mut tail = self.tail.lock();
        let recorded = self.try_record(&mut tail, change);
        if recorded.is_err() {
            self.counters
                .refused_records
                .fetch_add(1, Ordering::Relaxed);
        }
        recorded
    }

    fn try_record(&self, tail: &mut Tail, change: &Change) -> Result<(), JournalError> {
        if tail.closed {
            return Err(JournalError(
                "the log is closed; the server is stopping".into(),
            ));
        }
        if tail.batch.bytes.len() >= MAX_WAITING {
            return Err(JournalError(format!(
                "{} bytes wait to be written to {}, where writing fails; make it writable again",
                tail.batch.bytes.len(),
                self.dir.display()
            )));
        }
        let start = begin_record(&mut tail.batch.bytes);
        let kind = put_change(&mut tail.batch.bytes, change);
        let size = (tail.batch.bytes.len() - start).next_multiple_of(ALIGNMENT) as u64;
        let position = self.position.load(Ordering::Relaxed);
        if position + size + KEPT_ROOM <= tail.segment.span.end() {
            self.finish(tail, start, kind, position);
            return Ok(());
        }
        tail.batch.bytes.truncate(start);
        self.next_segment(tail)?;
        let start = begin_record(&mut tail.batch.bytes);
        put_change(&mut tail.batch.bytes, change);
        self.finish(tail, start, kind, self.position.load(Ordering::Relaxed));
        Ok(())
    }

    /// Completes the record at the end of the tail, which begins at `start` and at `position`.
    fn finish(&self, tail: &mut Tail, start: usize, kind: u8, position: u64) {
        let Tail {
            batch,
            begin,
            segment,
            ..
        } = tail;
        if start == 0 {
            *begin = position;
        }
        if batch
            .parts
            .last()
            .is_none_or(|part| !Arc::ptr_eq(&part.segment, segment))
        {
            batch.parts.push(Part {
                start,
                position,
                segment: segment.clone(),
            });
        }
        finish_record(
            &mut batch.bytes,
            start,
            kind,
            position,
            *begin,
            &self.identity,
        );
        batch.end = position + (batch.bytes.len() - start) as u64;
        tail.marked = kind == CLOSED;
        self.position.store(tail.batch.end, Ordering::Release);
        if start < LARGE_TAIL && tail.batch.bytes.len() >= LARGE_TAIL {
            self.ask(|work| work.flush = true);
        }
    }

    /// Ends the segment and goes on in the one that was made ahead, or in one that is made now.
    fn next_segment(&self, tail: &mut Tail) -> Result<(), JournalError> {
        let next = {
            let mut ahead = self.ahead.lock();
            self.prepare(&mut ahead)
                .map_err(|error| self.out_of_room(&error))?;
            ahead.ready.take()
        };
        // It was prepared under this very lock.
        let next = next.ok_or_else(|| JournalError("the next segment is missing".into()))?;
        let start = begin_record(&mut tail.batch.bytes);
        self.finish(tail, start, END, self.position.load(Ordering::Relaxed));
        tail.batch.end = next.span.first + FILE_HEADER as u64;
        self.position.store(tail.batch.end, Ordering::Release);
        tail.segment = next;
        self.ask(|work| work.spare = true);
        Ok(())
    }

    /// Makes the segment that comes next, if it is missing.
    fn prepare(&self, ahead: &mut Ahead) -> io::Result<()> {
        if ahead.ready.is_some() {
            return Ok(());
        }
        let span = Span {
            first: ahead.last.end(),
            len: self.options.segment_len(),
        };
        let made = self.create_segment(span);
        *self.no_room.lock() = made.as_ref().err().map(|error| self.out_of_room(error).0);
        ahead.ready = Some(Arc::new(made?));
        ahead.last = span;
        Ok(())
    }

    fn create_segment(&self, span: Span) -> io::Result<Segment> {
        #[cfg(test)]
        self.faults.segment()?;
        Segment::create(&self.dir, &self.identity, span)
    }

    fn out_of_room(&self, error: &io::Error) -> JournalError {
        JournalError(format!(
            "cannot make the next segment of the log in {}: {error}; make room there",
            self.dir.display()
        ))
    }

    /// Makes the segment that comes next, so that it is there when it is needed.
    pub(super) fn make_spare(&self) -> io::Result<()> {
        self.prepare(&mut self.ahead.lock())
    }

    /// Tells the threads in the background of work.
    pub(super) fn ask(&self, ask: impl FnOnce(&mut Work)) {
        ask(&mut self.work.lock());
        self.work_came.notify_all();
    }

    pub(super) fn flush(&self, position: Position) -> Result<(), JournalError> {
        let mut flushed = self.flushed.lock();
        loop {
            if flushed.durable >= position.0 {
                return Ok(());
            }
            if !flushed.someone_writes {
                break;
            }
            let attempt = flushed.attempts;
            while flushed.attempts == attempt {
                self.attempt_ended.wait(&mut flushed);
            }
            if let Some(error) = &flushed.error
                && flushed.durable < position.0
            {
                return Err(error.clone());
            }
        }
        flushed.someone_writes = true;
        drop(flushed);
        let written = self.write_out(position.0);
        ondol_catalog::failpoint!("log.wake");
        let mut flushed = self.flushed.lock();
        flushed.someone_writes = false;
        flushed.attempts += 1;
        flushed.durable = written.durable.max(flushed.durable);
        match (&flushed.error, &written.error) {
            (None, Some(error)) => warn!(%error, "the log cannot be written"),
            (Some(_), None) => info!("the log can be written again"),
            _ => {}
        }
        flushed.error = written.error;
        let result = match &flushed.error {
            Some(error) if flushed.durable < position.0 => Err(error.clone()),
            _ => Ok(()),
        };
        drop(flushed);
        self.attempt_ended.notify_all();
        if result.is_err() {
            // Somebody must find out when it works again, even if nobody changes anything meanwhile.
            self.ask(|work| work.flush = true);
        }
        result
    }

    /// Writes batch after batch until everything before `wanted` is durable.
    fn write_out(&self, wanted: u64) -> Written {
        let mut writing = self.writing.lock();
        let mut written = Written::default();
        while written.durable < wanted {
            if writing.batch.bytes.is_empty() {
                std::mem::swap(&mut writing.batch, &mut self.tail.lock().batch);
            }
            if writing.batch.bytes.is_empty() {
                break;
            }
            let sync = writing.sync_next || self.options.durability == Durability::Fsync;
            if let Err(error) = self.write_batch(&writing.batch, sync) {
                self.counters.failed_flushes.fetch_add(1, Ordering::Relaxed);
                written.error = Some(JournalError(format!(
                    "cannot write the log in {}: {error}",
                    self.dir.display()
                )));
                break;
            }
            self.counters.flushes.fetch_add(1, Ordering::Relaxed);
            written.durable = writing.batch.end;
            writing.sync_next = false;
            self.archive(&writing.batch.parts);
            writing.batch.clear();
        }
        written
    }

    fn write_batch(&self, batch: &Batch, sync: bool) -> io::Result<()> {
        ondol_catalog::failpoint!("log.write", Err(io::Error::other("failpoint log.write")));
        #[cfg(test)]
        self.faults.write(batch)?;
        let ends = batch.parts.iter().skip(1).map(|part| part.start);
        let ends = ends.chain([batch.bytes.len()]);
        for (part, end) in batch.parts.iter().zip(ends) {
            let Part {
                start,
                position,
                segment,
            } = part;
            let bytes = &batch.bytes[*start..end];
            segment
                .file
                .write_all_at(bytes, position - segment.span.first)?;
            ondol_catalog::failpoint!("log.part_written");
        }
        ondol_catalog::failpoint!("log.written");
        if sync {
            ondol_catalog::failpoint!("log.sync", Err(io::Error::other("failpoint log.sync")));
            #[cfg(test)]
            self.faults.sync()?;
            for part in &batch.parts {
                part.segment.file.sync_data()?;
            }
            ondol_catalog::failpoint!("log.synced");
        }
        Ok(())
    }

    /// Keeps in mind which segments the batch filled.
    fn archive(&self, parts: &[Part]) {
        let [full @ .., _] = parts else { return };
        if full.is_empty() {
            return;
        }
        let mut archive = self.archive.lock();
        let full = full.iter().map(|part| &part.segment);
        archive
            .closed
            .extend(full.map(|segment| (segment.span, segment.path.clone())));
        drop(archive);
        self.ask(|work| work.compact = true);
    }

    /// Makes everything durable, and marks the end. Nothing can be recorded from then on.
    pub(super) fn close(&self) -> Result<(), JournalError> {
        // First, so that nothing comes between what is synced and the mark.
        self.tail.lock().closed = true;
        self.flush(self.position())?;
        ondol_catalog::failpoint!("close.flushed");
        self.sync_all()
            .map_err(|error| JournalError(error.to_string()))?;
        ondol_catalog::failpoint!("close.synced");
        self.writing.lock().sync_next = true;
        {
            let mut tail = self.tail.lock();
            if !tail.marked {
                let start = begin_record(&mut tail.batch.bytes);
                let position = self.position.load(Ordering::Relaxed);
                self.finish(&mut tail, start, CLOSED, position);
            }
        }
        self.flush(self.position())?;
        ondol_catalog::failpoint!("close.marked");
        Ok(())
    }

    fn sync_all(&self) -> Result<(), LogError> {
        if self.options.durability == Durability::Fsync {
            return Ok(());
        }
        let current = self.tail.lock().segment.clone();
        current
            .file
            .sync_data()
            .map_err(LogError::io("sync", &current.path))?;
        let archive = self.archive.lock();
        archive
            .closed
            .iter()
            .try_for_each(|(_, path)| sync_file(path))
    }

    pub(super) fn stats(&self) -> LogStats {
        let (durable, error) = {
            let flushed = self.flushed.lock();
            (flushed.durable, flushed.error.clone())
        };
        let current = self.tail.lock().segment.span.len;
        let spare = {
            let ahead = self.ahead.lock();
            ahead.ready.as_ref().map(|spare| spare.span.len)
        };
        let (closed, archived) = {
            let archive = self.archive.lock();
            let bytes = archive.checkpoint.bytes + archive.closed_bytes();
            (archive.closed.len() as u64, bytes)
        };
        let error = error.map(|error| error.to_string());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogStats {
            position: self.position(),
            durable: Position(durable),
            bytes_on_disk: archived + current + spare.unwrap_or(0),
            segments: closed + 1 + u64::from(spare.is_some()),
            checkpoints: count(&self.counters.checkpoints),
            failed_checkpoints: count(&self.counters.failed_checkpoints),
            flushes: count(&self.counters.flushes),
            failed_flushes: count(&self.counters.failed_flushes),
            refused_records: count(&self.counters.refused_records),
            last_error: error.or_else(|| self.no_room.lock().clone()),
        }
    }
}

/// How far an attempt to write came.
#[derive(Debug, Default)]
struct Written {
    durable: u64,
    error: Option<JournalError>,
}
