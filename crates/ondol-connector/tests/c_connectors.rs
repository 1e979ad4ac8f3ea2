//! Connectors in C from shared libraries: tables that cannot be read, and connectors that lie.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use common::*;
use ondol_connector::{Bridge, BridgeOptions, ConnectorError, Table};
use ondol_plugin::l2::{
    Health, L2Adapter, LoadItem, LoadOutcome, NativeConnector, ObjectRef, OpenContext, StoreItem,
};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Compiles `c/connectors.c` as a shared library with these macros.
fn compile(dir: &Path, macros: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = dir.join("libconnectors.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(compiler)
        .args(["-std=gnu99", "-shared", "-fPIC", "-pthread"])
        .args(macros)
        .arg("-I")
        .arg(root.join("../../include"))
        .arg(root.join("tests/c/connectors.c"))
        .arg("-o")
        .arg(&library)
        .status()
        .expect("a C compiler");
    assert!(status.success());
    library
}

/// The library without faults in its table.
fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        Table::load(&compile(dir.path(), &[])).unwrap()
    })
}

fn table_error(macros: &[&str]) -> ConnectorError {
    let dir = TempDir::new().unwrap();
    Table::load(&compile(dir.path(), macros)).unwrap_err()
}

fn parameters(log: Option<&Path>) -> Map<String, Value> {
    let parameters = match log {
        Some(log) => json!({"log": log}),
        None => json!({}),
    };
    parameters.as_object().unwrap().clone()
}

fn open(class: &str) -> Result<Box<dyn NativeConnector>, ConnectorError> {
    table().open(class, &parameters(None), &OpenContext::new("test"))
}

fn open_logged(class: &str, log: &Path) -> Result<Box<dyn NativeConnector>, ConnectorError> {
    table().open(class, &parameters(Some(log)), &OpenContext::new("test"))
}

