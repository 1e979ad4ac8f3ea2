//! How objects are named, and what stands in their files besides their bytes.

mod lmcache;
mod record;
mod sharded;

use std::borrow::Cow;

use ondol_plugin::l2::ObjectKey;

pub(crate) use self::record::{Record, record_of};
use crate::config::LayoutKind;
use crate::error::StoreFailure;

/// Bytes that a file system allows for the name of a file.
const MAX_NAME: usize = 255;

/// Where the file of an object is, relative to the directory of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// The directory that it is in; `None` for the directory of objects itself.
    pub(crate) shard: Option<String>,
    /// Its own name.
    pub(crate) file: String,
}

/// What the name of a file says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It is this object.
    Object(ObjectKey),
    /// It is an object whose key stands in the file.
    Recorded,
    /// It is none of ours.
    Foreign,
}

impl LayoutKind {
    /// The key under which an object is known here: keys that share a file are one.
    pub(crate) fn canonical(self, key: &ObjectKey) -> Cow<'_, ObjectKey> {
        match self {
            Self::Lmcache => lmcache::canonical(key),
            Self::Sharded => Cow::Borrowed(key),
        }
    }

    /// The name of an object's file.
    ///
    /// # Errors
    /// [`StoreFailure::NameTooLong`].
    pub(crate) fn name(self, key: &ObjectKey) -> Result<Name, StoreFailure> {
        let name = match self {
            Self::Lmcache => lmcache::name(key),
            Self::Sharded => sharded::name(key),
        };
        if name.file.len() > MAX_NAME {
            return Err(StoreFailure::NameTooLong {
                key: key.to_string(),
                found: name.file.len(),
                most: MAX_NAME,
                advice: "Use \"layout\":\"sharded\", which has names for such keys, or a shorter model name or salt",
            });
        }
        Ok(name)
    }

    /// What the name of a file in the directory `shard` says.
    pub(crate) fn meaning(self, shard: Option<&str>, file: &str) -> Meaning {
        match self {
            Self::Lmcache => lmcache::meaning(file),
            Self::Sharded => sharded::meaning(shard, file),
        }
    }

    /// The directory of objects, relative to the base.
    pub(crate) fn directory(self) -> &'static str {
        match self {
            Self::Lmcache => ".",
            Self::Sharded => sharded::DIRECTORY,
        }
    }

    /// Whether objects are in directories of that directory.
    pub(crate) fn has_shards(self) -> bool {
        self == Self::Sharded
    }

    /// What stands behind an object's bytes in its file.
    pub(crate) fn record<'a>(
        self,
        key: &ObjectKey,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<Record> {
        match self {
            Self::Lmcache => None,
            Self::Sharded => Some(Record::new(key, parts)),
        }
    }

    /// Bytes of that.
    pub(crate) fn record_len(self, key: &ObjectKey) -> u64 {
        match self {
            Self::Lmcache => 0,
            Self::Sharded => Record::len(key),
        }
    }
}
