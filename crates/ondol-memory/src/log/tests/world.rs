//! A small pool with clients that do whatever is allowed, the same for the same choices.

use ondol_plugin::{Key, KeyTag};
use ondol_shm::{ClientId, Grant, LayoutFingerprint, Location, ObjectMeta, ProcessIdentity};

use crate::{Arena, Change, Image, Pool, RemoveReason};

const MIB: u64 = 1 << 20;
const STRIDES: [u64; 4] = [4096, 100_000, MIB, 3 * MIB];

pub(super) fn pool() -> Pool {
    let arena = |mib: u64| Arena {
        usable: 0..mib * MIB,
        alignment: 4096,
        whole: false,
    };
    Pool::new([arena(8), arena(6)], Some(2 * MIB))
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) image: Image,
}

/// Numbers that look random and are the same for the same seed.
#[derive(Debug)]
pub(super) struct Choices(pub(super) u64);

impl Iterator for Choices {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ (mixed >> 31))
    }
}

fn pick<T>(choice: u64, mut from: Vec<T>) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove((choice % from.len() as u64) as usize))
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            image: Image::new(pool()),
        }
    }

    /// A world in which these choices were made.
    pub(super) fn after(choices: impl IntoIterator<Item = u64>) -> Self {
        let mut world = Self::new();
        for choice in choices {
            if let Some(change) = world.plan(choice) {
                world.image.apply(&change).unwrap();
            }
        }
        world
    }

    /// What somebody does, if it is allowed now.
    pub(super) fn plan(&self, choice: u64) -> Option<Change> {
        let image = &self.image;
        let (what, choice) = (choice % 32, choice / 32);
        let client = pick(choice, image.clients.keys().copied().collect());
        match what {
            0 | 1 => (image.clients.len() < 6).then(|| Change::Attach {
                client: ClientId(image.next_client),
                process: ProcessIdentity {
                    pid: choice as u32,
                    start_time: choice,
                    namespace: 4_026_531_836,
                    inode: u64::MAX - choice,
                },
                instance: [choice as u8; 16],
            }),
            2..=11 => {
                let stride = STRIDES[(choice / 7 % 4) as usize];
                match image.pool.find_free(stride) {
                    Some(grant) => Some(Change::Grant {
                        grant,
                        client: client?,
                        request: choice / 64 % 5,
                    }),
                    None => image.pool.plan_carve(stride),
                }
            }
            12..=18 => {
                let (client, Grant { page, generation }) = pick(choice, self.grants())?;
                let key = key(choice / 128);
                let location = Location {
                    page,
                    generation,
                    len: choice % 4097,
                };
                let meta = ObjectMeta {
                    layout: (choice & 256 != 0).then_some(LayoutFingerprint([choice as u8; 16])),
                    checksum: (choice & 512 != 0).then_some(choice),
                };
                (!image.objects.contains_key(&key)).then_some(Change::Commit {
                    key,
                    location,
                    meta,
                    client,
                })
            }
            19 | 20 => {
                let (client, grant) = pick(choice, self.grants())?;
                Some(Change::Return { grant, client })
            }
            21..=24 => {
                let (key, object) = pick(choice, image.objects.iter().collect())?;
                Some(Change::Remove {
                    key: key.clone(),
                    location: object.location,
                    reason: match choice % 4 {
                        0 => RemoveReason::Deleted,
                        1 => RemoveReason::Evicted,
                        2 => RemoveReason::Drained,
                        _ => RemoveReason::Lost,
                    },
                })
            }
            25..=27 => {
                let page = pick(choice, image.removed.keys().copied().collect())?;
                Some(Change::Release { page })
            }
            28 => Some(Change::Pin {
                key: pick(choice, image.objects.keys().cloned().collect())?,
                client: client?,
                pin: choice / 9 % 3,
            }),
            29 => {
                let pins = image.clients.iter().flat_map(|(client, record)| {
                    let pins = record.pins.iter();
                    pins.flat_map(|(key, pins)| pins.iter().map(|pin| (*client, key.clone(), *pin)))
                });
                let (client, key, pin) = pick(choice, pins.collect())?;
                Some(Change::Unpin { key, client, pin })
            }
            30 => {
                let holds = |client: &ClientId| {
                    image.pool.granted_to(*client).0 > 0 || !image.clients[client].pins.is_empty()
                };
                let idle = image
                    .clients
                    .keys()
                    .copied()
                    .filter(|client| !holds(client));
                Some(Change::Detach {
                    client: pick(choice, idle.collect())?,
                })
            }
            _ => {
                let idle = image.pool.regions().filter(|(_, region)| region.is_idle());
                Some(Change::Dissolve {
                    region: pick(choice, idle.map(|(id, _)| id).collect())?,
                })
            }
        }
    }

    fn grants(&self) -> Vec<(ClientId, Grant)> {
        let clients = self.image.clients.keys();
        let mut grants: Vec<_> = clients
            .flat_map(|client| {
                let grants = self.image.pool.grants_of(*client);
                grants.into_iter().map(|grant| (*client, grant))
            })
            .collect();
        grants.sort_unstable_by_key(|(_, grant)| grant.page);
        grants
    }
}

fn key(choice: u64) -> Key {
    let number = choice % 90;
    match number % 3 {
        0 => Key::integer(number),
        1 => Key::text(&format!("key {number}")).unwrap(),
        _ => Key::new(KeyTag::Raw, &vec![number as u8; (number * 11) as usize]).unwrap(),
    }
}
