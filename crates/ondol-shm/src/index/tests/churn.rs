//! Readers in threads and in another process while objects come and go and their pages are reused.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::super::RecordId;
use super::*;
use crate::{ReadMapping, WriteMapping};

const PAGES: u32 = 48;
/// Objects that stay all the time, one on each of the first pages.
const ALWAYS: u64 = 12;
/// So many more come and go.
const SOMETIMES: u64 = 100;
/// So many are never there.
const NEVER: u64 = 30;
const STEPS: u64 = if cfg!(debug_assertions) {
    60_000
} else {
    600_000
};

fn key_of(number: u64) -> Key {
    key(number, 20 + number as usize % 5 * 30)
}

/// What stands in a page while it holds this object.
fn content(number: u64, generation: Generation) -> u64 {
    (number << 32) | generation.0
}

fn located(page: u32, number: u64, generation: u64) -> IndexedObject {
    IndexedObject {
        location: Location {
            page: PageId {
                region: RegionId(1),
                index: page,
            },
            generation: Generation(generation),
            len: number + 1000,
        },
        meta: ObjectMeta {
            layout: Some(LayoutFingerprint([number as u8; 16])),
            checksum: Some(generation ^ number),
        },
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn word(pointer: *const u64) -> &'static AtomicU64 {
    // SAFETY: callers name a word of a mapping that outlives their use of it; all processes access it as an atomic.
    unsafe { &*pointer.cast() }
}

/// A client: looks and leases until it is told to stop; returns how many objects that come and go it held.
fn read(
    reader: &IndexReader,
    slots: &Arc<SlotTable>,
    pages: &ReadMapping,
    seed: u64,
    is_done: impl Fn() -> bool,
) -> u64 {
    let mut random = Random(seed);
    let mut held = 0;
    let page = |object: &IndexedObject| {
        word(pages.word(object.location.page.index as usize * 8)).load(Ordering::Relaxed)
    };
    while !is_done() {
        let count = [1, 5, 16, 40, 300][random.below(5) as usize];
        let numbers: Vec<_> = (0..count)
            .map(|_| random.below(ALWAYS + SOMETIMES + NEVER))
            .collect();
        let keys: Vec<_> = numbers.iter().map(|number| key_of(*number)).collect();
        let check = |number: u64, looked: &Looked<IndexedObject>| match looked {
            Looked::Found(object) => {
                let Location {
                    page,
                    generation,
                    len,
                } = object.location;
                assert_eq!(len, number + 1000, "another object's location");
                assert_eq!(
                    *object,
                    located(page.index, number, generation.0),
                    "a torn record"
                );
                assert!(number < ALWAYS + SOMETIMES, "an object that never was");
            }
            looked => assert!(number >= ALWAYS, "object {number} is {looked:?}"),
        };
        reader.look(&keys, |at, looked| check(numbers[at], &looked));
        let mut objects = Vec::new();
        reader.lease(slots, &keys, |at, looked| {
            let number = numbers[at];
            match looked {
                Looked::Found((object, lease)) => {
                    check(number, &Looked::Found(object));
                    assert_eq!(lease.page(), object.location.page);
                    objects.push((number, object, lease));
                }
                Looked::Absent => check(number, &Looked::Absent),
                Looked::Ask => check(number, &Looked::Ask),
            }
        });
        for _ in 0..2 {
            for (number, object, _) in &objects {
                let expected = content(*number, object.location.generation);
                assert_eq!(page(object), expected, "a page was reused under a lease");
            }
            if random.below(4) == 0 {
                std::thread::yield_now();
            }
        }
        held += objects
            .iter()
            .filter(|(number, ..)| *number >= ALWAYS)
            .count() as u64;
    }
    held
}

/// The server.
struct Server {
    writer: IndexWriter,
    pages: WriteMapping,
    views: Vec<SlotTableView>,
    objects: Vec<Option<(RecordId, u32)>>,
    free: Vec<u32>,
    retired: Vec<u32>,
    generation: u64,
}

impl Server {
    fn page(&self, page: u32) -> &AtomicU64 {
        word(self.pages.word(page as usize * 8))
    }

    fn store(&mut self, number: u64) {
        let Some(page) = self.free.pop() else { return };
        self.generation += 1;
        let generation = Generation(self.generation);
        self.page(page)
            .store(content(number, generation), Ordering::Relaxed);
        let object = located(page, number, generation.0);
        let record = self.writer.insert(&key_of(number), &object, false).unwrap();
        self.objects[number as usize] = Some((record, page));
    }

    fn step(&mut self, random: &mut Random) {
        let number = ALWAYS + random.below(SOMETIMES);
        match self.objects[number as usize].take() {
            None => self.store(number),
            Some((record, page)) => {
                self.writer.remove(record);
                self.retired.push(page);
            }
        }
        if self.free.is_empty() || random.below(8) == 0 {
            self.reuse();
        }
    }

    fn reuse(&mut self) {
        let mut held = [false; PAGES as usize];
        for view in &self.views {
            view.scan(|page| held[page.page.index as usize] = true)
                .unwrap();
        }
        let (held, free) = self
            .retired
            .drain(..)
            .partition(|page| held[*page as usize]);
        self.retired = held;
        for page in free {
            self.page(page).store(u64::MAX, Ordering::Relaxed);
            self.free.push(page);
        }
    }
}

const FILES: &str = "ONDOL_TEST_CHURN_FILES";

/// The client in another process. Run by itself, it does nothing.
#[test]
fn entry() {
    let Some(files) = std::env::var_os(FILES) else {
        return;
    };
    let files = files.into_string().unwrap();
    let files: Vec<_> = files
        .split(',')
        .map(|path| File::options().read(true).write(true).open(path).unwrap())
        .collect();
    let [index, table, pages] = &files[..] else {
        panic!("three files");
    };
    let reader = IndexReader::open(index.as_fd()).unwrap();
    let slots = SlotTable::open(table.as_fd()).unwrap();
    let pages = ReadMapping::new(pages.as_fd(), u64::from(PAGES) * 8).unwrap();
    println!("\nready");
    let done = AtomicBool::new(false);
    let held = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            done.store(true, Ordering::Relaxed);
        });
        read(&reader, &slots, &pages, 99, || done.load(Ordering::Relaxed))
    });
    println!("\nheld {held}");
}

