//! From files to a state, and to a log that goes on where they end.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::thread;

use tracing::{info, warn};

use super::checkpoint;
use super::error::LogError;
use super::files::{self, Listing, Segment, Span};
use super::format::Identity;
use super::options::{Durability, LogOptions};
use super::progress::Progress;
use super::walk::{Rest, Route, Walk, examine_rest, walk};
use crate::{Image, Pool};

/// A log has at least so many bytes for each object that it adds, nearly always; it saves growing the table again and
/// again.
const BYTES_PER_OBJECT: u64 = 96;
/// No more objects than this are expected, as most of a log may speak of objects that are gone.
const MOST_EXPECTED: u64 = 1 << 20;

/// What was found, and what to go on with.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) image: Image,
    pub(super) checkpoint: Base,
    /// Full segments since the checkpoint.
    pub(super) closed: Vec<(Span, PathBuf)>,
    pub(super) last: Segment,
    pub(super) end: u64,
    pub(super) clean: bool,
    pub(super) changes: u64,
    pub(super) cut_bytes: u64,
}

/// A checkpoint that is whole on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) position: u64,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Reads what is there, and makes the files such that new records can follow.
pub(super) fn recover(
    dir: &Path,
    identity: &Identity,
    empty: &Pool,
    options: &LogOptions,
) -> Result<Found, LogError> {
    let listing = Listing::read(dir).map_err(LogError::io("list", dir))?;
    if !listing.is_log() {
        return Err(LogError::Missing {
            dir: dir.to_owned(),
        });
    }
    for draft in &listing.drafts {
        files::remove_file(draft)?;
    }
    let (checkpoint, mut image) = load_checkpoint(dir, &listing, identity, empty)?;
    let never = AtomicBool::new(false);
    let route = Route {
        dir,
        identity,
        from: checkpoint.position,
        until: None,
        stop: &never,
    };
    let bytes = listing
        .segments
        .iter()
        .filter(|(first, _)| *first >= route.from);
    let bytes = bytes
        .filter_map(|(_, path)| Some(fs::metadata(path).ok()?.len()))
        .sum::<u64>();
    image
        .objects
        .reserve((bytes / BYTES_PER_OBJECT).min(MOST_EXPECTED) as usize);
    let mut progress = Progress::begin("the log", dir, bytes);
    let (image, walked) = replay(route, image, &mut progress)?;
    let rest = examine_rest(route, &listing, &walked)?;
    info!(
        changes = walked.changes,
        objects = image.objects.len(),
        seconds = progress.seconds(),
        clean = walked.clean,
        "read the log"
    );
    repair(dir, checkpoint, image, walked, &rest, &listing, options)
}

/// The newest checkpoint that is whole and from which the log goes on.
fn load_checkpoint(
    dir: &Path,
    listing: &Listing,
    identity: &Identity,
    empty: &Pool,
) -> Result<(Base, Image), LogError> {
    let mut first_error = None;
    for (position, path) in listing.checkpoints.iter().rev() {
        let goes_on = listing.segments.iter().any(|(first, _)| first == position);
        let bytes = fs::metadata(path)
            .map_err(LogError::io("look at", path))?
            .len();
        let mut progress = Progress::begin("a checkpoint", path, bytes);
        let read = checkpoint::read(
            path,
            identity,
            empty.emptied(),
            &AtomicBool::new(false),
            &mut progress,
        );
        let read = read.and_then(|image| match goes_on {
            true => Ok(image),
            false => Err(LogError::corrupt(
                &dir.join(files::segment_name(*position)),
                0,
                "no such file",
                "the segment that follows the checkpoint",
            )),
        });
        match read {
            Ok(image) => {
                if let Some(error) = first_error {
                    warn!(%error, using = %path.display(), "a checkpoint cannot be used; an older one can, with the log since");
                }
                info!(
                    objects = image.objects.len(),
                    bytes,
                    seconds = progress.seconds(),
                    "read the checkpoint"
                );
                let base = Base {
                    position: *position,
                    path: path.clone(),
                    bytes,
                };
                return Ok((base, image));
            }
            Err(error @ LogError::Corrupt { .. }) => first_error = first_error.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Err(first_error.unwrap_or_else(|| {
        LogError::corrupt(
            dir,
            0,
            "segments without a checkpoint",
            "the checkpoint that the log goes on from",
        )
    }))
}

/// Applies what the segments say. One thread reads, checks and decodes while the other applies.
pub(super) fn replay(
    route: Route<'_>,
    mut image: Image,
    progress: &mut Progress,
) -> Result<(Image, Walk), LogError> {
    thread::scope(|scope| {
        let (sender, chunks) = sync_channel(8);
        let reading = scope.spawn(move || walk(route, |chunk| sender.send(chunk).is_ok()));
        let mut done = 0;
        for chunk in chunks {
            for (place, change) in &chunk.changes {
                image.apply(change).map_err(|error| {
                    let offset = place - chunk.first;
                    LogError::corrupt(
                        &chunk.file,
                        offset,
                        error.to_string(),
                        "a change that fits the state",
                    )
                })?;
            }
            done += chunk.changes.len() as u64;
            progress.tick(done);
        }
        let walked = reading
            .join()
            .map_err(|_| LogError::interrupted(route.dir))?;
        Ok((image, walked?))
    })
}

/// Cuts what was torn off, so that it is gone before anything is written after it, and removes what a checkpoint that
/// was just made left undone.
fn repair(
    dir: &Path,
    checkpoint: Base,
    image: Image,
    walked: Walk,
    rest: &Rest,
    listing: &Listing,
    options: &LogOptions,
) -> Result<Found, LogError> {
    let Walk {
        mut segments,
        end,
        clean,
        changes,
    } = walked;
    let (span, path) = segments.pop().ok_or_else(|| {
        LogError::corrupt(
            dir,
            0,
            "no segment",
            "the segment that follows the checkpoint",
        )
    })?;
    let last = Segment::open(&path, span).map_err(LogError::io("open", &path))?;
    let cut_bytes = rest.torn_in_last + rest.torn_later;
    if cut_bytes > 0 {
        warn!(file = %path.display(), place = end, cut_bytes, "cut off the end of a write that was not finished");
    }
    let cut = || -> std::io::Result<()> {
        let zeros = vec![0; rest.torn_in_last as usize];
        last.file.write_all_at(&zeros, end - span.first)?;
        files::reserve(&last.file, span.len)?;
        last.file.sync_all()
    };
    cut().map_err(LogError::io("cut", &path))?;
    ondol_catalog::failpoint!("recover.cut");
    let older_checkpoints = listing
        .checkpoints
        .iter()
        .filter(|(_, path)| *path != checkpoint.path);
    let older_segments = listing
        .segments
        .iter()
        .filter(|(first, _)| *first < checkpoint.position);
    let unneeded = older_checkpoints
        .chain(older_segments)
        .map(|(_, path)| path);
    for path in rest.later.iter().chain(unneeded) {
        files::remove_file(path)?;
        ondol_catalog::failpoint!("recover.sweep");
    }
    files::sync_dir(dir)?;
    if options.durability == Durability::Fsync {
        // An earlier server may have promised less.
        for (_, path) in &segments {
            sync_file(path)?;
        }
    }
    Ok(Found {
        image,
        checkpoint,
        closed: segments,
        last,
        end,
        clean,
        changes,
        cut_bytes,
    })
}

/// Makes the bytes of a file durable.
pub(super) fn sync_file(path: &Path) -> Result<(), LogError> {
    fs::File::open(path)
        .and_then(|file| file.sync_data())
        .map_err(LogError::io("sync", path))
}
