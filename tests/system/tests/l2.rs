//! Storage behind the pool of a server, which is a process of its own here.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ondol_handler::{DeleteOutcome, Handler, HandlerConfig, Stored};
use ondol_protocol::{BackendStats, EngineStats, L2Stats};
use ondol_tests::{
    Actor, Place, ServerProcess, SmallDisk, StorageDir, check, eventually, fill, key, plain,
    watchdog,
};
use rustix::process::Signal;
use serde_json::{Value, json};

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGE: u64 = 65_536;
const LEN: usize = 60_000;
const LIMIT: Duration = Duration::from_secs(240);

/// Long enough for whatever is there.
const WAIT: Duration = Duration::from_secs(30);

fn storage(place: &Place) -> PathBuf {
    place.path().join("kv")
}

fn with(mut parameters: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    parameters.as_object_mut().unwrap().extend(more);
    parameters
}

/// Files below the place.
fn files(place: &Place, more: Value) -> Value {
    with(json!({"type": "fs", "base_path": storage(place)}), more)
}

/// The same, with something that goes wrong.
fn faulty(place: &Place, faults: Value) -> Value {
    let inner = files(place, json!({}));
    with(json!({"type": "fault_inject", "inner": inner}), faults)
}

fn serve(place: &Place, adapter: &Value, more: &[&str]) -> ServerProcess {
    let adapter = format!("--l2-adapter={adapter}");
    place.serve_with(ACTOR, &[&[&*adapter], more].concat())
}

fn config() -> HandlerConfig {
    plain(&[PAGE])
}

fn put(handler: &Handler, name: &str, writer: u64) -> Stored {
    let mut page = handler.alloc(LEN).unwrap();
    fill(&mut page, name, writer);
    handler.store(&key(name), page).unwrap()
}

/// Who wrote the object that memory has.
fn get(handler: &Handler, name: &str) -> Option<u64> {
    let object = handler.retrieve(&key(name)).unwrap();
    object.map(|object| check(&object, name).unwrap())
}

/// Who wrote the object, wherever it is.
fn fetch(handler: &Handler, name: &str) -> Option<u64> {
    let object = handler.retrieve_within(&key(name), WAIT).unwrap();
    object.map(|object| check(&object, name).unwrap())
}

fn figures(handler: &Handler) -> EngineStats {
    handler.stats().unwrap().engine
}

fn l2(handler: &Handler) -> L2Stats {
    figures(handler).l2.expect("storage")
}

fn backend(handler: &Handler) -> BackendStats {
    l2(handler).backends.remove(0)
}

fn counter(handler: &Handler, name: &str) -> u64 {
    l2(handler).counters[name]
}

/// Waits until nothing waits to be stored or is under way.
fn quiet(handler: &Handler) {
    eventually("storage comes to rest", || {
        let l2 = l2(handler);
        let tasks: u64 = l2.backends.iter().map(|backend| backend.tasks).sum();
        l2.store_queue + l2.prefetches + l2.loading_bytes + tasks == 0
            && l2.backends.iter().all(|backend| backend.is_complete)
    });
}

fn look(place: &Place) -> StorageDir {
    StorageDir::look(&storage(place)).unwrap()
}

/// Stores `k0` to `kN` without letting any go before it is in storage.
fn put_all(place: &Place, handler: &Handler, count: u64) {
    for index in 0..count {
        assert_eq!(put(handler, &format!("k{index}"), index), Stored::New);
        if index % 20 == 19 || index + 1 == count {
            eventually("all is stored", || {
                look(place).objects() as u64 == index + 1
            });
        }
    }
    quiet(handler);
}

/// Writes over the end of an object's body.
fn damage(file: &Path) {
    let file = fs::File::options().write(true).open(file).unwrap();
    file.write_all_at(b"damaged", LEN as u64 - 100).unwrap();
}

/// A server without anything in memory, on what is stored.
fn begin_anew(place: &Place, server: ServerProcess, adapter: &Value) -> (ServerProcess, Handler) {
    server.kill();
    let server = serve(place, adapter, &["--fresh"]);
    let handler = place.handler(config());
    assert_eq!(figures(&handler).objects, 0);
    (server, handler)
}

