//! Reading segments: the chain of whole records, and what lies behind its end.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::codec::{Malformed, read_change};
use super::error::LogError;
use super::files::{Listing, Span, check_header, segment_name};
use super::format::{
    ALIGNMENT, CLOSED, END, FILE_HEADER, FileHeader, Identity, Record, SEGMENT_MAGIC, VERSION,
    read_record,
};
use crate::Change;

/// Changes that were read, each with its place in the log.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) file: Arc<Path>,
    /// The place of the file's first byte.
    pub(super) first: u64,
    pub(super) changes: Vec<(u64, Change)>,
}

/// Changes handed on at once: few enough to stay in the processor's cache, many enough to be worth a wake-up.
const CHUNK: usize = 1024;

/// What a walk along the chain of records found.
#[derive(Debug)]
pub(super) struct Walk {
    /// The segments with whole records, and the one in which the chain ends.
    pub(super) segments: Vec<(Span, PathBuf)>,
    /// Where the chain ends.
    pub(super) end: u64,
    /// Whether its last record is the mark of a clean stop.
    pub(super) clean: bool,
    /// Number of changes.
    pub(super) changes: u64,
}

/// What to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route<'a> {
    pub(super) dir: &'a Path,
    pub(super) identity: &'a Identity,
    /// The first byte of a segment.
    pub(super) from: u64,
    /// The first byte of the segment that is not to be read; without it the walk goes to the end of the log.
    pub(super) until: Option<u64>,
    pub(super) stop: &'a AtomicBool,
}

/// Follows the chain of records from the segment that begins at `from`, and hands on what it says. `take` says whether
/// it wants more.
pub(super) fn walk(
    route: Route<'_>,
    mut take: impl FnMut(Chunk) -> bool,
) -> Result<Walk, LogError> {
    let mut walk = Walk {
        segments: Vec::new(),
        end: route.from,
        clean: false,
        changes: 0,
    };
    while route.until.is_none_or(|until| walk.end < until) {
        if walk_segment(route, &mut walk, &mut take)? == Stop::ChainEnds {
            break;
        }
    }
    Ok(walk)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The next segment goes on.
    SegmentEnds,
    ChainEnds,
}

fn walk_segment(
    route: Route<'_>,
    walk: &mut Walk,
    take: &mut impl FnMut(Chunk) -> bool,
) -> Result<Stop, LogError> {
    let Route { identity, stop, .. } = route;
    let (path, bytes, header) = read_segment(route, walk.end)?;
    let file: Arc<Path> = path.as_path().into();
    let first = header.position;
    walk.segments.push((
        Span {
            first,
            len: header.len,
        },
        path,
    ));
    let chunk = |changes| Chunk {
        file: file.clone(),
        first,
        changes,
    };
    let mut changes = Vec::with_capacity(CHUNK);
    let mut at = FILE_HEADER;
    let outcome = loop {
        let place = first + at as u64;
        let Some(record) = bytes
            .get(at..)
            .and_then(|rest| read_record(rest, place, identity))
        else {
            break Stop::ChainEnds;
        };
        if u32::from(record.version) != VERSION {
            return Err(LogError::Version {
                file: file.to_path_buf(),
                found: record.version.into(),
                expected: VERSION,
            });
        }
        at += record.size;
        match record.kind {
            END => {
                walk.clean = false;
                break Stop::SegmentEnds;
            }
            CLOSED => walk.clean = true,
            kind => {
                walk.clean = false;
                walk.changes += 1;
                let change = read_change(kind, record.payload).map_err(|Malformed(found)| {
                    LogError::corrupt(&file, place - first, found, "a change")
                })?;
                changes.push((place, change));
            }
        }
        if changes.len() == CHUNK {
            let full = std::mem::replace(&mut changes, Vec::with_capacity(CHUNK));
            if stop.load(Ordering::Relaxed) || !take(chunk(full)) {
                return Err(LogError::interrupted(&file));
            }
        }
    };
    walk.end = match outcome {
        Stop::SegmentEnds => first + header.len,
        Stop::ChainEnds => first + at as u64,
    };
    if stop.load(Ordering::Relaxed) || !changes.is_empty() && !take(chunk(changes)) {
        return Err(LogError::interrupted(&file));
    }
    Ok(outcome)
}

