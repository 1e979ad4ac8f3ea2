mod churn;
mod damage;
mod model;
mod quiet;

use std::os::fd::AsFd;
use std::sync::Arc;

use ondol_plugin::{Key, KeyTag, RegionId};

use super::{IndexReader, IndexWriter, IndexedObject, Looked};
use crate::{
    Generation, LayoutFingerprint, Location, ObjectMeta, PageId, SlotLease, SlotTable,
    SlotTableView,
};

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

fn leased(
    reader: &IndexReader,
    slots: &Arc<SlotTable>,
    keys: &[Key],
) -> Vec<Looked<(IndexedObject, SlotLease)>> {
    let mut all = Vec::new();
    reader.lease(slots, keys, |at, looked| {
        assert_eq!(at, all.len());
        all.push(looked);
    });
    assert_eq!(all.len(), keys.len());
    all
}

/// A client's table for the index of this name.
fn slots_for(incarnation: u64) -> (SlotTableView, Arc<SlotTable>) {
    let view = SlotTableView::create_anonymous().unwrap();
    view.set_incarnation(incarnation).unwrap();
    let table = SlotTable::open(view.open_for_client().unwrap().as_fd()).unwrap();
    (view, table)
}

fn held(view: &SlotTableView) -> Vec<PageId> {
    let mut pages = Vec::new();
    view.scan(|held| pages.push(held.page)).unwrap();
    pages
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

#[test]
fn a_lease_is_confirmed_for_what_is_still_there() {
    let mut writer = IndexWriter::create(10, 100, 3).unwrap();
    let reader = reader_of(&writer);
    let (view, slots) = slots_for(3);
    let keys: Vec<_> = (0..3).map(|number| key(number, 20)).collect();
    let there = writer.insert(&keys[0], &object(0), false).unwrap();
    writer.insert(&keys[1], &object(1), true).unwrap();
    let leases = leased(&reader, &slots, &keys);
    let [Looked::Found((found, lease)), Looked::Ask, Looked::Absent] = &leases[..] else {
        panic!("{leases:?}");
    };
    assert_eq!((*found, lease.page()), (object(0), object(0).location.page));
    // It lasts until it is dropped, whatever becomes of the object.
    writer.remove(there);
    assert_eq!(held(&view), [object(0).location.page]);
    assert!(matches!(
        leased(&reader, &slots, &keys[..1])[..],
        [Looked::Absent]
    ));
    drop(leases);
    assert_eq!(held(&view), []);
}

#[test]
fn nothing_is_leased_under_another_index() {
    let mut writer = IndexWriter::create(10, 100, 3).unwrap();
    let reader = reader_of(&writer);
    let (view, slots) = slots_for(2);
    let keys = [key(0, 20), key(1, 20)];
    writer.insert(&keys[0], &object(0), false).unwrap();
    let all_ask = || {
        let leases = leased(&reader, &slots, &keys);
        assert!(
            matches!(leases[..], [Looked::Ask, Looked::Ask]),
            "{leases:?}"
        );
        assert_eq!(held(&view), []);
    };
    all_ask();
    view.set_incarnation(0).unwrap();
    all_ask();
    view.set_incarnation(3).unwrap();
    assert!(matches!(
        leased(&reader, &slots, &keys)[..],
        [Looked::Found(_), Looked::Absent]
    ));
    writer.retire();
    all_ask();
}

#[test]
fn where_slots_run_out_the_server_is_asked() {
    let mut writer = IndexWriter::create(10, 100, 3).unwrap();
    let reader = reader_of(&writer);
    let (_view, slots) = slots_for(3);
    let keys = vec![key(0, 20); crate::SLOTS as usize + 300];
    writer.insert(&keys[0], &object(0), false).unwrap();
    let mut leases = leased(&reader, &slots, &keys);
    let late = leases.split_off(crate::SLOTS as usize);
    assert!(
        leases
            .iter()
            .all(|looked| matches!(looked, Looked::Found(_)))
    );
    assert!(late.iter().all(|looked| matches!(looked, Looked::Ask)));
}

#[test]
fn a_forked_child_asks() {
    let mut writer = IndexWriter::create(10, 100, 3).unwrap();
    let reader = reader_of(&writer);
    let (_view, slots) = slots_for(3);
    let keys = [key(0, 20), key(1, 20)];
    writer.insert(&keys[0], &object(0), false).unwrap();
    // SAFETY: the child allocates and forgets, and leaves with _exit; it uses no lock that another thread may have held.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut asked = 0;
        reader.look(&keys, |_, looked| asked += i32::from(looked == Looked::Ask));
        reader.lease(&slots, &keys, |_, looked| {
            asked += i32::from(matches!(looked, Looked::Ask))
        });
        asked += i32::from(!reader.is_current());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(asked) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place, `child` is our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 5);
}
