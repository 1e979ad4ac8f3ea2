//! What a server that was started again finds, and what it refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ondol_handler::{
    ControlPlane, DeleteOutcome, Handler, HandlerError, Layout, Object, SocketOptions, SocketPlane,
    Stored,
};
use ondol_protocol::RegionInfo;
use ondol_tests::{Actor, Place, Random, check, eventually, fill, key, plain, watchdog};
use rustix::process::Signal;

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGES: [u64; 2] = [4096, 65_536];
const LIMIT: Duration = Duration::from_secs(240);

fn put(handler: &Handler, text: &str, len: usize, writer: u64) -> Stored {
    let mut page = handler.alloc(len).unwrap();
    fill(&mut page, text, writer);
    handler.store(&key(text), page).unwrap()
}

fn get(handler: &Handler, text: &str) -> Object {
    let object = handler.retrieve(&key(text)).unwrap();
    object.unwrap_or_else(|| panic!("{text} is not there"))
}

/// Objects of different lengths in two page sizes, some of which are deleted again.
fn fill_pool(handler: &Handler) -> BTreeMap<String, usize> {
    let mut objects = BTreeMap::new();
    for index in 0..120_usize {
        let name = format!("k{index}");
        let len = if index % 3 == 0 { 60_000 } else { 3000 } + index;
        assert_eq!(put(handler, &name, len, index as u64), Stored::New);
        if index % 5 == 4 {
            assert_eq!(handler.delete(&key(&name)).unwrap(), DeleteOutcome::Deleted);
        } else {
            objects.insert(name, len);
        }
    }
    objects
}

fn listed(handler: &Handler) -> BTreeMap<String, usize> {
    let listing = handler.list(None, 1000).unwrap();
    assert!(!listing.more);
    let object = |object: ondol_handler::ObjectInfo| {
        let name = object.key.as_text().unwrap().to_owned();
        (name, object.location.len as usize)
    };
    listing.objects.into_iter().map(object).collect()
}

fn all_whole(handler: &Handler, objects: &BTreeMap<String, usize>) {
    for (name, len) in objects {
        let object = get(handler, name);
        assert_eq!(object.len(), *len, "{name}");
        let writer = name[1..].parse().unwrap();
        assert_eq!(check(&object, name), Ok(writer));
    }
}

fn regions(place: &Place) -> Vec<RegionInfo> {
    let plane = SocketPlane::connect(&place.socket(), SocketOptions::default()).unwrap();
    let mut regions = plane.regions().unwrap();
    plane.leave().unwrap();
    // Numbers of descriptors and files are this start's.
    regions.sort_by_key(|region| region.handle.span.region_id.0);
    regions
}

/// What `ondol stat` shows of the memory.
fn memory(handler: &Handler) -> (ondol_protocol::PoolStats, Vec<[u64; 5]>, u64, u64) {
    let stats = handler.stats().unwrap().engine;
    let class = |class: &ondol_protocol::ClassStats| {
        [
            class.stride,
            class.regions,
            class.pages,
            class.free,
            class.committed,
        ]
    };
    (
        stats.pool,
        stats.classes.iter().map(class).collect(),
        stats.objects,
        stats.object_bytes,
    )
}

fn comes_back_warm(place: &Place) {
    let mut server = place.serve(ACTOR);
    // Regions are handed out as pages are; all that is granted goes back when it leaves.
    let writer = place.handler(plain(&PAGES));
    let objects = fill_pool(&writer);
    writer.close();
    let resident = place.handler(plain(&PAGES));
    let held = get(&resident, "k0");
    let before = (listed(&resident), regions(place), memory(&resident));
    assert_eq!(before.0, objects);
    for signal in [
        Signal::KILL,
        Signal::TERM,
        Signal::INT,
        Signal::KILL,
        Signal::KILL,
    ] {
        let status = server.end(signal);
        assert_eq!(status.success(), signal != Signal::KILL, "{status}");
        server = place.serve(ACTOR);
        let newcomer = place.handler(plain(&PAGES));
        assert_eq!(listed(&newcomer), objects, "after {signal:?}");
        assert_eq!(regions(place), before.1, "after {signal:?}");
        all_whole(&newcomer, &objects);
        newcomer.close();
        // A client that was there all the time goes on by itself.
        eventually("the client is known again", || {
            resident.health().is_connected()
        });
        all_whole(&resident, &objects);
        assert_eq!(check(&held, "k0"), Ok(0));
        eventually("the figures are those of before", || {
            memory(&resident) == before.2
        });
    }
}

