//! Files that are no index, or none any more, and writers that died.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::super::IndexError;
use super::super::layout::word;
use super::*;
use crate::WriteMapping;

const OBJECTS: u64 = 200;
const HEADER_BYTES: usize = 128;
const LINE: usize = 64;

fn keys() -> Vec<Key> {
    (0..OBJECTS * 2)
        .map(|number| key(number, 10 + number as usize % 120))
        .collect()
}

/// The bytes of an index that holds every other key, and the first cells of the records.
fn image() -> (Vec<u8>, Vec<u32>) {
    let mut writer = IndexWriter::with_seed(OBJECTS, 70, 5, 1).unwrap();
    let cells = keys().into_iter().zip(0..).step_by(2).map(|(key, number)| {
        let record = writer.insert(&key, &object(number), false).unwrap();
        record.0
    });
    let cells = cells.collect();
    let mut bytes = vec![0; writer.bytes() as usize];
    rustix::io::pread(writer.file(), &mut bytes, 0).unwrap();
    (bytes, cells)
}

fn file_of(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("ondol-test", flags).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

fn open(bytes: &[u8]) -> Result<IndexReader, IndexError> {
    IndexReader::open(file_of(bytes, SealFlags::SHRINK).as_fd())
}

fn word_at(bytes: &mut [u8], at: usize) -> &mut [u8; 8] {
    bytes[at..].first_chunk_mut().unwrap()
}

/// Where a word of a record lies in the file.
fn record_at(bytes: &[u8], cell: u32, word: usize) -> usize {
    let buckets = u64::from_le_bytes(*bytes[16..].first_chunk().unwrap());
    HEADER_BYTES + (buckets as usize + cell as usize) * LINE + word * 8
}

#[test]
fn an_index_is_for_one_writer() {
    let writer = IndexWriter::create(10, 100, 1).unwrap();
    let file = writer.open_for_reader().unwrap();
    WriteMapping::new(file.as_fd(), writer.bytes()).unwrap_err();
    rustix::io::pwrite(&file, b"x", 0).unwrap_err();
    rustix::fs::ftruncate(&file, 0).unwrap_err();
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = File::options().read(true).write(true).open(again).unwrap();
    WriteMapping::new(again.as_fd(), writer.bytes()).unwrap_err();
    fcntl_add_seals(&file, SealFlags::WRITE).unwrap_err();
    IndexReader::open(file.as_fd()).unwrap();
}

#[test]
fn what_can_be_pulled_away_is_refused() {
    let (bytes, _) = image();
    let plain = tempfile::tempfile().unwrap();
    plain.write_all_at(&bytes, 0).unwrap();
    let unsealed = file_of(&bytes, SealFlags::GROW);
    for file in [plain.as_fd(), unsealed.as_fd()] {
        let refused = IndexReader::open(file).unwrap_err();
        assert!(matches!(refused, IndexError::Unsealed), "{refused}");
    }
}

#[test]
fn what_is_no_whole_index_of_this_version_is_refused() {
    let (bytes, _) = image();
    open(&bytes).unwrap();
    let refused = |bytes: &[u8]| {
        let refused = open(bytes).unwrap_err();
        assert!(matches!(refused, IndexError::Foreign { .. }), "{refused}");
    };
    for len in [0, 7, 47, HEADER_BYTES, bytes.len() - LINE, bytes.len() - 1] {
        refused(&bytes[..len]);
    }
    refused(&[&bytes[..], &[0; LINE]].concat());
    let whole = (bytes.len() - HEADER_BYTES) / LINE;
    for (word, values) in [
        (0, vec![0, 1]),
        (1, vec![0, 2]),
        (
            2,
            vec![0, 1, whole as u64, u64::MAX, u64::MAX / 64, 1 << 58],
        ),
        (3, vec![0, 1, u64::MAX, u64::MAX / 64, 1 << 32]),
    ] {
        for value in values {
            let mut bytes = bytes.clone();
            *word_at(&mut bytes, word * 8) = value.to_le_bytes();
            refused(&bytes);
        }
    }
    // Numbers that fit together although none of them can be right.
    for (buckets, cells) in [(0, whole), (whole, 0), (whole - 1, 1)] {
        let mut bytes = bytes.clone();
        *word_at(&mut bytes, 16) = (buckets as u64).to_le_bytes();
        *word_at(&mut bytes, 24) = (cells as u64).to_le_bytes();
        refused(&bytes);
    }
}

#[test]
fn a_record_that_stays_unfinished_is_asked_for() {
    let (mut bytes, cells) = image();
    let keys = keys();
    for version in [0_u64, 1, 3, u64::MAX] {
        let at = record_at(&bytes, cells[1], word::VERSION);
        *word_at(&mut bytes, at) = version.to_le_bytes();
        let reader = open(&bytes).unwrap();
        let expected = [
            Looked::Found(object(0)),
            Looked::Absent,
            Looked::Ask,
            Looked::Absent,
        ];
        assert_eq!(looked(&reader, &keys[..4]), expected, "version {version}");
        let (view, slots) = slots_for(5);
        let leases = leased(&reader, &slots, &keys[..4]);
        assert!(matches!(leases[2], Looked::Ask), "{leases:?}");
        assert_eq!(held(&view).len(), 1);
    }
}

#[test]
fn a_hit_is_never_another_keys_object() {
    let (mut bytes, cells) = image();
    let keys = keys();
    // Each record gets a key that differs in its last byte, the padding, the length or the tag.
    for (number, cell) in cells.iter().enumerate() {
        let len = keys[number * 2].bytes().len();
        let at = record_at(&bytes, *cell, word::KEY);
        let length = record_at(&bytes, *cell, word::KEY_AND_FLAGS);
        match number % 4 {
            0 => bytes[at + len - 1] ^= 1,
            1 if !len.is_multiple_of(8) => bytes[at + len] ^= 0x80,
            2 => bytes[length] ^= 1,
            _ => bytes[length + 2] ^= 1,
        }
    }
    let reader = open(&bytes).unwrap();
    assert_eq!(looked(&reader, &keys), vec![Looked::Absent; keys.len()]);
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A word that may do harm: of any kind, near an end, or one that stands elsewhere.
    fn word(&mut self, bytes: &[u8]) -> u64 {
        let lines = (bytes.len() / LINE) as u64;
        let elsewhere = (self.next() as usize % (bytes.len() / 8)) * 8;
        let elsewhere = u64::from_le_bytes(*bytes[elsewhere..].first_chunk().unwrap());
        match self.next() % 6 {
            0 => self.next(),
            1 => [0, 1, u64::MAX, u64::MAX - 1, u64::from(u32::MAX)][self.next() as usize % 5],
            2 => elsewhere ^ (1 << (self.next() % 64)),
            // A slot whose tag is right and whose cell is not.
            3 => (elsewhere & !u64::from(u32::MAX)) | (self.next() % (lines + 2)),
            4 => (elsewhere & !u64::from(u32::MAX)) | u64::from(u32::MAX),
            _ => elsewhere,
        }
    }
}

/// Asks for all keys in every way there is; what the answers are does not matter.
fn ask_everything(reader: &IndexReader, slots: &Arc<SlotTable>, keys: &[Key]) {
    let mut answers = 0;
    reader.look(keys, |_, _| answers += 1);
    reader.lease(slots, keys, |_, _| answers += 1);
    for key in &keys[..keys.len() / 8] {
        reader.look(std::slice::from_ref(key), |_, _| answers += 1);
        reader.lease(slots, std::slice::from_ref(key), |_, _| answers += 1);
    }
    assert_eq!(answers, keys.len() * 2 + keys.len() / 8 * 2);
    assert_eq!(slots.in_use(), 0);
}

#[test]
fn a_damaged_index_harms_no_reader() {
    let (intact, _) = image();
    let keys = keys();
    let (_view, slots) = slots_for(5);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut opened = 0;
    for round in 0..600_u64 {
        let mut bytes = intact.clone();
        // From one damaged word to all of them; every fourth time the header, too.
        let damages = [1, 10, 300, bytes.len()][round as usize / 4 % 4];
        let first = if round % 4 == 0 { 0 } else { HEADER_BYTES };
        for _ in 0..damages {
            let at = first + random.next() as usize % (bytes.len() - first);
            if random.next().is_multiple_of(2) {
                let value = random.word(&intact);
                *word_at(&mut bytes, at / 8 * 8) = value.to_le_bytes();
            } else {
                bytes[at] ^= 1 << (random.next() % 8);
            }
        }
        if let Ok(reader) = open(&bytes) {
            opened += 1;
            ask_everything(&reader, &slots, &keys);
        }
    }
    assert!(opened > 400, "{opened}");
}

#[test]
fn every_slot_may_lead_anywhere() {
    let (intact, _) = image();
    let keys = keys();
    let (_view, slots) = slots_for(5);
    let buckets = u64::from_le_bytes(*intact[16..].first_chunk().unwrap()) as usize;
    let cells = u64::from_le_bytes(*intact[24..].first_chunk().unwrap());
    for cell in [
        0,
        1,
        cells - 2,
        cells - 1,
        cells,
        cells + 1,
        u64::from(u32::MAX),
    ] {
        let mut bytes = intact.clone();
        for slot in 0..buckets * 8 {
            let word = word_at(&mut bytes, HEADER_BYTES + slot * 8);
            let tag = u64::from_le_bytes(*word) & !u64::from(u32::MAX);
            // Also: all buckets say that objects were passed on.
            *word = if slot % 8 == 0 { u64::MAX } else { tag | cell }.to_le_bytes();
        }
        ask_everything(&open(&bytes).unwrap(), &slots, &keys);
    }
}

#[test]
fn a_writer_that_scribbles_stops_no_reader() {
    let (intact, _) = image();
    let keys = keys();
    let file = file_of(&intact, SealFlags::SHRINK);
    let reader = IndexReader::open(file.as_fd()).unwrap();
    let mapping = WriteMapping::new(file.as_fd(), intact.len() as u64).unwrap();
    let (_view, slots) = slots_for(5);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(3);
            while !done.load(Ordering::Relaxed) {
                let at = HEADER_BYTES + random.next() as usize % (intact.len() - HEADER_BYTES);
                // SAFETY: the word lies inside the mapping (checked); all access it as an atomic.
                let word: &AtomicU64 = unsafe { &*mapping.word(at / 8 * 8).cast() };
                word.store(random.word(&intact), Ordering::Relaxed);
                // Restored now and then, so that there is something to find.
                if random.next().is_multiple_of(4) {
                    let bytes = intact[at / 8 * 8..].first_chunk().unwrap();
                    word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
                }
            }
        });
        for _ in 0..300 {
            ask_everything(&reader, &slots, &keys);
        }
        done.store(true, Ordering::Relaxed);
    });
}

