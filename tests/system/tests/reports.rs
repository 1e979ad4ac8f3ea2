//! Faults that users of other systems reported, each as a test that it cannot happen here. The numbers name the
//! reports; `REPORTS.md` lists all of them with their tests.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ondol_handler::{
    ControlError, DeleteOutcome, Expect, Handler, HandlerError, Key, KeyTag, Layout, Object,
    PageMut, Stored,
};
use ondol_tests::{
    Actor, Call, Lossy, Random, Server, check, eventually, fill, key, keys, plain, watchdog,
};

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGE: u64 = 65_536;
const LIMIT: Duration = Duration::from_secs(120);

fn page(handler: &Handler, text: &str, writer: u64) -> PageMut {
    let mut page = handler.alloc(PAGE as usize).unwrap();
    fill(&mut page, text, writer);
    page
}

fn put(handler: &Handler, text: &str, writer: u64) -> Stored {
    handler
        .store(&key(text), page(handler, text, writer))
        .unwrap()
}

fn put_many(handler: &Handler, prefix: &str, count: usize, writer: u64) {
    for index in 0..count {
        put(handler, &format!("{prefix}{index}"), writer);
    }
}

fn get(handler: &Handler, text: &str) -> Option<Object> {
    handler.retrieve(&key(text)).unwrap()
}

