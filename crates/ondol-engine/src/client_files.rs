//! Files of clients that outlive a server: one each, named by the client, in a directory of the state's. Lease books, which
//! only the server reads, and slot tables, which the client writes.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use ondol_memory::check_own_dir;
use ondol_protocol::ClientId;
use ondol_shm::{LeaseBook, SlotTableView};

/// A directory of files of one kind.
#[derive(Debug)]
pub(crate) struct ClientFiles {
    dir: PathBuf,
    kind: Kind,
    was_empty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    LeaseBook,
    SlotTable,
}

impl Kind {
    fn dir(self) -> &'static str {
        match self {
            Self::LeaseBook => "leases",
            Self::SlotTable => "slots",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::LeaseBook => "lease book",
            Self::SlotTable => "slot table",
        }
    }
}

impl ClientFiles {
    /// Where they lie in this state directory.
    pub(crate) fn place(state: &Path, kind: Kind) -> PathBuf {
        state.join(kind.dir())
    }

    /// Those in this state directory; their own is made if it is missing.
    pub(crate) fn open(state: &Path, kind: Kind) -> io::Result<Self> {
        let dir = Self::place(state, kind);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_own_dir(&dir)?,
            Err(error) => return Err(error),
        }
        let was_empty = fs::read_dir(&dir)?.next().is_none();
        Ok(Self {
            dir,
            kind,
            was_empty,
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether there was none when this was opened.
    pub(crate) fn was_empty(&self) -> bool {
        self.was_empty
    }

    pub(crate) fn path(&self, client: ClientId) -> PathBuf {
        self.dir.join(client.to_string())
    }

    /// Removes the file of a client that is no more. What cannot be removed now is swept at the next start.
    pub(crate) fn remove(&self, client: ClientId) {
        let path = self.path(client);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "a {} is left behind", self.kind.name());
            }
        }
    }

    /// Removes the files of all clients but these. Files of other names are not ours.
    pub(crate) fn sweep(&self, clients: &BTreeSet<ClientId>) -> io::Result<()> {
        for file in fs::read_dir(&self.dir)? {
            let file = file?;
            let name = file.file_name();
            let client: Option<u64> = name.to_str().and_then(|name| name.parse().ok());
            match client {
                Some(client) if !clients.contains(&ClientId(client)) => {
                    let path = file.path();
                    if self.kind == Kind::SlotTable {
                        // Its client may live: it takes no lease any more. What is no table nobody can use.
                        let _ = SlotTableView::adopt(&path);
                    }
                    fs::remove_file(path)?;
                }
                Some(_) => {}
                None => {
                    tracing::warn!(
                        path = %file.path().display(),
                        "a file that is no {} is left alone", self.kind.name()
                    );
                }
            }
        }
        Ok(())
    }

    /// A new lease book for a new client.
    pub(crate) fn create_book(&self, client: ClientId) -> io::Result<LeaseBook> {
        // One of this name can only be of a client that was never let in.
        self.remove(client);
        LeaseBook::create(&self.path(client))
    }

    /// A new slot table for a new client.
    pub(crate) fn create_slots(&self, client: ClientId) -> io::Result<SlotTableView> {
        self.remove(client);
        SlotTableView::create(&self.path(client))
    }
}
