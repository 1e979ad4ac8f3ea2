//! Who holds what, counted along a log. Needs no pool to apply changes to, as a report is made without its devices.

use std::collections::BTreeMap;

use ondol_shm::{ClientId, ProcessIdentity};

use crate::Change;

/// A client that a log knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientReport {
    /// Its name.
    pub client: ClientId,
    /// The process that it lives in.
    pub process: ProcessIdentity,
    /// Pages that are granted to it.
    pub granted_pages: u64,
    /// Its pins.
    pub pins: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Holdings {
    pub(super) objects: u64,
    clients: BTreeMap<ClientId, ClientReport>,
}

impl Holdings {
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientReport> {
        self.clients.values().copied()
    }

    pub(super) fn attach(&mut self, client: ClientId, process: ProcessIdentity) {
        let report = ClientReport {
            client,
            process,
            granted_pages: 0,
            pins: 0,
        };
        self.clients.insert(client, report);
    }

    pub(super) fn granted(&mut self, client: ClientId, pages: u64) {
        if let Some(report) = self.clients.get_mut(&client) {
            report.granted_pages += pages;
        }
    }

    pub(super) fn pinned(&mut self, client: ClientId) {
        if let Some(report) = self.clients.get_mut(&client) {
            report.pins += 1;
        }
    }

    fn less(&mut self, client: ClientId, count: impl FnOnce(&mut ClientReport) -> &mut u64) {
        if let Some(count) = self.clients.get_mut(&client).map(count) {
            *count = count.saturating_sub(1);
        }
    }

    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Attach {
                client, process, ..
            } => self.attach(*client, *process),
            Change::Detach { client } => {
                self.clients.remove(client);
            }
            Change::Grant { client, .. } => self.granted(*client, 1),
            Change::Return { client, .. } => self.less(*client, |held| &mut held.granted_pages),
            Change::Commit { client, .. } => {
                self.objects += 1;
                self.less(*client, |held| &mut held.granted_pages);
            }
            Change::Remove { .. } => self.objects = self.objects.saturating_sub(1),
            Change::Pin { client, .. } => self.pinned(*client),
            Change::Unpin { client, .. } => self.less(*client, |held| &mut held.pins),
            Change::Carve { .. } | Change::Dissolve { .. } | Change::Release { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use ondol_plugin::{Key, RegionId};
    use ondol_shm::{BackingId, Generation, Grant, Location, ObjectMeta, PageId};

    use super::*;
    use crate::{
        Arena, Extent, Journal, Log, LogOptions, Pool, PoolId, REGION_ALIGNMENT, inspect_log,
    };

    const CLIENT: ClientId = ClientId(1);

    fn grant(index: u32) -> Grant {
        Grant {
            page: PageId {
                region: RegionId(1),
                index,
            },
            generation: Generation(1),
        }
    }

    #[test]
    fn a_report_counts_alike_before_and_after_a_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::new(
            [Arena {
                usable: 0..REGION_ALIGNMENT,
                alignment: REGION_ALIGNMENT,
                whole: false,
            }],
            None,
        );
        let id = PoolId([7; 16]);
        let process = ProcessIdentity {
            pid: 4711,
            ..ProcessIdentity::default()
        };
        let key = || Key::text("k").unwrap();
        let location = Location {
            page: grant(1).page,
            generation: grant(1).generation,
            len: 5,
        };
        let extent = Extent {
            backing: BackingId(0),
            offset: 0,
            len: REGION_ALIGNMENT,
        };
        let attach = |client| Change::Attach {
            client,
            process,
            instance: [1; 16],
        };
        let grants = (0..3).map(|index| Change::Grant {
            grant: grant(index),
            client: CLIENT,
            request: 1,
        });
        let mut changes = vec![
            attach(CLIENT),
            attach(ClientId(2)),
            Change::Carve {
                region: RegionId(1),
                extent,
                stride: 4096,
            },
        ];
        changes.extend(grants);
        changes.extend([
            Change::Commit {
                key: key(),
                location,
                meta: ObjectMeta::default(),
                client: CLIENT,
            },
            Change::Return {
                grant: grant(2),
                client: CLIENT,
            },
        ]);
        changes.extend([8, 9].map(|pin| Change::Pin {
            key: key(),
            client: CLIENT,
            pin,
        }));
        changes.extend([
            Change::Unpin {
                key: key(),
                client: CLIENT,
                pin: 8,
            },
            Change::Detach {
                client: ClientId(2),
            },
        ]);
        let log = Log::create(dir.path(), id, &pool, LogOptions::default()).unwrap();
        changes
            .iter()
            .for_each(|change| log.record(change).unwrap());
        log.close().unwrap();
        drop(log);

        let mut image = crate::Image::new(pool.emptied());
        changes
            .iter()
            .for_each(|change| image.apply(change).unwrap());
        let expected = ClientReport {
            client: CLIENT,
            process,
            granted_pages: image.pool.granted_to(CLIENT).0,
            pins: 1,
        };
        assert_eq!(expected.granted_pages, 1);
        let report = inspect_log(dir.path()).unwrap();
        assert_eq!(report.problem, None);
        assert_eq!((report.clients, report.objects), (vec![expected], 1));

        // A checkpoint of all of it, and nothing behind it.
        let options = LogOptions::default();
        drop(Log::recover(dir.path(), id, pool.emptied(), options).unwrap());
        let identity = super::super::format::Identity::new(id);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let place = inspect_log(dir.path()).unwrap().end.0;
        super::super::checkpoint::write(dir.path(), &identity, place, &image, &stop).unwrap();
        let path = dir.path().join(super::super::files::checkpoint_name(place));
        let counted = super::super::checkpoint::count(&path, &identity).unwrap();
        assert_eq!(counted.clients().collect::<Vec<_>>(), [expected]);
        assert_eq!(counted.objects, 1);
    }
}
