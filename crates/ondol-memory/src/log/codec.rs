//! How changes and what they are made of stand in bytes.

use ondol_plugin::{Key, RegionId};
use ondol_shm::{
    BackingId, ClientId, Generation, Grant, LayoutFingerprint, Location, ObjectMeta, PageId,
    ProcessIdentity,
};

use crate::{Change, Extent, RemoveReason, StoredObject};

/// Bytes that follow no rule of the format, although their checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// Numbers of the kinds of changes.
mod kind {
    pub(super) const CARVE: u8 = 1;
    pub(super) const DISSOLVE: u8 = 2;
    pub(super) const GRANT: u8 = 3;
    pub(super) const RETURN: u8 = 4;
    pub(super) const COMMIT: u8 = 5;
    pub(super) const REMOVE: u8 = 6;
    pub(super) const RELEASE: u8 = 7;
    pub(super) const PIN: u8 = 8;
    pub(super) const UNPIN: u8 = 9;
    pub(super) const ATTACH: u8 = 10;
    pub(super) const DETACH: u8 = 11;
}

const HAS_LAYOUT: u8 = 1;
const HAS_CHECKSUM: u8 = 2;

/// Seven bits a byte, the lowest first; the last byte has no eighth bit.
#[inline]
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn put_page(out: &mut Vec<u8>, page: PageId) {
    put_number(out, page.region.0);
    put_number(out, u64::from(page.index));
}

fn put_grant(out: &mut Vec<u8>, grant: Grant) {
    put_page(out, grant.page);
    put_number(out, grant.generation.0);
}

fn put_location(out: &mut Vec<u8>, location: &Location) {
    put_page(out, location.page);
    put_number(out, location.generation.0);
    put_number(out, location.len);
}

pub(super) fn put_extent(out: &mut Vec<u8>, extent: Extent) {
    put_number(out, u64::from(extent.backing.0));
    put_number(out, extent.offset);
    put_number(out, extent.len);
}

pub(super) fn put_key(out: &mut Vec<u8>, key: &Key) {
    out.push(key.tag() as u8);
    put_number(out, key.bytes().len() as u64);
    out.extend_from_slice(key.bytes());
}

pub(super) fn put_process(out: &mut Vec<u8>, process: &ProcessIdentity) {
    put_number(out, u64::from(process.pid));
    put_number(out, process.start_time);
    put_number(out, process.namespace);
    put_number(out, process.inode);
}

/// A stored object with its name, as a commit records it.
pub(super) fn put_object(
    out: &mut Vec<u8>,
    key: &Key,
    location: &Location,
    meta: &ObjectMeta,
    client: ClientId,
) {
    put_location(out, location);
    put_number(out, client.0);
    let has = |there: bool, flag: u8| if there { flag } else { 0 };
    out.push(has(meta.layout.is_some(), HAS_LAYOUT) | has(meta.checksum.is_some(), HAS_CHECKSUM));
    if let Some(layout) = &meta.layout {
        out.extend_from_slice(&layout.0);
    }
    if let Some(checksum) = meta.checksum {
        out.extend_from_slice(&checksum.to_le_bytes());
    }
    put_key(out, key);
}

/// Appends a change and tells its kind.
pub(super) fn put_change(out: &mut Vec<u8>, change: &Change) -> u8 {
    match change {
        Change::Carve {
            region,
            extent,
            stride,
        } => {
            put_number(out, region.0);
            put_extent(out, *extent);
            put_number(out, *stride);
            kind::CARVE
        }
        Change::Dissolve { region } => {
            put_number(out, region.0);
            kind::DISSOLVE
        }
        Change::Grant {
            grant,
            client,
            request,
        } => {
            put_grant(out, *grant);
            put_number(out, client.0);
            put_number(out, *request);
            kind::GRANT
        }
        Change::Return { grant, client } => {
            put_grant(out, *grant);
            put_number(out, client.0);
            kind::RETURN
        }
        Change::Commit {
            key,
            location,
            meta,
            client,
        } => {
            put_object(out, key, location, meta, *client);
            kind::COMMIT
        }
        Change::Remove {
            key,
            location,
            reason,
        } => {
            put_location(out, location);
            out.push(match reason {
                RemoveReason::Deleted => 1,
                RemoveReason::Evicted => 2,
                RemoveReason::Drained => 3,
                RemoveReason::Lost => 4,
            });
            put_key(out, key);
            kind::REMOVE
        }
        Change::Release { page } => {
            put_page(out, *page);
            kind::RELEASE
        }
        Change::Pin { key, client, pin } => {
            put_number(out, client.0);
            put_number(out, *pin);
            put_key(out, key);
            kind::PIN
        }
        Change::Unpin { key, client, pin } => {
            put_number(out, client.0);
            put_number(out, *pin);
            put_key(out, key);
            kind::UNPIN
        }
        Change::Attach {
            client,
            process,
            instance,
        } => {
            put_number(out, client.0);
            put_process(out, process);
            out.extend_from_slice(instance);
            kind::ATTACH
        }
        Change::Detach { client } => {
            put_number(out, client.0);
            kind::DETACH
        }
    }
}

