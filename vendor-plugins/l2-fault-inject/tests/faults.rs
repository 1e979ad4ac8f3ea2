//! Each fault does what it is to do, is counted, and does nothing else.

use std::time::{Duration, Instant};

use l2_fault_inject::FaultInjectAdapter;
use ondol_plugin::l2::{
    KvRank, L2Adapter, LoadItem, LoadOutcome, LoadResult, LookupResult, ObjectKey, StoreItem,
    StoreResult, TaskId, WorkerAdapter,
};
use ondol_testkit::l2::{DropCounter, MapBackend};
use serde_json::{Value, json};

const WATCHDOG: Duration = Duration::from_secs(60);
const BODY: usize = 100;
const TRAILER: usize = 20;

fn open(mut parameters: Value) -> FaultInjectAdapter {
    parameters["inner"] = json!({"type": "map"});
    let inner = WorkerAdapter::new("map", 2, MapBackend::new()).unwrap();
    let config = serde_json::from_value(parameters).unwrap();
    FaultInjectAdapter::new("fault_inject#0", Box::new(inner), config).unwrap()
}

fn key(number: u32) -> ObjectKey {
    ObjectKey::new("m", KvRank(0), 0, number.to_be_bytes(), "").unwrap()
}

fn body(number: u32) -> Vec<u8> {
    vec![number as u8 | 1; BODY]
}

