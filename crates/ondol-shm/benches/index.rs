//! What a look-up in the shared index costs a process that did not write it, with and without a lease.
//!
//! `cargo bench -p ondol-shm --bench index [-- OBJECTS…]` prints a table for each number of objects (default: 1 and 2
//! million). Keys have 100 bytes and are asked for in random order. Rounds of all rows are interleaved; the median of
//! the processor time is printed, with the fastest and the slowest round.

use std::error::Error;
use std::fs::OpenOptions;
use std::hint::black_box;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ondol_plugin::{Key, KeyTag, RegionId};
use ondol_shm::{
    Generation, IndexReader, IndexWriter, IndexedObject, Location, Looked, ObjectMeta, PageId,
    SlotTable, SlotTableView,
};
use rustix::time::{ClockId, clock_gettime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const KEY_BYTES: usize = 100;
const INCARNATION: u64 = 1;
const ROUNDS: usize = 15;
/// Keys in a round.
const ROUND: usize = 1 << 17;
/// Names the role of the reading process.
const READER: &str = "ONDOL_BENCH_READER";

fn main() -> Result<()> {
    let sizes: Vec<u64> = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.parse().ok())
        .collect();
    if let Some(files) = std::env::var_os(READER) {
        return read(
            &files.into_string().map_err(|_| "not a list of files")?,
            sizes[0],
        );
    }
    let default = vec![1_000_000, 2_000_000];
    for objects in if sizes.is_empty() { default } else { sizes } {
        write(objects)?;
    }
    Ok(())
}

fn key(number: u64) -> Key {
    let bytes = format!(
        "{:0KEY_BYTES$x}",
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    );
    Key::new(KeyTag::Raw, bytes.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

/// The server's part: an index of so many objects, and a slot table.
fn write(objects: u64) -> Result<()> {
    let begin = Instant::now();
    let mut writer = IndexWriter::create(objects, KEY_BYTES as u64, INCARNATION)?;
    let created = begin.elapsed();
    let begin = Instant::now();
    for number in 0..objects {
        let object = IndexedObject {
            location: Location {
                page: PageId {
                    region: RegionId(number >> 16),
                    index: number as u32 & 0xffff,
                },
                generation: Generation(number),
                len: 1 << 20,
            },
            meta: ObjectMeta::default(),
        };
        writer.insert(&key(number), &object, false)?;
    }
    let inserted = begin.elapsed();
    println!(
        "{objects} objects, {} MiB, created in {created:.0?}, {:.0} ns per object to make a key and insert it",
        writer.bytes() >> 20,
        inserted.as_nanos() as f64 / objects as f64
    );
    let table = SlotTableView::create_anonymous()?;
    table.set_incarnation(INCARNATION)?;
    let files = [writer.open_for_reader()?, table.open_for_client()?];
    let path =
        |file: BorrowedFd<'_>| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let paths = files.each_ref().map(|file| path(file.as_fd())).join(",");
    let status = Command::new(std::env::current_exe()?)
        .arg(objects.to_string())
        .env(READER, paths)
        .status()?;
    if !status.success() {
        return Err(format!("the reader ended with {status}").into());
    }
    Ok(())
}

/// A client's part.
fn read(files: &str, objects: u64) -> Result<()> {
    let (index, table) = files.split_once(',').ok_or("two files are expected")?;
    let open = |path: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(PathBuf::from(path))
    };
    let reader = IndexReader::open(open(index)?.as_fd())?;
    let slots = SlotTable::open(open(table)?.as_fd())?;
    // Made as they are asked for, as a client's keys are; their records lie anywhere.
    let there: Vec<_> = shuffled(0..objects).map(key).collect();
    let missing: Vec<_> = (objects..objects * 2).map(key).collect();
    let rows: [(&str, &[Key], usize, bool); 8] = [
        ("look, 256 keys", &there, 256, false),
        ("lease and release, 256 keys", &there, 256, true),
        ("miss, 256 keys", &missing, 256, false),
        ("lease of a miss, 256 keys", &missing, 256, true),
        ("look, 16 keys", &there, 16, false),
        ("look, 1 key", &there, 1, false),
        ("lease and release, 1 key", &there, 1, true),
        ("miss, 1 key", &missing, 1, false),
    ];
    let mut times = [const { Vec::new() }; 8];
    let mut next = [0; 8];
    for _ in 0..ROUNDS {
        for (row, (_, keys, batch, leases)) in rows.iter().enumerate() {
            let expected = std::ptr::eq(*keys, &*there);
            let first = next[row];
            next[row] = (first + ROUND) % (keys.len() - ROUND.min(keys.len() - 1));
            let keys = &keys[first..keys.len().min(first + ROUND)];
            let begin = cpu_time();
            for batch in keys.chunks(*batch) {
                if *leases {
                    lease(&reader, &slots, batch, expected);
                } else {
                    look(&reader, batch, expected);
                }
            }
            let taken = cpu_time() - begin;
            times[row].push(taken.as_nanos() as f64 / keys.len() as f64);
        }
    }
    for ((name, ..), mut times) in rows.into_iter().zip(times) {
        times.sort_by(f64::total_cmp);
        println!(
            "  {name:<28} {:7.1} ns a key ({:.1} to {:.1})",
            times[ROUNDS / 2],
            times[0],
            times[ROUNDS - 1]
        );
    }
    Ok(())
}

/// Of this thread: nothing here waits, and other processes are to disturb as little as possible.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn look(reader: &IndexReader, keys: &[Key], expected: bool) {
    reader.look(keys, |_, looked| {
        let found = matches!(looked, Looked::Found(_));
        assert_eq!(found, expected);
        black_box(looked);
    });
}

fn lease(reader: &IndexReader, slots: &Arc<SlotTable>, keys: &[Key], expected: bool) {
    reader.lease(slots, keys, |_, looked| {
        let found = matches!(looked, Looked::Found(_));
        assert_eq!(found, expected);
        black_box(looked);
    });
}

fn shuffled(numbers: Range<u64>) -> impl Iterator<Item = u64> {
    let mut numbers: Vec<_> = numbers.collect();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for at in (1..numbers.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        numbers.swap(at, (state % (at as u64 + 1)) as usize);
    }
    numbers.into_iter()
}
