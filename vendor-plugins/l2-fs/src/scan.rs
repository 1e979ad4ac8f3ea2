//! Finding what was there before this process.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, OFlags, statat};
use rustix::io::Result;

use crate::backend::Backend;
use crate::draft::Suspects;
use crate::index::Found;
use crate::layout::{Meaning, record_of};
use crate::place::{entries, is_file, open_plain, pass_over};
use crate::space::{Capacity, remember};

/// How long, and how often, a writer that seems to live is looked at.
const WATCHED_FOR: Duration = Duration::from_secs(30);
const WATCHED_EVERY: Duration = Duration::from_millis(50);

/// Objects that become known at once; lookups wait that long.
const MERGED_AT_ONCE: usize = 4096;

impl Backend {
    /// Removes what dead writers have left, and learns what is there.
    pub(crate) fn scan(&self) {
        let stop = || self.is_closing.load(Ordering::Relaxed);
        let suspects = match self.writer.sweep(&self.place, &stop) {
            Ok((removed, suspects)) => {
                self.count_stale(removed);
                Some(suspects)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot look for temporary files");
                None
            }
        };
        self.learn_all(&stop);
        if let Some(suspects) = suspects {
            self.watch(suspects, &stop);
        }
    }

    /// Looks for a while whether writers that seemed to live were dying.
    fn watch(&self, mut suspects: Suspects, stop: &dyn Fn() -> bool) {
        let end = Instant::now() + WATCHED_FOR;
        while !suspects.is_empty() && !stop() && Instant::now() < end {
            thread::sleep(WATCHED_EVERY);
            self.count_stale(suspects.sweep(&self.place));
        }
    }

    fn count_stale(&self, files: u64) {
        if files > 0 {
            self.counts.stale.fetch_add(files, Ordering::Relaxed);
            tracing::info!(files, "temporary files of dead writers were removed");
        }
    }

    fn learn_all(&self, stop: &dyn Fn() -> bool) {
        let mut found = Vec::new();
        if let Err(error) = self.find_all(&mut found, stop) {
            tracing::warn!(%error, "cannot list all objects; what is not listed is found when it is asked for");
        }
        if stop() {
            return;
        }
        found.sort_unstable_by_key(|found| std::cmp::Reverse(found.used));
        let objects = found.len();
        let mut found = found.into_iter().peekable();
        while found.peek().is_some() {
            self.index
                .merge(found.by_ref().take(MERGED_AT_ONCE).collect());
        }
        let capacity = self.capacity.settle(self.usage().used_bytes);
        if matches!(self.capacity, Capacity::Beyond(_))
            && let Err(error) = remember(&self.place, &self.writer, capacity)
        {
            tracing::warn!(%error, "cannot write the capacity down; the next start works out one of its own");
        }
        self.index.complete(capacity);
        for victim in self.index.least_used(self.index.excess()) {
            self.evict(victim);
        }
        tracing::debug!(objects, capacity, "what is stored is known");
    }

    fn find_all(&self, found: &mut Vec<Found>, stop: &dyn Fn() -> bool) -> Result<()> {
        let objects = self.place.objects();
        if !self.place.layout.has_shards() {
            return self.find(objects, None, found, stop);
        }
        for entry in entries(objects, ".")? {
            let entry = entry?;
            let Some(shard) = entry
                .file_name()
                .to_str()
                .ok()
                .filter(|name| is_shard(name))
            else {
                continue;
            };
            let Ok(directory) = self.place.open_shard(shard) else {
                continue;
            };
            self.find(directory.as_fd(), Some(shard), found, stop)?;
        }
        Ok(())
    }

    fn find(
        &self,
        directory: BorrowedFd<'_>,
        shard: Option<&str>,
        found: &mut Vec<Found>,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        for entry in entries(directory, ".")? {
            let entry = entry?;
            if stop() {
                return Ok(());
            }
            found.extend(self.look_at(directory, shard, entry.file_name()));
        }
        Ok(())
    }

    /// The object in a file, if there is one in it.
    fn look_at(
        &self,
        directory: BorrowedFd<'_>,
        shard: Option<&str>,
        file: &CStr,
    ) -> Option<Found> {
        let file = file.to_str().ok()?;
        let meaning = self.place.layout.meaning(shard, file);
        if meaning == Meaning::Foreign {
            return None;
        }
        let stat = statat(directory, file, AtFlags::SYMLINK_NOFOLLOW).ok();
        let stat = stat?;
        if !is_file(&stat) {
            pass_over(&self.place.path(shard, file));
            return None;
        }
        let bytes = stat.st_size.cast_unsigned();
        let key = match meaning {
            Meaning::Object(key) => key,
            Meaning::Recorded | Meaning::Foreign => {
                let (opened, _) = open_plain(directory, file, OFlags::RDONLY).ok()??;
                let key = record_of(opened.as_fd(), bytes).ok()?;
                let name = self.place.layout.name(&key).ok()?;
                let is_its_own = name.file == file && name.shard.as_deref() == shard;
                is_its_own.then_some(key)?
            }
        };
        // What is too short for its description has none.
        (bytes >= self.place.layout.record_len(&key)).then_some(Found {
            key,
            bytes,
            used: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        })
    }
}

fn is_shard(name: &str) -> bool {
    name.len() == 3 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let seconds = Duration::new(seconds.max(0).cast_unsigned(), nanoseconds);
    SystemTime::UNIX_EPOCH + seconds
}