#[test]
fn a_pool_in_shared_memory_comes_back_warm() {
    let _watchdog = watchdog("restart", LIMIT);
    comes_back_warm(&Place::shm(16));
}

#[test]
fn a_pool_in_files_comes_back_warm() {
    let _watchdog = watchdog("restart", LIMIT);
    comes_back_warm(&Place::files(16));
}

#[test]
fn a_pool_of_huge_pages_comes_back_warm() {
    let _watchdog = watchdog("restart", LIMIT);
    if let Some(place) = Place::huge(16) {
        comes_back_warm(&place);
    }
}

#[test]
fn what_is_kept_can_be_used_as_before() {
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::shm(4);
    let server = place.serve(ACTOR);
    let handler = place.handler(plain(&PAGES));
    put(&handler, "k1", 65_536, 1);
    put(&handler, "k2", 65_536, 2);
    server.kill();
    let _server = place.serve(ACTOR);
    eventually("the client is known again", || {
        handler.health().is_connected()
    });
    assert_eq!(put(&handler, "k1", 65_536, 9), Stored::AlreadyPresent);
    assert_eq!(check(&get(&handler, "k1"), "k1"), Ok(1));
    assert_eq!(handler.delete(&key("k1")).unwrap(), DeleteOutcome::Deleted);
    assert_eq!(put(&handler, "k1", 65_536, 9), Stored::New);
    assert_eq!(check(&get(&handler, "k1"), "k1"), Ok(9));
    // What was kept is evicted as anything else, the oldest first.
    for index in 0..70 {
        put(&handler, &format!("new{index}"), 65_536, 3);
    }
    assert!(!handler.exists(&key("k2")).unwrap());
}

#[test]
fn a_second_server_is_refused_with_the_first_ones_process() {
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::shm(4);
    let mut server = place.serve(ACTOR);
    let handler = place.handler(plain(&PAGES));
    put(&handler, "k1", 100, 1);
    for more in [&[][..], &["--fresh"]] {
        let said = place.refusal(ACTOR, &place.device(4), more);
        let pid = server.actor().pid().to_string();
        assert!(said.contains(&pid), "{pid}: {said}");
    }
    // Nor is the pool taken from under it by one with another state directory.
    let elsewhere = place.path().join("elsewhere");
    let state = format!("--state-dir={}", elsewhere.display());
    let said = place.refusal_with(
        ACTOR,
        &["serve", "--pool", &place.device(4), &state, "--http=off"],
    );
    let pid = server.actor().pid().to_string();
    assert!(said.contains(&pid), "{pid}: {said}");
    assert_eq!(check(&get(&handler, "k1"), "k1"), Ok(1));
}

#[test]
fn a_fresh_start_takes_nothing_from_those_who_hold_the_old_pool() {
    let _watchdog = watchdog("restart", LIMIT);
    for place in [Place::shm(4), Place::files(4)] {
        let server = place.serve(ACTOR);
        let handler = place.handler(plain(&PAGES));
        for index in 0..20 {
            put(&handler, &format!("k{index}"), 65_536, 1);
        }
        let held: Vec<_> = (0..20)
            .map(|index| get(&handler, &format!("k{index}")))
            .collect();
        server.kill();
        let server = place.serve_with(ACTOR, &["--fresh"]);
        let newcomer = place.handler(plain(&PAGES));
        assert_eq!(listed(&newcomer), BTreeMap::new());
        for index in 0..200 {
            put(&newcomer, &format!("k{index}"), 65_536, 2);
        }
        for (index, object) in held.iter().enumerate() {
            assert_eq!(check(object, &format!("k{index}")), Ok(1));
        }
        let before = place.left();
        server.kill();
        // Once is enough: the next start keeps what the fresh one has got.
        let _server = place.serve(ACTOR);
        let newest = place.handler(plain(&PAGES));
        assert!(!listed(&newest).is_empty());
        assert!(place.left().is_subset(&with_books(before)));
    }
}

const BOOKS: [&str; 2] = ["state/leases/#", "state/slots/#"];

/// Each client has files of its own in the state directory.
fn with_books(mut names: BTreeSet<String>) -> BTreeSet<String> {
    names.extend(BOOKS.map(str::to_owned));
    names
}

