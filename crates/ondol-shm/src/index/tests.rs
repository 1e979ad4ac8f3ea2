use std::os::fd::{AsFd, BorrowedFd};

use ondol_plugin::{Key, KeyTag, RegionId};

use super::{IndexError, IndexReader, IndexWriter, IndexedObject, Looked};
use crate::{Generation, LayoutFingerprint, Location, ObjectMeta, PageId};

/// An object that is unlike that of any other number.
fn object(number: u64) -> IndexedObject {
    IndexedObject {
        location: Location {
            page: PageId {
                region: RegionId(number % 5),
                index: number as u32,
            },
            generation: Generation(number * 3),
            len: number * 7,
        },
        meta: ObjectMeta {
            layout: number
                .is_multiple_of(2)
                .then(|| LayoutFingerprint((u128::from(number) << 61).to_be_bytes())),
            checksum: number.is_multiple_of(3).then_some(!number),
        },
    }
}

fn key(number: u64, len: usize) -> Key {
    let bytes: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(len).collect();
    Key::new(KeyTag::Raw, &bytes).unwrap()
}

fn looked(reader: &IndexReader, keys: &[Key]) -> Vec<Looked<IndexedObject>> {
    let mut all = Vec::new();
    reader.look(keys, |at, looked| {
        assert_eq!(at, all.len());
        all.push(looked);
    });
    assert_eq!(all.len(), keys.len());
    all
}

fn reader_of(writer: &IndexWriter) -> IndexReader {
    IndexReader::open(writer.open_for_reader().unwrap().as_fd()).unwrap()
}

#[test]
fn what_is_inserted_is_found_and_what_is_removed_is_not() {
    let mut writer = IndexWriter::create(1000, 100, 7).unwrap();
    let reader = reader_of(&writer);
    assert_eq!((reader.incarnation(), writer.incarnation()), (7, 7));
    let keys: Vec<_> = (0..1000).map(|number| key(number, 100)).collect();
    let records: Vec<_> = (0..1000)
        .map(|number| writer.insert(&keys[number as usize], &object(number), false))
        .collect();
    let expected: Vec<_> = (0..1000)
        .map(|number| Looked::Found(object(number)))
        .collect();
    assert_eq!(looked(&reader, &keys), expected);
    for record in records {
        writer.remove(record.unwrap());
    }
    assert!(writer.is_empty());
    assert!(
        looked(&reader, &keys)
            .iter()
            .all(|looked| *looked == Looked::Absent)
    );
}

#[test]
fn keys_of_another_tag_are_other_keys() {
    let mut writer = IndexWriter::create(10, 100, 1).unwrap();
    let reader = reader_of(&writer);
    let keys = [KeyTag::Raw, KeyTag::LmCache].map(|tag| Key::new(tag, b"same").unwrap());
    writer.insert(&keys[0], &object(1), false).unwrap();
    assert_eq!(
        looked(&reader, &keys),
        [Looked::Found(object(1)), Looked::Absent]
    );
}

#[test]
fn readers_ask_for_what_the_index_cannot_tell() {
    let mut writer = IndexWriter::create(10, 100, 1).unwrap();
    let reader = reader_of(&writer);
    let keys: Vec<_> = (0..4).map(|number| key(number, 20)).collect();
    let [there, unverified, far] =
        [(0, false), (1, true), (2, false)].map(|(number, unverified)| {
            let mut object = object(number);
            if number == 2 {
                object.location.page.region = RegionId(1 << 32);
            }
            writer
                .insert(&keys[number as usize], &object, unverified)
                .unwrap()
        });
    let found = |number| Looked::Found(object(number));
    let with = |second, last| vec![found(0), second, Looked::Ask, last];
    assert_eq!(looked(&reader, &keys), with(Looked::Ask, Looked::Absent));
    for record in [there, unverified, far] {
        writer.set_verified(record);
    }
    assert_eq!(looked(&reader, &keys), with(found(1), Looked::Absent));
    writer.set_unindexed(1);
    assert_eq!(looked(&reader, &keys), with(found(1), Looked::Ask));
    writer.set_unindexed(0);
    assert_eq!(looked(&reader, &keys), with(found(1), Looked::Absent));
    assert!(reader.is_current());
    writer.retire();
    assert_eq!(looked(&reader, &keys), vec![Looked::Ask; 4]);
    assert!(!reader.is_current());
}

fn opens(file: BorrowedFd<'_>) -> Result<IndexReader, IndexError> {
    IndexReader::open(file)
}

#[test]
fn an_index_is_for_one_writer() {
    let writer = IndexWriter::create(10, 100, 1).unwrap();
    let file = writer.open_for_reader().unwrap();
    crate::WriteMapping::new(file.as_fd(), writer.bytes()).unwrap_err();
    rustix::io::pwrite(&file, b"x", 0).unwrap_err();
    rustix::fs::ftruncate(&file, 0).unwrap_err();
    opens(file.as_fd()).unwrap();
}