#[test]
fn readers_see_each_object_whole_in_its_place_or_not_at_all() {
    let writer = IndexWriter::create(200, 80, 5).unwrap();
    let file = memfd_create("ondol-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, u64::from(PAGES) * 8).unwrap();
    let mut server = Server {
        writer,
        pages: WriteMapping::new(file.as_fd(), u64::from(PAGES) * 8).unwrap(),
        views: Vec::new(),
        objects: vec![None; (ALWAYS + SOMETIMES) as usize],
        free: (0..PAGES).collect(),
        retired: Vec::new(),
        generation: 0,
    };
    (0..ALWAYS).for_each(|number| server.store(number));
    let index = server.writer.open_for_reader().unwrap();
    let mut tables = Vec::new();
    for _ in 0..3 {
        let view = SlotTableView::create_anonymous().unwrap();
        view.set_incarnation(5).unwrap();
        tables.push(view.open_for_client().unwrap());
        server.views.push(view);
    }
    let paths = [&index, &tables[2], &file]
        .map(|file| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "index::tests::churn::entry", "--nocapture"])
        .env(FILES, paths.join(","))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"\nready\n") {
        let mut byte = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut byte)
            .unwrap();
        text.push(byte[0]);
    }
    let done = AtomicBool::new(false);
    let held: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let (index, table, file, done) = (&index, &tables[number], &file, &done);
                scope.spawn(move || {
                    let reader = IndexReader::open(index.as_fd()).unwrap();
                    let slots = SlotTable::open(table.as_fd()).unwrap();
                    let pages = ReadMapping::new(file.as_fd(), u64::from(PAGES) * 8).unwrap();
                    let is_done = || done.load(Ordering::Relaxed);
                    read(&reader, &slots, &pages, number as u64 + 1, is_done)
                })
            })
            .collect();
        let mut random = Random(7);
        for step in 0..STEPS {
            server.step(&mut random);
            // With few processors readers would see a handful of states only.
            if step % 64 == 0 {
                std::thread::yield_now();
            }
            if threads.iter().any(|thread| thread.is_finished()) {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    drop(child.stdin.take());
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    let elsewhere = text.lines().find_map(|line| line.strip_prefix("held "));
    let elsewhere: u64 = elsewhere.unwrap().parse().unwrap();
    assert!(
        elsewhere > 0 && held.iter().all(|held| *held > 0),
        "{held:?} {elsewhere}"
    );
    // All have let go: every page comes back.
    server.reuse();
    assert!(server.retired.is_empty(), "{:?}", server.retired);
}
