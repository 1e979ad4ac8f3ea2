use std::io;
use std::ops::Bound;

use ondol_plugin::l2::{
    AdapterConfig, AdapterStatus, BlockingBackend, Health, KeyEntry, KeyPage, L2Adapter,
    ListRequest, LoadOutcome, ObjectKey, ObjectRef, OpenContext, PageMut, StoreError,
    StoredTooLong, Usage, WorkerAdapter,
};

use crate::journal::Wrong;
use crate::{Journal, JournalFileConfig};

/// Opens the backend: what the registration names.
pub(crate) fn open(
    config: AdapterConfig,
    context: &OpenContext<'_>,
) -> anyhow::Result<Box<dyn L2Adapter>> {
    let config: JournalFileConfig = config.read()?;
    let backend = JournalBackend::new(Journal::open(&config.path)?, config.max_bytes);
    let adapter = WorkerAdapter::new(context.name(), config.num_workers, backend)?;
    Ok(Box::new(adapter))
}

/// A journal as a storage backend.
#[derive(Debug)]
pub struct JournalBackend {
    journal: Journal,
    max_bytes: Option<u64>,
}

impl JournalBackend {
    /// The backend of a journal that keeps at most so many bytes of objects.
    pub fn new(journal: Journal, max_bytes: Option<u64>) -> Self {
        Self { journal, max_bytes }
    }
}

impl BlockingBackend for JournalBackend {
    fn store(&self, key: &ObjectKey, object: &ObjectRef) -> Result<u64, StoreError> {
        let parts = [object.body(), object.trailer()];
        match self.journal.store(key, parts, self.max_bytes) {
            Ok(stored) => Ok(stored.unwrap_or(0)),
            Err(error) => Err(StoreError {
                reason: format!("{key} cannot be stored: {error}"),
                retryable: error.kind() != io::ErrorKind::InvalidFilename,
            }),
        }
    }

    fn lookup(&self, key: &ObjectKey) -> anyhow::Result<Option<u64>> {
        Ok(self.journal.find(key))
    }

    fn load(&self, key: &ObjectKey, page: &mut PageMut) -> LoadOutcome {
        let room = page.room();
        let loaded = self.journal.load(key, |found| {
            if found > room {
                return Err(StoredTooLong { found, room }.to_string());
            }
            let (body, trailer) = page.parts_mut();
            let first = found.min(body.len());
            Ok([&mut body[..first], &mut trailer[..found - first]])
        });
        match loaded {
            None => LoadOutcome::Missing,
            Some(Ok(bytes)) => LoadOutcome::Found(bytes),
            Some(Err(Wrong::Damaged(reason))) => LoadOutcome::Corrupt(reason),
            Some(Err(Wrong::Unreadable(reason))) => LoadOutcome::Failed(reason),
        }
    }

    fn delete(&self, key: &ObjectKey) -> anyhow::Result<bool> {
        Ok(self.journal.delete(key)?)
    }

    fn usage(&self) -> Usage {
        let index = self.journal.index();
        Usage {
            used_bytes: index.bytes,
            capacity_bytes: self.max_bytes,
            objects: index.objects.len() as u64,
            bytes_by_salt: index.bytes_by_salt.clone(),
            is_complete: true,
        }
    }