#[test]
fn objects_that_left_memory_come_back_whole() {
    let _watchdog = watchdog("l2", LIMIT);
    for (more, more_directories) in [
        (json!({}), false),
        (
            json!({"layout": "sharded", "serde": {"type": "zstd"}}),
            true,
        ),
    ] {
        let place = Place::shm(4);
        let _server = serve(&place, &files(&place, more), &[]);
        let handler = place.handler(config());
        put_all(&place, &handler, 160);
        if more_directories {
            // No directory gets so full that a file system's own limits matter.
            let stored = look(&place);
            let parents = (0..160).map(|index| stored.file(&format!("k{index}")).unwrap().parent());
            assert!(parents.collect::<BTreeSet<_>>().len() > 120);
        }
        let evicted = |handler| figures(handler).counters["ondol_evictions_total"];
        assert!(evicted(&handler) >= 90);
        for index in 0..160 {
            assert_eq!(fetch(&handler, &format!("k{index}")), Some(index));
        }
        assert!(counter(&handler, "ondol_l2_prefetch_loaded_total") >= 90);
        // Nobody waits for these.
        let keys: Vec<_> = (0..8).map(|index| key(&format!("k{index}"))).collect();
        let said = handler.prefetch(&keys).unwrap();
        assert!(said.pending && said.found == 0, "{said:?}");
        eventually("what was asked for early is in memory", || {
            (0..8).all(|index| get(&handler, &format!("k{index}")) == Some(index))
        });
        assert_eq!(fetch(&handler, "never stored"), None);
    }
}

#[test]
fn a_kill_before_the_store_loses_nothing_that_memory_keeps() {
    let _watchdog = watchdog("l2", LIMIT);
    let place = Place::shm(4);
    let server = serve(&place, &faulty(&place, json!({"store_hang_rate": 1})), &[]);
    let handler = place.handler(config());
    for index in 0..20 {
        put(&handler, &format!("k{index}"), index);
    }
    assert_eq!(look(&place).objects(), 0);
    server.kill();
    let adapter = files(&place, json!({}));
    let server = serve(&place, &adapter, &[]);
    eventually("the handler has found the server again", || {
        handler.health().is_connected()
    });
    for index in 0..20 {
        assert_eq!(get(&handler, &format!("k{index}")), Some(index));
    }
    eventually("what was not stored is stored by the next server", || {
        look(&place).objects() == 20
    });
    drop(handler);
    // And from there it is had without the memory that it came from.
    let (_server, handler) = begin_anew(&place, server, &adapter);
    for index in 0..20 {
        assert_eq!(fetch(&handler, &format!("k{index}")), Some(index));
    }
}

#[test]
fn what_a_client_deleted_does_not_come_back_from_storage() {
    let _watchdog = watchdog("l2", LIMIT);
    let place = Place::shm(4);
    let adapter = files(&place, json!({}));
    let server = serve(&place, &adapter, &[]);
    let handler = place.handler(config());
    put_all(&place, &handler, 4);
    assert_eq!(handler.delete(&key("k0")).unwrap(), DeleteOutcome::Deleted);
    assert!(look(&place).file("k0").is_none());
    assert_eq!(fetch(&handler, "k0"), None);
    // Other bytes under the same name are not mixed up with those that were there.
    assert_eq!(put(&handler, "k0", 100), Stored::New);
    eventually("it is stored again", || look(&place).objects() == 4);
    let (_server, handler) = begin_anew(&place, server, &adapter);
    assert_eq!(fetch(&handler, "k0"), Some(100));
    // Not in memory, all the same gone.
    handler.delete(&key("k1")).unwrap();
    assert_eq!(fetch(&handler, "k1"), None);
    assert_eq!(fetch(&handler, "k2"), Some(2));
    assert_eq!(look(&place).objects(), 3);
}

#[test]
fn usage_is_right_from_the_start_and_eviction_begins_where_it_did() {
    let _watchdog = watchdog("l2", LIMIT);
    const CAP: u64 = 8 << 20;
    let place = Place::shm(16);
    let eviction =
        json!({"eviction_policy": "LRU", "trigger_watermark": 0.8, "eviction_ratio": 0.2});
    let adapter = files(
        &place,
        json!({"max_capacity_bytes": CAP, "eviction": eviction}),
    );
    let server = serve(&place, &adapter, &[]);
    let handler = place.handler(config());
    put_all(&place, &handler, 105);
    let before = look(&place).bytes;
    assert!(before > CAP * 7 / 10 && before < CAP * 8 / 10);
    server.kill();
    drop(handler);
    let _server = serve(&place, &adapter, &[]);
    let handler = place.handler(config());
    eventually("what is there has been counted", || {
        backend(&handler).is_complete
    });
    let seen = backend(&handler);
    assert!(seen.used_bytes.abs_diff(before) <= before / 100, "{seen:?}");
    assert_eq!(seen.objects, 105);
    assert_eq!(counter(&handler, "ondol_l2_evicted_objects_total"), 0);
    // Ten times as much as there is room for: never more than that, and always some.
    for index in 105..400 {
        put(&handler, &format!("k{index}"), index);
        let bytes = look(&place).bytes;
        assert!(bytes <= CAP && bytes > CAP / 2, "{bytes} bytes of {CAP}");
    }
    quiet(&handler);
    assert!(counter(&handler, "ondol_l2_evicted_objects_total") > 0);
    eventually("there is room below the watermark", || {
        look(&place).bytes <= CAP * 8 / 10
    });
    let (seen, there) = (backend(&handler).used_bytes, look(&place).bytes);
    assert!(seen.abs_diff(there) <= there / 100, "{seen} and {there}");
}

