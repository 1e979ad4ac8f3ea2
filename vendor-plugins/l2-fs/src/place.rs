//! The directories of a backend.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fcntl_setfl, fstat, fsync, mkdirat, openat, statat,
    unlinkat,
};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

use crate::config::{FsConfig, LayoutKind};
use crate::error::OpenError;
use crate::layout::Name;

const DIRECTORY_MODE: u32 = 0o700;
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The directories of a backend. They are held open, so that all names are looked up from them and no symbolic link in them is
/// followed.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) layout: LayoutKind,
    base_path: PathBuf,
    base: OwnedFd,
    objects: OwnedFd,
    objects_path: PathBuf,
    temporary: OwnedFd,
    temporary_path: PathBuf,
}

/// The directory of one file.
pub(crate) enum Home<'a> {
    Flat(BorrowedFd<'a>),
    Shard(OwnedFd),
}

impl AsFd for Home<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Flat(directory) => directory.as_fd(),
            Self::Shard(directory) => directory.as_fd(),
        }
    }
}

impl Place {
    pub(crate) fn open(config: &FsConfig) -> std::result::Result<Self, OpenError> {
        let base_path = &config.base_path;
        if config.create {
            make(base_path)?;
        }
        // The base itself may be reached by a symbolic link.
        let base = open(base_path, DIRECTORY.difference(OFlags::NOFOLLOW))?;
        let below = |relative: &Path| {
            let path = base_path.join(relative);
            make(&path)?;
            open(&path, DIRECTORY)
        };
        let copy = || base.try_clone().map_err(OpenError::Start);
        let objects = match config.layout.directory() {
            "." => copy()?,
            relative => below(Path::new(relative))?,
        };
        let temporary = if config.relative_tmp_dir.as_os_str().is_empty() {
            copy()?
        } else {
            below(&config.relative_tmp_dir)?
        };
        let place = Self {
            layout: config.layout,
            base_path: base_path.clone(),
            base,
            objects,
            objects_path: match config.layout.directory() {
                "." => base_path.clone(),
                relative => base_path.join(relative),
            },
            temporary,
            temporary_path: base_path.join(&config.relative_tmp_dir),
        };
        if place.device(&place.temporary)? != place.device(&place.objects)? {
            let path = place.temporary_path;
            let source = Errno::XDEV.into();
            return Err(OpenError::Io {
                action: "give files their names from",
                path,
                source,
            });
        }
        Ok(place)
    }