#[test]
fn a_pool_of_another_size_is_refused_and_left_as_it_is() {
    let _watchdog = watchdog("restart", LIMIT);
    for place in [Place::shm(8), Place::files(8)] {
        let server = place.serve(ACTOR);
        let handler = place.handler(plain(&PAGES));
        let objects = fill_pool(&handler);
        server.kill();
        for mib in [6, 10] {
            let said = place.refusal(ACTOR, &place.device(mib), &[]);
            assert!(said.contains("--fresh"), "{said}");
            assert!(said.contains(&format!("{mib}MiB")), "{said}");
        }
        let _server = place.serve(ACTOR);
        all_whole(&place.handler(plain(&PAGES)), &objects);
    }
}

#[test]
fn a_pool_whose_file_is_gone_or_another_is_refused() {
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::files(4);
    let server = place.serve(ACTOR);
    put(&place.handler(plain(&PAGES)), "k1", 100, 1);
    server.kill();
    let pool = place.path().join("pool");
    let away = place.path().join("away");
    // The same bytes in another file are not known to be the same.
    fs::rename(&pool, &away).unwrap();
    copy(&away, &pool);
    let said = place.refusal(ACTOR, &place.device(4), &[]);
    assert!(said.contains("--fresh"), "{said}");
    fs::remove_dir_all(&pool).unwrap();
    let said = place.refusal(ACTOR, &place.device(4), &[]);
    assert!(said.contains(&*pool.to_string_lossy()), "{said}");
    fs::rename(&away, &pool).unwrap();
    let _server = place.serve(ACTOR);
    assert_eq!(
        check(&get(&place.handler(plain(&PAGES)), "k1"), "k1"),
        Ok(1)
    );
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// The files of the log that are no checkpoint, oldest first.
fn segments(place: &Place) -> Vec<PathBuf> {
    let log = fs::read_dir(place.state_dir().join("log")).unwrap();
    let mut segments: Vec<_> = log
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().contains("segment"))
        })
        .collect();
    segments.sort();
    assert!(!segments.is_empty());
    segments
}

