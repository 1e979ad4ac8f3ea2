//! The directory as a whole, and what is done with objects in it by name.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ondol_plugin::l2::{
    AdapterStatus, Bitmap, DeleteResult, Health, KeyPage, ListRequest, LoadOutcome, ObjectKey,
    Usage,
};
use rustix::fs::Stat;
use serde_json::{Map, Value};

use crate::config::{FsConfig, Fsync, IoKind};
use crate::draft::{Writer, random_id};
use crate::error::OpenError;
use crate::index::{Claim, Index, Removal};
use crate::io::{BLOCK, Engine};
use crate::place::{Place, is_file};
use crate::space::{Capacity, Room};

/// A directory of objects.
pub(crate) struct Backend {
    pub(crate) place: Place,
    pub(crate) writer: Writer,
    pub(crate) index: Index,
    pub(crate) engine: Engine,
    pub(crate) room: Room,
    pub(crate) capacity: Capacity,
    pub(crate) fsync: Fsync,
    pub(crate) direct: bool,
    pub(crate) read_ahead: u64,
    pub(crate) counts: Counts,
    /// No more work is begun.
    pub(crate) is_closing: AtomicBool,
    has_said_buffered: AtomicBool,
    /// Tells the cursors of this process's listings from others.
    listing: String,
}

/// What has happened since the directory was opened.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) evicted: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) vanished: AtomicU64,
    pub(crate) stale: AtomicU64,
}

impl Backend {
    pub(crate) fn open(config: &FsConfig) -> Result<Self, OpenError> {
        let place = Place::open(config)?;
        let engine = match config.io {
            IoKind::Threads => Engine::Threads,
            IoKind::IoUring => Engine::io_uring().map_err(OpenError::NoIoUring)?,
            IoKind::Auto => Engine::io_uring().unwrap_or_else(|error| {
                tracing::info!(%error, "no io_uring here: bytes are moved by threads");
                Engine::Threads
            }),
        };
        let writer = Writer::new(&place).map_err(|source| OpenError::Io {
            action: "write in",
            path: config.base_path.join(&config.relative_tmp_dir),
            source: source.into(),
        })?;
        let capacity = Capacity::new(config.capacity, &place)?;
        Ok(Self {
            place,
            writer,
            index: Index::new(capacity.at_least()),
            engine,
            room: Room::default(),
            capacity,
            fsync: config.fsync,
            direct: config.direct,
            read_ahead: config.read_ahead_bytes,
            counts: Counts::default(),
            is_closing: AtomicBool::new(false),
            has_said_buffered: AtomicBool::new(false),
            listing: random_id(),
        })
    }

    /// What objects are loaded by.
    ///
    /// Direct reads fill pages of the pool by themselves, and who is killed does not wait for those that are on their way
    /// through `io_uring`: the process would count as dead, its pages would be granted anew, and then the disk would write into
    /// them. A thread in `preadv` keeps the process alive until the disk is done. Reads through the page cache are
    /// copied by a thread of the process either way, and a process waits for its threads.
    pub(crate) fn reads(&self) -> &Engine {
        if self.direct {
            &Engine::Threads
        } else {
            &self.engine
        }
    }

    /// Locks the objects that are known. What is not known has to be looked for, which may take a while.
    pub(crate) fn lock_known(&self, keys: &[ObjectKey]) -> Vec<Option<u64>> {
        let layout = self.place.layout;
        let canonical: Vec<_> = keys.iter().map(|key| layout.canonical(key)).collect();
        let found = self.index.lock_known(canonical.iter().map(AsRef::as_ref));
        let stored =
            |(bytes, key): (Option<u64>, &ObjectKey)| Some(bytes? - layout.record_len(key));
        found.into_iter().zip(keys).map(stored).collect()
    }

    /// Looks for an object and locks it; the bytes of it.
    ///
    /// # Errors
    /// What the system said, if it cannot be told whether it is there.
    pub(crate) fn look_and_lock(&self, key: &ObjectKey) -> rustix::io::Result<Option<u64>> {
        let layout = self.place.layout;
        let key = layout.canonical(key);
        let Ok(name) = layout.name(&key) else {
            return Ok(None);
        };
        let Some(claim) = self.index.claim_unless_leaving(&key) else {
            return Ok(None);
        };
        match self.place.look(&name)? {
            Some(stat) if is_file(&stat) => {
                let bytes = stat.st_size.cast_unsigned();
                let Some(stored) = bytes.checked_sub(layout.record_len(&key)) else {
                    return Ok(None);
                };
                claim.set_present_and_lock(bytes);
                Ok(Some(stored))
            }
            _ => {
                if claim.is_known() {
                    claim.set_absent();
                }
                Ok(None)
            }
        }
    }

