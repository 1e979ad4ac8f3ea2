//! What the connectors promise beyond the contract, linked in and as a shared library.

#[allow(dead_code, reason = "each test file uses a part")]
mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{connector, factory, open, table};
use ondol_connector::Table;
use ondol_plugin::l2::{Completion, FutureId, NativeConnector, ObjectRef, OpenContext, PageMut};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;
use tempfile::TempDir;

/// Waits for one completion.
fn wait(connector: &dyn NativeConnector, future: FutureId) -> Completion {
    loop {
        let fd = connector.event_fd();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
        if let Some(completion) = connector.drain_completions().pop() {
            assert_eq!(completion.future, future.0);
            return completion;
        }
    }
}

fn set(connector: &dyn NativeConnector, key: &str, bytes: &[u8]) -> Completion {
    let objects = vec![ObjectRef::new(bytes.to_vec())];
    let future = connector.submit_batch_set(&[key.into()], objects).unwrap();
    wait(connector, future)
}

fn get(connector: &dyn NativeConnector, key: &str, room: usize) -> (Completion, Vec<u8>) {
    let pages = vec![PageMut::new(vec![0_u8; room], 0)];
    let future = connector.submit_batch_get(&[key.into()], pages).unwrap();
    let mut completion = wait(connector, future);
    let length = completion.lengths.as_ref().unwrap()[0];
    let page = completion.pages.pop().unwrap();
    let bytes = page.parts().0[..usize::try_from(length).unwrap()].to_vec();
    (completion, bytes)
}

fn exists(connector: &dyn NativeConnector, keys: &[&str]) -> Completion {
    let keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
    let future = connector.submit_batch_exists(&keys).unwrap();
    wait(connector, future)
}

fn shared_library(dir: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = dir.join("libexample.so");
    let sources = std::fs::read_dir(root.join("cpp")).unwrap();
    let sources = sources
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"));
    let status = Command::new(env!("CXX_FOR_TESTS"))
        .args(["-std=c++17", "-shared", "-fPIC", "-pthread", "-I"])
        .arg(root.join("../../include"))
        .args(sources)
        .arg("-o")
        .arg(&library)
        .status()
        .expect("a C++ compiler");
    assert!(status.success());
    library
}

#[test]
fn the_parameters_of_the_factories_are_those_of_the_table() {
    for class in table("FsConnector").classes() {
        let factory = factory(&class.name);
        let listed = factory.parameter_list().iter().map(|parameter| {
            let default = parameter.default.map(str::to_owned);
            (parameter.name, default, parameter.summary)
        });
        let found = class
            .parameters
            .iter()
            .map(|found| (&*found.name, found.default.clone(), &*found.summary));
        assert!(listed.eq(found), "{class:?}");
        assert!(class.missing.is_empty());
    }
}

#[test]
fn as_a_shared_library_it_reads_what_the_linked_one_wrote() {
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("new/store");
    let linked = connector("FsConnector", &store).unwrap();
    assert!(set(&*linked, "org/m@01000100@0@ab", b"hello").ok);
    linked.close();
    drop(linked);

    let table = Table::load(&shared_library(dir.path())).unwrap();
    let parameters = json!({"base_path": store, "num_workers": 1});
    let context = OpenContext::new("test");
    let loaded = table
        .open("FsConnector", parameters.as_object().unwrap(), &context)
        .unwrap();
    let (completion, bytes) = get(&*loaded, "org/m@01000100@0@ab", 100);
    assert!(completion.ok && bytes == b"hello");
    loaded.close();
}

#[test]
fn parameters_are_checked() {
    for (class, parameters, reason) in [
        ("FsConnector", json!({}), "base_path is missing"),
        (
            "FsConnector",
            json!({"base_path": 7}),
            "base_path is missing",
        ),
        (
            "FsConnector",
            json!({"base_path": "/proc/none/of/this"}),
            "cannot make the directory",
        ),
        (
            "MemoryConnector",
            json!({"num_workers": 0}),
            "expected a whole number from 1 to 256",
        ),
        (
            "MemoryConnector",
            json!({"num_workers": 2.5}),
            "num_workers is 2.5",
        ),
        (
            "MemoryConnector",
            json!({"num_workers": "4"}),
            "num_workers is 4",
        ),
        (
            "MemoryConnector",
            json!({"num_workers": null}),
            "num_workers is null",
        ),
        (
            "MemoryConnector",
            json!({"num_workers": 99_999_999_999_999_999_999_u128 as f64}),
            "num_workers is",
        ),
    ] {
        let error = open(class, &parameters).err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn parameters_that_it_does_not_know_are_read_over() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a \"b\"\\ é 😀\n\u{1}");
    let parameters = json!({
        "type": "native_plugin",
        "nested": {"base_path": "/nowhere", "list": [1, [], {"x": null}, "]}"]},
        "flag": true,
        "empty": {},
        "base_path": path,
        "num_workers": 2,
    });
    let connector = open("FsConnector", &parameters).unwrap();
    assert!(set(&*connector, "m@1@0@ab", b"x").ok);
    assert!(path.join("m@1@0@ab.data").is_file());
    connector.close();
}