fn take_all(handler: &Handler) -> Vec<PageMut> {
    let mut pages = Vec::new();
    loop {
        match handler.alloc(PAGE as usize) {
            Ok(page) => pages.push(page),
            Err(HandlerError::Control(ControlError::PoolFull(_))) => return pages,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A handler whose answers can be lost.
fn lossy(server: &Server) -> (Handler, Arc<Lossy>) {
    let lossy = Lossy::new(server.engine.attach(None, [0; 16]).unwrap());
    let plane = Arc::clone(&lossy);
    let handler = Handler::embedded(move || Ok(Arc::clone(&plane)), plain(&[PAGE])).unwrap();
    (handler, lossy)
}

#[test]
fn a_reservation_is_never_readable_before_its_commit() {
    // LMCache/LMCache#4967: an expired write reservation became readable before the write had finished.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let mut writer = Actor::client(ACTOR, server.socket());
    let handler = server.handler(plain(&[PAGE]));
    writer.ok(&format!("alloc page {PAGE}"));
    writer.ok("half page k 1");
    let absent = |when: &str| {
        assert!(!handler.exists(&key("k")).unwrap(), "{when}");
        assert!(get(&handler, "k").is_none(), "{when}");
        assert!(handler.list(None, 10).unwrap().objects.is_empty(), "{when}");
    };
    absent("half written");
    writer.freeze();
    // All the rest of the pool is used meanwhile; the reserved page is not.
    assert_eq!(take_all(&handler).len(), 31);
    absent("its writer stopped");
    writer.thaw();
    writer.ok("fill page k 1");
    absent("whole, but not committed");
    let pid = writer.pid();
    writer.kill();
    eventually("the reservation is aborted", || {
        server.clients_of(pid).is_empty()
    });
    absent("its writer dead");
    // Freed once: exactly all pages are there.
    assert_eq!(take_all(&handler).len(), 32);
}

#[test]
fn a_slow_reader_never_sees_mixed_bytes() {
    // kvcache-ai/Mooncake#4239, kvcache-ai/Mooncake#778, kvcache-ai/Mooncake#374: the payload was reclaimed while it
    // was being transferred.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    let other = server.handler(plain(&[PAGE]));
    for generation in 0..4 {
        put(&handler, "slow", generation);
        let object = get(&handler, "slow").unwrap();
        let mut copy = Vec::new();
        for (step, part) in object.chunks(PAGE as usize / 8).enumerate() {
            copy.extend_from_slice(part);
            // Between two parts the key is given up, rewritten, and all of the pool used for others.
            if step == 0 {
                assert_eq!(other.delete(&key("slow")).unwrap(), DeleteOutcome::Deleted);
                put(&other, "slow", 100 + generation);
            }
            put_many(&other, &format!("{step}/"), 40, 9);
        }
        assert_eq!(check(&copy, "slow"), Ok(generation));
        drop(object);
        let rewritten = get(&handler, "slow");
        assert!(rewritten.is_none_or(|object| check(&object, "slow") == Ok(100 + generation)));
        other.delete(&key("slow")).unwrap();
    }
}

#[test]
fn bytes_of_another_dtype_shape_layout_or_rank_are_a_miss() {
    // sgl-project/sglang#33268, vllm-project/vllm#54338: bf16 bytes were read as fp8.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let stored = Layout::new("llama/rev7", "bf16", &[2, 32, 256, 8, 128], "nhd/tp0of2");
    let with = |layout: &Layout| {
        let mut config = plain(&[PAGE]);
        config.layout = Some(layout.fingerprint());
        server.handler(config)
    };
    let owner = with(&stored);
    put(&owner, "k", 1);
    let others = [
        Layout {
            dtype: "fp8".into(),
            ..stored.clone()
        },
        Layout {
            shape: vec![2, 32, 128, 8, 256],
            ..stored.clone()
        },
        Layout {
            layout: "hnd/tp0of2".into(),
            ..stored.clone()
        },
        Layout {
            layout: "nhd/tp1of2".into(),
            ..stored.clone()
        },
        Layout {
            model: "llama/rev8".into(),
            ..stored.clone()
        },
    ];
    for (count, layout) in (1..).zip(&others) {
        let reader = with(layout);
        let names = [key("k")];
        assert!(reader.retrieve(&names[0]).unwrap().is_none(), "{layout:?}");
        assert!(reader.match_prefix(&names).unwrap().is_empty());
        assert!(reader.retrieve_group(&names).unwrap().is_none());
        assert!(!reader.stage(&names).ready());
        assert_eq!(reader.counts().layout_mismatches, 4);
        assert_eq!((reader.counts().hits, reader.counts().leases), (0, 0));
        assert_eq!(server.counter("ondol_layout_mismatches_total"), 4 * count);
    }
    assert_eq!(check(&get(&owner, "k").unwrap(), "k"), Ok(1));
    // What states no layout is not taken for one that is expected.
    let plain = server.handler(plain(&[PAGE]));
    put(&plain, "bare", 1);
    assert!(get(&owner, "bare").is_none());
    assert!(
        get(&plain, "k").is_some(),
        "who expects nothing gets everything"
    );
}

#[test]
fn two_checkpoints_of_one_name_do_not_share_objects() {
    // sgl-project/sglang#24758: two checkpoints with one served name shared their pages.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    let expect = |model: &str| Expect {
        layout: Some(Layout::new(model, "bf16", &[1], "nhd").fingerprint()),
        verify: true,
        wait: Duration::ZERO,
        object_bytes: None,
    };
    let meta = ondol_protocol::ObjectMeta {
        layout: expect("served/weights-a").layout,
        checksum: None,
    };
    handler
        .store_with(&key("k"), page(&handler, "k", 1), meta)
        .unwrap();
    assert!(
        handler
            .retrieve_with(&key("k"), expect("served/weights-b"))
            .unwrap()
            .is_none()
    );
    assert!(
        handler
            .retrieve_with(&key("k"), expect("served/weights-a"))
            .unwrap()
            .is_some()
    );
}

#[test]
fn a_damaged_object_is_a_miss_and_counted() {
    // kvcache-ai/Mooncake#3089 and others: a torn object was served.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let mut config = plain(&[PAGE]);
    config.checksum = true;
    let handler = server.handler(config);
    let meta = ondol_protocol::ObjectMeta {
        layout: None,
        checksum: Some(1),
    };
    handler
        .store_with(&key("torn"), page(&handler, "torn", 1), meta)
        .unwrap();
    put(&handler, "whole", 1);
    let names = ["whole", "torn", "whole"].map(key);
    assert!(handler.retrieve(&names[1]).unwrap().is_none());
    assert_eq!(handler.match_prefix(&names).unwrap().len(), 1);
    assert!(handler.retrieve_group(&names).unwrap().is_none());
    let found = handler.batch_retrieve(&names).unwrap();
    assert_eq!(
        found.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, false, true]
    );
    drop(found);
    assert_eq!(handler.counts().checksum_mismatches, 4);
    assert_eq!(handler.counts().leases, 0);
}

#[test]
fn a_group_is_never_found_in_part() {
    // sgl-project/sglang#31108: existence was checked in two pools, one of which evicted before the read.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    let other = server.handler(plain(&[PAGE]));
    let names = keys("rank", 4);
    let store = |writer| put_many(&other, "rank", 4, writer);
    store(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::seeded("group");
            for round in 1..400 {
                let lost = random.below(4) as usize;
                other.delete(&names[lost]).unwrap();
                if random.once_in(8) {
                    put_many(&other, "x", 32, 9);
                }
                store(round);
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let batch: Vec<_> = [&names[..], &names[..]].concat();
            let prefix = handler.match_prefix_groups(&batch, 4).unwrap();
            assert!(
                prefix.len().is_multiple_of(4),
                "{} of a group of 4",
                prefix.len()
            );
            if let Some(group) = handler.retrieve_group(&names).unwrap() {
                assert_eq!(group.len(), 4);
                for (index, object) in group.iter().enumerate() {
                    check(object, &format!("rank{index}")).unwrap();
                }
            }
        }
    });
    // Existence is a hint: one member goes between the look and the read, and the whole group is a miss.
    store(1000);
    assert_eq!(handler.batch_exists(&names).unwrap(), [true; 4]);
    other.delete(&names[2]).unwrap();
    assert!(handler.retrieve_group(&names).unwrap().is_none());
    assert_eq!(handler.match_prefix(&names).unwrap().len(), 2);
    assert!(handler.match_prefix_groups(&names, 4).unwrap().is_empty());
    assert_eq!(handler.counts().leases, 0);
}

