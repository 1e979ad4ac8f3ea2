//! An engine with storage behind its pool: what leaves memory comes back, whole, or not at all.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ondol_engine::{Durability, Engine, EngineConfig, EngineError, L2Config, Persistence};
use ondol_handler::{Handler, HandlerConfig, Plugins, Stored};
use ondol_host::l2::{AdapterSpec, Backend, LaneOptions};
use ondol_plugin::Key;
use ondol_plugin::l2::{
    BlockingBackend, KeyPage, L2Adapter, ListRequest, LoadOutcome, ObjectKey, ObjectRef, PageMut,
    StoreError, Usage, WorkerAdapter,
};
use ondol_protocol::BackendStats;
use ondol_testkit::l2::{ManualAdapter, MapBackend};

const LEN: usize = 60_000;
/// Longer than anything here takes, and shorter than a test may.
const LONG: Duration = Duration::from_secs(30);

/// A backend that outlives engines and counts what it is asked.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Counted>);

#[derive(Debug, Default)]
struct Counted {
    objects: MapBackend,
    loads: AtomicUsize,
    load_delay_ms: AtomicU64,
}

impl Disk {
    fn loads(&self) -> usize {
        self.0.loads.load(Ordering::SeqCst)
    }

    fn delay_loads(&self, delay: Duration) {
        let delay = delay.as_millis() as u64;
        self.0.load_delay_ms.store(delay, Ordering::SeqCst);
    }
}

impl BlockingBackend for Disk {
    fn store(&self, key: &ObjectKey, object: &ObjectRef) -> Result<u64, StoreError> {
        self.0.objects.store(key, object)
    }

    fn lookup(&self, key: &ObjectKey) -> anyhow::Result<Option<u64>> {
        self.0.objects.lookup(key)
    }

    fn load(&self, key: &ObjectKey, page: &mut PageMut) -> LoadOutcome {
        self.0.loads.fetch_add(1, Ordering::SeqCst);
        let delay = self.0.load_delay_ms.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(delay));
        self.0.objects.load(key, page)
    }

    fn delete(&self, key: &ObjectKey) -> anyhow::Result<bool> {
        self.0.objects.delete(key)
    }

    fn usage(&self) -> Usage {
        self.0.objects.usage()
    }

    fn list_keys(&self, request: &ListRequest) -> anyhow::Result<KeyPage> {
        self.0.objects.list_keys(request)
    }
}

fn spec() -> AdapterSpec {
    r#"{"type":"test"}"#.parse().unwrap()
}

/// Storage that is this adapter, made anew for each engine.
fn storage<A: L2Adapter + 'static>(adapter: impl Fn() -> A + Send + Sync + 'static) -> L2Config {
    let mut config = L2Config::with(move |mappings| {
        assert!(!mappings.is_empty());
        let mut lane = LaneOptions::default();
        lane.hang_after = Duration::from_millis(300);
        lane.end_grace = Duration::from_millis(200);
        let backend = Backend::start("test#0", spec(), false, Box::new(adapter()), lane);
        Ok(vec![backend.map_err(|error| error.to_string())?])
    });
    config.close_deadline = Duration::from_secs(2);
    config
}

fn on(disk: &Disk) -> L2Config {
    let disk = disk.clone();
    storage(move || WorkerAdapter::new("test", 2, disk.clone()).unwrap())
}

fn volatile(l2: L2Config) -> Arc<Engine> {
    let mut config = EngineConfig::new(["memfd:?size=4MiB".parse().unwrap()]);
    config.l2 = Some(l2);
    Engine::open(config).unwrap()
}

fn kept(root: &Path, l2: L2Config) -> Arc<Engine> {
    kept_with(root, l2, Durability::None)
}