    pub(crate) fn base(&self) -> BorrowedFd<'_> {
        self.base.as_fd()
    }

    pub(crate) fn base_path(&self) -> &Path {
        &self.base_path
    }

    pub(crate) fn objects(&self) -> BorrowedFd<'_> {
        self.objects.as_fd()
    }

    pub(crate) fn temporary(&self) -> BorrowedFd<'_> {
        self.temporary.as_fd()
    }

    /// Where a file is whose directory is `shard`, for messages.
    pub(crate) fn path(&self, shard: Option<&str>, file: &str) -> PathBuf {
        self.objects_path.join(shard.unwrap_or("")).join(file)
    }

    /// Where a file is that is being written, for messages.
    pub(crate) fn temporary_path(&self, file: &str) -> PathBuf {
        self.temporary_path.join(file)
    }

    /// Whether files are written in a directory of their own before they get their names.
    pub(crate) fn has_own_temporary(&self) -> bool {
        let number = |directory: &OwnedFd| fstat(directory).map(|stat| stat.st_ino).ok();
        number(&self.temporary) != number(&self.objects)
    }

    fn device(&self, directory: &OwnedFd) -> std::result::Result<u64, OpenError> {
        let stat = fstat(directory).map_err(|error| OpenError::Start(error.into()))?;
        Ok(stat.st_dev)
    }

    /// The directory of a file.
    pub(crate) fn home(&self, name: &Name) -> Result<Home<'_>> {
        match &name.shard {
            None => Ok(Home::Flat(self.objects())),
            Some(shard) => Ok(Home::Shard(self.open_shard(shard)?)),
        }
    }

    /// A directory of objects.
    pub(crate) fn open_shard(&self, shard: &str) -> Result<OwnedFd> {
        openat(&self.objects, shard, DIRECTORY, Mode::empty())
    }

    /// The directory of a file, made if it is not there; with `durable` so that it is there after a power failure, too.
    pub(crate) fn make_home(&self, name: &Name, durable: bool) -> Result<Home<'_>> {
        match self.home(name) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        if let Some(shard) = &name.shard {
            match mkdirat(&self.objects, shard, Mode::from(DIRECTORY_MODE)) {
                Ok(()) if durable => fsync(&self.objects)?,
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        self.home(name)
    }

    /// The file of an object; `None` if there is none.
    pub(crate) fn look(&self, name: &Name) -> Result<Option<Stat>> {
        let found = self
            .home(name)
            .and_then(|home| statat(&home, &*name.file, AtFlags::SYMLINK_NOFOLLOW));
        match found {
            Ok(stat) => Ok(Some(stat)),
            // What stands in the place of a directory leads to no file of ours.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the file of an object, if there is one.
    pub(crate) fn remove(&self, name: &Name) -> Result<()> {
        let removed = self
            .home(name)
            .and_then(|home| unlinkat(&home, &*name.file, AtFlags::empty()));
        match removed {
            // A directory in its place holds nothing of ours either.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ISDIR) => Ok(()),
            result => result,
        }
    }
}

/// Opens a file that is there, to read it or to lock it; `None` if what has the name is no plain file.
///
/// Others write in the directory, too. Whoever opened a pipe of theirs would wait for its other end, for ever, and with him
/// everybody who waits for his work.
pub(crate) fn open_plain(
    directory: impl AsFd,
    file: impl Arg,
    flags: OFlags,
) -> Result<Option<(OwnedFd, Stat)>> {
    let careful = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match openat(directory, file, flags | careful, Mode::empty()) {
        Ok(opened) => opened,
        // A link; a socket, or a device without a driver; a directory that was to be written.
        Err(Errno::LOOP | Errno::NXIO | Errno::NODEV | Errno::ISDIR) => return Ok(None),
        Err(error) => return Err(error),
    };
    let stat = fstat(&opened)?;
    if !is_file(&stat) {
        return Ok(None);
    }
    // Through `io_uring` some file systems would answer a read that does not block with `EAGAIN`.
    fcntl_setfl(&opened, flags & OFlags::DIRECT)?;
    Ok(Some((opened, stat)))
}

/// Says that something that is no plain file has a name of ours.
pub(crate) fn pass_over(path: &Path) {
    let path = path.display();
    tracing::warn!(%path, "neither opened nor counted: it is no plain file, and has the name of one of this backend. Remove it");
}

/// Whether a file is one that may hold an object.
pub(crate) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Opens a directory anew, to read what is in it.
pub(crate) fn entries(directory: BorrowedFd<'_>, path: &str) -> Result<Dir> {
    Dir::new(openat(directory, path, DIRECTORY, Mode::empty())?)
}

fn make(path: &Path) -> std::result::Result<(), OpenError> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(DIRECTORY_MODE).create(path);
    made.map_err(|source| no_directory("make the directory", path, source))
}

fn open(path: &Path, flags: OFlags) -> std::result::Result<OwnedFd, OpenError> {
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.map_err(|error| no_directory("open the directory", path, error.into()))
}

fn no_directory(action: &'static str, path: &Path, source: io::Error) -> OpenError {
    let path = path.to_owned();
    // What is meant may also be a part of the path.
    match source.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            OpenError::NoDirectory { path }
        }
        _ => OpenError::Io {
            action,
            path,
            source,
        },
    }
}