#[test]
fn of_two_writers_of_one_key_exactly_one_wins() {
    // sgl-project/sglang#26670: ranks raced for one key; sgl-project/sglang#8901: what was not copied yet was counted
    // as there.
    let _watchdog = watchdog("reports", LIMIT);
    // With room for all: a key that was evicted is free to win again.
    let server = Server::start(16);
    let handlers: Vec<_> = (0..3).map(|_| server.handler(plain(&[PAGE]))).collect();
    let mut rival = Actor::client(ACTOR, server.socket());
    for round in 0..40 {
        let text = format!("k{round}");
        rival.tell(&format!("put {text} {PAGE} 99"));
        let winners: Vec<u64> = thread::scope(|scope| {
            let threads: Vec<_> = (0_u64..)
                .zip(&handlers)
                .map(|(writer, handler)| {
                    let text = &text;
                    scope.spawn(move || {
                        let won = put(handler, text, writer) == Stored::New;
                        // Whoever looks now sees one whole object, the winner's.
                        let seen = get(handler, text).map(|object| check(&object, text).unwrap());
                        (won.then_some(writer), seen.unwrap())
                    })
                })
                .collect();
            let results: Vec<_> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect();
            let seen: Vec<_> = results.iter().map(|(_, seen)| *seen).collect();
            assert!(
                seen.windows(2).all(|pair| pair[0] == pair[1]),
                "readers saw {seen:?}"
            );
            let mut winners: Vec<_> = results.iter().filter_map(|(won, _)| *won).collect();
            match rival.line().as_str() {
                "ok new" => winners.push(99),
                "ok present" => {}
                line => panic!("{line}"),
            }
            assert_eq!(winners, [seen[0]]);
            winners
        });
        assert_eq!(winners.len(), 1);
    }
}