fn kept_with(root: &Path, l2: L2Config, durability: Durability) -> Arc<Engine> {
    let uri = format!("dir:{}?size=4MiB&region=2MiB", root.join("pool").display());
    let mut config = EngineConfig::new([uri.parse().unwrap()]);
    let mut persistence = Persistence::new(root.join("state"));
    persistence.durability = durability;
    config.persistence = Some(persistence);
    config.l2 = Some(l2);
    Engine::open(config).unwrap()
}

fn client(engine: &Arc<Engine>) -> Handler {
    let engine = Arc::clone(engine);
    let mut config = HandlerConfig::default();
    config.plugins = Plugins::None;
    config.stock_bytes = 0;
    Handler::embedded(move || engine.attach(None, [1; 16]), config).unwrap()
}

fn key(number: u64) -> Key {
    Key::integer(number)
}

fn bytes_of(number: u64) -> Vec<u8> {
    (0..LEN).map(|at| (at as u64 * 7 + number) as u8).collect()
}

fn put(handler: &Handler, number: u64) {
    let mut page = handler.alloc(LEN).unwrap();
    page.copy_from_slice(&bytes_of(number));
    assert_eq!(handler.store(&key(number), page).unwrap(), Stored::New);
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn stored(engine: &Engine) -> u64 {
    let l2 = engine.stats().l2.unwrap();
    l2.backends.iter().map(|backend| backend.objects).sum()
}

/// Puts so many objects that none of the first ones is left in memory, all of them stored.
fn overflow(engine: &Engine, handler: &Handler, count: u64) {
    for number in 0..count {
        put(handler, number);
    }
    eventually("every store", || stored(engine) == count);
    for number in 1000..1080 {
        put(handler, number);
    }
    eventually("every store", || stored(engine) == count + 80);
    let keys: Vec<_> = (0..count).map(key).collect();
    assert_eq!(
        handler.batch_exists(&keys).unwrap(),
        vec![false; count as usize]
    );
}

#[test]
fn what_was_evicted_comes_back_whole_for_a_reader_that_waits() {
    let disk = Disk::default();
    let engine = volatile(on(&disk));
    let handler = client(&engine);
    overflow(&engine, &handler, 10);
    assert!(handler.retrieve(&key(3)).unwrap().is_none());
    let object = handler.retrieve_within(&key(3), LONG).unwrap().unwrap();
    assert_eq!(object[..], bytes_of(3)[..]);
    drop(object);
    let keys: Vec<_> = (0..10).map(key).collect();
    let objects = handler.batch_retrieve_within(&keys, LONG).unwrap();
    for (number, object) in (0..).zip(objects) {
        assert_eq!(object.unwrap()[..], bytes_of(number)[..], "{number}");
    }
    let stats = engine.stats();
    assert_eq!(stats.counters["ondol_lookup_l2_hits_total"], 10);
    assert_eq!(
        stats
            .clients
            .iter()
            .map(|client| client.l2_hits)
            .sum::<u64>(),
        10
    );
    // They came from storage and need not go there again.
    assert_eq!(stats.counters["ondol_admitted_objects_total"], 10);
    assert_eq!(disk.loads(), 10);
}

#[test]
fn a_prefix_of_groups_is_brought_and_ends_at_the_first_group_that_nobody_has() {
    let disk = Disk::default();
    let engine = volatile(on(&disk));
    let handler = client(&engine);
    overflow(&engine, &handler, 6);
    // Three groups of two; then one of which storage has half.
    let keys: Vec<_> = [0, 1, 2, 3, 4, 777, 5, 778].map(key).into();
    let found = handler.match_prefix_within(&keys, 2, LONG).unwrap();
    assert_eq!(found.len(), 4);
    for (number, object) in (0..).zip(&found) {
        assert_eq!(object[..], bytes_of(number)[..]);
    }
    assert!(!handler.exists(&key(5)).unwrap());
    // A key that nobody has is answered at once, however long one would wait.
    assert!(handler.retrieve_within(&key(999), LONG).unwrap().is_none());
}

#[test]
fn two_clients_that_wait_for_one_object_have_it_loaded_once() {
    let disk = Disk::default();
    let engine = volatile(on(&disk));
    let handler = client(&engine);
    overflow(&engine, &handler, 4);
    disk.delay_loads(Duration::from_millis(100));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let handler = client(&engine);
                let object = handler.retrieve_within(&key(2), LONG).unwrap().unwrap();
                assert_eq!(object[..], bytes_of(2)[..]);
            });
        }
    });
    assert_eq!(disk.loads(), 1);
}

