//! A small pool with a client that stores objects in it, for tests of the controllers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_directory::{Directory, Newcomer};
use ondol_memory::{Arena, Device, DeviceEnv, Journal, NoJournal, OpenOptions, Pool};
use ondol_plugin::Key;
use ondol_protocol::{Commit, CommitOutcome, Retrieve};
use ondol_shm::{
    ClientId, LeaseSlots, Location, ObjectMeta, WriteMapping, WriteRegion, create_lease_table,
};

use super::Memory;

pub(super) const TIER: ClientId = ClientId(1);
pub(super) const CLIENT: ClientId = ClientId(2);

/// A pool in memory, its storage tier, and a client.
pub(crate) struct L1 {
    pub(crate) directory: Arc<Directory>,
    pub(crate) memory: Arc<Memory>,
    slots: Arc<LeaseSlots>,
    device: Device,
    request: AtomicU64,
    _table: OwnedFd,
}

impl L1 {
    /// A pool of so many bytes, a multiple of 2 MiB.
    pub(crate) fn new(bytes: u64) -> Self {
        Self::with_journal(bytes, Arc::new(NoJournal))
    }

    pub(crate) fn with_journal(bytes: u64, journal: Arc<dyn Journal>) -> Self {
        let uri = format!("memfd:?size={bytes}").parse().unwrap();
        let device = Device::open(&uri, &DeviceEnv::default(), &OpenOptions::default()).unwrap();
        let arenas = device.backings().iter().map(|backing| Arena {
            usable: backing.usable(),
            alignment: device.alignment(),
            whole: device.whole_backing_regions(),
        });
        let pool = Pool::new(arenas, Some(2 << 20));
        let policy = ondol_catalog::policy("lru").unwrap();
        let directory = Arc::new(Directory::new(pool, journal, policy));
        let attach = |id| {
            let table = create_lease_table().unwrap();
            directory
                .attach(id, Newcomer::default(), table.as_fd(), None)
                .unwrap();
            table
        };
        let (tier_table, table) = (attach(TIER), attach(CLIENT));
        let memory = Memory::open(
            Arc::clone(&directory),
            TIER,
            tier_table.as_fd(),
            device.backings(),
            Box::new(|_| Ok(())),
        );
        Self {
            memory: Arc::new(memory.unwrap()),
            directory,
            slots: LeaseSlots::open(table.as_fd()).unwrap(),
            device,
            request: AtomicU64::new(1),
            _table: table,
        }
    }

    /// Stores an object as a client does, with the bytes that `fill` writes; `false` if it was there.
    pub(crate) fn put(&self, key: &Key, bytes: &[u8]) -> bool {
        let request = self.request.fetch_add(1, Ordering::Relaxed);
        let stride = ondol_protocol::fitted_page_bytes(bytes.len() as u64).unwrap();
        let grants = self
            .directory
            .grant(CLIENT, request, stride, 1, u64::MAX)
            .unwrap();
        let place = self.directory.with_pool(|pool| {
            let region = pool.region(grants[0].page.region).unwrap();
            (region.span(grants[0].page.region), region.extent().backing)
        });
        let file = &self.device.backings()[place.1.0 as usize];
        let opened = file.open_write().unwrap();
        let mapping = WriteMapping::new(opened.as_fd(), file.len()).unwrap();
        let region = WriteRegion::new(Arc::new(mapping), place.0, stride).unwrap();
        Arc::new(region)
            .claim(grants[0].page, bytes.len() as u64)
            .unwrap()
            .copy_from_slice(bytes);
        let commit = Commit {
            key: key.clone(),
            location: Location {
                page: grants[0].page,
                generation: grants[0].generation,
                len: bytes.len() as u64,
            },
            meta: ObjectMeta::default(),
        };
        match self.directory.commit(CLIENT, &[commit]).unwrap()[0] {
            CommitOutcome::Stored => true,
            _ => {
                self.directory.return_pages(CLIENT, &grants).unwrap();
                false
            }
        }
    }

    /// Whether a client finds the object.
    pub(crate) fn has(&self, key: &Key) -> bool {
        let lease = self.slots.propose().unwrap();
        let request = Retrieve {
            keys: vec![key.clone()],
            leases: vec![lease.reference()],
            group: 1,
            prefix: false,
            expect: None,
            wait_ms: 0,
            expected_len: 0,
        };
        self.directory.retrieve(CLIENT, &request).unwrap().hits[0].is_some()
    }

    /// The bytes of an object.
    pub(crate) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let leased = self.memory.lease(std::slice::from_ref(key)).pop().flatten();
        leased.map(|leased| leased.as_ref().to_vec())
    }
}