#[test]
fn keys_of_different_tags_never_meet() {
    // openvinotoolkit/openvino.genai#3722, kvcache-ai/Mooncake#644, vllm-project/vllm#44701: untagged keys and extra
    // keys that ran into each other.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(4);
    let handler = server.handler(plain(&[PAGE]));
    let names: Vec<(Key, String)> = [
        Key::text("5").unwrap(),
        Key::integer(5),
        Key::new(KeyTag::Raw, b"5").unwrap(),
        Key::new(KeyTag::LmCache, b"5").unwrap(),
        Key::new(KeyTag::Raw, b"\xa15").unwrap(),
        Key::new(KeyTag::Raw, b"\x05").unwrap(),
        Key::new(KeyTag::Raw, b"").unwrap(),
        Key::new(KeyTag::LmCache, b"").unwrap(),
        Key::new(KeyTag::MessagePack, b"").unwrap(),
        Key::text("").unwrap(),
        Key::new(KeyTag::Raw, b"\0").unwrap(),
        Key::new(KeyTag::Raw, b"\0\0").unwrap(),
        Key::new(KeyTag::Raw, &[7; 1024]).unwrap(),
        Key::new(KeyTag::Raw, &[7; 1023]).unwrap(),
    ]
    .into_iter()
    .zip(0..)
    .map(|(name, index)| (name, format!("content{index}")))
    .collect();
    for (name, text) in &names {
        assert_eq!(
            handler.store(name, page(&handler, text, 1)).unwrap(),
            Stored::New,
            "{name}"
        );
    }
    for (name, text) in &names {
        assert_eq!(
            check(&handler.retrieve(name).unwrap().unwrap(), text),
            Ok(1),
            "{name}"
        );
    }
    for index in 0..names.len() {
        assert_eq!(
            handler.delete(&names[index].0).unwrap(),
            DeleteOutcome::Deleted
        );
        let left = names
            .iter()
            .filter(|(name, _)| handler.exists(name).unwrap())
            .count();
        assert_eq!(left, names.len() - index - 1);
    }
}

#[test]
fn allocations_never_overlap() {
    // LMCache/LMCache#1858: memory was allocated under a lock and freed without it.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(4);
    let mut config = plain(&[4096, PAGE]);
    config.stock_bytes = 4 * PAGE;
    let handler = server.handler(config);
    thread::scope(|scope| {
        for thread in 0..6_u64 {
            let handler = &handler;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let mut held: Vec<PageMut> = Vec::new();
                for _ in 0..300 {
                    if held.len() > 6 || random.once_in(3) {
                        if let Some(page) = held.pop() {
                            assert!(
                                page.iter().all(|byte| u64::from(*byte) == thread),
                                "overlap"
                            );
                        }
                    } else if let Ok(mut page) = handler.alloc(1 + random.below(8000) as usize) {
                        page.fill(thread as u8);
                        held.push(page);
                    }
                }
            });
        }
    });
}

#[test]
fn pins_are_as_many_as_were_asked_for_whatever_is_retried_or_aborted() {
    // LMCache/LMCache#3027, LMCache/LMCache#3770, LMCache/LMCache#2785, vllm-project/vllm#35931,
    // taco-project/FlexKV#263: pins without an owner leaked until the pool was full.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let (handler, lossy) = lossy(&server);
    let other = server.handler(plain(&[PAGE]));
    let mut random = Random::seeded("pins");
    let mut pins: HashMap<u64, u32> = HashMap::new();
    // Asked for again, a pin whose answer was lost is made once.
    let mut unsure: HashSet<u64> = HashSet::new();
    // Those of which a pin was made whose answer was lost: asked for again, it is the same pin.
    let mut unanswered: HashSet<u64> = HashSet::new();
    put_many(&other, "k", 8, 1);
    // The one that came through the door; the other one lives in the engine's process.
    let through_the_door = server.clients_of(std::process::id())[0].id;
    for _ in 0..2000 {
        let index = random.below(10);
        let name = key(&format!("k{index}"));
        match random.below(6) {
            0..=1 => {
                // An answer that is lost says so, and the pin is there.
                let lose = random.once_in(5);
                if lose {
                    lossy.lose_next(Call::Pin);
                }
                let known = handler.pin(&name);
                assert_eq!(known.is_err(), lose);
                let is_repeated = unanswered.remove(&index);
                if lose {
                    unanswered.insert(index);
                }
                if index < 8 && !is_repeated {
                    *pins.entry(index).or_default() += 1;
                }
                assert!(known.is_ok_and(|pinned| pinned == (index < 8)) || lose);
            }
            2..=3 => {
                let expected = pins.get(&index).copied().unwrap_or(0);
                assert_eq!(handler.unpin(&name).unwrap(), expected > 0);
                unanswered.remove(&index);
                if expected > 0 {
                    pins.insert(index, expected - 1);
                    unsure.remove(&index);
                }
            }
            4 => {
                assert!(!other.unpin(&name).unwrap(), "a pin is its owner's alone");
                let pinned = pins.get(&index).is_some_and(|count| *count > 0);
                if pinned {
                    assert_eq!(other.delete(&name).unwrap(), DeleteOutcome::Pinned);
                }
            }
            _ => {
                let found = handler.match_prefix(&[name]).unwrap();
                assert_eq!(found.len(), usize::from(index < 8));
            }
        }
        let stats = server.stats();
        let told = stats
            .clients
            .iter()
            .find(|client| client.id != through_the_door)
            .unwrap();
        assert_eq!(
            told.pins,
            pins.values().map(|count| u64::from(*count)).sum::<u64>()
        );
    }
    handler.close();
    drop(handler);
    drop(lossy);
    assert_eq!(
        server
            .stats()
            .clients
            .iter()
            .map(|client| client.pins)
            .sum::<u64>(),
        0
    );
    for index in 0..8 {
        assert_eq!(
            other.delete(&key(&format!("k{index}"))).unwrap(),
            DeleteOutcome::Deleted
        );
    }
    assert_eq!(take_all(&other).len(), 32);
}

