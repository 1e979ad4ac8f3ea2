//! How fast objects go into files and come back, beside a plain write and read of the same bytes by as many threads, and a copy in
//! memory. All take turns in one run, so that what else happens on the machine hits all. Prints medians in MB/s with, in brackets, the ratio to
//! the plain one with as many threads, and the processors' time in ms for each GB, which says more on a busy machine; asserts nothing. Direct loads go by
//! threads under every name.
//!
//! `cargo bench -p l2-fs --bench throughput [-- DIRECTORY [ROUNDS]]`

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use l2_fs::{FsAdapter, FsConfig, IoKind, LayoutKind};
use ondol_plugin::l2::{KvRank, L2Adapter, LoadItem, ObjectKey, ObjectRef, PageMut, StoreItem};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};

const BLOCK: usize = 4096;
/// Bytes of a round, and so many of them are in memory at once.
const ROUND: usize = 128 << 20;
const BATCH: usize = 64 << 20;
const WORKERS: usize = 4;
const TRAILER: [u8; 200] = [7; 200];

/// Memory as a pool has it.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Self {
        let bytes = vec![1; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start, len }
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[derive(Clone)]
struct Shared(Arc<Memory>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// What is measured, all over the same bytes.
struct Work {
    size: usize,
    direct: bool,
    sources: Vec<Shared>,
    targets: Vec<Memory>,
}

impl Work {
    fn files(&self) -> usize {
        ROUND / self.size
    }
}

/// What a contestant took.
#[derive(Clone, Copy)]
struct Took {
    time: Duration,
    processors: Duration,
}

struct Watch(Instant, Duration);

impl Watch {
    fn start() -> Self {
        Self(Instant::now(), processors())
    }

    fn stop(self) -> Took {
        Took {
            time: self.0.elapsed(),
            processors: processors() - self.1,
        }
    }
}

/// Time that the processors have worked for this process, in it and in the kernel.
fn processors() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

trait Contestant {
    fn name(&self) -> String;
    fn store(&mut self, work: &mut Work, dir: &Path) -> Took;
    fn load(&mut self, work: &mut Work, dir: &Path) -> Took;
}

/// What `dd` would do.
struct Plain {
    threads: usize,
}

impl Plain {
    /// Runs `one` for each file, on so many threads.
    fn each(&self, files: usize, one: impl Fn(usize, usize) + Sync) -> Took {
        let next = AtomicUsize::new(0);
        let watch = Watch::start();
        thread::scope(|scope| {
            for thread in 0..self.threads {
                let (next, one) = (&next, &one);
                scope.spawn(move || {
                    loop {
                        let file = next.fetch_add(1, Ordering::Relaxed);
                        if file >= files {
                            break;
                        }
                        one(thread, file);
                    }
                });
            }
        });
        watch.stop()
    }
}

fn flags(direct: bool) -> i32 {
    if direct {
        rustix::fs::OFlags::DIRECT.bits().cast_signed()
    } else {
        0
    }
}

impl Contestant for Plain {
    fn name(&self) -> String {
        format!("plain, {} thread(s)", self.threads)
    }

    fn store(&mut self, work: &mut Work, dir: &Path) -> Took {
        let work = &*work;
        self.each(work.files(), |_, file| {
            let source = &work.sources[file % work.sources.len()];
            let path = dir.join(file.to_string());
            let mut options = File::options();
            options
                .write(true)
                .create_new(true)
                .custom_flags(flags(work.direct));
            options
                .open(path)
                .unwrap()
                .write_all(source.as_ref())
                .unwrap();
        })
    }

    fn load(&mut self, work: &mut Work, dir: &Path) -> Took {
        let (size, direct, files) = (work.size, work.direct, work.files());
        let targets = std::mem::take(&mut work.targets);
        // Each thread goes round a part of the targets, as many as belong to it.
        let parts: Vec<_> = (0..self.threads)
            .map(|_| parking_lot::Mutex::new(Vec::new()))
            .collect();
        for (index, target) in targets.into_iter().enumerate() {
            parts[index % self.threads].lock().push(target);
        }
        let time = self.each(files, |thread, file| {
            let mut part = parts[thread].lock();
            let place = file / parts.len() % part.len();
            let mut options = File::options();
            options.read(true).custom_flags(flags(direct));
            let mut open = options.open(dir.join(file.to_string())).unwrap();
            open.read_exact(&mut part[place].as_mut()[..size]).unwrap();
        });
        work.targets = parts
            .into_iter()
            .flat_map(parking_lot::Mutex::into_inner)
            .collect();
        time
    }
}

struct Ours {
    name: &'static str,
    io: IoKind,
    layout: LayoutKind,
}

fn key(n: usize) -> ObjectKey {
    ObjectKey::new(
        "org/model",
        KvRank(0x0100_0100),
        0,
        (n as u64).to_be_bytes(),
        "",
    )
    .unwrap()
}

fn wait(fd: impl AsFd) {
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
    rustix::io::read(&fd, &mut [0; 8]).unwrap();
}

impl Ours {
    fn open(&self, work: &Work, dir: &Path) -> FsAdapter {
        let mut config = FsConfig::new(dir);
        config.io = self.io;
        config.layout = self.layout;
        config.direct = work.direct;
        config.workers = WORKERS;
        config.capacity = Some(1 << 40);
        let adapter = FsAdapter::open("fs", &config).unwrap();
        while !adapter.usage().is_complete {
            thread::sleep(Duration::from_millis(1));
        }
        adapter
    }
}

impl Contestant for Ours {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn store(&mut self, work: &mut Work, dir: &Path) -> Took {
        let adapter = self.open(work, dir);
        let trailer: Arc<[u8]> = TRAILER.into();
        let watch = Watch::start();
        let batch = work.sources.len();
        for first in (0..work.files()).step_by(batch) {
            let item = |n: usize| StoreItem {
                key: key(first + n),
                object: ObjectRef::with_trailer(work.sources[n].clone(), trailer.clone()),
            };
            adapter
                .submit_store((0..batch).map(item).collect())
                .unwrap();
            wait(adapter.event_fds().store);
            for (_, result) in adapter.pop_completed_stores() {
                result.0.unwrap();
            }
        }
        watch.stop()
    }

    fn load(&mut self, work: &mut Work, dir: &Path) -> Took {
        let adapter = self.open(work, dir);
        let mut pages: Vec<_> = std::mem::take(&mut work.targets)
            .into_iter()
            .map(|target| PageMut::new(target, TRAILER.len()))
            .collect();
        let watch = Watch::start();
        let batch = pages.len();
        for first in (0..work.files()).step_by(batch) {
            let items = pages.drain(..).enumerate().map(|(n, page)| LoadItem {
                key: key(first + n),
                page,
            });
            let task = adapter.submit_load(items.collect()).unwrap();
            wait(adapter.event_fds().load);
            let loaded = adapter.query_load(task).unwrap();
            assert_eq!(loaded.found().count_ones(), batch);
            pages.extend(loaded.0.into_iter().filter_map(|loaded| loaded.page));
        }
        let time = watch.stop();
        let target = |page: PageMut| page.into_memory::<Memory>().unwrap().0;
        work.targets = pages.into_iter().map(target).collect();
        time
    }
}

fn copy(work: &mut Work) -> Took {
    let watch = Watch::start();
    for _ in 0..ROUND / BATCH {
        for (source, target) in work.sources.iter().zip(&mut work.targets) {
            target.as_mut().copy_from_slice(source.as_ref());
        }
    }
    watch.stop()
}

/// MB/s, and ms of processors' time for each GB.
fn medians(took: &[Took]) -> (f64, f64) {
    let median = |of: fn(&Took) -> Duration| {
        let mut times: Vec<_> = took.iter().map(of).collect();
        times.sort();
        times[times.len() / 2].as_secs_f64()
    };
    let megabytes = ROUND as f64 / 1e6;
    let speed = megabytes / median(|took| took.time);
    (speed, median(|took| took.processors) * 1e6 / megabytes)
}

fn measure(base: &Path, rounds: usize, size: usize, direct: bool) {
    let count = BATCH / size;
    let mut work = Work {
        size,
        direct,
        sources: (0..count)
            .map(|_| Shared(Arc::new(Memory::new(size))))
            .collect(),
        targets: (0..count).map(|_| Memory::new(size)).collect(),
    };
    let mut contestants: Vec<Box<dyn Contestant>> = vec![
        Box::new(Plain { threads: WORKERS }),
        Box::new(Ours {
            name: "fs, auto",
            io: IoKind::Auto,
            layout: LayoutKind::Lmcache,
        }),
        Box::new(Ours {
            name: "fs, threads",
            io: IoKind::Threads,
            layout: LayoutKind::Lmcache,
        }),
        Box::new(Ours {
            name: "fs, io_uring",
            io: IoKind::IoUring,
            layout: LayoutKind::Lmcache,
        }),
        Box::new(Ours {
            name: "fs, sharded",
            io: IoKind::Auto,
            layout: LayoutKind::Sharded,
        }),
        Box::new(Plain { threads: 1 }),
    ];
    let mut stores = vec![Vec::new(); contestants.len()];
    let mut loads = vec![Vec::new(); contestants.len()];
    let mut copies = Vec::new();
    for round in 0..=rounds {
        let mut order: Vec<_> = (0..contestants.len()).collect();
        // Nobody always comes after the same one.
        order.rotate_left(round % contestants.len());
        for index in order {
            let dir = base.join(format!("{index}"));
            fs::create_dir(&dir).unwrap();
            let stored = contestants[index].store(&mut work, &dir);
            if direct {
                rustix::fs::sync();
            }
            let loaded = contestants[index].load(&mut work, &dir);
            fs::remove_dir_all(&dir).unwrap();
            rustix::fs::sync();
            // The first round warms up.
            if round > 0 {
                stores[index].push(stored);
                loads[index].push(loaded);
            }
        }
        copies.push(copy(&mut work));
    }
    let way = if direct { "direct" } else { "page cache" };
    println!(
        "\n{} KiB, {way}: MB/s, medians of {rounds} rounds (ratio to plain with {WORKERS} threads)",
        size >> 10
    );
    let (speed, busy) = medians(&copies);
    println!("{:20} {speed:>6.0} {busy:>5.0} ms/GB", "copy in memory");
    let plain = (medians(&stores[0]).0, medians(&loads[0]).0);
    for (index, contestant) in contestants.iter().enumerate() {
        let ((store, stores), (load, loads)) = (medians(&stores[index]), medians(&loads[index]));
        println!(
            "{:20} store {store:>6.0} ({:.2}) {stores:>5.0} ms/GB   load {load:>6.0} ({:.2}) {loads:>5.0} ms/GB",
            contestant.name(),
            store / plain.0,
            load / plain.1
        );
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let parent = arguments
        .first()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let rounds = arguments.get(1).map_or(7, |rounds| rounds.parse().unwrap());
    let base = tempfile::tempdir_in(parent).unwrap();
    for direct in [false, true] {
        for size in [2 << 20, 256 << 10] {
            measure(base.path(), rounds, size, direct);
        }
    }
}