    pub(crate) fn unlock<'k>(&self, keys: impl IntoIterator<Item = &'k ObjectKey>) {
        let canonical = |key| self.place.layout.canonical(key);
        let keys: Vec<_> = keys.into_iter().map(canonical).collect();
        self.index.unlock_all(keys.iter().map(AsRef::as_ref));
    }

    pub(crate) fn delete(&self, keys: &[ObjectKey]) -> DeleteResult {
        let mut result = DeleteResult {
            gone: Bitmap::new(keys.len()),
            locked: Bitmap::new(keys.len()),
        };
        for (index, key) in keys.iter().enumerate() {
            let key = self.place.layout.canonical(key);
            match self.index.claim_removal(&key) {
                Removal::Locked => result.locked.set(index),
                Removal::Allowed(claim) => match self.remove(claim) {
                    Ok(_) => result.gone.set(index),
                    Err(error) => tracing::warn!(%key, %error, "cannot delete an object"),
                },
            }
        }
        result
    }

    /// Removes an object; the bytes that it took, as far as was known.
    fn remove(&self, claim: Claim<'_>) -> rustix::io::Result<u64> {
        if let Ok(name) = self.place.layout.name(claim.key()) {
            self.place.remove(&name)?;
        }
        let bytes = claim.bytes();
        claim.set_absent();
        Ok(bytes)
    }

    /// Removes an object to make room; the bytes gained.
    pub(crate) fn evict(&self, claim: Claim<'_>) -> u64 {
        let key = claim.key().clone();
        match self.remove(claim) {
            Ok(bytes) => {
                self.counts.evicted.fetch_add(1, Ordering::Relaxed);
                bytes
            }
            Err(error) => {
                tracing::warn!(%key, %error, "cannot evict an object");
                0
            }
        }
    }

    /// Removes an object that is not what was stored; not, though, if by now another file than the one that was `opened` has
    /// its name.
    pub(crate) fn damaged(
        &self,
        key: &ObjectKey,
        opened: Option<&Stat>,
        reason: String,
    ) -> LoadOutcome {
        let claim = self.index.claim_damaged(key);
        if let Some(opened) = opened
            && let Ok(name) = self.place.layout.name(key)
            && let Ok(Some(found)) = self.place.look(&name)
            && (found.st_dev, found.st_ino) != (opened.st_dev, opened.st_ino)
        {
            drop(claim);
            self.learn(key);
            return LoadOutcome::Missing;
        }
        self.counts.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%key, reason, "an object is damaged and is removed");
        if let Err(error) = self.remove(claim) {
            tracing::warn!(%key, %error, "cannot remove a damaged object");
        }
        LoadOutcome::Corrupt(reason)
    }

    /// Looks what there is of an object, and notes it.
    pub(crate) fn learn(&self, key: &ObjectKey) {
        let Some(claim) = self.index.claim_unless_leaving(key) else {
            return;
        };
        let Ok(name) = self.place.layout.name(key) else {
            return;
        };
        match self.place.look(&name) {
            Ok(Some(stat)) if is_file(&stat) => {
                let bytes = stat.st_size.cast_unsigned();
                // One that is cut off is not known, so that what is known is never shorter than its description.
                if bytes >= self.place.layout.record_len(key) {
                    claim.set_present(bytes);
                }
            }
            Ok(_) if claim.is_known() => {
                self.counts.vanished.fetch_add(1, Ordering::Relaxed);
                claim.set_absent();
            }
            // What cannot be looked for may be there.
            Ok(_) | Err(_) => {}
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        self.index.usage()
    }

    pub(crate) fn list(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        if request.page_size == 0 {
            anyhow::bail!("page_size is 0; expected at least 1");
        }
        let after = match &request.cursor {
            None => None,
            Some(cursor) => Some(self.read_cursor(cursor)?),
        };
        let model = request.model_name.as_deref();
        let accept = |key: &ObjectKey| model.is_none_or(|model| key.model_name() == model);
        let (entries, last) = self.index.list(after, request.page_size, accept);
        Ok(KeyPage {
            entries,
            next_cursor: last.map(|last| format!("{}-{last}", self.listing)),
        })
    }

    fn read_cursor(&self, cursor: &str) -> anyhow::Result<u64> {
        let number = cursor
            .strip_prefix(self.listing.as_str())
            .and_then(|rest| rest.strip_prefix('-'))
            .and_then(|number| number.parse().ok());
        number.ok_or_else(|| {
            anyhow::anyhow!(
                "the cursor is {cursor:?}; expected one of a listing of this directory since it was opened. Begin anew"
            )
        })
    }

    pub(crate) fn status(&self) -> AdapterStatus {
        let read_only = self.room.is_full();
        let count = |count: &AtomicU64| Value::from(count.load(Ordering::Relaxed));
        let figures = [
            ("io", Value::from(self.engine.name())),
            ("evicted", count(&self.counts.evicted)),
            ("damaged", count(&self.counts.damaged)),
            ("vanished", count(&self.counts.vanished)),
            ("stale_files_removed", count(&self.counts.stale)),
            ("room_made", Value::from(self.room.heals())),
            ("locked", Value::from(self.index.locked() as u64)),
        ];
        AdapterStatus {
            health: if read_only {
                Health::Degraded
            } else {
                Health::Healthy
            },
            reason: read_only.then(|| {
                let path = self.place.base_path().display();
                format!(
                    "the file system of {path} is full: nothing is stored until it has space again"
                )
            }),
            read_only,
            figures: figures
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<Map<_, _>>(),
        }
    }

    /// Whether memory lies as direct transfers need it.
    pub(crate) fn is_aligned(&self, memory: &[u8]) -> bool {
        let is_aligned = memory.as_ptr().addr().is_multiple_of(BLOCK);
        if !is_aligned {
            self.say_buffered("memory does not begin on a boundary of 4096 bytes");
        }
        is_aligned
    }

    /// Says, once, that not everything passes the page cache by.
    pub(crate) fn say_buffered(&self, reason: &str) {
        if !self.has_said_buffered.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                reason,
                "use_odirect is not possible for all objects: those go through the page cache"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use ondol_plugin::l2::{KvRank, ObjectRef, StoreItem};

    use super::*;

    fn backend(change: impl FnOnce(&mut FsConfig)) -> Option<(tempfile::TempDir, Backend)> {
        let dir = tempfile::tempdir().unwrap();
        let mut config = FsConfig::new(dir.path());
        change(&mut config);
        match Backend::open(&config) {
            Ok(backend) => Some((dir, backend)),
            Err(OpenError::NoIoUring(error)) => {
                println!("SKIPPED: no io_uring here: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    // Reads into pages that were on their way through the ring went on after the process had been killed, while its pages
    // were granted to others.
    #[test]
    fn direct_reads_do_not_go_through_a_ring_that_outlives_the_process() {
        for (direct, expected) in [(true, "threads"), (false, "io_uring")] {
            let made = backend(|config| (config.io, config.direct) = (IoKind::IoUring, direct));
            let Some((_dir, backend)) = made else { return };
            assert_eq!(backend.reads().name(), expected);
            assert_eq!(backend.engine.name(), "io_uring");
        }
    }

    #[test]
    fn what_was_stored_anew_is_not_removed_for_the_damage_of_its_predecessor() {
        let (dir, backend) = backend(|_| {}).unwrap();
        let key = ObjectKey::new("m", KvRank(1), 0, [1], "").unwrap();
        let store = |bytes: &'static [u8]| {
            let item = StoreItem {
                key: key.clone(),
                object: ObjectRef::new(bytes),
            };
            assert_eq!(backend.store(&[item]), [Ok(bytes.len() as u64)]);
        };
        let name = backend.place.layout.name(&key).unwrap();
        store(b"old");
        // A load has the old file open, so that its number is not given to another one.
        let _open = std::fs::File::open(dir.path().join(&name.file)).unwrap();
        let opened = backend.place.look(&name).unwrap().unwrap();
        assert!(backend.delete(std::slice::from_ref(&key)).gone.test(0));
        store(b"new one");
        let damaged = |opened| backend.damaged(&key, opened, "of a test".into());
        assert_eq!(damaged(Some(&opened)), LoadOutcome::Missing);
        assert_eq!(backend.usage().used_bytes, 7);
        let opened = backend.place.look(&name).unwrap().unwrap();
        assert!(matches!(damaged(Some(&opened)), LoadOutcome::Corrupt(_)));
        assert_eq!(backend.usage().used_bytes, 0);
        assert!(backend.place.look(&name).unwrap().is_none());
    }
}