/// Where the records of a segment end: it is made of zeros before it is written.
fn end(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

/// Changes one bit in the middle of what was recorded.
fn damage(segment: &std::path::Path) -> Vec<u8> {
    let mut bytes = fs::read(segment).unwrap();
    let middle = end(&bytes) / 2;
    bytes[middle] ^= 0x10;
    fs::write(segment, &bytes).unwrap();
    bytes
}

#[test]
fn a_log_that_is_damaged_in_the_middle_is_refused_with_the_way_out() {
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::shm(16);
    let server = place.serve(ACTOR);
    fill_pool(&place.handler(plain(&PAGES)));
    server.kill();
    let segment = segments(&place).remove(0);
    let good = fs::read(&segment).unwrap();
    let bad = damage(&segment);
    for _ in 0..2 {
        let said = place.refusal(ACTOR, &place.device(16), &[]);
        assert!(said.contains("--fresh"), "{said}");
        assert!(said.contains(&*segment.to_string_lossy()), "{said}");
    }
    assert!(
        fs::read(&segment).unwrap() == bad,
        "it is left as it was found"
    );
    // A mended one is good again, and one that nobody can mend is given up.
    fs::write(&segment, &good).unwrap();
    let server = place.serve(ACTOR);
    assert_eq!(listed(&place.handler(plain(&PAGES))).len(), 96);
    server.kill();
    damage(&segments(&place)[0]);
    let server = place.serve_with(ACTOR, &["--fresh"]);
    assert_eq!(listed(&place.handler(plain(&PAGES))), BTreeMap::new());
    server.kill();
    let _server = place.serve(ACTOR);
}

#[test]
fn a_torn_tail_of_the_log_is_cut() {
    let _watchdog = watchdog("restart", LIMIT);
    let mut random = Random::seeded("torn tail");
    for round in 0..6 {
        let place = Place::shm(4);
        let server = place.serve(ACTOR);
        let handler = place.handler(plain(&PAGES));
        for index in 0..30 {
            put(&handler, &format!("k{index}"), 3000, 1);
        }
        server.kill();
        drop(handler);
        let segment = segments(&place).pop().unwrap();
        let mut bytes = fs::read(&segment).unwrap();
        let end = end(&bytes);
        if round % 2 == 0 {
            // A record that was never finished.
            let half = 1 + random.below(19) as usize;
            bytes.copy_within(end - 20..end - 20 + half, end);
        } else {
            bytes[end - 1 - random.below(9) as usize..end].fill(0);
        }
        fs::write(&segment, &bytes).unwrap();
        let server = place.serve(ACTOR);
        let handler = place.handler(plain(&PAGES));
        let found = listed(&handler);
        let least = if round % 2 == 0 { 30 } else { 28 };
        assert!(found.len() >= least, "{found:?}");
        for name in found.keys() {
            assert_eq!(check(&get(&handler, name), name), Ok(1));
        }
        // What is written behind the cut is read again.
        put(&handler, "later", 3000, 2);
        server.kill();
        let _server = place.serve(ACTOR);
        assert_eq!(
            check(&get(&place.handler(plain(&PAGES)), "later"), "later"),
            Ok(2)
        );
    }
}

#[test]
fn a_clean_stop_after_a_torn_tail_keeps_what_is_there() {
    // A torn record emptied the pools, and the clean shutdown that followed made that final.
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::shm(4);
    let server = place.serve(ACTOR);
    let handler = place.handler(plain(&PAGES));
    for index in 0..30 {
        put(&handler, &format!("k{index}"), 3000, 1);
    }
    server.kill();
    drop(handler);
    let segment = segments(&place).pop().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let end = end(&bytes);
    bytes[end - 5..end].fill(0);
    fs::write(&segment, &bytes).unwrap();
    for _ in 0..3 {
        let server = place.serve(ACTOR);
        assert!(listed(&place.handler(plain(&PAGES))).len() >= 28);
        assert!(server.end(Signal::TERM).success());
    }
}

#[test]
fn a_damaged_checkpoint_is_not_an_empty_pool() {
    // A bad checksum of the pool's file made the pool entirely free.
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::shm(16);
    let small = ["--log-segment=16KiB", "--log-compact=16KiB"];
    let server = place.serve_with(ACTOR, &small);
    let handler = place.handler(plain(&PAGES));
    let objects = fill_pool(&handler);
    let checkpoints = || {
        let log = fs::read_dir(place.state_dir().join("log")).unwrap();
        let names = log.flatten().map(|entry| entry.path());
        let mut found: Vec<_> = names
            .filter(|path| path.extension().is_some_and(|end| end == "image"))
            .collect();
        found.sort();
        found
    };
    let mut round = 0;
    eventually("a checkpoint is made", || {
        for index in 0..20 {
            let name = format!("log{round}/{index}");
            put(&handler, &name, 100, 1);
            handler.delete(&key(&name)).unwrap();
        }
        round += 1;
        let newest = checkpoints().pop();
        newest.is_some_and(|path| fs::metadata(path).is_ok_and(|stat| stat.len() > 2000))
    });
    handler.close();
    server.kill();
    let mut found = checkpoints();
    let path = found.pop().unwrap();
    // With an older one and the log since, a server can do without the newest.
    found
        .iter()
        .for_each(|older| fs::remove_file(older).unwrap());
    let good = fs::read(&path).unwrap();
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    fs::write(&path, &bad).unwrap();
    let said = place.refusal(ACTOR, &place.device(16), &small);
    assert!(
        said.contains("--fresh") && said.contains(&*path.to_string_lossy()),
        "{said}"
    );
    fs::write(&path, &good).unwrap();
    let _server = place.serve_with(ACTOR, &small);
    assert_eq!(listed(&place.handler(plain(&PAGES))), objects);
}

#[test]
fn bytes_that_changed_on_the_device_are_a_miss() {
    // kvcache-ai/Mooncake#3089: metadata were committed, the data were not there.
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::files(4);
    let server = place.serve(ACTOR);
    let mut config = plain(&PAGES);
    config.checksum = true;
    let handler = place.handler(config.clone());
    for index in 0..10 {
        put(&handler, &format!("k{index}"), 3000, index);
    }
    let torn = get(&handler, "k7");
    let content = torn.to_vec();
    drop((torn, handler));
    server.kill();
    let mut changed = 0;
    for file in fs::read_dir(place.path().join("pool")).unwrap().flatten() {
        let mut bytes = fs::read(file.path()).unwrap();
        let found = bytes
            .windows(64)
            .position(|window| *window == content[..64]);
        if let Some(at) = found {
            bytes[at + 2000] ^= 1;
            fs::OpenOptions::new()
                .write(true)
                .open(file.path())
                .and_then(|mut file| std::io::Write::write_all(&mut file, &bytes))
                .unwrap();
            changed += 1;
        }
    }
    assert_eq!(changed, 1);
    let _server = place.serve(ACTOR);
    // Whoever asks, with checksums or without.
    for config in [plain(&PAGES), config] {
        let handler = place.handler(config);
        for index in 0..10 {
            let name = format!("k{index}");
            let found = handler.retrieve(&key(&name)).unwrap();
            assert_eq!(found.is_some(), index != 7, "{name}");
            assert!(found.is_none_or(|object| check(&object, &name) == Ok(index)));
        }
    }
    let handler = place.handler(plain(&PAGES));
    assert_eq!(put(&handler, "k7", 3000, 9), Stored::New);
}

#[test]
fn a_layout_is_expected_after_a_restart_too() {
    // sgl-project/sglang#33268, sgl-project/sglang#24758: identity that is not part of what is stored.
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::shm(4);
    let with = |model: &str| {
        let mut config = plain(&PAGES);
        config.layout = Some(Layout::new(model, "bf16", &[1], "nhd").fingerprint());
        config
    };
    let server = place.serve(ACTOR);
    put(&place.handler(with("weights-a")), "k", 100, 1);
    server.kill();
    let _server = place.serve(ACTOR);
    let other = place.handler(with("weights-b"));
    assert!(other.retrieve(&key("k")).unwrap().is_none());
    assert_eq!(other.counts().layout_mismatches, 1);
    assert_eq!(
        check(&get(&place.handler(with("weights-a")), "k"), "k"),
        Ok(1)
    );
}

#[test]
fn region_ids_are_never_used_again() {
    // Ids began anew, and a client's mapping of the old region of that id was used for the new one.
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::shm(4);
    let mut server = place.serve(ACTOR);
    let mut used = BTreeSet::new();
    for round in 0..6_u64 {
        let handler = place.handler(plain(&[]));
        // Another page size each time, so that all regions are made anew.
        let size = 16_384 << round;
        for index in 0..(3 << 20) / size {
            let page = handler.alloc_in(size, 10).unwrap();
            handler
                .store(&key(&format!("{round}/{index}")), page)
                .unwrap();
        }
        let before = used.len();
        let made = regions(&place);
        let made = made.iter().filter(|region| region.stride == size);
        for id in made.map(|region| region.handle.span.region_id.0) {
            assert!(used.insert(id), "region {id} was there before: {used:?}");
        }
        assert!(used.len() > before);
        handler.close();
        server.end([Signal::KILL, Signal::TERM][round as usize % 2]);
        server = place.serve(ACTOR);
    }
}

#[test]
fn objects_on_several_devices_keep_their_places() {
    // Two devices shared one space of numbers, and one shadowed the other.
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::shm(4);
    let second = place.path().join("second");
    fs::create_dir(&second).unwrap();
    let second = format!("--pool=dir:{}?region=2MiB&size=4MiB", second.display());
    let server = place.serve_with(ACTOR, &[&second]);
    let handler = place.handler(plain(&[65_536]));
    for index in 0..120 {
        put(&handler, &format!("k{index}"), 65_536, index);
    }
    let objects = listed(&handler);
    assert_eq!(objects.len(), 120, "they do not fit on one of them");
    handler.close();
    server.kill();
    // Another number of devices is another pool.
    let said = place.refusal(ACTOR, &place.device(4), &[]);
    assert!(said.contains("--fresh"), "{said}");
    let _server = place.serve_with(ACTOR, &[&second]);
    let handler = place.handler(plain(&[65_536]));
    assert_eq!(listed(&handler), objects);
    all_whole(&handler, &objects);
}

#[test]
fn a_file_that_is_in_the_way_is_refused_and_costs_nothing() {
    // The memory of a file that was there already was lost until the next start.
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::shm(4);
    let name = place.path().file_name().unwrap().to_owned();
    let path = std::path::Path::new("/dev/shm").join(name);
    fs::write(&path, "somebody else's").unwrap();
    for more in [&[][..], &["--fresh"]] {
        let said = place.refusal(ACTOR, &place.device(4), more);
        assert!(said.contains(&*path.to_string_lossy()), "{said}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"somebody else's");
    fs::remove_file(&path).unwrap();
    let _server = place.serve(ACTOR);
    let handler = place.handler(plain(&[65_536]));
    let mut pages = Vec::new();
    while let Ok(page) = handler.alloc(65_536) {
        pages.push(page);
    }
    assert_eq!(pages.len(), 64);
}

#[test]
fn a_free_list_is_as_good_after_a_restart_as_before() {
    let _watchdog = watchdog("restart", LIMIT);
    let place = Place::shm(16);
    let server = place.serve(ACTOR);
    let handler = place.handler(plain(&[]));
    // Regions of two page sizes in turn, then all of them free.
    for index in 0..8 {
        let page = handler
            .alloc_in(if index % 2 == 0 { 1 << 20 } else { 2 << 20 }, 100)
            .unwrap();
        handler.store(&key(&format!("k{index}")), page).unwrap();
    }
    for index in 0..8 {
        handler.delete(&key(&format!("k{index}"))).unwrap();
    }
    handler.close();
    server.kill();
    let server = place.serve(ACTOR);
    let whole = |handler: &Handler| {
        let mut pages = Vec::new();
        loop {
            match handler.alloc_in(2 << 20, 1) {
                Ok(page) => pages.push(page),
                Err(HandlerError::Control(_)) => return pages.len(),
                Err(error) => panic!("{error}"),
            }
        }
    };
    let handler = place.handler(plain(&[]));
    assert_eq!(whole(&handler), 8);
    handler.close();
    server.end(Signal::TERM);
    let _server = place.serve(ACTOR);
    assert_eq!(whole(&place.handler(plain(&[]))), 8);
}

#[test]
fn fifty_ends_of_every_process_leave_nothing_behind_and_it_always_starts() {
    // LMCache/LMCache#4197, vllm-project/vllm#57303, vllm-project/vllm#52596: shared memory was left at each end, until
    // the start failed.
    let _watchdog = watchdog("restart", LIMIT);
    for place in [Place::shm(4), Place::files(4)] {
        let mut random = Random::seeded("fifty ends");
        let mut after_kill = None;
        let mut after_end = None;
        let mut grown = 0;
        for round in 0..50 {
            let server = place.serve(ACTOR);
            let mut client = Actor::client(ACTOR, &place.socket());
            if round > 0 {
                assert_eq!(client.ok("get kept kept"), "hit", "round {round}");
                assert_eq!(client.ok("check kept kept"), "1");
            } else {
                client.ok("put kept 65536 1");
            }
            client.ok("pin kept");
            client.ok("alloc page 65536");
            client.ok(&format!("storm {} 2", random.draw() >> 1));
            let signal = [Signal::TERM, Signal::INT, Signal::KILL][round % 3];
            std::thread::sleep(Duration::from_millis(random.below(10)));
            if random.once_in(2) {
                client.signal(signal);
                client.wait();
                server.end(signal);
            } else {
                server.end(signal);
                client.signal(signal);
                client.wait();
            }
            let left = place.left();
            let seen = if signal == Signal::KILL {
                &mut after_kill
            } else {
                &mut after_end
            };
            // Books of clients that were killed with the server are swept by the next start.
            let left = with_books(left);
            assert_eq!(
                *seen.get_or_insert_with(|| left.clone()),
                left,
                "round {round}"
            );
            if round == 10 {
                grown = place.state_bytes();
            }
        }
        let bytes = place.state_bytes();
        // Each client that was killed after its server leaves a table of a MiB to the next start.
        assert!(
            bytes < grown * 4 + (6 << 20),
            "{grown} bytes have become {bytes}"
        );
        // The last one finds everything free again.
        let server = place.serve(ACTOR);
        let handler = place.handler(plain(&[65_536]));
        eventually("the dead hold nothing", || {
            let stats = handler.stats().unwrap().engine;
            stats.clients.len() == 1 && stats.retired == 0
        });
        let mut pages = Vec::new();
        while let Ok(page) = handler.alloc(65_536) {
            pages.push(page);
        }
        assert_eq!(pages.len(), 64);
        drop(pages);
        drop(handler);
        server.end(Signal::TERM);
        let left = place.left();
        let is_left = |book: &&str| left.contains(*book);
        assert!(!BOOKS.iter().any(is_left), "{left:?}");
        assert!(!left.contains("state/ondol.sock"), "{left:?}");
    }
}
