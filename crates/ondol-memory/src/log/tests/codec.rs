//! Every change comes back as it went, and no bytes make a decoder fail in another way than with an error.

use ondol_plugin::RegionId;
use ondol_plugin::{Key, KeyTag};
use ondol_shm::{
    BackingId, ClientId, Generation, Grant, LayoutFingerprint, Location, ObjectMeta, PageId,
    ProcessIdentity,
};
use proptest::prelude::*;

use super::super::codec::{put_change, read_change};
use super::super::format::{MAX_PAYLOAD, begin_record, finish_record, read_record};
use super::*;
use crate::{Extent, RemoveReason};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..200_u64, any::<u64>(), Just(u64::MAX)]
}

fn page() -> impl Strategy<Value = PageId> {
    (number(), any::<u32>()).prop_map(|(region, index)| PageId {
        region: RegionId(region),
        index,
    })
}

fn grant() -> impl Strategy<Value = Grant> {
    (page(), number()).prop_map(|(page, generation)| Grant {
        page,
        generation: Generation(generation),
    })
}

fn location() -> impl Strategy<Value = Location> {
    (grant(), number()).prop_map(|(Grant { page, generation }, len)| Location {
        page,
        generation,
        len,
    })
}

fn key() -> impl Strategy<Value = Key> {
    let tag = prop_oneof![
        Just(KeyTag::MessagePack),
        Just(KeyTag::LmCache),
        Just(KeyTag::Raw)
    ];
    let bytes = proptest::collection::vec(any::<u8>(), 0..=ondol_plugin::MAX_KEY_BYTES);
    (tag, bytes).prop_map(|(tag, bytes)| Key::new(tag, &bytes).unwrap())
}

fn client() -> impl Strategy<Value = ClientId> {
    number().prop_map(ClientId)
}

fn change() -> impl Strategy<Value = Change> {
    let reason = prop_oneof![
        Just(RemoveReason::Deleted),
        Just(RemoveReason::Evicted),
        Just(RemoveReason::Drained),
        Just(RemoveReason::Lost),
    ];
    let layout = proptest::option::of(any::<[u8; 16]>().prop_map(LayoutFingerprint));
    let meta = (layout, proptest::option::of(any::<u64>()))
        .prop_map(|(layout, checksum)| ObjectMeta { layout, checksum });
    let process = (any::<u32>(), number(), number(), number()).prop_map(
        |(pid, start_time, namespace, inode)| ProcessIdentity {
            pid,
            start_time,
            namespace,
            inode,
        },
    );
    prop_oneof![
        (number(), any::<u32>(), number(), number(), number()).prop_map(
            |(region, backing, offset, len, stride)| Change::Carve {
                region: RegionId(region),
                extent: Extent {
                    backing: BackingId(backing),
                    offset,
                    len
                },
                stride,
            }
        ),
        number().prop_map(|region| Change::Dissolve {
            region: RegionId(region)
        }),
        (grant(), client(), number()).prop_map(|(grant, client, request)| Change::Grant {
            grant,
            client,
            request
        }),
        (grant(), client()).prop_map(|(grant, client)| Change::Return { grant, client }),
        (key(), location(), meta, client()).prop_map(|(key, location, meta, client)| {
            Change::Commit {
                key,
                location,
                meta,
                client,
            }
        }),
        (key(), location(), reason).prop_map(|(key, location, reason)| Change::Remove {
            key,
            location,
            reason
        }),
        page().prop_map(|page| Change::Release { page }),
        (key(), client(), number()).prop_map(|(key, client, pin)| Change::Pin { key, client, pin }),
        (key(), client(), number()).prop_map(|(key, client, pin)| Change::Unpin {
            key,
            client,
            pin
        }),
        (client(), process, any::<[u8; 16]>()).prop_map(|(client, process, instance)| {
            Change::Attach {
                client,
                process,
                instance,
            }
        }),
        client().prop_map(|client| Change::Detach { client }),
    ]
}

proptest! {
    #[test]
    fn a_change_comes_back_as_it_went(change in change(), at in 0..1_u64 << 40, before in 0..1000_u64) {
        let identity = Identity::new(POOL);
        let (batch, position) = (at * 8, (at + before) * 8);
        let mut bytes = Vec::new();
        let start = begin_record(&mut bytes);
        let kind = put_change(&mut bytes, &change);
        prop_assert!(bytes.len() <= MAX_PAYLOAD);
        finish_record(&mut bytes, start, kind, position, batch, &identity);
        let record = read_record(&bytes, position, &identity).unwrap();
        prop_assert_eq!((record.batch, record.size), (batch, bytes.len()));
        prop_assert_eq!(read_change(record.kind, record.payload).unwrap(), change);
        prop_assert!(read_record(&bytes, position + 8, &identity).is_none());
        prop_assert!(read_record(&bytes, position, &Identity::new(PoolId([8; 16]))).is_none());
        for cut in 0..record.payload.len() {
            prop_assert!(read_change(record.kind, &record.payload[..cut]).is_err());
        }
    }

    #[test]
    fn no_payload_is_more_than_an_error(kind: u8, payload in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_change(kind, &payload);
    }
}

/// The example of `docs/log.md`.
#[test]
fn the_format_stays_what_it_is() {
    let pool = PoolId(std::array::from_fn(|at| at as u8));
    let change = Change::Grant {
        grant: Grant {
            page: PageId {
                region: RegionId(1),
                index: 300,
            },
            generation: Generation(2),
        },
        client: ClientId(3),
        request: 4,
    };
    let mut bytes = Vec::new();
    let start = begin_record(&mut bytes);
    let kind = put_change(&mut bytes, &change);
    finish_record(&mut bytes, start, kind, 64, 64, &Identity::new(pool));
    let header = format::FileHeader {
        magic: format::SEGMENT_MAGIC,
        pool,
        position: 0,
        len: 64 << 20,
    };
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    assert_eq!(
        hex(&header.encode()),
        "4f4e444f4c4c4f470100000000000000000102030405060708090a0b0c0d0e0f\
         000000000000000000000004000000000000000000000000f256bef8b7212a34"
    );
    assert_eq!(
        hex(&bytes),
        "36e9a0199037349a060003010000000001ac020203040000"
    );
}
