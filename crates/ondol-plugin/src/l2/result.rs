use super::{Bitmap, ObjectKey, ObjectRef, PageMut};

/// A task of one adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// One object to store.
#[derive(Clone, Debug)]
pub struct StoreItem {
    /// Its name.
    pub key: ObjectKey,
    /// Its bytes.
    pub object: ObjectRef,
}

/// One object to load.
#[derive(Debug)]
pub struct LoadItem {
    /// Its name.
    pub key: ObjectKey,
    /// Where its bytes go.
    pub page: PageMut,
}

/// What became of a batch that was to be stored: all of it, or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreResult(pub Result<u64, StoreError>);

/// Why a batch was not stored. What of it was stored before the failure may stay, whole objects only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct StoreError {
    /// What was found.
    pub reason: String,
    /// Whether the same may succeed later.
    pub retryable: bool,
}

impl StoreResult {
    /// Stored, with so many bytes really transferred: what was there before counts nothing.
    pub fn stored(bytes: u64) -> Self {
        Self(Ok(bytes))
    }

    /// Failed in a way that trying again may mend.
    pub fn retryable(reason: impl Into<String>) -> Self {
        Self(Err(StoreError {
            reason: reason.into(),
            retryable: true,
        }))
    }

    /// Failed for good.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self(Err(StoreError {
            reason: reason.into(),
            retryable: false,
        }))
    }
}

/// What a lookup found. The keys whose bits are set are locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupResult {
    /// One bit for each key, in the order asked.
    pub found: Bitmap,
    /// The stored length in bytes of each key that was found, where it is known; 0 where it is not. As long as `found`.
    pub sizes: Vec<u64>,
    /// Why the lookup failed, if it did; then nothing is found.
    pub error: Option<String>,
}

impl LookupResult {
    /// From what is known of each key: `None` if it is not there, else its stored length, 0 if that is not known.
    pub fn new(keys: impl IntoIterator<Item = Option<u64>>) -> Self {
        let keys: Vec<_> = keys.into_iter().collect();
        let mut found = Bitmap::new(keys.len());
        for (index, size) in keys.iter().enumerate() {
            if size.is_some() {
                found.set(index);
            }
        }
        Self {
            found,
            sizes: keys.into_iter().map(Option::unwrap_or_default).collect(),
            error: None,
        }
    }

    /// A lookup of `keys` keys that failed.
    pub fn failed(keys: usize, reason: impl Into<String>) -> Self {
        Self {
            found: Bitmap::new(keys),
            sizes: vec![0; keys],
            error: Some(reason.into()),
        }
    }
}

/// What a load did, one entry for each key in the order asked.
#[derive(Debug, Default)]
pub struct LoadResult(pub Vec<Loaded>);

/// What became of one object that was to be loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The page, back from the adapter; `None` if the adapter lost it or may still touch it, which makes the outcome a
    /// failure.
    pub page: Option<PageMut>,
    /// What is in it.
    pub outcome: LoadOutcome,
}

/// What became of one object that was to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadOutcome {
    /// The page holds so many bytes of it, all that were stored.
    Found(u64),
    /// It is not there.
    Missing,
    /// It is there and is not what was stored; the adapter has removed it, or will.
    Corrupt(String),
    /// It could not be read.
    Failed(String),
}

impl LoadResult {
    /// A load of which nothing came: each of `keys` keys failed for this reason.
    pub fn failed(keys: usize, reason: &str) -> Self {
        let failed = |_| Loaded {
            page: None,
            outcome: LoadOutcome::Failed(reason.to_owned()),
        };
        Self((0..keys).map(failed).collect())
    }

    /// One bit for each key: whether its page holds it.
    pub fn found(&self) -> Bitmap {
        let mut found = Bitmap::new(self.0.len());
        for (index, loaded) in self.0.iter().enumerate() {
            if matches!(loaded.outcome, LoadOutcome::Found(_)) && loaded.page.is_some() {
                found.set(index);
            }
        }
        found
    }

    /// The bytes in each page, 0 where it was not filled.
    pub fn lengths(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|loaded| match loaded.outcome {
            LoadOutcome::Found(bytes) if loaded.page.is_some() => bytes,
            _ => 0,
        })
    }
}