#[test]
fn a_prefetch_brings_objects_that_are_kept_until_their_reader_comes() {
    let disk = Disk::default();
    let engine = volatile(on(&disk));
    let handler = client(&engine);
    overflow(&engine, &handler, 4);
    let keys: Vec<_> = (0..4).map(key).collect();
    let prefetched = handler.prefetch(&keys).unwrap();
    assert_eq!(prefetched.requested, 4);
    // Storage that is quick has brought some or all of them by now.
    assert!(
        prefetched.pending || prefetched.found == 4,
        "{prefetched:?}"
    );
    eventually("what was prefetched", || {
        handler.batch_exists(&keys).unwrap() == [true; 4]
    });
    // Promised for some seconds, so that others do not push it out.
    for number in 2000..2100 {
        put(&handler, number);
    }
    assert_eq!(disk.loads(), 4);
    let objects = handler.batch_retrieve(&keys).unwrap();
    assert_eq!(objects.iter().flatten().count(), 4);
    assert!(!handler.prefetch(&keys).unwrap().pending);
    let staged = handler.stage(&keys);
    assert_eq!(staged.requested_keys, 4);
}

#[test]
fn a_promise_gives_way_to_a_page_that_is_asked_for() {
    let disk = Disk::default();
    let engine = volatile(on(&disk));
    let handler = client(&engine);
    overflow(&engine, &handler, 4);
    let keys: Vec<_> = (0..4).map(key).collect();
    handler.prefetch(&keys).unwrap();
    eventually("what was prefetched", || {
        handler.batch_exists(&keys).unwrap() == [true; 4]
    });
    // As large as the pool: there is no such page while anything is held.
    let page = handler.alloc(4 << 20).unwrap();
    assert_eq!(page.len(), 4 << 20);
}

#[test]
fn what_was_deleted_does_not_come_back_from_storage_nor_as_what_it_was() {
    let disk = Disk::default();
    let engine = volatile(on(&disk));
    let handler = client(&engine);
    overflow(&engine, &handler, 4);
    for number in [1, 1079] {
        // One that is in storage only, and one that is in memory, too.
        handler.delete(&key(number)).unwrap();
        assert!(
            handler
                .retrieve_within(&key(number), LONG)
                .unwrap()
                .is_none()
        );
    }
    let mut page = handler.alloc(LEN).unwrap();
    page.fill(0xAB);
    assert_eq!(handler.store(&key(1), page).unwrap(), Stored::New);
    eventually("the store", || stored(&engine) == 83);
    for number in 3000..3080 {
        put(&handler, number);
    }
    assert!(!handler.exists(&key(1)).unwrap());
    let object = handler.retrieve_within(&key(1), LONG).unwrap().unwrap();
    assert!(object.iter().all(|byte| *byte == 0xAB));
}

#[test]
fn a_delete_is_not_answered_while_storage_may_still_give_the_object_back() {
    let manual = ManualAdapter::new().unwrap();
    let engine = volatile(storage({
        let manual = manual.clone();
        move || manual.clone()
    }));
    let handler = client(&engine);
    put(&handler, 1);
    let store = manual.next_store();
    let bytes = store.batch[0].object.to_vec();
    store.succeed();
    for number in 1000..1080 {
        put(&handler, number);
    }
    assert!(!handler.exists(&key(1)).unwrap());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| handler.retrieve_within(&key(1), LONG));
        manual.next_lookup().find(|_| Some(bytes.len() as u64));
        let load = manual.next_load();
        let deleter = scope.spawn(|| handler.delete(&key(1)));
        // The load comes, whole, while the object is being deleted.
        std::thread::sleep(Duration::from_millis(50));
        assert!(!deleter.is_finished(), "the load still reads it");
        load.fill(|_| Some(bytes.clone()));
        assert!(deleter.join().unwrap().is_ok());
        assert!(!handler.exists(&key(1)).unwrap());
        assert_eq!(manual.deleted().len(), 1);
        assert!(reader.join().unwrap().unwrap().is_none());
    });
}

