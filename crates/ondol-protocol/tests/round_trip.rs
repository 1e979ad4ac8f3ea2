//! Every message says on arrival what it said when it left.

mod common;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use common::Message;
use ondol_plugin::{Key, KeyTag, RegionId, RegionSpan};
use ondol_protocol::wire::{Answer, Hello, Op, Request};
use ondol_protocol::{
    Access, Breakdown, ClientId, ClientInfo, Commit, CommitOutcome, ControlError, DeleteOutcome,
    EngineStats, Grant, GrantRequest, Hit, LayoutFingerprint, Listing, ObjectInfo, ObjectMeta, Pin,
    PinOutcome, Prefetch, Prefetched, RefusedCommit, RegionInfo, Retrieve, Retrieved, StaleReason,
};
use ondol_shm::{BackingId, Generation, LeaseRef, Location, PageId, RegionHandle};
use proptest::array::{uniform16, uniform32};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn key() -> impl Strategy<Value = Key> {
    let tag = prop_oneof![
        Just(KeyTag::MessagePack),
        Just(KeyTag::LmCache),
        Just(KeyTag::Raw)
    ];
    let bytes = prop_oneof![4 => vec(any::<u8>(), 0..40), 1 => vec(any::<u8>(), 1000..=1024)];
    (tag, bytes).prop_map(|(tag, bytes)| Key::new(tag, &bytes).unwrap())
}

fn keys() -> impl Strategy<Value = Vec<Key>> {
    vec(key(), 0..20)
}

fn pins() -> impl Strategy<Value = Vec<Pin>> {
    vec(
        (key(), any::<u64>()).prop_map(|(key, number)| Pin { key, number }),
        0..20,
    )
}

fn page() -> impl Strategy<Value = PageId> {
    any::<(u64, u32)>().prop_map(|(region, index)| PageId {
        region: RegionId(region),
        index,
    })
}

fn location() -> impl Strategy<Value = Location> {
    (page(), any::<(u64, u64)>()).prop_map(|(page, (generation, len))| Location {
        page,
        generation: Generation(generation),
        len,
    })
}

fn layout() -> impl Strategy<Value = LayoutFingerprint> {
    uniform16(any::<u8>()).prop_map(LayoutFingerprint)
}

fn meta() -> impl Strategy<Value = ObjectMeta> {
    (option::of(layout()), any::<Option<u64>>())
        .prop_map(|(layout, checksum)| ObjectMeta { layout, checksum })
}

fn hit() -> impl Strategy<Value = Hit> {
    (location(), meta()).prop_map(|(location, meta)| Hit { location, meta })
}

fn handle() -> impl Strategy<Value = RegionHandle> {
    (any::<(u64, u64, u64)>(), uniform32(any::<u8>())).prop_map(
        |((region_id, offset, length), token)| RegionHandle {
            span: RegionSpan {
                region_id: RegionId(region_id),
                offset,
                length,
            },
            token,
        },
    )
}

fn grant() -> impl Strategy<Value = Grant> {
    (page(), any::<u64>()).prop_map(|(page, generation)| Grant {
        page,
        generation: Generation(generation),
    })
}

fn commit() -> impl Strategy<Value = Commit> {
    (key(), hit()).prop_map(|(key, Hit { location, meta })| Commit {
        key,
        location,
        meta,
    })
}

fn retrieve() -> impl Strategy<Value = Retrieve> {
    let lease = any::<(u32, u64)>().prop_map(|(slot, sequence)| LeaseRef { slot, sequence });
    (
        vec((key(), lease), 0..20),
        1..=u32::MAX,
        any::<bool>(),
        option::of(layout()),
        any::<(u32, u64)>(),
    )
        .prop_map(|(pairs, group, prefix, expect, (wait_ms, expected_len))| {
            let (keys, leases) = pairs.into_iter().unzip();
            Retrieve {
                keys,
                leases,
                group,
                prefix,
                expect,
                wait_ms,
                expected_len,
            }
        })
}

