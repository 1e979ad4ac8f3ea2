//! The write-ahead log: every change of pool and directory in files, and what makes the state out of them again.
//!
//! `docs/log.md` draws the format and gives the reasons.

mod background;
mod checkpoint;
mod codec;
mod error;
#[cfg(test)]
mod faults;
mod files;
mod format;
mod holdings;
mod inspect;
mod options;
mod pool_record;
mod progress;
mod recovery;
mod stats;
#[cfg(test)]
mod tests;
mod walk;
mod writer;

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use crate::{Change, Image, Journal, JournalError, Pool, PoolId, Position, check_own_dir};
use background::Background;
pub use error::LogError;
use files::{Listing, Segment, Span};
use format::{FILE_HEADER, Identity};
pub use holdings::ClientReport;
pub use inspect::{CheckpointReport, LogReport, SegmentReport, inspect_log};
pub use options::{Durability, LogOptions, UnknownDurability};
pub use pool_record::PoolRecord;
use recovery::{Base, Found};
pub use stats::LogStats;
use writer::{Archive, Shared, Start};

/// An open log: a directory of its own, `log` in the state directory, which nobody else may write.
///
/// Dropping it ends its threads and flushes nothing: what was flushed is there, as after a crash.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    background: Mutex<Option<Background>>,
}

/// What a log held, and the log, ready to go on.
#[derive(Debug)]
pub struct Recovered {
    /// The log.
    pub log: Log,
    /// The state that its changes make.
    pub image: Image,
    /// Whether it was closed with [`Log::close`] and nothing was recorded since.
    pub clean: bool,
    /// Number of changes that were replayed, without those of the checkpoint.
    pub changes: u64,
    /// Bytes of an unfinished write at its end that were cut off; nobody was told of what they held.
    pub cut_bytes: u64,
}

impl Log {
    /// Begins a new, empty log in `dir`, which is made if it is missing; what is there of an older log is removed first.
    /// Until all of it is there, [`exists`](Self::exists) is false. A [`PoolRecord`] stays.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn create(
        dir: &Path,
        pool: PoolId,
        empty: &Pool,
        options: LogOptions,
    ) -> Result<Self, LogError> {
        let identity = Identity::new(pool);
        files::make_dir(dir)?;
        files::retire(dir)?;
        files::sweep(dir)?;
        let span = Span {
            first: 0,
            len: options.segment_len(),
        };
        let segment = Segment::create(dir, &identity, span)
            .map_err(LogError::io("make", &dir.join(files::segment_name(0))))?;
        let image = Image::new(empty.emptied());
        let bytes = checkpoint::write(dir, &identity, 0, &image, &AtomicBool::new(false))?;
        files::unretire(dir)?;
        ondol_catalog::failpoint!("log.created");
        let checkpoint = Base {
            position: 0,
            path: dir.join(files::checkpoint_name(0)),
            bytes,
        };
        let start = Start {
            archive: Archive {
                checkpoint,
                closed: VecDeque::new(),
            },
            segment,
            end: FILE_HEADER as u64,
            clean: false,
        };
        Self::start(dir, identity, options, image.pool, start)
    }

    /// Reads the log in `dir` and goes on with it. `empty` is a pool over the same devices; what it holds does not
    /// matter.
    ///
    /// # Errors
    /// [`LogError`]. Nothing was changed but for drafts of the log's own, which are removed.
    pub fn recover(
        dir: &Path,
        pool: PoolId,
        empty: Pool,
        options: LogOptions,
    ) -> Result<Recovered, LogError> {
        let identity = Identity::new(pool);
        let Found {
            image,
            checkpoint,
            closed,
            last,
            end,
            clean,
            changes,
            cut_bytes,
        } = recovery::recover(dir, &identity, &empty, &options)?;
        let start = Start {
            archive: Archive {
                checkpoint,
                closed: closed.into(),
            },
            segment: last,
            end,
            clean,
        };
        let log = Self::start(dir, identity, options, empty.emptied(), start)?;
        Ok(Recovered {
            log,
            image,
            clean,
            changes,
            cut_bytes,
        })
    }

    fn start(
        dir: &Path,
        identity: Identity,
        options: LogOptions,
        empty: Pool,
        start: Start,
    ) -> Result<Self, LogError> {
        let shared = Arc::new(Shared::new(dir.to_owned(), identity, options, empty, start));
        let background =
            Background::start(&shared).map_err(LogError::io("start threads for", dir))?;
        Ok(Self {
            shared,
            background: Mutex::new(Some(background)),
        })
    }

    /// Whether `dir` holds a log, damaged or not. A missing directory holds none.
    ///
    /// # Errors
    /// Any of the file system.
    pub fn exists(dir: &Path) -> io::Result<bool> {
        Ok(Listing::read(dir)?.is_log())
    }

    /// Removes the log in `dir` and the [`PoolRecord`] beside it. From the first step on, [`exists`](Self::exists) is
    /// false, even if the machine ends in the middle.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn remove(dir: &Path) -> Result<(), LogError> {
        match check_own_dir(dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(LogError::io("use", dir)(error)),
        }
        files::retire(dir)?;
        files::sweep(dir)?;
        PoolRecord::remove(dir)?;
        files::unretire(dir)
    }

    /// Makes everything durable, whatever was promised, and marks that the log was closed. From then on records are
    /// refused. Closing again does nothing more.
    ///
    /// # Errors
    /// [`JournalError`] if a file cannot be written or synced; it can be tried again.
    pub fn close(&self) -> Result<(), JournalError> {
        // Ends the threads first, so that no segment goes while it is synced.
        drop(self.background.lock().take());
        self.shared.close()
    }

    /// How it fares.
    pub fn stats(&self) -> LogStats {
        self.shared.stats()
    }
}

impl Journal for Log {
    fn record(&self, change: &Change) -> Result<(), JournalError> {
        self.shared.record(change)
    }

    fn position(&self) -> Position {
        self.shared.position()
    }

    fn flush(&self, position: Position) -> Result<(), JournalError> {
        self.shared.flush(position)
    }
}
