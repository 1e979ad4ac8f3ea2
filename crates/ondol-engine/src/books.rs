//! The lease books of all clients: one file each, named by the client, in a directory that only the server reads.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use ondol_memory::check_own_dir;
use ondol_protocol::ClientId;
use ondol_shm::LeaseBook;

#[derive(Debug)]
pub(crate) struct Books {
    dir: PathBuf,
}

impl Books {
    /// The books in `dir`, which is made if it is missing.
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_own_dir(&dir)?,
            Err(error) => return Err(error),
        }
        Ok(Self { dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn path(&self, client: ClientId) -> PathBuf {
        self.dir.join(client.to_string())
    }

    /// A new book for a new client.
    pub(crate) fn create(&self, client: ClientId) -> io::Result<LeaseBook> {
        // One of this name can only be of a client that was never let in.
        self.remove(client);
        LeaseBook::create(&self.path(client))
    }

    /// Removes the book of a client that is no more. What cannot be removed now is swept at the next start.
    pub(crate) fn remove(&self, client: ClientId) {
        let path = self.path(client);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "a lease book is left behind");
            }
        }
    }

    /// Removes the books of all clients but these. Files of other names are not ours.
    pub(crate) fn sweep(&self, clients: &BTreeSet<ClientId>) -> io::Result<()> {
        for file in fs::read_dir(&self.dir)? {
            let file = file?;
            let name = file.file_name();
            let client: Option<u64> = name.to_str().and_then(|name| name.parse().ok());
            match client {
                Some(client) if !clients.contains(&ClientId(client)) => {
                    fs::remove_file(file.path())?;
                }
                Some(_) => {}
                None => {
                    tracing::warn!(path = %file.path().display(), "a file that is no lease book is left alone");
                }
            }
        }
        Ok(())
    }
}
