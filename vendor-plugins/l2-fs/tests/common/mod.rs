//! An adapter in a directory of its own, and calls of it that wait.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use l2_fs::{FsAdapter, FsConfig, Fsync, IoKind, LayoutKind};
use ondol_plugin::l2::{
    KvRank, L2Adapter, LoadItem, LoadOutcome, Loaded, LookupResult, ObjectKey, ObjectRef, PageMut,
    StoreError, StoreItem, TaskId,
};
use rustix::event::{PollFd, PollFlags, poll};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const PAGE: usize = 4096;

pub(crate) fn key(n: u32) -> ObjectKey {
    salted(n, "")
}

pub(crate) fn salted(n: u32, salt: &str) -> ObjectKey {
    ObjectKey::new("org/model", KvRank(0x0100_0100), 0, n.to_be_bytes(), salt).unwrap()
}

/// Bytes that no other number has, and of which no two blocks are the same.
pub(crate) fn bytes(n: u32, len: usize) -> Vec<u8> {
    const BLOCK: usize = 512;
    let seed = n.wrapping_mul(2_654_435_761) | 1;
    let block: Vec<u8> = (0..BLOCK as u32)
        .map(|at| (seed.wrapping_mul(at + 1) >> 24) as u8)
        .collect();
    let mut bytes = block.repeat(len.div_ceil(BLOCK));
    for (number, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        block[..4].copy_from_slice(&n.to_le_bytes());
        block[4..8].copy_from_slice(&(number as u32).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Memory that begins on a boundary, as pages of a pool do.
#[derive(Debug)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn new(len: usize) -> Self {
        let memory = vec![0; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start, len }
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut new = Self::new(bytes.len());
        new.as_mut().copy_from_slice(bytes);
        new
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl AsMut<[u8]> for Aligned {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

pub(crate) struct Rig {
    pub(crate) dir: PathBuf,
    pub(crate) adapter: FsAdapter,
    _temporary: Option<tempfile::TempDir>,
}

impl Rig {
    pub(crate) fn new(change: impl FnOnce(&mut FsConfig)) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut rig = Self::at(temporary.path(), change);
        rig._temporary = Some(temporary);
        rig
    }

    pub(crate) fn at(dir: &Path, change: impl FnOnce(&mut FsConfig)) -> Self {
        let mut config = FsConfig::new(dir);
        change(&mut config);
        Self {
            dir: dir.to_owned(),
            adapter: FsAdapter::open("fs#0", &config).unwrap(),
            _temporary: None,
        }
    }

    /// Once all that was there is known.
    pub(crate) fn counted(self) -> Self {
        eventually("everything is counted", || self.adapter.usage().is_complete);
        self
    }

    pub(crate) fn store(
        &self,
        key: &ObjectKey,
        body: &[u8],
        trailer: &[u8],
    ) -> Result<u64, StoreError> {
        let object = ObjectRef::with_trailer(Aligned::of(body), trailer);
        self.store_all(vec![StoreItem {
            key: key.clone(),
            object,
        }])
    }

    pub(crate) fn store_all(&self, batch: Vec<StoreItem>) -> Result<u64, StoreError> {
        let task = self.adapter.submit_store(batch).unwrap();
        self.stored(task)
    }

    pub(crate) fn stored(&self, task: TaskId) -> Result<u64, StoreError> {
        let end = Instant::now() + LIMIT;
        loop {
            let mut done = self.adapter.pop_completed_stores();
            if let Some((done, result)) = done.pop() {
                assert_eq!(done, task, "one store at a time");
                return result.0;
            }
            wait(&self.adapter.event_fds().store, end);
        }
    }

    pub(crate) fn lookup(&self, keys: &[ObjectKey]) -> LookupResult {
        let task = self.adapter.submit_lookup_and_lock(keys.to_vec()).unwrap();
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(result) = self.adapter.query_lookup_and_lock(task) {
                return result;
            }
            wait(&self.adapter.event_fds().lookup, end);
        }
    }

    /// Looks an object up and unlocks it; its length.
    pub(crate) fn find(&self, key: &ObjectKey) -> Option<u64> {
        let result = self.lookup(std::slice::from_ref(key));
        assert_eq!(result.error, None);
        if result.found.test(0) {
            self.adapter.submit_unlock(std::slice::from_ref(key));
        }
        result.found.test(0).then_some(result.sizes[0])
    }

    pub(crate) fn load_all(&self, batch: Vec<LoadItem>) -> Vec<Loaded> {
        let task = self.adapter.submit_load(batch).unwrap();
        self.loaded(task)
    }

    pub(crate) fn loaded(&self, task: TaskId) -> Vec<Loaded> {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(result) = self.adapter.query_load(task) {
                return result.0;
            }
            wait(&self.adapter.event_fds().load, end);
        }
    }

    /// Loads an object into a body and a trailer of these lengths; what was found, and all of it in one piece.
    pub(crate) fn load(
        &self,
        key: &ObjectKey,
        body: usize,
        trailer: usize,
    ) -> (LoadOutcome, Vec<u8>) {
        let page = PageMut::new(Aligned::new(body), trailer);
        let mut loaded = self.load_all(vec![LoadItem {
            key: key.clone(),
            page,
        }]);
        let Loaded { page, outcome } = loaded.remove(0);
        let page = page.expect("the page comes back");
        let (body, trailer) = page.parts();
        let mut all = [body, trailer].concat();
        if let LoadOutcome::Found(bytes) = outcome {
            all.truncate(bytes as usize);
        }
        (outcome, all)
    }

    #[track_caller]
    pub(crate) fn assert_holds(&self, key: &ObjectKey, expected: &[u8], body: usize) {
        let (outcome, found) = self.load(key, body, expected.len().saturating_sub(body));
        assert_eq!(outcome, LoadOutcome::Found(expected.len() as u64), "{key}");
        assert!(found == expected, "{key} has other bytes");
    }
}

pub(crate) fn wait(fd: &impl std::os::fd::AsFd, end: Instant) {
    assert!(Instant::now() < end, "no answer within {LIMIT:?}");
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let second = rustix::event::Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    if poll(&mut fds, Some(&second)).unwrap() > 0 {
        rustix::io::read(fd, &mut [0; 8]).unwrap();
    }
}

pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every file below a directory that holds objects, with its length.
pub(crate) fn object_files(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        if path.is_dir() {
            files.extend(object_files(&path));
        } else if path
            .extension()
            .is_some_and(|end| end == "data" || end == "kv")
        {
            files.push((path, entry.metadata().unwrap().len()));
        }
    }
    files.sort();
    files
}

/// Files below a directory that are being written, or were.
pub(crate) fn temporary_files(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|end| end == "tmp"))
        .collect()
}

/// Every way in which bytes are kept and moved, each with its name.
pub(crate) fn every_way() -> Vec<(String, LayoutKind, IoKind, bool, Fsync)> {
    let mut ways = Vec::new();
    for layout in [LayoutKind::Lmcache, LayoutKind::Sharded] {
        for io in [IoKind::Threads, IoKind::IoUring] {
            for direct in [false, true] {
                for fsync in [Fsync::None, Fsync::Data, Fsync::Full] {
                    ways.push((
                        format!("{layout:?} {io:?} direct={direct} {fsync:?}"),
                        layout,
                        io,
                        direct,
                        fsync,
                    ));
                }
            }
        }
    }
    if !has_io_uring() {
        println!("SKIPPED: no io_uring here");
        ways.retain(|(_, _, io, _, _)| *io != IoKind::IoUring);
    }
    ways
}

pub(crate) fn has_io_uring() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let mut config = FsConfig::new(dir.path());
    config.io = IoKind::IoUring;
    FsAdapter::open("probe", &config).is_ok()
}
