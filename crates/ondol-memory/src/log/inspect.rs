//! What is in a log, for people.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::checkpoint;
use super::error::LogError;
use super::files::{Listing, check_header};
use super::format::{
    BadHeader, CHECKPOINT_MAGIC, FILE_HEADER, FileHeader, Identity, SEGMENT_MAGIC,
};
use super::holdings::{ClientReport, Holdings};
use super::walk::{Chunk, Route, examine_rest, walk};
use crate::{PoolId, Position};

/// What is in a log, as `ondol doctor` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogReport {
    /// Whose log it is.
    pub pool: PoolId,
    /// Its checkpoints, the newest last; one is enough.
    pub checkpoints: Vec<CheckpointReport>,
    /// Its segments.
    pub segments: Vec<SegmentReport>,
    /// Changes since the newest checkpoint that is whole.
    pub changes: u64,
    /// Visible objects, as far as the log can be read.
    pub objects: u64,
    /// Clients, as far as the log can be read.
    pub clients: Vec<ClientReport>,
    /// Where its last whole record ends.
    pub end: Position,
    /// Whether it was closed, and nothing was recorded since.
    pub clean: bool,
    /// Bytes of an unfinished write at its end, which the next start cuts off.
    pub torn_bytes: u64,
    /// Why a start would refuse it; nothing if it would not.
    pub problem: Option<String>,
}

/// A checkpoint in a [`LogReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// Its file.
    pub file: PathBuf,
    /// It holds all changes before this place.
    pub position: Position,
    /// Length of its file in bytes.
    pub bytes: u64,
    /// Visible objects in it.
    pub objects: u64,
    /// What is wrong with it; nothing if it is whole.
    pub problem: Option<String>,
}

/// A segment in a [`LogReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentReport {
    /// Its file.
    pub file: PathBuf,
    /// The place of its first byte.
    pub first: Position,
    /// Length of its file in bytes.
    pub bytes: u64,
}

/// Reads a log and repairs nothing.
///
/// # Errors
/// [`LogError::Missing`] if there is none, [`LogError::Io`], or [`LogError::Corrupt`] if no file tells whose it is.
/// Whatever else is wrong stands in the report.
pub fn inspect_log(dir: &Path) -> Result<LogReport, LogError> {
    let listing = Listing::read(dir).map_err(LogError::io("list", dir))?;
    if !listing.is_log() {
        return Err(LogError::Missing {
            dir: dir.to_owned(),
        });
    }
    let identity = Identity::new(owner(dir, &listing)?);
    let mut newest = None;
    let checkpoints: Vec<_> = listing
        .checkpoints
        .iter()
        .map(|(position, path)| {
            let counted = checkpoint::count(path, &identity);
            let report = inspect_checkpoint(*position, path, &counted);
            newest = counted.ok().or(newest.take());
            report
        })
        .collect();
    let mut holdings: Holdings = newest.unwrap_or_default();
    let segments = listing.segments.iter().map(|(first, path)| SegmentReport {
        file: path.clone(),
        first: Position(*first),
        bytes: fs::metadata(path).map_or(0, |metadata| metadata.len()),
    });
    let mut report = LogReport {
        pool: identity.pool,
        segments: segments.collect(),
        changes: 0,
        objects: 0,
        clients: Vec::new(),
        end: Position(0),
        clean: false,
        torn_bytes: 0,
        problem: None,
        checkpoints,
    };
    let whole = report
        .checkpoints
        .iter()
        .rev()
        .find(|found| found.problem.is_none());
    let Some(from) = whole.map(|found| found.position) else {
        let newest = report
            .checkpoints
            .last()
            .and_then(|found| found.problem.clone());
        report.problem = Some(newest.unwrap_or_else(|| "there is no checkpoint".to_owned()));
        return Ok(report);
    };
    let route = Route {
        dir,
        identity: &identity,
        from: from.0,
        until: None,
        stop: &AtomicBool::new(false),
    };
    let count = |chunk: Chunk| {
        let changes = chunk.changes.iter();
        changes.for_each(|(_, change)| holdings.apply(change));
        true
    };
    let walked = walk(route, count).and_then(|walked| {
        report.changes = walked.changes;
        report.end = Position(walked.end);
        report.clean = walked.clean;
        examine_rest(route, &listing, &walked)
    });
    report.objects = holdings.objects;
    report.clients = holdings.clients().collect();
    match walked {
        Ok(rest) => report.torn_bytes = rest.torn_in_last + rest.torn_later,
        Err(error) => report.problem = Some(error.to_string()),
    }
    Ok(report)
}

fn inspect_checkpoint(
    position: u64,
    path: &Path,
    counted: &Result<Holdings, LogError>,
) -> CheckpointReport {
    CheckpointReport {
        file: path.to_owned(),
        position: Position(position),
        bytes: fs::metadata(path).map_or(0, |metadata| metadata.len()),
        objects: counted.as_ref().map_or(0, |holdings| holdings.objects),
        problem: counted.as_ref().err().map(ToString::to_string),
    }
}

/// The pool that the first readable header names.
fn owner(dir: &Path, listing: &Listing) -> Result<PoolId, LogError> {
    let checkpoints = listing
        .checkpoints
        .iter()
        .map(|(_, path)| (path, CHECKPOINT_MAGIC));
    let segments = listing
        .segments
        .iter()
        .map(|(_, path)| (path, SEGMENT_MAGIC));
    let mut first_error = None;
    for (path, magic) in checkpoints.chain(segments) {
        let bytes =
            super::files::read_start(path, FILE_HEADER).map_err(LogError::io("read", path))?;
        match FileHeader::decode(&bytes, magic) {
            Ok(header) => return Ok(header.pool),
            Err(BadHeader::Version(_) | BadHeader::Damaged) => {
                let nobody = Identity::new(PoolId([0; 16]));
                first_error = first_error.or(check_header(path, &bytes, magic, &nobody).err());
            }
        }
    }
    Err(first_error.unwrap_or_else(|| LogError::Missing {
        dir: dir.to_owned(),
    }))
}