#[test]
fn a_full_disk_gives_misses_and_heals_by_itself() {
    let _watchdog = watchdog("l2", LIMIT);
    let place = Place::shm(8);
    let disk = match SmallDisk::mount(&storage(&place), 8) {
        Ok(disk) => disk,
        Err(error) => return println!("SKIPPED: no file system can be mounted here: {error}"),
    };
    // Somebody else's file takes what the capacity allows.
    let adapter = files(&place, json!({"max_capacity_bytes": 1 << 30}));
    let server = serve(&place, &adapter, &[]);
    let handler = place.handler(config());
    disk.fill().unwrap();
    for index in 0..10 {
        assert_eq!(put(&handler, &format!("k{index}"), index), Stored::New);
    }
    eventually("that the disk is full is said", || {
        let reason = backend(&handler).reason.unwrap_or_default();
        reason.contains("full")
    });
    for index in 0..10 {
        assert_eq!(fetch(&handler, &format!("k{index}")), Some(index));
    }
    assert_eq!(fetch(&handler, "never stored"), None);
    assert_eq!(look(&place).objects(), 0);
    disk.free().unwrap();
    eventually("what was refused is stored once there is room", || {
        put(&handler, "more", 1);
        let _ = handler.delete(&key("more"));
        (0..10).all(|index| look(&place).file(&format!("k{index}")).is_some())
    });
    eventually("it is well again", || backend(&handler).reason.is_none());
    assert!(look(&place).drafts.is_empty());
    drop(handler);
    let (server, handler) = begin_anew(&place, server, &adapter);
    for index in 0..10 {
        assert_eq!(fetch(&handler, &format!("k{index}")), Some(index));
    }
    server.kill();
}

#[test]
fn a_file_that_somebody_deleted_is_one_miss_and_no_more() {
    let _watchdog = watchdog("l2", LIMIT);
    let place = Place::shm(4);
    let adapter = files(&place, json!({}));
    let server = serve(&place, &adapter, &[]);
    let handler = place.handler(config());
    put_all(&place, &handler, 2);
    let (server, handler) = begin_anew(&place, server, &adapter);
    eventually("what is there has been counted", || {
        backend(&handler).is_complete
    });
    fs::remove_file(look(&place).file("k0").unwrap()).unwrap();
    assert_eq!(fetch(&handler, "k0"), None);
    assert_eq!(fetch(&handler, "k1"), Some(1));
    // It is computed again and stored again, and is there from then on.
    assert_eq!(put(&handler, "k0", 7), Stored::New);
    eventually("it is stored again", || look(&place).file("k0").is_some());
    quiet(&handler);
    let (_server, handler) = begin_anew(&place, server, &adapter);
    assert_eq!(fetch(&handler, "k0"), Some(7));
}

#[test]
fn damaged_and_swapped_files_are_misses_and_are_counted() {
    let _watchdog = watchdog("l2", LIMIT);
    for more in [
        json!({}),
        json!({"layout": "sharded"}),
        json!({"serde": {"type": "lz4"}}),
    ] {
        let place = Place::shm(4);
        let adapter = files(&place, more);
        let server = serve(&place, &adapter, &[]);
        let handler = place.handler(config());
        put_all(&place, &handler, 7);
        let (_server, handler) = begin_anew(&place, server, &adapter);
        let files: Vec<_> = (0..7)
            .map(|index| look(&place).file(&format!("k{index}")).unwrap().to_owned())
            .collect();
        damage(&files[0]);
        let cut = fs::File::options().write(true).open(&files[1]).unwrap();
        cut.set_len(fs::metadata(&files[1]).unwrap().len() / 2)
            .unwrap();
        let aside = storage(&place).join("aside");
        for (from, to) in [
            (&files[2], &aside),
            (&files[3], &files[2]),
            (&aside, &files[3]),
        ] {
            fs::rename(from, to).unwrap();
        }
        fs::write(&files[4], "").unwrap();
        // What a power failure leaves of bytes that were never written through: the right length, and nothing in it.
        let len = fs::metadata(&files[5]).unwrap().len();
        fs::write(&files[5], vec![0; len as usize]).unwrap();
        for _ in 0..2 {
            for index in 0..6 {
                assert_eq!(fetch(&handler, &format!("k{index}")), None);
            }
        }
        assert_eq!(fetch(&handler, "k6"), Some(6));
        let l2 = l2(&handler);
        let seen = ["corrupt", "failed", "missing", "other_length"]
            .map(|what| l2.counters[&format!("ondol_l2_prefetch_{what}_total")]);
        assert!(seen.iter().sum::<u64>() >= 4, "{seen:?} {l2:?}");
        eventually("what is damaged is gone", || look(&place).objects() == 1);
        // The names are free again.
        for index in 0..6 {
            assert_eq!(put(&handler, &format!("k{index}"), 10 + index), Stored::New);
        }
        eventually("they are stored again", || look(&place).objects() == 7);
    }
}

