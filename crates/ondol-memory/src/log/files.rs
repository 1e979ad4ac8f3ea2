//! The files of a log: their names, and how they come and go.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::check_own_dir;

use super::error::LogError;
use super::format::{BadHeader, FILE_HEADER, FileHeader, Identity, SEGMENT_MAGIC, VERSION};
use super::pool_record::PoolRecord;

/// While a file of this name is there, what else is there is no log: it is being removed or not yet begun.
const RETIRED: &str = "retired";
const DRAFT: &str = "draft";

/// One segment's file, open to be written.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) span: Span,
}

/// The part of the log that a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) len: u64,
}

impl Span {
    pub(super) fn end(&self) -> u64 {
        self.first + self.len
    }
}

impl Segment {
    /// Makes a segment whose bytes are all there, so that a write into it finds room. It has its name only when it is
    /// complete.
    pub(super) fn create(dir: &Path, identity: &Identity, span: Span) -> io::Result<Self> {
        let path = dir.join(segment_name(span.first));
        let draft = draft_of(&path);
        let made = Self::create_draft(&draft, identity, span).and_then(|file| {
            ondol_catalog::failpoint!("log.segment_written");
            fs::rename(&draft, &path)?;
            ondol_catalog::failpoint!("log.segment_renamed");
            File::open(dir)?.sync_all()?;
            ondol_catalog::failpoint!("log.segment_created");
            Ok(file)
        });
        if made.is_err() {
            // It holds nothing yet, and would only take room.
            let _ = fs::remove_file(&draft);
        }
        Ok(Self {
            file: made?,
            path,
            span,
        })
    }

    fn create_draft(draft: &Path, identity: &Identity, span: Span) -> io::Result<File> {
        ondol_catalog::failpoint!(
            "log.segment_create",
            Err(io::Error::other("failpoint log.segment_create"))
        );
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(draft)?;
        reserve(&file, span.len)?;
        let header = FileHeader {
            magic: SEGMENT_MAGIC,
            pool: identity.pool,
            position: span.first,
            len: span.len,
        };
        file.write_all_at(&header.encode(), 0)?;
        file.sync_all()?;
        Ok(file)
    }

    /// Opens a segment that is there, to go on with it.
    pub(super) fn open(path: &Path, span: Span) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            span,
        })
    }
}

/// Makes sure that every byte of the file has its place on the disk.
pub(super) fn reserve(file: &File, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeros = vec![0; 1 << 20];
            let mut at = file.metadata()?.len();
            while at < len {
                let step = (len - at).min(zeros.len() as u64);
                file.write_all_at(&zeros[..step as usize], at)?;
                at += step;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// The header of a file, if it is of this kind, this format and this pool.
pub(super) fn check_header(
    path: &Path,
    bytes: &[u8],
    magic: [u8; 8],
    identity: &Identity,
) -> Result<FileHeader, LogError> {
    match FileHeader::decode(bytes, magic) {
        Ok(header) if header.pool == identity.pool => Ok(header),
        Ok(header) => Err(LogError::OtherPool {
            file: path.to_owned(),
            found: header.pool,
            expected: identity.pool,
        }),
        Err(BadHeader::Version(found)) => Err(LogError::Version {
            file: path.to_owned(),
            found,
            expected: VERSION,
        }),
        Err(BadHeader::Damaged) => {
            let found = match bytes.len() {
                len if len < FILE_HEADER => format!("{len} bytes"),
                _ => "bytes that are no header".to_owned(),
            };
            Err(LogError::corrupt(path, 0, found, "the header of the file"))
        }
    }
}

/// The files of a log by kind, each with the place that its name tells, in the order of the places.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) segments: Vec<(u64, PathBuf)>,
    pub(super) checkpoints: Vec<(u64, PathBuf)>,
    pub(super) drafts: Vec<PathBuf>,
    retired: bool,
}

impl Listing {
    /// A directory that is missing holds nothing. One that is not ours alone is an error: files of the names below
    /// are removed by and by.
    pub(super) fn read(dir: &Path) -> io::Result<Self> {
        let mut listing = Self::default();
        match check_own_dir(dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listing),
            Err(error) => return Err(error),
        }
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if name == RETIRED {
                listing.retired = true;
            } else if let Some(place) = place_of(name, "segment-", ".log") {
                listing.segments.push((place, path));
            } else if let Some(place) = place_of(name, "checkpoint-", ".image") {
                listing.checkpoints.push((place, path));
            } else if is_draft(name) {
                listing.drafts.push(path);
            }
        }
        listing.segments.sort_unstable();
        listing.checkpoints.sort_unstable();
        Ok(listing)
    }

    /// Whether there is a log, damaged or not.
    pub(super) fn is_log(&self) -> bool {
        let is_empty = self.segments.is_empty() && self.checkpoints.is_empty();
        !is_empty && !self.retired
    }
}

pub(super) fn segment_name(first: u64) -> String {
    format!("segment-{first:016x}.log")
}

pub(super) fn checkpoint_name(position: u64) -> String {
    format!("checkpoint-{position:016x}.image")
}

/// Whether a file of ours was being written under this name.
fn is_draft(name: &str) -> bool {
    let Some(name) = name
        .strip_suffix(DRAFT)
        .and_then(|name| name.strip_suffix('.'))
    else {
        return false;
    };
    name == PoolRecord::NAME
        || place_of(name, "segment-", ".log").is_some()
        || place_of(name, "checkpoint-", ".image").is_some()
}

fn place_of(name: &str, prefix: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    let is_plain = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| is_plain)
}

pub(super) fn draft_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(DRAFT);
    name.into()
}

/// Says, before the first file of a log goes or comes, that there is no log.
pub(super) fn retire(dir: &Path) -> Result<(), LogError> {
    let path = dir.join(RETIRED);
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .map_err(LogError::io("make", &path))?;
    sync_dir(dir)?;
    ondol_catalog::failpoint!("log.retired");
    Ok(())
}

/// Takes that back: what is there is a log, or nothing is.
pub(super) fn unretire(dir: &Path) -> Result<(), LogError> {
    remove_file(&dir.join(RETIRED))?;
    sync_dir(dir)
}

/// Removes every file of a log, which must be retired.
pub(super) fn sweep(dir: &Path) -> Result<(), LogError> {
    let listing = Listing::read(dir).map_err(LogError::io("list", dir))?;
    let files = listing.segments.iter().chain(&listing.checkpoints);
    for path in files.map(|(_, path)| path).chain(&listing.drafts) {
        remove_file(path)?;
        ondol_catalog::failpoint!("log.sweep");
    }
    sync_dir(dir)
}

/// Makes the directory if it is missing, for its owner alone, and makes sure that it stays.
pub(super) fn make_dir(dir: &Path) -> Result<(), LogError> {
    match check_own_dir(dir) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(LogError::io("use", dir)(error)),
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(LogError::io("make", dir))?;
    match dir.parent() {
        Some(parent) if parent != Path::new("") => sync_dir(parent),
        _ => Ok(()),
    }
}

/// The first bytes of a file, as many as there are.
pub(super) fn read_start(path: &Path, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len);
    File::open(path)?.take(len as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), LogError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(LogError::io("sync", dir))
}

/// Removes a file; that it is missing is as good.
pub(super) fn remove_file(path: &Path) -> Result<(), LogError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(LogError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}