/// A change out of the payload of a record of this kind.
pub(super) fn read_change(kind: u8, payload: &[u8]) -> Result<Change, Malformed> {
    let mut bytes = Cursor(payload);
    let change = match kind {
        kind::CARVE => Change::Carve {
            region: bytes.region()?,
            extent: bytes.extent()?,
            stride: bytes.number()?,
        },
        kind::DISSOLVE => Change::Dissolve {
            region: bytes.region()?,
        },
        kind::GRANT => Change::Grant {
            grant: bytes.grant()?,
            client: bytes.client()?,
            request: bytes.number()?,
        },
        kind::RETURN => Change::Return {
            grant: bytes.grant()?,
            client: bytes.client()?,
        },
        kind::COMMIT => {
            let (key, object) = bytes.object()?;
            Change::Commit {
                key,
                location: object.location,
                meta: object.meta,
                client: object.client,
            }
        }
        kind::REMOVE => {
            let location = bytes.location()?;
            let reason = match bytes.byte()? {
                1 => RemoveReason::Deleted,
                2 => RemoveReason::Evicted,
                3 => RemoveReason::Drained,
                4 => RemoveReason::Lost,
                _ => return Err(Malformed("an unknown reason of a removal")),
            };
            Change::Remove {
                key: bytes.key()?,
                location,
                reason,
            }
        }
        kind::RELEASE => Change::Release {
            page: bytes.page()?,
        },
        kind::PIN | kind::UNPIN => {
            let (client, pin, key) = (bytes.client()?, bytes.number()?, bytes.key()?);
            if kind == kind::PIN {
                Change::Pin { key, client, pin }
            } else {
                Change::Unpin { key, client, pin }
            }
        }
        kind::ATTACH => Change::Attach {
            client: bytes.client()?,
            process: bytes.process()?,
            instance: bytes.array()?,
        },
        kind::DETACH => Change::Detach {
            client: bytes.client()?,
        },
        _ => return Err(Malformed("a record of an unknown kind")),
    };
    match bytes.0 {
        [] => Ok(change),
        _ => Err(Malformed("bytes behind the last field of a record")),
    }
}

/// Reads fields one after the other.
#[derive(Debug)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

const SHORT: Malformed = Malformed("a record that ends within a field");

impl<'a> Cursor<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.0.split_first().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }

    #[inline]
    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && byte > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed("a number above 64 bits"))
    }

    pub(super) fn number_u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a number above 32 bits"))
    }

    pub(super) fn region(&mut self) -> Result<RegionId, Malformed> {
        self.number().map(RegionId)
    }

    pub(super) fn client(&mut self) -> Result<ClientId, Malformed> {
        self.number().map(ClientId)
    }

    pub(super) fn extent(&mut self) -> Result<Extent, Malformed> {
        Ok(Extent {
            backing: BackingId(self.number_u32()?),
            offset: self.number()?,
            len: self.number()?,
        })
    }

    pub(super) fn page(&mut self) -> Result<PageId, Malformed> {
        Ok(PageId {
            region: self.region()?,
            index: self.number_u32()?,
        })
    }

    fn generation(&mut self) -> Result<Generation, Malformed> {
        self.number().map(Generation)
    }

    fn grant(&mut self) -> Result<Grant, Malformed> {
        Ok(Grant {
            page: self.page()?,
            generation: self.generation()?,
        })
    }

    fn location(&mut self) -> Result<Location, Malformed> {
        Ok(Location {
            page: self.page()?,
            generation: self.generation()?,
            len: self.number()?,
        })
    }

    pub(super) fn key(&mut self) -> Result<Key, Malformed> {
        let tag = self.byte()?;
        let len = self.number()?;
        let bytes = self.take(usize::try_from(len).map_err(|_| SHORT)?)?;
        Key::from_wire(tag, bytes).map_err(|_| Malformed("a key of an unknown tag or too long"))
    }

    pub(super) fn process(&mut self) -> Result<ProcessIdentity, Malformed> {
        Ok(ProcessIdentity {
            pid: self.number_u32()?,
            start_time: self.number()?,
            namespace: self.number()?,
            inode: self.number()?,
        })
    }

    pub(super) fn object(&mut self) -> Result<(Key, StoredObject), Malformed> {
        let location = self.location()?;
        let client = self.client()?;
        let flags = self.byte()?;
        if flags & !(HAS_LAYOUT | HAS_CHECKSUM) != 0 {
            return Err(Malformed("unknown flags of an object"));
        }
        let layout = match flags & HAS_LAYOUT {
            0 => None,
            _ => Some(LayoutFingerprint(self.array()?)),
        };
        let checksum = match flags & HAS_CHECKSUM {
            0 => None,
            _ => Some(u64::from_le_bytes(self.array()?)),
        };
        let object = StoredObject {
            location,
            meta: ObjectMeta { layout, checksum },
            client,
        };
        Ok((self.key()?, object))
    }
}
