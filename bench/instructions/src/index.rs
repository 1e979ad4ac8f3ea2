//! The index in shared memory, without a handler.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::rc::Rc;

use anyhow::anyhow;
use ondol_plugin::{Key, RegionId};
use ondol_shm::{
    Generation, IndexReader, IndexWriter, IndexedObject, Location, ObjectMeta, PageId, SlotTable,
    SlotTableView,
};

use crate::{Path, keys};

const OBJECTS: usize = 4096;
const INCARNATION: u64 = 1;

pub(crate) fn paths() -> anyhow::Result<Vec<Path>> {
    let keys = keys(2 * OBJECTS);
    let mut writer = IndexWriter::create(OBJECTS as u64, 100, INCARNATION)?;
    for (index, key) in (0..).zip(&keys[..OBJECTS]) {
        writer
            .insert(key, &object(index), false)
            .map_err(|_| anyhow!("the index has no room for {OBJECTS} objects"))?;
    }
    let view = SlotTableView::create_anonymous()?;
    view.set_incarnation(INCARNATION)?;
    let slots = SlotTable::open(view.open_for_client()?.as_fd())?;
    let reader = IndexReader::open(writer.open_for_reader()?.as_fd())?;
    // Writer and view live as long as the paths: without its writer an index is no longer current.
    let shared = Rc::new((reader, writer, view));
    let (present, absent) = keys.split_at(OBJECTS);
    let mut paths = Vec::new();
    for batch in [1, IndexReader::BATCH] {
        for (found, keys) in [("hit", present), ("miss", absent)] {
            let (shared, keys) = (Rc::clone(&shared), keys.to_vec());
            let look = move || {
                for keys in keys.chunks(batch) {
                    shared.0.look(keys, |at, looked| {
                        black_box((at, looked));
                    });
                }
            };
            paths.push(Path::new(
                format!("index.look-{found}.{batch}"),
                OBJECTS,
                look,
            ));
        }
        let (shared, keys, slots) = (Rc::clone(&shared), present.to_vec(), slots.clone());
        let lease = move || {
            for keys in keys.chunks(batch) {
                shared.0.lease(&slots, keys, |at, looked| {
                    black_box((at, looked));
                });
            }
        };
        paths.push(Path::new(
            format!("index.lease-and-drop.{batch}"),
            OBJECTS,
            lease,
        ));
    }
    paths.push(insert_and_remove(keys)?);
    Ok(paths)
}

fn insert_and_remove(keys: Vec<Key>) -> anyhow::Result<Path> {
    let mut writer = IndexWriter::create(OBJECTS as u64, 100, INCARNATION)?;
    let work = move || {
        for (index, key) in (0..).zip(&keys[..OBJECTS / 2]) {
            if let Ok(record) = writer.insert(key, &object(index), false) {
                writer.remove(record);
            }
        }
    };
    Ok(Path::new("index.insert-and-remove", OBJECTS / 2, work))
}

fn object(index: u32) -> IndexedObject {
    IndexedObject {
        location: Location {
            page: PageId {
                region: RegionId(1),
                index,
            },
            generation: Generation(1),
            len: 4096,
        },
        meta: ObjectMeta::default(),
    }
}