#[test]
fn a_restart_in_the_middle_loses_nothing_that_memory_or_storage_had() {
    restart_in_the_middle(Durability::None);
}

#[test]
fn nor_where_every_byte_is_made_durable_first() {
    restart_in_the_middle(Durability::Fsync);
}

fn restart_in_the_middle(durability: Durability) {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::create_dir(root.path().join("pool")).unwrap();
    std::fs::create_dir(root.path().join("state")).unwrap();
    let disk = Disk::default();
    {
        let engine = kept_with(root.path(), on(&disk), durability);
        let handler = client(&engine);
        overflow(&engine, &handler, 10);
        handler.close();
        engine.close().unwrap();
    }
    let engine = kept_with(root.path(), on(&disk), durability);
    assert!(engine.restart().warm);
    let handler = client(&engine);
    let keys: Vec<_> = (0..10).map(key).collect();
    let objects = handler.batch_retrieve_within(&keys, LONG).unwrap();
    for (number, object) in (0..).zip(objects) {
        assert_eq!(object.unwrap()[..], bytes_of(number)[..], "{number}");
    }
    // The tier of the last run left nothing behind that is kept for it.
    assert_eq!(engine.take_adopted().len(), 0);
    assert_eq!(engine.stats().clients.len(), 1);
}

#[test]
fn what_memory_has_and_storage_lacks_is_stored_after_a_restart() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::create_dir(root.path().join("pool")).unwrap();
    std::fs::create_dir(root.path().join("state")).unwrap();
    {
        // A storage that takes nothing.
        let silent = ManualAdapter::new().unwrap();
        let engine = kept(root.path(), storage(move || silent.clone()));
        let handler = client(&engine);
        put(&handler, 1);
        handler.close();
        engine.close().unwrap();
    }
    let disk = Disk::default();
    let engine = kept(root.path(), on(&disk));
    eventually("the store", || stored(&engine) == 1);
}

#[test]
fn an_adapter_that_hangs_blocks_neither_memory_nor_the_end() {
    let manual = ManualAdapter::new().unwrap();
    let engine = volatile(storage({
        let manual = manual.clone();
        move || manual.clone()
    }));
    manual.block_calls(true);
    let handler = client(&engine);
    for number in 0..200 {
        put(&handler, number);
        let object = handler.retrieve(&key(number)).unwrap().unwrap();
        assert_eq!(object[..], bytes_of(number)[..]);
    }
    // Whoever waits is told when the backend is out of use, or his time is over.
    let begun = Instant::now();
    let wait = Duration::from_secs(5);
    assert!(handler.retrieve_within(&key(5000), wait).unwrap().is_none());
    assert!(begun.elapsed() < LONG);
    eventually("the quarantine", || {
        let l2 = engine.stats().l2.unwrap();
        let is_out = |backend: &BackendStats| backend.health == "quarantined";
        l2.backends.iter().all(is_out)
    });
    let degraded = engine.degraded().unwrap();
    assert!(degraded.contains("test#0"), "{degraded}");
    assert_eq!(engine.health(), Ok(()));
    let begun = Instant::now();
    engine.close().unwrap();
    assert!(begun.elapsed() < LONG);
    manual.block_calls(false);
}

