//! An index against a map.

use std::collections::HashMap;

use ondol_plugin::MAX_KEY_BYTES;
use proptest::prelude::*;

use super::super::RecordId;
use super::super::layout::{MAX_PROBE, SLOTS};
use super::super::query::Query;
use super::*;

const SEED: u64 = 7;

#[derive(Clone, Debug)]
enum Step {
    Insert(u64),
    Remove(u64),
    Verify(u64),
}

/// Many keys, so that an index of the size below is full now and then; of all lengths.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..400_u64;
    let step = prop_oneof![
        5 => number.clone().prop_map(Step::Insert),
        3 => number.clone().prop_map(Step::Remove),
        1 => number.prop_map(Step::Verify),
    ];
    prop::collection::vec(step, 1..2000)
}

fn key_of(number: u64) -> Key {
    // Lengths 0 and 1024 too; the first ones are the same bytes under another tag each.
    let len = (number as usize * 37) % (MAX_KEY_BYTES + 1);
    let tags = [KeyTag::Raw, KeyTag::LmCache, KeyTag::MessagePack];
    match number {
        0..3 => Key::new(tags[number as usize], b"").unwrap(),
        _ => Key::new(tags[number as usize % 3], key(number, len.max(8)).bytes()).unwrap(),
    }
}

struct Entry {
    record: RecordId,
    object: IndexedObject,
    unverified: bool,
}

impl Entry {
    fn looked(&self) -> Looked<IndexedObject> {
        if self.unverified {
            Looked::Ask
        } else {
            Looked::Found(self.object)
        }
    }
}

fn expected(model: &HashMap<u64, Entry>) -> Vec<Looked<IndexedObject>> {
    (0..400)
        .map(|number| model.get(&number).map_or(Looked::Absent, Entry::looked))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_index_says_what_a_map_says(steps in steps(), key_bytes in 0..600_u64) {
        let mut writer = IndexWriter::with_seed(130, key_bytes, 1, SEED).unwrap();
        let reader = reader_of(&writer);
        let mut model: HashMap<u64, Entry> = HashMap::new();
        let keys: Vec<_> = (0..400).map(key_of).collect();
        for (time, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert(number) => {
                    if let Some(entry) = model.remove(&number) {
                        writer.remove(entry.record);
                    }
                    let object = object(number + time as u64 * 400);
                    let unverified = time.is_multiple_of(5);
                    match writer.insert(&keys[number as usize], &object, unverified) {
                        Ok(record) => {
                            model.insert(number, Entry { record, object, unverified });
                        }
                        Err(_) => prop_assert_eq!(looked(&reader, &keys), expected(&model)),
                    }
                }
                Step::Remove(number) => {
                    if let Some(entry) = model.remove(&number) {
                        writer.remove(entry.record);
                    }
                }
                Step::Verify(number) => {
                    if let Some(entry) = model.get_mut(&number) {
                        entry.unverified = false;
                        writer.set_verified(entry.record);
                    }
                }
            }
            prop_assert_eq!(writer.len(), model.len() as u64);
            if time % 50 == 0 {
                prop_assert_eq!(looked(&reader, &keys), expected(&model));
            }
        }
        for (number, entry) in model {
            prop_assert_eq!(looked(&reader, &keys[number as usize..][..1]), [entry.looked()]);
            writer.remove(entry.record);
        }
        prop_assert!(looked(&reader, &keys).iter().all(|looked| *looked == Looked::Absent));
        // Nothing is left of those that were passed on: a miss is one line again.
        let overflow = writer.overflow();
        prop_assert!(overflow.iter().all(|count| *count == 0), "{overflow:?}");
    }
}

/// So many keys that belong into the same bucket.
fn neighbours(buckets: usize, count: usize) -> Vec<Key> {
    let of = |key: &Key| Query::new(key, SEED, buckets).home;
    let home = of(&key(0, 30));
    let keys = (0..).map(|number| key(number, 30));
    keys.filter(|key| of(key) == home).take(count).collect()
}

#[test]
fn a_chain_that_grew_too_long_is_refused_and_changes_nothing() {
    let mut writer = IndexWriter::with_seed(400, 100, 1, SEED).unwrap();
    let reader = reader_of(&writer);
    let longest = SLOTS * MAX_PROBE;
    let keys = neighbours(100, longest + 2);
    let mut records: Vec<_> = (0..longest)
        .map(|number| {
            writer
                .insert(&keys[number], &object(number as u64), false)
                .unwrap()
        })
        .collect();
    let found = |number: usize| Looked::Found(object(number as u64));
    let mut expected: Vec<_> = (0..longest).map(found).collect();
    expected.extend([Looked::Absent; 2]);
    assert_eq!(looked(&reader, &keys), expected);
    let before = writer.overflow();
    writer
        .insert(&keys[longest], &object(1), false)
        .unwrap_err();
    assert_eq!(looked(&reader, &keys), expected);
    assert_eq!((writer.overflow(), writer.len()), (before, longest as u64));

    // Holes at any place of the chain hide nothing that lies behind them.
    let mut order: Vec<_> = (0..longest).collect();
    order.rotate_left(longest / 3);
    order.sort_by_key(|number| number.wrapping_mul(0x9e37_79b9) % 251);
    for (removed, number) in order.into_iter().enumerate() {
        writer.remove(records[number]);
        expected[number] = Looked::Absent;
        if removed % 7 == 0 {
            assert_eq!(looked(&reader, &keys), expected);
        }
        if removed == 100 {
            // The nearest hole is filled first.
            records.push(
                writer
                    .insert(&keys[longest + 1], &object(2), false)
                    .unwrap(),
            );
            expected[longest + 1] = Looked::Found(object(2));
        }
    }
    assert_eq!(looked(&reader, &keys), expected);
    writer.remove(records[longest]);
    assert!(writer.overflow().iter().all(|count| *count == 0));
}

#[test]
fn an_index_holds_as_many_objects_as_it_was_made_for() {
    for objects in [1, 50, 3000, 30_000] {
        for key_bytes in [8, 100, 1024] {
            if objects * key_bytes > 3_100_000 {
                continue;
            }
            let mut writer = IndexWriter::create(objects, key_bytes, 1).unwrap();
            for number in 0..objects {
                let key = key(number, key_bytes as usize);
                writer.insert(&key, &object(number), false).unwrap();
            }
            assert!(writer.bytes() < 4096 + objects * (key_bytes + 300) + (2 << 20));
        }
    }
}

#[test]
fn cells_of_removed_objects_are_used_again() {
    let mut writer = IndexWriter::create(100, 500, 1).unwrap();
    let reader = reader_of(&writer);
    for round in 0..200 {
        let len = 300 + round % 5 * 20;
        let records: Vec<_> = (0..20)
            .map(|number| {
                writer
                    .insert(&key(number, len as usize), &object(round), false)
                    .unwrap()
            })
            .collect();
        assert_eq!(
            looked(&reader, &[key(3, len as usize)]),
            [Looked::Found(object(round))]
        );
        records.into_iter().for_each(|record| writer.remove(record));
    }
}

#[test]
fn an_index_that_cannot_be_numbered_is_refused() {
    for (objects, key_bytes) in [(u64::MAX, 1024), (1 << 40, 1), (u64::MAX, u64::MAX)] {
        let error = IndexWriter::create(objects, key_bytes, 1).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
}
