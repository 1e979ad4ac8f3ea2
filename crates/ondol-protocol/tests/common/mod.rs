//! One example of every message, both ways, and of every error.

use ondol_plugin::{Key, KeyTag, RegionId, RegionSpan};
use ondol_protocol::wire::{
    Answer, DecodeError, FrameReader, Hello, Op, Request, encode_answer, encode_request,
};
use ondol_protocol::{
    Access, Breakdown, ClassStats, ClientId, ClientInfo, ClientStats, Commit, CommitOutcome,
    ControlError, DeleteOutcome, EngineStats, Grant, GrantRequest, Hit, IndexStats,
    LayoutFingerprint, Listing, ObjectInfo, ObjectMeta, Pin, PinOutcome, PoolStats, Prefetch,
    Prefetched, RefusedCommit, RegionInfo, Retrieve, Retrieved, StaleReason,
};
use ondol_shm::{BackingId, Generation, LeaseRef, Location, PageId, RegionHandle};

/// A message of either direction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    Request(Request),
    Answer(Op, Result<Answer, ControlError>),
}

impl Message {
    /// The message as a frame.
    pub(crate) fn encode(&self, sequence: u64) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Request(request) => {
                encode_request(&mut out, sequence, request.as_ref()).unwrap();
            }
            Self::Answer(op, answer) => {
                encode_answer(&mut out, *op as u8, sequence, answer.as_ref());
            }
        }
        out
    }

    /// Reads one frame, which must be all there is.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<(u64, Self), DecodeError> {
        let mut frames = FrameReader::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = frames.space();
            let len = space.len().min(rest.len());
            space[..len].copy_from_slice(&rest[..len]);
            frames.filled(len);
            rest = &rest[len..];
        }
        let frame = frames.frame()?.expect("a whole frame");
        let sequence = frame.header.sequence;
        let message = match self {
            Self::Request(_) => Self::Request(Request::decode(&frame.header, frame.payload)?),
            Self::Answer(..) => Self::Answer(
                Op::from_u8(frame.header.op)?,
                Answer::decode(&frame.header, frame.payload)?,
            ),
        };
        frames.consume();
        assert!(!frames.is_started(), "bytes behind the frame");
        Ok((sequence, message))
    }
}

/// Every example, with the name of its file.
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub(crate) fn examples() -> Vec<(String, Message)> {
    let requests = requests().into_iter().map(|request| {
        let op = request.as_ref().op();
        (name(op, "request"), Message::Request(request))
    });
    let answers = answers().into_iter().map(|answer| {
        let op = answer.op();
        (name(op, "answer"), Message::Answer(op, Ok(answer)))
    });
    let errors = errors().into_iter().map(|(name, error)| {
        let message = Message::Answer(Op::Grant, Err(error));
        (format!("error-{name}.answer"), message)
    });
    let none = Message::Answer(Op::Index, Ok(Answer::NoIndex));
    let none = [("11-index-none.answer".to_owned(), none)];
    requests.chain(answers).chain(none).chain(errors).collect()
}

fn name(op: Op, direction: &str) -> String {
    let mut words = String::new();
    for letter in format!("{op:?}").chars() {
        if letter.is_uppercase() {
            words.push('-');
        }
        words.push(letter.to_ascii_lowercase());
    }
    format!("{:02x}{words}.{direction}", op as u8)
}

fn keys() -> Vec<Key> {
    vec![
        Key::text("prompt/0").unwrap(),
        Key::new(KeyTag::LmCache, b"llama@1@0@c0ffee").unwrap(),
        Key::new(KeyTag::Raw, &[0, 255]).unwrap(),
    ]
}

fn pins() -> Vec<Pin> {
    let numbered = |(number, key)| Pin { key, number };
    (0x0102_0304_0506_0708..)
        .zip(keys())
        .map(numbered)
        .collect()
}

fn location() -> Location {
    Location {
        page: PageId {
            region: RegionId(7),
            index: 3,
        },
        generation: Generation(42),
        len: 1_048_576,
    }
}

fn layout() -> LayoutFingerprint {
    LayoutFingerprint(std::array::from_fn(|index| 0xa0 + index as u8))
}

fn metas() -> [ObjectMeta; 4] {
    let (layout, checksum) = (layout(), 0x1122_3344_5566_7788);
    [
        ObjectMeta::default(),
        ObjectMeta {
            layout: Some(layout),
            checksum: None,
        },
        ObjectMeta {
            layout: None,
            checksum: Some(checksum),
        },
        ObjectMeta {
            layout: Some(layout),
            checksum: Some(checksum),
        },
    ]
}

fn handle() -> RegionHandle {
    RegionHandle {
        span: RegionSpan {
            region_id: RegionId(7),
            offset: 4_194_304,
            length: 2_097_152,
        },
        token: std::array::from_fn(|index| index as u8),
    }
}

fn grants() -> Vec<Grant> {
    (0..2)
        .map(|index| Grant {
            page: PageId {
                region: RegionId(7),
                index,
            },
            generation: Generation(41 + u64::from(index)),
        })
        .collect()
}