#[test]
fn pages_of_a_transfer_that_never_ends_stay_captive_over_a_restart_in_this_process() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::create_dir(root.path().join("pool")).unwrap();
    std::fs::create_dir(root.path().join("state")).unwrap();
    let manual = ManualAdapter::new().unwrap();
    let engine = kept(
        root.path(),
        storage({
            let manual = manual.clone();
            move || manual.clone()
        }),
    );
    let handler = client(&engine);
    let reader = std::thread::spawn(move || {
        let found = handler.retrieve_within(&key(1), Duration::from_secs(1));
        assert!(found.unwrap().is_none());
        handler.close();
    });
    manual.next_lookup().find(|_| Some(65_536));
    let mut load = manual.next_load();
    let page = &mut load.batch[0].page;
    page.parts_mut().0.fill(0xEE);
    reader.join().unwrap();
    engine.close().unwrap();
    drop(engine);
    let disk = Disk::default();
    let engine = kept(root.path(), on(&disk));
    assert_eq!(engine.take_adopted().len(), 1, "the tier of the last run");
    let handler = client(&engine);
    for number in 0..200 {
        put(&handler, number);
    }
    assert!(
        load.batch[0]
            .page
            .parts()
            .0
            .iter()
            .all(|byte| *byte == 0xEE)
    );
    load.batch[0].page.parts_mut().0.fill(0xDD);
    for number in 0..200 {
        if let Some(object) = handler.retrieve(&key(number)).unwrap() {
            assert_eq!(object[..], bytes_of(number)[..], "{number}");
        }
    }
}

#[test]
fn a_type_that_is_not_linked_in_ends_the_start_with_its_name_unless_it_may_be_missing() {
    let mut config = EngineConfig::new(["memfd:?size=4MiB".parse().unwrap()]);
    let adapter: AdapterSpec = r#"{"type":"nowhere"}"#.parse().unwrap();
    config.l2 = Some(L2Config::new([adapter]));
    let error = Engine::open(config).unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
    let mut config = EngineConfig::new(["memfd:?size=4MiB".parse().unwrap()]);
    let adapter = r#"{"type":"nowhere","required":false}"#.parse().unwrap();
    config.l2 = Some(L2Config::new([adapter]));
    let engine = Engine::open(config).unwrap();
    let handler = client(&engine);
    put(&handler, 1);
    assert!(handler.retrieve_within(&key(2), LONG).unwrap().is_none());
    assert!(engine.stats().l2.unwrap().backends.is_empty());
}

/// A pool may take minutes.
#[test]
fn storage_that_is_configured_wrongly_is_refused_before_the_pool_is_made() {
    for adapter in [
        r#"{"type":"nowhere"}"#,
        r#"{"type":"nowhere","required":false,"serde":{"type":"gzip"}}"#,
    ] {
        // Nor can that be opened, which would be said if it were tried first.
        let mut config = EngineConfig::new(["dir:/no/such/directory?size=4MiB".parse().unwrap()]);
        config.l2 = Some(L2Config::new([adapter.parse().unwrap()]));
        let error = Engine::open(config).unwrap_err();
        assert!(matches!(&error, EngineError::Storage(_)), "{error}");
    }
}

#[test]
fn storage_that_cannot_be_opened_ends_the_start_and_leaves_no_file() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let uri = format!("dir:{}?size=4MiB&region=2MiB", root.path().display());
    let mut config = EngineConfig::new([uri.parse().unwrap()]);
    config.l2 = Some(L2Config::with(
        |_| Err("fs#0: no such directory".to_owned()),
    ));
    let error = Engine::open(config).unwrap_err();
    assert!(matches!(&error, EngineError::Storage(_)), "{error}");
    assert!(error.to_string().contains("fs#0"), "{error}");
    let left = std::fs::read_dir(root.path()).unwrap();
    let left: Vec<_> = left
        .map(|file| file.unwrap().file_name())
        .filter(|name| !name.to_string_lossy().ends_with(".owner"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