/// The segment that begins at this place, which must be there: a segment is complete on the disk before the record that
/// leads to it, or the checkpoint that ends before it, is written.
fn read_segment(route: Route<'_>, first: u64) -> Result<(PathBuf, Vec<u8>, FileHeader), LogError> {
    let path = route.dir.join(segment_name(first));
    let bytes = match read_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let found = "no such file";
            return Err(LogError::corrupt(
                &path,
                0,
                found,
                "the next segment of the log",
            ));
        }
        bytes => bytes.map_err(LogError::io("read", &path))?,
    };
    let header = check_header(&path, &bytes, SEGMENT_MAGIC, route.identity)?;
    if header.position != first || header.len < FILE_HEADER as u64 || header.len % 8 != 0 {
        let found = format!(
            "the header of a segment at {:#x}, {} bytes long",
            header.position, header.len
        );
        let expected = format!("that of the segment at {first:#x}");
        return Err(LogError::corrupt(&path, 32, found, expected));
    }
    Ok((path, bytes, header))
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What lies behind the end of the chain.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Bytes from the end of the chain to the last one that is not zero.
    pub(super) torn_in_last: u64,
    /// Segments that come later, none of which holds anything that counts.
    pub(super) later: Vec<PathBuf>,
    /// Bytes in those.
    pub(super) torn_later: u64,
}

/// Tells a torn tail from a damaged middle.
///
/// A batch is written only when the one before is as durable as promised. So a whole record behind the end of the chain
/// means nothing if its batch begins at or before that end: the write of that batch was cut short. If its batch begins
/// behind the end, then the bytes at the end were written once, and are damaged.
pub(super) fn examine_rest(
    route: Route<'_>,
    listing: &Listing,
    walk: &Walk,
) -> Result<Rest, LogError> {
    let mut rest = Rest::default();
    let Some((span, last)) = walk.segments.last() else {
        return Ok(rest);
    };
    let damaged = |place: u64| {
        let offset = walk.end - span.first;
        let found = format!(
            "no whole record, although one at {place:#x} of the log was written later and is whole"
        );
        let expected = format!("the record at {:#x} of the log", walk.end);
        LogError::corrupt(last, offset, found, expected)
    };
    let scan = |bytes: &[u8], first: u64, from: usize| {
        find_later(bytes, first, from, walk.end, route.identity)
            .map_or(Ok(()), |place| Err(damaged(place)))
    };
    let bytes = read_file(last).map_err(LogError::io("read", last))?;
    let end = (walk.end - span.first) as usize;
    scan(&bytes, span.first, end)?;
    rest.torn_in_last = used(&bytes, end);
    for (first, path) in listing
        .segments
        .iter()
        .filter(|(first, _)| *first > span.first)
    {
        let bytes = read_file(path).map_err(LogError::io("read", path))?;
        scan(&bytes, *first, FILE_HEADER)?;
        match check_header(path, &bytes, SEGMENT_MAGIC, route.identity) {
            // A segment that was made for later: nobody wrote into it yet, so that its header may be anything.
            Ok(_) | Err(LogError::Corrupt { .. }) => {}
            Err(foreign) => return Err(foreign),
        }
        rest.torn_later += used(&bytes, FILE_HEADER);
        rest.later.push(path.clone());
    }
    Ok(rest)
}

/// The place of a whole record whose batch begins behind `end`.
fn find_later(bytes: &[u8], first: u64, from: usize, end: u64, identity: &Identity) -> Option<u64> {
    let mut at = from;
    // No record begins in the zeros of what was never written.
    let last = from + used(bytes, from) as usize;
    while at < last {
        let place = first + at as u64;
        match read_record(&bytes[at..], place, identity) {
            Some(Record { batch, .. }) if batch > end => return Some(place),
            Some(record) => at += record.size,
            None => at += ALIGNMENT,
        }
    }
    None
}

/// Bytes from `from` to the last that is not zero.
fn used(bytes: &[u8], from: usize) -> u64 {
    /// Compared at once: most of a segment may be unwritten.
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut rest = bytes.get(from..).unwrap_or_default();
    while let Some(shorter) = rest.strip_suffix(&ZEROS) {
        rest = shorter;
    }
    rest.iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last as u64 + 1)
}