fn prefetch() -> impl Strategy<Value = Prefetch> {
    (vec(key(), 0..20), 1..=u32::MAX, any::<(bool, u64, u32)>()).prop_map(
        |(keys, group, (prefix, expected_len, wait_ms))| Prefetch {
            keys,
            group,
            prefix,
            expected_len,
            wait_ms,
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
    prop_oneof![
        (uniform16(any::<u8>()), any::<(u64, u64)>()).prop_map(
            |(instance, (start_time, incarnation))| Request::Hello(Hello {
                instance,
                start_time,
                incarnation
            })
        ),
        any::<u64>().prop_map(|after| Request::Regions { after }),
        (handle(), access).prop_map(|(handle, access)| Request::OpenBacking { handle, access }),
        any::<(u64, u64, u32)>().prop_map(|(request, stride, count)| {
            Request::Grant(GrantRequest {
                request,
                stride,
                count,
            })
        }),
        vec(grant(), 0..20).prop_map(Request::ReturnPages),
        vec(commit(), 0..20).prop_map(|commits| Request::Commit(commits.into())),
        retrieve().prop_map(Request::Retrieve),
        prefetch().prop_map(Request::Prefetch),
        keys().prop_map(Request::Locate),
        pins().prop_map(Request::Pin),
        pins().prop_map(Request::Unpin),
        keys().prop_map(Request::Delete),
        (option::of(key()), any::<u32>()).prop_map(|(after, limit)| Request::List { after, limit }),
        Just(Request::Stats),
        Just(Request::Ping),
        Just(Request::Leave),
        Just(Request::Index),
    ]
}

fn stale() -> impl Strategy<Value = StaleReason> {
    prop_oneof![
        Just(StaleReason::UnknownPage),
        Just(StaleReason::OldGeneration),
        Just(StaleReason::NotGranted)
    ]
}

fn commit_outcome() -> impl Strategy<Value = CommitOutcome> {
    prop_oneof![
        Just(CommitOutcome::Stored),
        Just(CommitOutcome::AlreadyPresent),
        stale().prop_map(|reason| CommitOutcome::Refused(reason.into())),
        any::<(u64, u64)>().prop_map(|(len, stride)| {
            CommitOutcome::Refused(RefusedCommit::TooLong { len, stride })
        }),
        Just(CommitOutcome::Refused(RefusedCommit::NotRecorded)),
    ]
}

fn region() -> impl Strategy<Value = RegionInfo> {
    // Paths need not be UTF-8.
    let path = vec(1..=u8::MAX, 0..200).prop_map(|bytes| OsString::from_vec(bytes).into());
    (handle(), any::<(u64, u32, u64)>(), option::of(path)).prop_map(
        |(handle, (stride, backing, backing_len), path)| RegionInfo {
            handle,
            stride,
            backing: BackingId(backing),
            backing_len,
            path,
        },
    )
}

fn pin_outcomes() -> impl Strategy<Value = Vec<PinOutcome>> {
    vec(
        prop_oneof![Just(PinOutcome::Done), Just(PinOutcome::Absent)],
        0..20,
    )
}

fn answer() -> impl Strategy<Value = Answer> {
    let object = (key(), hit(), any::<(u32, u32)>()).prop_map(
        |(key, Hit { location, meta }, (leases, pins))| ObjectInfo {
            key,
            location,
            meta,
            leases,
            pins,
        },
    );
    let deleted = prop_oneof![
        Just(DeleteOutcome::Deleted),
        Just(DeleteOutcome::Absent),
        Just(DeleteOutcome::Pinned)
    ];
    let stats = (any::<(u64, u64)>(), ".*").prop_map(|((objects, count), policy)| {
        Answer::Stats(Box::new(EngineStats {
            objects,
            counters: [(policy.clone(), count)].into(),
            policy,
            ..EngineStats::default()
        }))
    });
    prop_oneof![
        any::<(u64, u64, u64, u64)>().prop_map(|(id, share_limit, max_page_bytes, incarnation)| {
            Answer::Hello(ClientInfo {
                id: ClientId(id),
                share_limit,
                max_page_bytes,
                incarnation,
            })
        }),
        (vec(region(), 0..10), any::<bool>())
            .prop_map(|(regions, more)| Answer::Regions { regions, more }),
        Just(Answer::OpenBacking),
        vec(grant(), 0..20).prop_map(Answer::Grant),
        vec(option::of(stale()), 0..20).prop_map(|results| Answer::ReturnPages(
            results
                .into_iter()
                .map(|reason| reason.map_or(Ok(()), Err))
                .collect()
        )),
        vec(commit_outcome(), 0..20).prop_map(|outcomes| Answer::Commit(outcomes.into())),
        (vec(option::of(hit()), 0..20), any::<u32>(), any::<bool>()).prop_map(
            |(hits, mismatches, pending)| Answer::Retrieve(Retrieved {
                hits,
                mismatches,
                pending
            })
        ),
        (vec(any::<bool>(), 0..20), any::<bool>())
            .prop_map(|(found, pending)| Answer::Prefetch(Prefetched { found, pending })),
        vec(option::of(hit()), 0..20).prop_map(Answer::Locate),
        pin_outcomes().prop_map(Answer::Pin),
        pin_outcomes().prop_map(Answer::Unpin),
        vec(deleted, 0..20).prop_map(Answer::Delete),
        (vec(object, 0..20), any::<bool>())
            .prop_map(|(objects, more)| Answer::List(Listing { objects, more })),
        stats,
        Just(Answer::Ping),
        Just(Answer::Leave),
        Just(Answer::Index),
        Just(Answer::NoIndex),
    ]
}

fn error() -> impl Strategy<Value = ControlError> {
    // At most 4 bytes a character.
    let text = || ".{0,1024}";
    prop_oneof![
        any::<[u64; 8]>().prop_map(
            |[
                asked,
                leased,
                pinned,
                granted,
                captive,
                other_classes,
                free,
                largest_free_extent,
            ]| ControlError::PoolFull(Breakdown {
                asked,
                leased,
                pinned,
                granted,
                captive,
                other_classes,
                free,
                largest_free_extent
            })
        ),
        any::<(u64, u64, u64)>().prop_map(|(asked, held, limit)| ControlError::ShareExceeded {
            asked,
            held,
            limit
        }),
        text().prop_map(ControlError::Refused),
        text().prop_map(ControlError::Failed),
        (text(), any::<bool>())
            .prop_map(|(reason, sent)| ControlError::Disconnected { reason, sent }),
        any::<u64>().prop_map(|waited_ms| ControlError::TimedOut { waited_ms }),
        text().prop_map(ControlError::Protocol),
        text().prop_map(ControlError::UnknownClient),
    ]
}

proptest! {
    #[test]
    fn a_request_arrives_as_it_left(request in request(), sequence: u64) {
        let message = Message::Request(request);
        prop_assert_eq!(message.decode(&message.encode(sequence)), Ok((sequence, message)));
    }

    #[test]
    fn an_answer_arrives_as_it_left(answer in answer(), sequence: u64) {
        let message = Message::Answer(answer.op(), Ok(answer));
        prop_assert_eq!(message.decode(&message.encode(sequence)), Ok((sequence, message)));
    }

    #[test]
    fn an_error_arrives_as_it_left(error in error(), sequence: u64) {
        for op in Op::ALL {
            let message = Message::Answer(op, Err(error.clone()));
            prop_assert_eq!(message.decode(&message.encode(sequence)), Ok((sequence, message)));
        }
    }
}