fn bridge_of(connector: Box<dyn NativeConnector>, task_timeout: Duration) -> Bridge {
    let options = BridgeOptions {
        task_timeout,
        ..BridgeOptions::default()
    };
    Bridge::new("c", connector, options).unwrap()
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn classes_and_their_parameters_are_listed() {
    let classes: Vec<_> = table().classes().collect();
    assert_eq!(classes[0].name, "Good");
    let parameters = &classes[0].parameters;
    assert_eq!(
        (&*parameters[0].name, &parameters[0].default),
        ("log", &None)
    );
    assert_eq!(parameters[1].default.as_deref(), Some("3"));
    assert_eq!(parameters[1].summary, "");
    let last = classes.last().unwrap();
    assert_eq!(last.missing, ["drain_completions", "destroy"]);
}

#[test]
fn a_table_of_another_version_is_refused() {
    let error = table_error(&["-DTABLE_VERSION=2u"]);
    assert!(matches!(
        error,
        ConnectorError::Version {
            found: 2,
            expected: 1,
            ..
        }
    ));
    assert!(error.to_string().contains("ondol_connector.h"));
}

#[test]
fn structures_that_are_too_small_are_refused() {
    for (macros, structure) in [
        ("-DTABLE_SIZE=8", "ondol_table"),
        ("-DROW_SIZE=16", "ondol_connector"),
    ] {
        match table_error(&[macros]) {
            ConnectorError::TooSmall {
                structure: found, ..
            } => assert_eq!(found, structure),
            other => panic!("{other}"),
        }
    }
}

/// Rows of a library that was compiled before the optional function was thought of.
#[test]
fn rows_may_end_before_what_is_optional() {
    let dir = TempDir::new().unwrap();
    let size = "-DROW_SIZE=(sizeof(ondol_connector)-sizeof(void*))";
    let table = Table::load(&compile(dir.path(), &[size, "-DROW_COUNT=1"])).unwrap();
    let context = OpenContext::new("test");
    let connector = table.open("Good", &parameters(None), &context).unwrap();
    assert!(
        connector
            .submit_batch_delete(&["k".into()])
            .unwrap()
            .is_none()
    );
}

#[test]
fn tables_that_cannot_be_are_refused() {
    for (macros, reason) in [
        ("-DNO_TABLE=1", "NULL"),
        ("-DROW_COUNT=100000", "expected at most 256"),
        ("-DROWS=nameless", "class_name is NULL"),
        ("-DROWS=namesakes", "two rows"),
    ] {
        match table_error(&[macros]) {
            ConnectorError::Malformed { reason: found, .. } => {
                assert!(found.contains(reason), "{found}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn what_is_no_library_of_connectors_is_refused() {
    let dir = TempDir::new().unwrap();
    let text = dir.path().join("libtext.so");
    std::fs::write(&text, "no library").unwrap();
    for (path, said) in [
        // The loader's own words.
        (text, "file too short"),
        (dir.path().join("missing.so"), "No such file"),
        (dir.path().to_owned(), "no plain file"),
    ] {
        let error = Table::load(&path).unwrap_err();
        assert!(matches!(error, ConnectorError::Load { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(error.contains(said), "{error}");
    }
    let library = compile(dir.path(), &["-DONDOL_CONNECTOR_ENTRY=another_name"]);
    let error = Table::load(&library).unwrap_err();
    assert!(matches!(error, ConnectorError::NoEntry { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("undefined symbol: ondol_connector_table"),
        "{error}"
    );
}

#[test]
fn a_class_that_is_not_there_is_an_error_that_lists_what_is() {
    let error = open("Better").err().unwrap();
    assert!(error.to_string().contains("Good, NullLists"), "{error}");
}

#[test]
fn a_connector_without_a_required_function_is_not_opened() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    let error = open_logged("NoDrain", &log).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("lacks drain_completions, destroy"),
        "{error}"
    );
    assert!(!log.exists());
}

#[test]
fn a_connector_without_a_descriptor_is_closed_again() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    let error = open_logged("NoFd", &log).err().unwrap();
    assert!(
        matches!(error, ConnectorError::EventFd { found: -1, .. }),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(log).unwrap(), "close\ndestroy\n");
}

#[test]
fn the_reason_of_a_failed_open_is_told_and_bounded() {
    match open("Fails").err().unwrap() {
        ConnectorError::Open { reason, .. } => assert_eq!(reason, "x".repeat(1024)),
        other => panic!("{other}"),
    }
}

#[test]
fn objects_with_a_trailer_go_out_and_come_back_in_one_piece() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    let bridge = bridge_of(open_logged("NullLists", &log).unwrap(), LONG);
    let object = ObjectRef::with_trailer(vec![1; 10], [2, 2]);
    let task = bridge
        .submit_store(vec![
            StoreItem {
                key: key(1),
                object,
            },
            item(2, 3),
        ])
        .unwrap();
    assert_eq!(store_result(&bridge, task).0, Ok(15));
    let written = std::fs::read_to_string(&log).unwrap();
    assert!(written.contains("@0101010101010101 12 14"), "{written}");
    assert!(written.contains("@0202020202020202 3 20"), "{written}");

    let items = [(10, 2), (10, 0), (0, 2)].map(|(length, trailer)| LoadItem {
        key: key(1),
        page: page(length, trailer).0,
    });
    let task = bridge.submit_load(items.into()).unwrap();
    for loaded in load_result(&bridge, task).0 {
        let page = loaded.page.unwrap();
        assert_eq!(loaded.outcome, LoadOutcome::Found(page.room() as u64));
        let (body, trailer) = page.parts();
        assert!(body.iter().chain(trailer).all(|byte| *byte == 0xab));
    }
    assert_eq!(bridge.close(Duration::from_secs(10)).abandoned, 0);
    drop(bridge);
    let written = std::fs::read_to_string(&log).unwrap();
    assert!(written.ends_with("close\ndestroy\n"), "{written}");
}

#[test]
fn lists_of_the_wrong_length_are_errors() {
    for (class, found) in [("ShortLists", "list of 1"), ("LongLists", "list of 3")] {
        let bridge = bridge_of(open(class).unwrap(), LONG);
        let task = bridge.submit_lookup_and_lock(keys(0..2)).unwrap();
        let error = lookup_result(&bridge, task).error.unwrap();
        assert!(error.contains(found), "{error}");
        let task = bridge.submit_load(load_items(0..2).0).unwrap();
        assert_eq!(load_result(&bridge, task).found().count_ones(), 0);
        let deleted = bridge.delete(&keys(0..2));
        assert!(deleted.is_err());
        assert_eq!(figure(&bridge, "malformed_answers"), 3);
        assert_eq!(figure(&bridge, "locked_keys"), 0);
    }
}

#[test]
fn the_list_of_a_failed_load_counts_for_nothing() {
    let bridge = bridge_of(open("HalfFailed").unwrap(), LONG);
    let items = [0, 4].map(|trailer| LoadItem {
        key: key(1),
        page: page(16, trailer).0,
    });
    let task = bridge.submit_load(items.into()).unwrap();
    for loaded in load_result(&bridge, task).0 {
        assert_eq!(loaded.outcome, LoadOutcome::Failed("half of it".into()));
    }
}

#[test]
fn a_length_beyond_the_buffer_is_no_hit() {
    let bridge = bridge_of(open("Beyond").unwrap(), LONG);
    let items = [0, 4].map(|trailer| LoadItem {
        key: key(1),
        page: page(16, trailer).0,
    });
    for item in items {
        let task = bridge.submit_load(vec![item]).unwrap();
        let loaded = load_result(&bridge, task);
        assert!(matches!(loaded.0[0].outcome, LoadOutcome::Failed(_)));
    }
}

#[test]
fn an_error_that_is_no_utf8_is_replaced() {
    let bridge = bridge_of(open("NoUtf8").unwrap(), LONG);
    let task = bridge.submit_lookup_and_lock(keys([1])).unwrap();
    assert_eq!(
        lookup_result(&bridge, task).error.unwrap(),
        "\u{fffd}\u{fffd}"
    );
}

/// Completions that cannot be read, that are for nobody, or that never come: the task ends in time, and the memory stays with the
/// connector for ever, as nobody can say that it is done with it.
#[test]
fn what_is_never_completed_stays_captive_even_when_all_is_closed() {
    for class in [
        "Never",
        "GarbageIds",
        "NullCompletion",
        "SmallCompletion",
        "TooMany",
    ] {
        let dir = TempDir::new().unwrap();
        let log = dir.path().join("log");
        let bridge = bridge_of(open_logged(class, &log).unwrap(), SHORT);
        let (items, alive) = load_items(0..2);
        let load = bridge.submit_load(items).unwrap();
        let loaded = load_result(&bridge, load);
        assert!(
            loaded.0.iter().all(|loaded| loaded.page.is_none()),
            "{class}"
        );
        let lookup = bridge.submit_lookup_and_lock(keys([1])).unwrap();
        assert!(lookup_result(&bridge, lookup).error.is_some(), "{class}");
        assert_eq!(figure(&bridge, "locked_keys"), 0);
        if class != "Never" {
            assert!(figure(&bridge, "unknown_completions") > 0, "{class}");
        }
        expect_health(&bridge, Health::Failed, "has not answered");
        assert_eq!(bridge.close(SHORT).abandoned, 1, "{class}");
        drop(bridge);
        assert!(alive.iter().all(is_held), "{class}");
        let written = std::fs::read_to_string(&log).unwrap();
        assert_eq!(written, "close\n", "{class}");
    }
}

#[test]
fn a_second_completion_changes_nothing() {
    let bridge = bridge_of(open("Twice").unwrap(), LONG);
    let (items, alive) = load_items(0..2);
    let load = bridge.submit_load(items).unwrap();
    assert_eq!(load_result(&bridge, load).found().count_ones(), 2);
    wait_for("the count", || {
        (figure(&bridge, "unknown_completions") == 1).then_some(())
    });
    assert!(!alive.iter().any(is_held));
}

#[test]
fn a_refused_request_gives_its_memory_back_at_once() {
    let bridge = bridge_of(open("Refuse").unwrap(), LONG);
    let (items, alive) = load_items(0..2);
    let error = bridge.submit_load(items).unwrap_err();
    assert!(format!("{error:#}").contains("returned 7"), "{error:#}");
    assert!(!alive.iter().any(is_held));
    assert!(bridge.submit_lookup_and_lock(keys([1])).is_err());
    assert_eq!(figure(&bridge, "locked_keys"), 0);
    assert_eq!(figure(&bridge, "refused_requests"), 2);
    assert_eq!(bridge.close(Duration::from_secs(10)).abandoned, 0);
}

#[test]
fn a_connector_without_delete_says_so() {
    let bridge = bridge_of(open("NoDelete").unwrap(), LONG);
    assert_eq!(bridge.delete(&keys([1])).unwrap().gone.count_ones(), 0);
    assert_eq!(bridge.status().figures["can_delete"], false);
}

#[test]
fn requests_from_many_threads_find_their_own_completions() {
    let bridge = bridge_of(open("Good").unwrap(), LONG);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let bridge = &bridge;
            scope.spawn(move || {
                for _ in 0..200 {
                    let task = bridge.submit_lookup_and_lock(keys([number])).unwrap();
                    assert!(lookup_result(bridge, task).found.test(0));
                    bridge.submit_unlock(&keys([number]));
                    let task = bridge.submit_load(load_items([number]).0).unwrap();
                    assert_eq!(load_result(bridge, task).found().count_ones(), 1);
                }
            });
        }
    });
    assert_eq!(figure(&bridge, "unknown_completions"), 0);
    expect_health(&bridge, Health::Healthy, "");
}