#[test]
fn no_two_keys_have_one_file() {
    let dir = TempDir::new().unwrap();
    let connector = connector("FsConnector", dir.path()).unwrap();
    let keys = [
        "a/b@1@0@ab",
        "a%2Fb@1@0@ab",
        "a-SEP-b@1@0@ab",
        "..@1@0@ab",
        "%2E.@1@0@ab",
        "../x@1@0@ab",
    ];
    for key in keys {
        assert!(set(&*connector, key, key.as_bytes()).ok);
    }
    for key in keys {
        assert_eq!(get(&*connector, key, 100).1, key.as_bytes());
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), keys.len());
    connector.close();
}

#[test]
fn an_object_that_does_not_fit_is_not_loaded_and_an_empty_one_is() {
    let dir = TempDir::new().unwrap();
    for class in ["FsConnector", "MemoryConnector"] {
        let connector = connector(class, dir.path()).unwrap();
        assert!(set(&*connector, "m@1@0@ab", b"four").ok);
        assert!(set(&*connector, "m@1@0@cd", b"").ok);
        assert_eq!(get(&*connector, "m@1@0@ab", 3).0.per_key, Some(vec![false]));
        assert_eq!(get(&*connector, "m@1@0@ab", 4).1, b"four");
        assert_eq!(get(&*connector, "m@1@0@cd", 0).0.per_key, Some(vec![true]));
        let found = exists(&*connector, &["m@1@0@ab", "m@1@0@ef", "m@1@0@cd"]);
        assert_eq!(found.per_key, Some(vec![true, false, true]));
        assert_eq!(found.lengths, Some(vec![4, 0, 0]));
        connector.close();
    }
}

/// A name that no file can have is not there, and cannot be stored; that is an error and no crash.
#[test]
fn a_key_that_is_too_long_for_a_file_name_is_an_error() {
    let dir = TempDir::new().unwrap();
    let connector = connector("FsConnector", dir.path()).unwrap();
    let key = format!("{}@1@0@ab", "m".repeat(300));
    let stored = set(&*connector, &key, b"x");
    assert!(
        !stored.ok && stored.error.contains("File name too long"),
        "{stored:?}"
    );
    assert_eq!(exists(&*connector, &[&key]).per_key, Some(vec![false]));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    connector.close();
}

#[test]
fn drafts_of_processes_that_have_ended_are_removed_and_no_others() {
    let dir = TempDir::new().unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id();
    ended.wait().unwrap();
    let stale = dir.path().join(format!(".draft-{pid}-0"));
    let ours = dir.path().join(format!(".draft-{}-7", std::process::id()));
    let foreign = dir.path().join(".drafty");
    for path in [&stale, &ours, &foreign] {
        std::fs::write(path, "part").unwrap();
    }
    let connector = connector("FsConnector", dir.path()).unwrap();
    assert!(!stale.exists() && ours.exists() && foreign.exists());
    connector.close();
}

#[test]
fn a_failed_store_leaves_nothing_visible() {
    let dir = TempDir::new().unwrap();
    let connector = connector("FsConnector", dir.path()).unwrap();
    // A directory is where the object's file would be.
    std::fs::create_dir(dir.path().join("m@1@0@ab.data")).unwrap();
    let stored = set(&*connector, "m@1@0@ab", b"x");
    assert!(
        !stored.ok && stored.error.contains("cannot name"),
        "{stored:?}"
    );
    assert_eq!(
        exists(&*connector, &["m@1@0@ab"]).per_key,
        Some(vec![false])
    );
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    connector.close();
}

#[test]
fn what_is_pending_when_it_closes_is_completed_and_what_comes_later_refused() {
    let connector = open("MemoryConnector", &json!({"num_workers": 1})).unwrap();
    let keys: Vec<_> = (0..200)
        .map(|number| format!("m@1@0@{number:02x}"))
        .collect();
    let futures: Vec<_> = keys
        .iter()
        .map(|key| {
            let objects = vec![ObjectRef::new(vec![1_u8; 1 << 16])];
            connector
                .submit_batch_set(std::slice::from_ref(key), objects)
                .unwrap()
        })
        .collect();
    connector.close();
    assert!(connector.submit_batch_exists(&keys).is_err());
    let mut completed: Vec<_> = connector.drain_completions();
    completed.sort_by_key(|completion| completion.future);
    let numbers: Vec<_> = completed
        .iter()
        .map(|completion| completion.future)
        .collect();
    let expected: Vec<_> = futures.iter().map(|future| future.0).collect();
    assert_eq!(numbers, expected);
    for completion in completed {
        assert!(completion.ok || completion.error == "closed");
    }
}