#[test]
fn storage_that_hangs_delays_neither_memory_nor_the_end() {
    let _watchdog = watchdog("l2", LIMIT);
    let place = Place::shm(8);
    let hangs = json!({"store_hang_rate": 1, "load_hang_rate": 1, "lookup_hang_rate": 1});
    let flags = [
        "--l2-lookup-timeout=0.2",
        "--l2-store-timeout=0.2",
        "--l2-close-timeout=1",
    ];
    let mut server = serve(&place, &faulty(&place, hangs), &flags);
    let handler = place.handler(config());
    for index in 0..300 {
        let name = format!("k{index}");
        put(&handler, &name, index);
        assert_eq!(get(&handler, &name), Some(index));
    }
    assert_eq!(fetch(&handler, "nowhere"), None);
    let wait = Duration::from_millis(1);
    assert!(
        handler
            .retrieve_within(&key("not there"), wait)
            .unwrap()
            .is_none()
    );
    handler.delete(&key("k299")).ok();
    eventually("that it hangs is said", || {
        let l2 = l2(&handler);
        l2.captive_bytes > 0 && l2.backends[0].captive_tasks > 0
    });
    // Pages that it may still touch are nobody else's; all others can be had.
    let captive = l2(&handler).captive_bytes;
    let mut pages = Vec::new();
    while let Ok(page) = handler.alloc(LEN) {
        pages.push(page);
    }
    let free = (8 << 20) - captive.next_multiple_of(PAGE);
    assert!(
        pages.len() as u64 * PAGE + captive <= 8 << 20,
        "{captive} of {free}"
    );
    drop(pages);
    server.actor().signal(Signal::TERM);
    assert!(server.actor().wait().success());
}

#[test]
fn an_engine_killed_while_it_waits_for_storage_leaves_nothing_held() {
    let _watchdog = watchdog("l2", LIMIT);
    let place = Place::shm(4);
    let adapter = files(&place, json!({}));
    let server = serve(&place, &adapter, &[]);
    let handler = place.handler(config());
    put_all(&place, &handler, 30);
    drop(handler);
    let slow = faulty(&place, json!({"load_delay_ms": 300}));
    let (_server, handler) = begin_anew(&place, server, &slow);
    let names: Vec<_> = (0..30).map(|index| format!("k{index}")).collect();
    let mut engines: Vec<_> = (0..3)
        .map(|_| Actor::client_with(ACTOR, &place.socket(), &["wait=30000"], &[]))
        .collect();
    for engine in &mut engines {
        engine.tell(&format!("batch {}", names.join(" ")));
    }
    eventually("loads are under way", || l2(&handler).loading_bytes > 0);
    engines.into_iter().for_each(Actor::kill);
    quiet(&handler);
    eventually("nobody holds anything", || {
        let stats = figures(&handler);
        let held: u64 = stats.clients.iter().map(|client| client.leases).sum();
        let granted: u64 = stats.classes.iter().map(|class| class.granted).sum();
        held + granted + stats.retired == 0
    });
    // No lock in storage either: each can be deleted there.
    for name in &names {
        handler.delete(&key(name)).unwrap();
    }
    assert_eq!(look(&place).objects(), 0);
}