#[test]
fn an_object_that_is_read_is_never_evicted() {
    // LMCache/LMCache#3130, foyer-rs/foyer#531, foyer-rs/foyer#1121: eviction did not respect references.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    put_many(&handler, "k", 32, 1);
    let held: Vec<_> = (0..31)
        .map(|index| get(&handler, &format!("k{index}")).unwrap())
        .collect();
    assert!(handler.pin(&key("k30")).unwrap());
    put_many(&handler, "x", 100, 2);
    for (index, object) in held.iter().enumerate() {
        assert_eq!(check(object, &format!("k{index}")), Ok(1));
        assert!(handler.exists(&key(&format!("k{index}"))).unwrap());
    }
    assert!(!handler.exists(&key("k31")).unwrap());
    drop(held);
    // All pages but one can be had now, whatever the policy would keep.
    let _pages: Vec<_> = (0..31)
        .map(|_| handler.alloc(PAGE as usize).unwrap())
        .collect();
    assert!(handler.exists(&key("k30")).unwrap(), "it is pinned");
    assert!((0..30).all(|index| !handler.exists(&key(&format!("k{index}"))).unwrap()));
}

#[test]
fn a_lost_answer_is_not_taken_for_success_or_absence() {
    // xcena-dev/maru#35: store returned success when its call had timed out. sgl-project/SpecForge#832: a removed
    // object was a failure.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let (handler, lossy) = lossy(&server);
    let unknown = |error: HandlerError| assert!(error.is_outcome_unknown(), "{error}");

    // The page of such a store was reused under its live key.
    for round in 0..20 {
        let text = format!("k{round}");
        lossy.lose_next(Call::Commit);
        unknown(
            handler
                .store(&key(&text), page(&handler, &text, 1))
                .unwrap_err(),
        );
        // Whatever is written next, it is not written there.
        put(&handler, &format!("next{round}"), 2);
        assert!(handler.exists(&key(&text)).unwrap());
        assert_eq!(put(&handler, &text, 3), Stored::AlreadyPresent);
        assert_eq!(check(&get(&handler, &text).unwrap(), &text), Ok(1));
    }
    lossy.lose_next(Call::Commit);
    let pages = (0..3)
        .map(|index| page(&handler, &format!("b{index}"), 1))
        .collect();
    unknown(handler.batch_store(&keys("b", 3), pages).unwrap_err());
    assert_eq!(handler.match_prefix(&keys("b", 3)).unwrap().len(), 3);

    for call in [
        Call::Retrieve,
        Call::Locate,
        Call::Pin,
        Call::Unpin,
        Call::Delete,
    ] {
        lossy.lose_next(call);
        let name = key("b0");
        unknown(match call {
            Call::Retrieve => handler.retrieve(&name).unwrap_err(),
            Call::Locate => handler.exists(&name).unwrap_err(),
            Call::Pin => handler.pin(&name).unwrap_err(),
            Call::Unpin => handler.unpin(&name).unwrap_err(),
            _ => handler.delete(&name).unwrap_err(),
        });
    }
    // The retrieve whose answer was lost holds nothing, so the delete freed the page.
    assert_eq!(handler.counts().leases, 0);
    assert_eq!(server.stats().retired, 0);
    assert_eq!(handler.delete(&key("b0")).unwrap(), DeleteOutcome::Absent);
    assert!(lossy.is_done());
    assert_eq!(take_all(&handler).len(), 32);
}