const PLACE: &str = "ONDOL_TEST_INDEX_PLACE";

/// The server that dies. Run by itself, it does nothing.
#[test]
fn entry() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let mut writer = IndexWriter::create(10, 100, 5).unwrap();
    writer.insert(&key(0, 20), &object(0), false).unwrap();
    let removed = writer.insert(&key(1, 20), &object(1), false).unwrap();
    println!("\nindex {}", writer.file().as_raw_fd());
    std::io::stdin().read_exact(&mut [0]).unwrap();
    ondol_catalog::arm_failpoints(place.to_str().unwrap()).unwrap();
    writer.insert(&key(2, 20), &object(2), false).unwrap();
    writer.remove(removed);
    panic!("nothing ended this process");
}

#[test]
fn readers_of_a_dead_writer_ask() {
    for place in [
        "index.record_written=kill@3",
        "index.passed_on=kill@3",
        "index.record_closed=kill@1",
        "index.slot_cleared=kill@1",
    ] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "index::tests::damage::entry", "--nocapture"])
            .env(PLACE, place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut text = String::new();
        let number = loop {
            let mut byte = [0];
            child
                .stdout
                .as_mut()
                .unwrap()
                .read_exact(&mut byte)
                .unwrap();
            text.push(byte[0].into());
            if byte == *b"\n"
                && let Some((_, number)) = text.trim().rsplit_once("index ")
            {
                break number.to_owned();
            }
        };
        let file = File::open(format!("/proc/{}/fd/{number}", child.id())).unwrap();
        let file: BorrowedFd<'_> = file.as_fd();
        let reader = IndexReader::open(file).unwrap();
        let keys: Vec<_> = (0..4).map(|number| key(number, 20)).collect();
        let found = |number| Looked::Found(object(number));
        let expected = [found(0), found(1), Looked::Absent, Looked::Absent];
        assert_eq!(looked(&reader, &keys), expected);
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{place}");
        assert!(!reader.is_current());
        assert_eq!(looked(&reader, &keys), vec![Looked::Ask; 4], "{place}");
        let (view, slots) = slots_for(5);
        let leases = leased(&reader, &slots, &keys);
        assert!(
            leases.iter().all(|looked| matches!(looked, Looked::Ask)),
            "{place}"
        );
        assert_eq!(held(&view), []);
        // Who opens it only now is told the same.
        let late = IndexReader::open(file).unwrap();
        assert_eq!(looked(&late, &keys), vec![Looked::Ask; 4], "{place}");
    }
}
