use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use ondol_plugin::l2::{
    AdapterConfig, BlockingBackend, KeyEntry, KeyPage, L2Adapter, L2AdapterFactory, ListRequest,
    LoadOutcome, ObjectKey, ObjectRef, OpenContext, PageMut, Parameter, StoreError, Usage,
    WorkerAdapter,
};
use ondol_plugin::{inventory, package};

/// What is configured: `{"type": "folder", "path": "/data"}`.
#[derive(Clone, serde::Deserialize)]
struct FolderConfig {
    path: PathBuf,
}

/// A file for each object, and an index of what is there.
struct Folder {
    path: PathBuf,
    sizes: Mutex<BTreeMap<ObjectKey, u64>>,
    drafts: AtomicU64,
}

impl Folder {
    fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let mut sizes = BTreeMap::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            if let Some(key) = ObjectKey::from_file_name(name) {
                sizes.insert(key, entry.metadata()?.len());
            } else if name.starts_with("draft-") {
                // Left by a process that died while it stored. Other people's files stay.
                fs::remove_file(entry.path())?;
            }
        }
        let (path, sizes) = (path.to_owned(), Mutex::new(sizes));
        Ok(Self {
            path,
            sizes,
            drafts: AtomicU64::new(0),
        })
    }

    fn file(&self, key: &ObjectKey) -> PathBuf {
        self.path.join(key.file_name())
    }

    fn sizes(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, u64>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockingBackend for Folder {
    fn store(&self, key: &ObjectKey, object: &ObjectRef) -> Result<u64, StoreError> {
        if self.sizes().contains_key(key) {
            return Ok(0);
        }
        // Written under another name first: an object is there whole or not at all.
        let number = self.drafts.fetch_add(1, Ordering::Relaxed);
        let draft = self.path.join(format!("draft-{number}"));
        let written = fs::write(&draft, object.to_vec());
        let mut sizes = self.sizes();
        let placed = written.and_then(|()| fs::rename(&draft, self.file(key)));
        placed.map_err(|error| {
            let _ = fs::remove_file(&draft);
            StoreError {
                reason: format!("cannot write {}: {error}", self.file(key).display()),
                retryable: true,
            }
        })?;
        let bytes = object.stored_len() as u64;
        sizes.insert(key.clone(), bytes);
        Ok(bytes)
    }

    fn lookup(&self, key: &ObjectKey) -> anyhow::Result<Option<u64>> {
        Ok(self.sizes().get(key).copied())
    }

    fn load(&self, key: &ObjectKey, page: &mut PageMut) -> LoadOutcome {
        let Some(size) = self.sizes().get(key).copied() else {
            return LoadOutcome::Missing;
        };
        match fs::read(self.file(key)) {
            Ok(stored) if stored.len() as u64 != size => {
                let _ = self.delete(key);
                LoadOutcome::Corrupt(format!("{} bytes; expected {size}", stored.len()))
            }
            Ok(stored) => match page.fill(&stored) {
                Ok(bytes) => LoadOutcome::Found(bytes),
                Err(error) => LoadOutcome::Failed(error.to_string()),
            },
            Err(error) => LoadOutcome::Failed(error.to_string()),
        }
    }

    fn delete(&self, key: &ObjectKey) -> anyhow::Result<bool> {
        let mut sizes = self.sizes();
        match fs::remove_file(self.file(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(sizes.remove(key).is_some()),
        }
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage {
            is_complete: true,
            ..Usage::default()
        };
        for (key, bytes) in self.sizes().iter() {
            usage.objects += 1;
            usage.used_bytes += bytes;
            *usage
                .bytes_by_salt
                .entry(key.cache_salt().to_owned())
                .or_default() += bytes;
        }
        usage
    }

    /// A cursor is the last key of the page before.
    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        let from = match &request.cursor {
            None => Bound::Unbounded,
            Some(cursor) => Bound::Excluded(cursor.parse::<ObjectKey>()?),
        };
        let model = request.model_name.as_deref();
        let sizes = self.sizes();
        let mut left = sizes
            .range((from, Bound::Unbounded))
            .filter(|(key, _)| model.is_none_or(|model| key.model_name() == model))
            .map(|(key, size)| KeyEntry {
                key: key.clone(),
                size_bytes: *size,
            });
        let entries: Vec<_> = left.by_ref().take(request.page_size).collect();
        let last = entries.last().map(|entry| entry.key.to_string());
        let next_cursor = last.filter(|_| left.next().is_some());
        Ok(KeyPage {
            entries,
            next_cursor,
        })
    }
}

fn open(config: AdapterConfig, context: &OpenContext<'_>) -> anyhow::Result<Box<dyn L2Adapter>> {
    let config: FolderConfig = config.read()?;
    let folder = Folder::open(&config.path)?;
    Ok(Box::new(WorkerAdapter::new(context.name(), 4, folder)?))
}

inventory::submit! {
    L2AdapterFactory::new("folder", module_path!(), "Folder", package!(), open)
        .config::<FolderConfig>("FolderConfig")
        .parameters(&[Parameter::required("path", "the directory of the files")])
}
