//! What goes when room is needed.

use std::time::{Duration, Instant};

use l2_memory::MemoryConfig;
use ondol_plugin::inventory;
use ondol_plugin::l2::{
    AdapterConfig, KvRank, L2Adapter, L2AdapterFactory, ObjectKey, ObjectRef, OpenContext,
    StoreItem, StoreResult,
};
use serde_json::{Value, json};

const WATCHDOG: Duration = Duration::from_secs(60);

fn open(parameters: Value) -> Box<dyn L2Adapter> {
    let factory = inventory::iter::<L2AdapterFactory>
        .into_iter()
        .find(|factory| factory.type_name() == "memory")
        .unwrap();
    let Value::Object(parameters) = parameters else {
        panic!("no object")
    };
    let config = factory.own_config().unwrap().read(parameters).unwrap();
    assert!(config.typed::<MemoryConfig>().is_some());
    factory.open(config, &OpenContext::new("memory#0")).unwrap()
}

fn key(number: u8) -> ObjectKey {
    ObjectKey::new("m", KvRank(0), 0, [number], "").unwrap()
}

/// Waits for what `take` is to give.
fn wait<T>(mut take: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(taken) = take() {
            return taken;
        }
        assert!(begun.elapsed() < WATCHDOG);
        std::thread::yield_now();
    }
}

fn store(adapter: &dyn L2Adapter, number: u8, bytes: usize) -> StoreResult {
    let item = StoreItem {
        key: key(number),
        object: ObjectRef::new(vec![number; bytes]),
    };
    let task = adapter.submit_store(vec![item]).unwrap();
    let (done, result) = wait(|| adapter.pop_completed_stores().pop());
    assert_eq!(done, task);
    result
}

fn lookup(adapter: &dyn L2Adapter, numbers: &[u8]) -> String {
    let keys = numbers.iter().map(|number| key(*number)).collect();
    let task = adapter.submit_lookup_and_lock(keys).unwrap();
    wait(|| adapter.query_lookup_and_lock(task))
        .found
        .to_string()
}

#[test]
fn the_oldest_goes_first_and_being_used_does_not_help() {
    let adapter = open(json!({"max_size_bytes": 30}));
    for number in 1..=3 {
        assert_eq!(store(&*adapter, number, 10), StoreResult::stored(10));
    }
    assert_eq!(lookup(&*adapter, &[1]), "1");
    adapter.submit_unlock(&[key(1)]);
    assert_eq!(store(&*adapter, 4, 15), StoreResult::stored(15));
    assert_eq!(lookup(&*adapter, &[1, 2, 3, 4]), "0011");
    let figures = adapter.status().figures;
    assert_eq!(figures["evicted_objects"], json!(2));
    assert_eq!(figures["evicted_bytes"], json!(20));
}

#[test]
fn what_is_locked_stays_and_a_store_that_finds_no_room_may_be_tried_again() {
    let adapter = open(json!({"max_size_bytes": 30}));
    for number in 1..=3 {
        store(&*adapter, number, 10);
    }
    assert_eq!(lookup(&*adapter, &[1, 2]), "11");
    store(&*adapter, 4, 10);
    assert_eq!(lookup(&*adapter, &[3]), "0");
    let refused = store(&*adapter, 5, 15).0.unwrap_err();
    assert!(
        refused.retryable && refused.reason.contains("locked"),
        "{refused}"
    );
    assert_eq!(adapter.status().figures["refused_stores"], json!(1));
    adapter.submit_unlock(&[key(1), key(2)]);
    assert_eq!(store(&*adapter, 5, 15), StoreResult::stored(15));
    assert!(adapter.usage().used_bytes <= 30);
}

#[test]
fn a_salt_that_has_nothing_left_is_not_in_the_usage() {
    let adapter = open(json!({"max_size_bytes": 30}));
    store(&*adapter, 1, 10);
    assert_eq!(adapter.usage().bytes_by_salt, [(String::new(), 10)].into());
    adapter.delete(&[key(1)]).unwrap();
    assert!(adapter.usage().bytes_by_salt.is_empty());
}

#[test]
fn what_never_fits_evicts_nothing() {
    let adapter = open(json!({"max_size_bytes": 30}));
    store(&*adapter, 1, 10);
    let refused = store(&*adapter, 2, 31).0.unwrap_err();
    assert!(
        !refused.retryable && refused.reason.contains("31 bytes"),
        "{refused}"
    );
    assert_eq!(lookup(&*adapter, &[1]), "1");
    assert_eq!(store(&*adapter, 3, 20), StoreResult::stored(20));
}

#[test]
fn a_close_does_not_wait_for_the_simulation() {
    // An object would take longer than anybody waits here.
    let adapter = open(json!({"bandwidth_gb": 1e-6, "num_workers": 1}));
    let item = |number| StoreItem {
        key: key(number),
        object: ObjectRef::new(vec![1; 16 << 20]),
    };
    adapter.submit_store(vec![item(1), item(2)]).unwrap();
    adapter.submit_store(vec![item(3)]).unwrap();
    assert_eq!(adapter.close(WATCHDOG).abandoned, 0);
    let ended = adapter.pop_completed_stores();
    assert_eq!(ended.len(), 2);
    assert!(ended.iter().all(|(_, result)| result.0.is_err()));
    assert_eq!(adapter.usage().objects, 0);
}

#[test]
fn raw_parameters_are_read_as_typed_ones_are() {
    let factory = inventory::iter::<L2AdapterFactory>
        .into_iter()
        .find(|factory| factory.type_name() == "memory")
        .unwrap();
    let Value::Object(parameters) = json!({"max_size_bytes": 7}) else {
        panic!("no object")
    };
    let context = OpenContext::new("memory#0");
    let adapter = factory
        .open(AdapterConfig::raw(parameters), &context)
        .unwrap();
    assert_eq!(adapter.usage().capacity_bytes, Some(7));
}