#[test]
fn different_failures_do_not_look_alike() {
    // kvcache-ai/Mooncake#2937, kvcache-ai/Mooncake#2501: five different reasons, one code.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    let full = take_all(&handler);
    let errors = [
        handler.alloc(PAGE as usize).map(drop).unwrap_err(),
        handler.alloc(PAGE as usize + 1).map(drop).unwrap_err(),
        handler.alloc_in(1, 1).map(drop).unwrap_err(),
        {
            let other = server.handler(plain(&[PAGE]));
            handler
                .store(&key("k"), full.into_iter().next().unwrap())
                .unwrap();
            let page = other.alloc(1).unwrap();
            handler.store(&key("l"), page).map(drop).unwrap_err()
        },
        handler
            .batch_store(&keys("k", 1), Vec::new())
            .map(drop)
            .unwrap_err(),
        {
            handler.close();
            handler.exists(&key("k")).map(drop).unwrap_err()
        },
        {
            handler.reconnect().unwrap();
            server.stop();
            handler.exists(&key("k")).map(drop).unwrap_err()
        },
    ];
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    for (index, text) in texts.iter().enumerate() {
        assert!(!texts[index + 1..].contains(text), "{text}");
        assert!(text.len() > 20, "{text}");
    }
    assert!(
        matches!(errors[0], HandlerError::Control(ControlError::PoolFull(breakdown)) if breakdown.granted == 2 << 20)
    );
    assert!(matches!(errors[1], HandlerError::TooLong { .. }));
    assert!(matches!(
        errors[2],
        HandlerError::Control(ControlError::Refused(_))
    ));
    assert!(matches!(errors[3], HandlerError::ForeignPage));
    assert!(matches!(errors[4], HandlerError::LengthMismatch { .. }));
    assert!(matches!(errors[5], HandlerError::Closed));
    assert!(matches!(
        errors[6],
        HandlerError::Control(ControlError::Disconnected { .. })
    ));
}

#[test]
fn a_page_is_not_reused_under_the_key_that_it_was_stored_under() {
    // Free after store, and one handle under two keys. Here storing consumes the page, so
    // neither can be written down; what is left is that the next page is another one.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    for round in 0..31 {
        put(&handler, &format!("k{round}"), round);
        let mut scratch = handler.alloc(PAGE as usize).unwrap();
        scratch.fill(0xff);
        drop(scratch);
    }
    for round in 0..31 {
        let text = format!("k{round}");
        assert_eq!(check(&get(&handler, &text).unwrap(), &text), Ok(round));
    }
}

#[test]
fn a_delete_by_somebody_else_does_not_blind_the_owner() {
    // The owner's next store of that key reported success and registered nothing.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let owner = server.handler(plain(&[PAGE]));
    let mut other = Actor::client(ACTOR, server.socket());
    for writer in 0..10 {
        assert_eq!(put(&owner, "k", writer), Stored::New);
        assert_eq!(other.ok("delete k"), "Deleted");
        assert_eq!(other.ok("delete k"), "Absent");
        assert!(!owner.exists(&key("k")).unwrap());
    }
    assert_eq!(take_all(&owner).len(), 32);
}

#[test]
fn no_key_exists_that_cannot_be_read() {
    // "ghost" keys of regions that were not there.
    use ondol_handler::{ControlPlane, SocketOptions, SocketPlane};
    use ondol_plugin::RegionId;
    use ondol_protocol::{Commit, CommitOutcome, GrantRequest};
    use ondol_shm::{Location, PageId};

    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let plane = SocketPlane::connect(server.socket(), SocketOptions::default()).unwrap();
    let grant = plane
        .grant(GrantRequest {
            request: 1,
            stride: PAGE,
            count: 1,
        })
        .unwrap()[0];
    let commit = |region: u64, index: u32, len: u64| Commit {
        key: key("ghost"),
        location: Location {
            page: PageId {
                region: RegionId(region),
                index,
            },
            generation: grant.generation,
            len,
        },
        meta: ondol_protocol::ObjectMeta::default(),
    };
    let home = grant.page.region.0;
    for bad in [
        commit(0, 0, 1),
        commit(u64::MAX, 0, 1),
        commit(home + 1, grant.page.index, 1),
        commit(home, u32::MAX, 1),
        commit(home, grant.page.index + 1, 1),
        commit(home, grant.page.index, PAGE + 1),
        commit(home, grant.page.index, u64::MAX),
    ] {
        let outcomes = plane.commit(std::slice::from_ref(&bad)).unwrap();
        assert!(
            matches!(outcomes[..], [CommitOutcome::Refused(_)]),
            "{bad:?}: {outcomes:?}"
        );
        assert_eq!(plane.locate(&[key("ghost")]).unwrap(), [None]);
    }
    let handler = server.handler(plain(&[PAGE]));
    assert!(get(&handler, "ghost").is_none());
    assert_eq!(put(&handler, "ghost", 1), Stored::New);
    assert!(get(&handler, "ghost").is_some());
}