fn requests() -> Vec<Request> {
    let commits = keys().into_iter().zip(metas()).map(|(key, meta)| Commit {
        key,
        location: location(),
        meta,
    });
    let leases = (0..3).map(|slot| LeaseRef {
        slot,
        sequence: 10 + u64::from(slot),
    });
    vec![
        Request::Hello(Hello {
            instance: std::array::from_fn(|index| 0x10 + index as u8),
            start_time: 123_456,
            incarnation: 0,
        }),
        Request::Regions { after: 6 },
        Request::OpenBacking {
            handle: handle(),
            access: Access::Write,
        },
        Request::Grant(GrantRequest {
            request: 99,
            stride: 1_048_576,
            count: 16,
        }),
        Request::ReturnPages(grants()),
        Request::Commit(commits.collect()),
        Request::Retrieve(Retrieve {
            keys: keys(),
            leases: leases.collect(),
            group: 3,
            prefix: true,
            expect: Some(layout()),
            wait_ms: 2500,
            expected_len: 65_536,
        }),
        Request::Locate(keys()),
        Request::Pin(pins()),
        Request::Unpin(pins()),
        Request::Delete(Vec::new()),
        Request::List {
            after: keys().pop(),
            limit: 1000,
        },
        Request::Stats,
        Request::Ping,
        Request::Leave,
        Request::Prefetch(Prefetch {
            keys: keys(),
            group: 3,
            prefix: true,
            expected_len: 65_536,
            wait_ms: 2500,
        }),
        Request::Index,
    ]
}

fn answers() -> Vec<Answer> {
    let hits: Vec<Option<Hit>> = metas()
        .into_iter()
        .map(|meta| {
            let location = location();
            Some(Hit { location, meta })
        })
        .chain([None])
        .collect();
    let region = |path: Option<&str>| RegionInfo {
        handle: handle(),
        stride: 1_048_576,
        backing: BackingId(1),
        backing_len: 1 << 30,
        path: path.map(Into::into),
    };
    let stale = [
        StaleReason::UnknownPage,
        StaleReason::OldGeneration,
        StaleReason::NotGranted,
    ];
    let refused = stale.map(|reason| CommitOutcome::Refused(reason.into()));
    vec![
        Answer::Hello(ClientInfo {
            id: ClientId(5),
            share_limit: 1 << 28,
            max_page_bytes: 1 << 30,
            incarnation: 0xfeed_f00d_dead_beef,
        }),
        Answer::Regions {
            regions: vec![region(Some("/dev/shm/ondol-0")), region(None)],
            more: true,
        },
        Answer::OpenBacking,
        Answer::Grant(grants()),
        Answer::ReturnPages([Ok(())].into_iter().chain(stale.map(Err)).collect()),
        Answer::Commit(
            [CommitOutcome::Stored, CommitOutcome::AlreadyPresent]
                .into_iter()
                .chain(refused)
                .chain([
                    CommitOutcome::Refused(RefusedCommit::TooLong {
                        len: 5000,
                        stride: 4096,
                    }),
                    CommitOutcome::Refused(RefusedCommit::NotRecorded),
                ])
                .collect(),
        ),
        Answer::Retrieve(Retrieved {
            hits: hits.clone(),
            mismatches: 2,
            pending: true,
        }),
        Answer::Locate(hits),
        Answer::Pin(vec![PinOutcome::Done, PinOutcome::Absent]),
        Answer::Unpin(vec![PinOutcome::Absent, PinOutcome::Done]),
        Answer::Delete(vec![
            DeleteOutcome::Deleted,
            DeleteOutcome::Absent,
            DeleteOutcome::Pinned,
        ]),
        Answer::List(Listing {
            objects: keys()
                .into_iter()
                .zip(metas())
                .map(|(key, meta)| ObjectInfo {
                    key,
                    location: location(),
                    meta,
                    leases: 1,
                    pins: 2,
                })
                .collect(),
            more: false,
        }),
        Answer::Stats(Box::new(EngineStats {
            pool: PoolStats {
                devices: vec!["shm:?size=1GiB".to_owned()],
                total_bytes: 1 << 30,
                free_bytes: 1 << 20,
                largest_free_extent: 1 << 20,
                regions: 1,
            },
            classes: vec![ClassStats {
                stride: 1_048_576,
                regions: 1,
                pages: 8,
                free: 1,
                granted: 2,
                committed: 5,
            }],
            clients: vec![ClientStats {
                id: 5,
                pid: 4711,
                leases: 3,
                oldest_lease_ms: Some(1500),
                ..ClientStats::default()
            }],
            objects: 5,
            object_bytes: 5_000_000,
            retired: 0,
            policy: "lru".to_owned(),
            index: Some(IndexStats {
                generation: 2,
                objects: 5,
                unindexed: 0,
                bytes: 1 << 20,
            }),
            counters: [("ondol_examples_total".to_owned(), 3)].into(),
            l2: None,
        })),
        Answer::Ping,
        Answer::Leave,
        Answer::Prefetch(Prefetched {
            found: vec![true, false, true],
            pending: true,
        }),
        Answer::Index,
    ]
}

fn errors() -> Vec<(&'static str, ControlError)> {
    vec![
        (
            "pool-full",
            ControlError::PoolFull(Breakdown {
                asked: 1,
                leased: 2,
                pinned: 3,
                granted: 4,
                captive: 5,
                other_classes: 6,
                free: 7,
                largest_free_extent: 8,
            }),
        ),
        (
            "share-exceeded",
            ControlError::ShareExceeded {
                asked: 1,
                held: 2,
                limit: 3,
            },
        ),
        (
            "refused",
            ControlError::Refused("no such region".to_owned()),
        ),
        ("failed", ControlError::Failed("out of memory".to_owned())),
        (
            "disconnected",
            ControlError::Disconnected {
                reason: "started again".to_owned(),
                sent: true,
            },
        ),
        ("timed-out", ControlError::TimedOut { waited_ms: 10_000 }),
        ("protocol", ControlError::Protocol("한글".to_owned())),
        (
            "unknown-client",
            ControlError::UnknownClient("started again".to_owned()),
        ),
    ]
}