fn trailer(number: u32) -> Vec<u8> {
    vec![!(number as u8) | 1; TRAILER]
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

fn submit_store(adapter: &FaultInjectAdapter, number: u32, counter: &DropCounter) -> TaskId {
    let object = counter.object_with_trailer(body(number), trailer(number));
    let key = key(number);
    adapter
        .submit_store(vec![StoreItem { key, object }])
        .unwrap()
}

fn store(adapter: &FaultInjectAdapter, number: u32) -> StoreResult {
    let task = submit_store(adapter, number, &DropCounter::new());
    let (done, result) = wait(|| adapter.pop_completed_stores().pop());
    assert_eq!(done, task);
    result
}

fn lookup(adapter: &FaultInjectAdapter, numbers: &[u32]) -> LookupResult {
    let keys = numbers.iter().map(|number| key(*number)).collect();
    let task = adapter.submit_lookup_and_lock(keys).unwrap();
    wait(|| adapter.query_lookup_and_lock(task))
}

fn submit_load(adapter: &FaultInjectAdapter, numbers: &[u32], counter: &DropCounter) -> TaskId {
    let item = |number: &u32| LoadItem {
        key: key(*number),
        page: counter.page(BODY, TRAILER),
    };
    adapter
        .submit_load(numbers.iter().map(item).collect())
        .unwrap()
}

fn load(adapter: &FaultInjectAdapter, numbers: &[u32]) -> LoadResult {
    let task = submit_load(adapter, numbers, &DropCounter::new());
    wait(|| adapter.query_load(task))
}

fn injected(adapter: &FaultInjectAdapter, figure: &str) -> u64 {
    adapter.status().figures["injected"][figure]
        .as_u64()
        .unwrap()
}

/// Stores twenty objects, numbered from 0.
fn fill(adapter: &FaultInjectAdapter) -> Vec<u32> {
    let numbers: Vec<_> = (0..20).collect();
    for number in &numbers {
        assert!(store(adapter, *number).0.is_ok());
    }
    numbers
}

/// How many bits of a loaded object are not those that were stored.
fn wrong_bits(result: &LoadResult, number: u32) -> u32 {
    let page = result.0[number as usize].page.as_ref().unwrap();
    let (found_body, found_trailer) = page.parts();
    let pairs = found_body.iter().zip(body(number)).map(|(a, b)| (*a, b));
    let more = found_trailer
        .iter()
        .zip(trailer(number))
        .map(|(a, b)| (*a, b));
    pairs.chain(more).map(|(a, b)| (a ^ b).count_ones()).sum()
}

#[test]
fn without_a_rate_nothing_fails() {
    let adapter = open(json!({}));
    let numbers = fill(&adapter);
    let loaded = load(&adapter, &numbers);
    assert_eq!(loaded.found().count_ones(), 20);
    assert!(
        numbers
            .iter()
            .all(|number| wrong_bits(&loaded, *number) == 0)
    );
    let figures = adapter.status().figures;
    let injected = figures["injected"].as_object().unwrap();
    assert!(
        injected.values().all(|count| *count == json!(0)),
        "{figures:?}"
    );
    assert!(figures["inner"].is_object());
}

#[test]
fn stores_fail_may_be_tried_again_and_store_nothing() {
    let adapter = open(json!({"store_error_rate": 1}));
    let counter = DropCounter::new();
    let task = submit_store(&adapter, 1, &counter);
    let (done, result) = wait(|| adapter.pop_completed_stores().pop());
    assert_eq!((done, counter.held()), (task, 0));
    assert!(result.0.unwrap_err().retryable);
    assert_eq!(adapter.usage().objects, 0);
    assert_eq!(injected(&adapter, "store_errors"), 1);
}

#[test]
fn some_stores_fail_and_trying_again_helps() {
    let adapter = open(json!({"store_error_rate": 0.5, "seed": 3}));
    let mut tries = 0;
    for number in 0..20 {
        while store(&adapter, number).0.is_err() {
            tries += 1;
            assert!(tries < 1000);
        }
    }
    assert!(tries > 0);
    assert_eq!(injected(&adapter, "store_errors"), tries);
    assert_eq!(adapter.usage().objects, 20);
}

#[test]
fn lookups_fail_and_lock_nothing() {
    let adapter = open(json!({"lookup_error_rate": 1}));
    fill(&adapter);
    let result = lookup(&adapter, &[1, 2]);
    assert_eq!(result.found.to_string(), "00");
    assert!(result.error.unwrap().contains("injected"));
    assert_eq!(adapter.delete(&[key(1)]).unwrap().gone.to_string(), "1");
    assert_eq!(injected(&adapter, "lookup_errors"), 1);
}

#[test]
fn loads_fail_and_give_their_pages_back() {
    let adapter = open(json!({"load_error_rate": 1}));
    fill(&adapter);
    let result = load(&adapter, &[1, 2]);
    for loaded in &result.0 {
        assert!(loaded.page.is_some());
        assert!(matches!(&loaded.outcome, LoadOutcome::Failed(why) if why.contains("injected")));
    }
    assert_eq!(injected(&adapter, "load_errors"), 1);
}

#[test]
fn deletes_fail_and_delete_nothing() {
    let adapter = open(json!({"delete_error_rate": 1}));
    fill(&adapter);
    assert!(adapter.delete(&[key(1)]).is_err());
    assert_eq!(adapter.usage().objects, 20);
    assert_eq!(injected(&adapter, "delete_errors"), 1);
}

#[test]
fn dropped_keys_are_the_same_each_time_and_found_by_lookups() {
    let adapter = open(json!({"rate": 0.3, "seed": 5}));
    let numbers = fill(&adapter);
    let first = load(&adapter, &numbers).found();
    let dropped = 20 - first.count_ones();
    assert!((1..20).contains(&dropped), "{first}");
    assert_eq!(load(&adapter, &numbers).found(), first);
    assert_eq!(injected(&adapter, "dropped_loads"), 2 * dropped as u64);
    assert_eq!(lookup(&adapter, &numbers).found.count_ones(), 20);
    let other = open(json!({"rate": 0.3, "seed": 6}));
    fill(&other);
    assert_ne!(load(&other, &numbers).found(), first);
}

#[test]
fn gaps_are_where_they_are_wanted() {
    let adapter = open(json!({"gap_indices": [1], "gap_tail_ratios": [0.0, 0.5]}));
    fill(&adapter);
    assert_eq!(
        load(&adapter, &[0, 1, 2, 3, 4]).found().to_string(),
        "10010"
    );
    assert_eq!(injected(&adapter, "dropped_loads"), 3);
    // What is missing anyway is not counted.
    assert_eq!(load(&adapter, &[90, 91]).found().count_ones(), 0);
    assert_eq!(injected(&adapter, "dropped_loads"), 3);
}

#[test]
fn one_bit_of_a_corrupted_object_is_wrong_and_it_is_called_found() {
    let adapter = open(json!({"corrupt_rate": 0.5, "seed": 1}));
    let numbers = fill(&adapter);
    let loaded = load(&adapter, &numbers);
    assert_eq!(loaded.found().count_ones(), 20);
    let wrong: Vec<_> = numbers
        .iter()
        .map(|number| wrong_bits(&loaded, *number))
        .collect();
    assert!(wrong.iter().all(|bits| *bits <= 1), "{wrong:?}");
    let corrupted = wrong.iter().sum::<u32>();
    assert!((1..20).contains(&corrupted));
    assert_eq!(injected(&adapter, "corrupted_loads"), u64::from(corrupted));
    // What is stored stays right.
    let again = load(&adapter, &numbers);
    assert_ne!(
        wrong,
        numbers
            .iter()
            .map(|number| wrong_bits(&again, *number))
            .collect::<Vec<_>>()
    );
}

#[test]
fn of_a_short_read_the_first_half_comes() {
    let adapter = open(json!({"short_read_rate": 1}));
    fill(&adapter);
    let loaded = load(&adapter, &[7]);
    let half = (BODY + TRAILER) / 2;
    assert_eq!(loaded.0[0].outcome, LoadOutcome::Found(half as u64));
    let (found_body, found_trailer) = loaded.0[0].page.as_ref().unwrap().parts();
    assert_eq!(found_body[..half], body(7)[..half]);
    assert!(
        found_body[half..]
            .iter()
            .chain(found_trailer)
            .all(|byte| *byte == 0)
    );
    assert_eq!(injected(&adapter, "short_reads"), 1);
}

#[test]
fn tasks_that_hang_keep_their_buffers_until_the_adapter_is_gone() {
    let adapter = open(json!({"store_hang_rate": 1, "lookup_hang_rate": 1, "load_hang_rate": 1}));
    let counter = DropCounter::new();
    submit_store(&adapter, 1, &counter);
    let load = submit_load(&adapter, &[1, 2], &counter);
    let lookup = adapter.submit_lookup_and_lock(vec![key(1)]).unwrap();
    assert_eq!(adapter.usage().objects, 0);
    assert_eq!(adapter.close(WATCHDOG).abandoned, 3);
    assert_eq!(counter.held(), 3);
    assert!(adapter.pop_completed_stores().is_empty());
    assert!(adapter.query_load(load).is_none());
    assert!(adapter.query_lookup_and_lock(lookup).is_none());
    for figure in ["store_hangs", "lookup_hangs", "load_hangs"] {
        assert_eq!(injected(&adapter, figure), 1, "{figure}");
    }
    drop(adapter);
    assert_eq!(counter.held(), 0);
}

#[test]
fn a_lost_completion_is_of_a_task_that_was_carried_out() {
    let adapter = open(json!({"store_lost_rate": 1, "lookup_lost_rate": 1, "load_lost_rate": 1}));
    let counter = DropCounter::new();
    submit_store(&adapter, 1, &counter);
    wait(|| (adapter.usage().objects == 1).then_some(()));
    let load = submit_load(&adapter, &[1], &counter);
    adapter.submit_lookup_and_lock(vec![key(1)]).unwrap();
    assert_eq!(adapter.close(WATCHDOG).abandoned, 3);
    // No task touches a buffer any more, so none is kept.
    assert_eq!(counter.held(), 0);
    assert!(adapter.pop_completed_stores().is_empty() && adapter.query_load(load).is_none());
    // Nor is a lock that nobody knows of.
    assert_eq!(adapter.delete(&[key(1)]).unwrap().gone.to_string(), "1");
    for figure in ["store_lost", "lookup_lost", "load_lost"] {
        assert_eq!(injected(&adapter, figure), 1, "{figure}");
    }
}

#[test]
fn a_close_does_not_wait_for_a_delay() {
    let hour = 3_600_000;
    let adapter =
        open(json!({"store_delay_ms": hour, "load_delay_ms": hour, "lookup_delay_ms": hour}));
    let counter = DropCounter::new();
    let store = submit_store(&adapter, 1, &counter);
    wait(|| (adapter.usage().objects == 1).then_some(()));
    let load = submit_load(&adapter, &[1], &counter);
    assert!(adapter.pop_completed_stores().is_empty());
    assert_eq!(adapter.close(WATCHDOG).abandoned, 0);
    assert_eq!(adapter.pop_completed_stores().pop().unwrap().0, store);
    // It was carried out, or dropped by the close; it has ended.
    assert!(adapter.query_load(load).is_some());
    assert_eq!(counter.held(), 0);
    assert_eq!(injected(&adapter, "delays"), 2);
}

#[test]
fn what_fails_is_held_back_too_and_comes() {
    let adapter = open(json!({"store_error_rate": 1, "store_delay_ms": 20}));
    for number in 0..5 {
        assert!(store(&adapter, number).0.is_err());
    }
    assert_eq!(injected(&adapter, "delays"), 5);
}

#[test]
fn the_same_calls_fail_in_the_same_way() {
    let run = |seed: u64| {
        let adapter = open(json!({"store_error_rate": 0.3, "load_error_rate": 0.3, "seed": seed}));
        let stored: Vec<_> = (0..40)
            .map(|number| store(&adapter, number).0.is_ok())
            .collect();
        let loaded: Vec<_> = (0..40)
            .map(|number| load(&adapter, &[number]).found().test(0))
            .collect();
        (stored, loaded)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
