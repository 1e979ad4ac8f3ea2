//! How much may be stored, and what happens when the disk is full.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{OFlags, fstatvfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::draft::Writer;
use crate::error::OpenError;
use crate::io::{Engine, Transfer};
use crate::place::{Home, Place, open_plain};

/// The file that remembers the capacity; LMCache takes it for none of its own.
const MEMO: &str = ".ondol-l2-fs.json";
const MEMO_VERSION: u32 = 1;
const MEMO_LIMIT: usize = 4096;

/// Tenths of what is free at the first start that are used, unless the configuration says how much.
const SHARE_TENTHS: u64 = 8;

/// The least that is removed when the disk is full.
const LEAST_HEALED: u64 = 64 << 20;

/// What a file takes besides its bytes, generously: an inode, a part of a directory.
const SLACK: u64 = 64 << 10;

#[derive(Deserialize, Serialize)]
struct Memo {
    version: u32,
    capacity_bytes: u64,
}

/// The capacity, as far as it is known when a directory is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capacity {
    /// Configured, or remembered.
    Fixed(u64),
    /// So much more than what is there.
    Beyond(u64),
}

impl Capacity {
    pub(crate) fn new(configured: Option<u64>, place: &Place) -> Result<Self, OpenError> {
        if let Some(capacity) = configured {
            return Ok(Self::Fixed(capacity));
        }
        if let Some(capacity) = recall(place)? {
            return Ok(Self::Fixed(capacity));
        }
        let free = free(place).map_err(|source| OpenError::Io {
            action: "see what is free in",
            path: place.base_path().to_owned(),
            source: source.into(),
        })?;
        Ok(Self::Beyond(free / 10 * SHARE_TENTHS))
    }

    /// What to say before it is known what is there.
    pub(crate) fn at_least(self) -> u64 {
        match self {
            Self::Fixed(capacity) | Self::Beyond(capacity) => capacity,
        }
    }

    /// What it is now that `used` bytes are known to be there.
    pub(crate) fn settle(self, used: u64) -> u64 {
        match self {
            Self::Fixed(capacity) => capacity,
            Self::Beyond(share) => used.saturating_add(share),
        }
    }
}

fn recall(place: &Place) -> Result<Option<u64>, OpenError> {
    let path = || place.base_path().join(MEMO);
    let mut text = vec![0; MEMO_LIMIT];
    let read = open_plain(place.base(), MEMO, OFlags::RDONLY).and_then(|opened| match opened {
        Some((file, _)) => rustix::io::pread(&file, &mut text, 0).map(Some),
        None => Ok(None),
    });
    let read = match read {
        Ok(Some(read)) => &text[..read],
        Ok(None) => return Err(OpenError::NoMemo { path: path() }),
        Err(Errno::NOENT) => return Ok(None),
        Err(source) => {
            return Err(OpenError::Io {
                action: "read",
                path: path(),
                source: source.into(),
            });
        }
    };
    match serde_json::from_slice::<Memo>(read) {
        Ok(memo) if memo.version == MEMO_VERSION => Ok(Some(memo.capacity_bytes)),
        _ => Err(OpenError::Memo {
            path: path(),
            found: String::from_utf8_lossy(read).chars().take(80).collect(),
        }),
    }
}

/// Writes the capacity down, unless somebody did already.
pub(crate) fn remember(
    place: &Place,
    writer: &Writer,
    capacity_bytes: u64,
) -> rustix::io::Result<()> {
    let memo = Memo {
        version: MEMO_VERSION,
        capacity_bytes,
    };
    let text = format!(
        "{{\"version\":{},\"capacity_bytes\":{}}}\n",
        memo.version, memo.capacity_bytes
    );
    let draft = writer.draft(place, false)?;
    let parts = vec![std::io::IoSlice::new(text.as_bytes())];
    let mut write = [Transfer::new(draft.file(), 0, parts, text.len() as u64)];
    Engine::Threads.run(&mut write);
    let [write] = write;
    write.moved()?;
    rustix::fs::fsync(draft.file())?;
    draft.publish(&Home::Flat(place.base()), MEMO).map(drop)
}

/// Bytes that are free to who is not the administrator.
pub(crate) fn free(place: &Place) -> rustix::io::Result<u64> {
    let stat = fstatvfs(place.objects())?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether the file system takes what is stored.
#[derive(Debug, Default)]
pub(crate) struct Room {
    full: Mutex<Option<Full>>,
    /// One at a time makes room, or tries whether there is room again.
    healing: Mutex<()>,
    heals: AtomicU64,
}

/// The file system is full.
#[derive(Clone, Copy, Debug)]
struct Full {
    /// It could not be helped since objects were locked: once they are not, it can.
    for_locks: bool,
}

/// A store that may be tried though the file system was full.
pub(crate) struct Probe<'a> {
    _alone: MutexGuard<'a, ()>,
    /// Whether to make room, should there be none.
    pub(crate) may_heal: bool,
}

impl Room {
    pub(crate) fn is_full(&self) -> bool {
        self.full.lock().is_some()
    }

    /// How often room was made.
    pub(crate) fn heals(&self) -> u64 {
        self.heals.load(Ordering::Relaxed)
    }

    /// While the file system is full: whether a file of `bytes` may be tried.
    pub(crate) fn probe(&self, place: &Place, bytes: u64) -> Option<Probe<'_>> {
        let full = (*self.full.lock())?;
        let alone = self.healing.try_lock()?;
        let has_room = free(place).is_ok_and(|free| free >= bytes.saturating_add(SLACK));
        (has_room || full.for_locks).then_some(Probe {
            _alone: alone,
            may_heal: full.for_locks,
        })
    }

    /// Waits until nobody else makes room or tries whether there is room.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.healing.lock()
    }

    /// Bytes to remove so that a file of `bytes` can be stored.
    pub(crate) fn to_remove(bytes: u64) -> u64 {
        bytes.saturating_mul(2).max(LEAST_HEALED)
    }

    /// Room was made.
    pub(crate) fn healed(&self) {
        self.heals.fetch_add(1, Ordering::Relaxed);
    }

    /// From now on nothing is stored until there is space again.
    pub(crate) fn close(&self, for_locks: bool) {
        let before = self.full.lock().replace(Full { for_locks });
        if before.is_none() {
            tracing::warn!(
                "the file system is full and nothing more can be removed: read-only until there is space"
            );
        }
    }

    /// Something was stored.
    pub(crate) fn open(&self) {
        if self.full.lock().take().is_some() {
            tracing::info!("the file system has space again");
        }
    }
}