#[test]
fn a_handler_that_was_closed_is_not_lost() {
    // Close could not be undone.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    put(&handler, "k", 1);
    for _ in 0..20 {
        let object = get(&handler, "k").unwrap();
        assert!(handler.pin(&key("k")).unwrap());
        handler.close();
        handler.close();
        assert!(matches!(
            handler.retrieve(&key("k")),
            Err(HandlerError::Closed)
        ));
        handler.reconnect().unwrap();
        assert!(
            !handler.unpin(&key("k")).unwrap(),
            "pins end with the connection"
        );
        assert_eq!(check(&object, "k"), Ok(1));
    }
    eventually("those that left and hold nothing are forgotten", || {
        server.stats().clients.len() == 1
    });
    assert_eq!(take_all(&handler).len(), 32);
}

#[test]
fn a_request_number_of_one_client_answers_no_other() {
    // A process that came later, with the number of its predecessor, got its predecessor's memory as the answer to its
    // first request.
    use ondol_handler::{ControlPlane, SocketOptions, SocketPlane};
    use ondol_protocol::GrantRequest;

    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let request = GrantRequest {
        request: 1,
        stride: PAGE,
        count: 2,
    };
    let mut seen = HashSet::new();
    for _ in 0..8 {
        let plane = SocketPlane::connect(server.socket(), SocketOptions::default()).unwrap();
        let pages = plane.grant(request).unwrap();
        assert_eq!(plane.grant(request).unwrap(), pages, "asked again");
        for page in pages {
            assert!(seen.insert(page.page), "{page:?} was granted before");
        }
    }
}

#[test]
fn a_batch_that_names_a_key_twice_loses_no_page() {
    // The page of a duplicate, or of a race that was lost, leaked.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    let other = server.handler(plain(&[PAGE]));
    for round in 0..40 {
        let names = ["a", "b", "a", "a", "lost"].map(|name| key(&format!("{name}{round}")));
        put(&other, &format!("lost{round}"), 9);
        let pages = ["a", "b", "a", "a", "lost"]
            .map(|name| page(&handler, &format!("{name}{round}"), 1))
            .into();
        let stored = handler.batch_store(&names, pages).unwrap();
        let new = stored
            .into_iter()
            .map(|outcome| outcome.unwrap() == Stored::New);
        assert_eq!(new.collect::<Vec<_>>(), [true, true, false, false, false]);
    }
    other.close();
    assert_eq!(take_all(&handler).len(), 32);
}

#[test]
fn a_client_that_dies_is_missed_at_once_and_its_objects_stay() {
    // LMCache/LMCache#4980, kvcache-ai/Mooncake#1914: liveness by time alone.
    let _watchdog = watchdog("reports", LIMIT);
    let server = Server::start(2);
    let handler = server.handler(plain(&[PAGE]));
    for round in 0..10 {
        let mut client = Actor::client(ACTOR, server.socket());
        let pid = client.pid();
        client.ok(&format!("put k{round} {PAGE} {round}"));
        client.ok(&format!("pin k{round}"));
        client.ok(&format!("get k{round} object"));
        client.kill();
        eventually("the dead client is forgotten", || {
            server.clients_of(pid).is_empty()
        });
        let text = format!("k{round}");
        assert_eq!(check(&get(&handler, &text).unwrap(), &text), Ok(round));
        assert_eq!(handler.delete(&key(&text)).unwrap(), DeleteOutcome::Deleted);
    }
    assert_eq!(take_all(&handler).len(), 32);
}
