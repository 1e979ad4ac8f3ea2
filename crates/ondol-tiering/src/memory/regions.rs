//! The pool's files, mapped once, and the regions in them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use foldhash::fast::RandomState;
use ondol_directory::Directory;
use ondol_memory::Backing;
use ondol_plugin::RegionId;
use ondol_plugin::l2::L1Mapping;
use ondol_shm::{ReadMapping, ReadRegion, WriteMapping, WriteRegion};
use parking_lot::RwLock;

/// A file of the pool, mapped whole.
#[derive(Debug)]
struct Mapped {
    read: Arc<ReadMapping>,
    write: Arc<WriteMapping>,
    file: Arc<OwnedFd>,
}

/// A region of the pool.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) read: ReadRegion,
    pub(super) write: Arc<WriteRegion>,
}

type Known = HashMap<RegionId, Arc<Region>, RandomState>;

/// Every region that was needed and that existed when the list was last made.
#[derive(Debug)]
pub(super) struct Regions {
    files: Vec<Mapped>,
    known: RwLock<Known>,
}

impl Regions {
    /// Maps these files, which are the backings of the pool in their order.
    pub(super) fn map<'a>(files: impl IntoIterator<Item = &'a Backing>) -> io::Result<Self> {
        let map = |file: &Backing| {
            let opened = file.open_write()?;
            Ok(Mapped {
                read: Arc::new(ReadMapping::new(file.open_read()?.as_fd(), file.len())?),
                write: Arc::new(WriteMapping::new(opened.as_fd(), file.len())?),
                file: Arc::new(opened),
            })
        };
        Ok(Self {
            files: files.into_iter().map(map).collect::<io::Result<_>>()?,
            known: RwLock::default(),
        })
    }

    /// What adapters may register: each file as it is read and as it is written.
    pub(super) fn l1_mappings(&self) -> Vec<L1Mapping> {
        let both = self.files.iter().flat_map(|mapped| {
            let Mapped { read, write, file } = mapped;
            let mapping = |address, length| L1Mapping::new(address, length, Arc::clone(file));
            [
                mapping(read.address(), read.len()),
                mapping(write.address(), write.len()),
            ]
        });
        both.collect()
    }

    /// The region, which holds a page that is leased or granted, so that it exists.
    pub(super) fn get(&self, directory: &Directory, id: RegionId) -> Option<Arc<Region>> {
        if let Some(region) = self.known.read().get(&id) {
            return Some(Arc::clone(region));
        }
        let places: Vec<_> = directory.with_pool(|pool| {
            let regions = pool.regions();
            let place = |(id, region): (RegionId, &ondol_memory::Region)| {
                (
                    id,
                    region.span(id),
                    region.stride(),
                    region.extent().backing,
                )
            };
            regions.map(place).collect()
        });
        let mut known = self.known.write();
        let mut next = Known::with_capacity_and_hasher(places.len(), RandomState::default());
        for (id, span, stride, backing) in places {
            // A region that stays keeps its entry, with the claims of pages that are being written.
            let region = known.remove(&id).or_else(|| {
                let mapped = self.files.get(backing.0 as usize)?;
                Some(Arc::new(Region {
                    read: ReadRegion::new(Arc::clone(&mapped.read), span, stride).ok()?,
                    write: Arc::new(
                        WriteRegion::new(Arc::clone(&mapped.write), span, stride).ok()?,
                    ),
                }))
            });
            if let Some(region) = region {
                next.insert(id, region);
            }
        }
        // Ids only grow: one above all of the list was made after it.
        let newest = next.keys().max().copied();
        next.extend(known.drain().filter(|(id, _)| Some(*id) > newest));
        *known = next;
        known.get(&id).cloned()
    }
}