    /// A cursor is the last key of the page before.
    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        let from = match &request.cursor {
            None => Bound::Unbounded,
            Some(cursor) => Bound::Excluded(cursor.parse::<ObjectKey>()?),
        };
        let index = self.journal.index();
        let model = request.model_name.as_deref();
        let mut wanted = index
            .objects
            .range::<ObjectKey, _>((from, Bound::Unbounded))
            .filter(|(key, _)| model.is_none_or(|model| key.model_name() == model));
        let entries: Vec<_> = wanted
            .by_ref()
            .take(request.page_size)
            .map(|(key, slot)| KeyEntry {
                key: key.clone(),
                size_bytes: slot.object_bytes(),
            })
            .collect();
        let last = entries.last().map(|entry| entry.key.to_string());
        Ok(KeyPage {
            next_cursor: last.filter(|_| wanted.next().is_some()),
            entries,
        })
    }

    fn status(&self) -> AdapterStatus {
        let figures = self.journal.figures();
        let mut status = AdapterStatus::default();
        if figures.broken.is_some() {
            status.health = Health::Degraded;
            status.read_only = true;
            status.reason = figures.broken;
        }
        for (name, bytes) in [
            ("file_bytes", figures.file_bytes),
            ("dead_bytes", figures.dead_bytes),
            ("cut_bytes", figures.cut_bytes),
        ] {
            status.figures.insert(name.to_owned(), bytes.into());
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondol_plugin::l2::KvRank;
    use std::path::Path;

    fn key(hash: u8) -> ObjectKey {
        ObjectKey::new("model", KvRank(0), 0, [hash], "").unwrap()
    }

    fn object(byte: u8, body: usize) -> ObjectRef {
        ObjectRef::with_trailer(vec![byte; body], [byte ^ 1; 9])
    }

    fn open(path: &Path) -> JournalBackend {
        JournalBackend::new(Journal::open(path).unwrap(), Some(1000))
    }

    fn load(backend: &JournalBackend, hash: u8) -> Result<Vec<u8>, LoadOutcome> {
        let mut page = PageMut::new(vec![0; 700], 300);
        match backend.load(&key(hash), &mut page) {
            LoadOutcome::Found(bytes) => {
                let (body, trailer) = page.parts();
                Ok([body, trailer].concat()[..bytes as usize].to_vec())
            }
            other => Err(other),
        }
    }

    /// The file of a test, with two objects of 109 bytes.
    fn two(dir: &tempfile::TempDir) -> std::path::PathBuf {
        let path = dir.path().join("kv");
        let backend = open(&path);
        for hash in [1, 2] {
            assert_eq!(backend.store(&key(hash), &object(hash, 100)), Ok(109));
        }
        path
    }

    #[test]
    fn what_is_beyond_the_limit_is_refused_until_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let backend = open(&two(&dir));
        let refused = backend.store(&key(3), &object(3, 800)).unwrap_err();
        assert!(refused.retryable, "{refused}");
        assert!(refused.reason.contains("218 of 1000"), "{refused}");
        assert!(backend.delete(&key(1)).unwrap());
        assert_eq!(backend.store(&key(3), &object(3, 800)), Ok(809));
        assert_eq!(backend.usage().used_bytes, 918);
    }

    #[test]
    fn deletes_outlive_a_restart_and_usage_is_right_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = two(&dir);
        let backend = open(&path);
        assert!(backend.delete(&key(1)).unwrap());
        assert!(!backend.delete(&key(1)).unwrap());
        drop(backend);

        let backend = open(&path);
        assert_eq!(load(&backend, 1), Err(LoadOutcome::Missing));
        assert_eq!(load(&backend, 2), Ok(object(2, 100).to_vec()));
        let usage = backend.usage();
        assert_eq!((usage.objects, usage.used_bytes), (1, 109));
        assert_eq!(usage.bytes_by_salt[""], 109);
        assert!(usage.is_complete);
    }

    #[test]
    fn a_record_that_is_not_whole_is_cut_off_and_the_rest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = two(&dir);
        let whole = std::fs::read(&path).unwrap();
        let record = (whole.len() - 16) / 2;
        for cut in 1..=record {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let backend = open(&path);
            assert_eq!(backend.usage().objects, 1, "{cut} bytes cut");
            assert_eq!(load(&backend, 1), Ok(object(1, 100).to_vec()));
            assert_eq!(backend.store(&key(2), &object(2, 100)), Ok(109));
            drop(backend);
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = two(&dir);
        let backend = open(&path);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        let damaged = load(&backend, 2).unwrap_err();
        assert!(matches!(damaged, LoadOutcome::Corrupt(_)), "{damaged:?}");
        assert_eq!(load(&backend, 2), Err(LoadOutcome::Missing));
        assert_eq!(backend.usage().objects, 1);
        assert!(load(&backend, 1).is_ok());
    }

    #[test]
    fn a_file_with_more_dead_than_living_bytes_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = two(&dir);
        let backend = open(&path);
        for _ in 0..10 {
            assert!(backend.delete(&key(1)).unwrap());
            assert_eq!(backend.store(&key(1), &object(1, 100)), Ok(109));
        }
        assert!(backend.journal.figures().dead_bytes > 1000);
        drop(backend);
        let backend = open(&path);
        assert_eq!(backend.journal.figures().dead_bytes, 0);
        for hash in [1, 2] {
            assert_eq!(load(&backend, hash), Ok(object(hash, 100).to_vec()));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn other_files_and_files_in_use_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = two(&dir);
        let _backend = open(&path);
        let refused = Journal::open(&path).unwrap_err().to_string();
        assert!(refused.contains("in use"), "{refused}");
        let letter = dir.path().join("letter");
        std::fs::write(&letter, "Dear …").unwrap();
        let refused = Journal::open(&letter).unwrap_err().to_string();
        assert!(refused.contains("is no journal"), "{refused}");
        assert_eq!(std::fs::read(&letter).unwrap(), "Dear …".as_bytes());
    }
}