#[test]
fn ten_times_the_load_stays_bounded() {
    let _watchdog = watchdog("l2", LIMIT);
    const IN_FLIGHT: u64 = 1 << 20;
    let place = Place::shm(8);
    let slow = faulty(&place, json!({"store_delay_ms": 20}));
    let in_flight = format!("--l2-store-in-flight={IN_FLIGHT}");
    let _server = serve(&place, &slow, &[&in_flight]);
    let handler = place.handler(config());
    for index in 0..1300 {
        // What waits to be stored holds no memory: there is always room for more.
        assert_eq!(put(&handler, &format!("k{index}"), index), Stored::New);
        if index % 50 == 0 {
            let stats = figures(&handler);
            let l2 = stats.l2.unwrap();
            assert!(l2.store_queue <= l2.store_queue_limit, "{l2:?}");
            let leases: u64 = stats.clients.iter().map(|client| client.leases).sum();
            assert!(leases * LEN as u64 <= IN_FLIGHT + PAGE, "{leases} leases");
        }
    }
    quiet(&handler);
    // What memory still has is stored, too.
    eventually("what is in memory is in storage", || {
        let listing = handler.list(None, 1000).unwrap();
        let stored = look(&place);
        listing.objects.iter().all(|object| {
            let name = object.key.as_text().unwrap();
            stored.file(name).is_some()
        })
    });
}

/// The figures of a replay whose working set is far larger than its pool.
fn replay(place: &Place, more: &[&str]) -> Value {
    let fixed = [
        "--log=error",
        "replay",
        "--instances=2",
        "--requests=120",
        "--block-bytes=4KiB",
        "--seed=7",
        "--json",
        "--quiet",
    ];
    let output = Command::new(ACTOR)
        .args(fixed)
        .args(more)
        .env("TMPDIR", place.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{more:?}: {said}");
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures["verify_failures"], 0, "{figures}");
    assert_eq!(figures["failed_instances"], 0, "{figures}");
    figures
}

fn hit_rate(figures: &Value) -> f64 {
    figures["hit_rate"].as_f64().unwrap()
}

/// Hit rates with a small pool alone, and with one that all fits.
fn bounds(place: &Place) -> (f64, f64) {
    let rate = |pool| hit_rate(&replay(place, &[pool, "--lockstep"]));
    (rate("--pool=4MiB"), rate("--pool=256MiB"))
}

fn replay_over(place: &Place, adapter: &Value, more: &[&str]) -> Value {
    let adapter = format!("--l2-adapter={adapter}");
    replay(place, &[&["--pool=4MiB", &*adapter], more].concat())
}

#[test]
fn hit_rates_rise_to_those_of_a_large_pool() {
    let _watchdog = watchdog("l2", LIMIT);
    let place = Place::shm(4);
    let (alone, whole) = bounds(&place);
    let secret = place.path().join("secret");
    fs::write(&secret, [7; 32]).unwrap();
    Command::new("chmod")
        .arg("600")
        .arg(&secret)
        .status()
        .unwrap();
    let encrypted = json!({"serde": [
        {"type": "zstd"},
        {"type": "aesgcm", "master_key_path": secret},
    ]});
    let cpp = json!({
        "type": "native_plugin",
        "module_path": "connector_example_cpp",
        "class_name": "FsConnector",
        "adapter_params": {"base_path": place.path().join("cpp")},
    });
    fs::create_dir(place.path().join("cpp")).unwrap();
    for adapter in [files(&place, json!({})), files(&place, encrypted), cpp] {
        let figures = replay_over(&place, &adapter, &["--lockstep"]);
        let rate = hit_rate(&figures);
        assert!(
            rate > alone && rate > 0.9 * whole,
            "{alone} {whole} {figures}"
        );
        assert!(figures["l2_hits"].as_u64() > Some(0), "{figures}");
        assert_eq!(figures["l2_corrupt"], 0, "{figures}");
        let _ = fs::remove_dir_all(storage(&place));
    }
}

#[test]
fn a_replay_over_storage_that_fails_reads_no_wrong_byte() {
    let _watchdog = watchdog("l2", LIMIT);
    let place = Place::shm(4);
    let faults = json!({
        "seed": 7, "store_error_rate": 0.1, "lookup_error_rate": 0.1, "load_error_rate": 0.1,
        "corrupt_rate": 0.2, "short_read_rate": 0.1, "load_delay_ms": 2,
    });
    let figures = replay_over(&place, &faulty(&place, faults), &[]);
    for what in ["l2_hits", "l2_failures", "l2_corrupt"] {
        assert!(figures[what].as_u64() > Some(0), "{what}: {figures}");
    }
}

#[test]
fn a_replay_goes_on_over_kills_of_its_server_with_storage() {
    let _watchdog = watchdog("l2", LIMIT);
    let place = Place::shm(4);
    let pool = format!("--pool={}", place.device(4));
    let adapter = format!(
        "--l2-adapter={}",
        files(&place, json!({"serde": {"type": "zstd"}}))
    );
    let figures = replay(&place, &[&pool, &adapter, "--restarts=3"]);
    assert_eq!(figures["restarts"].as_array().unwrap().len(), 3);
}
