//! Plugins of a handler end to end: a producer and a consumer that share a server, and a plugin in the consumer
//! that writes down every hint it gets.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use broken_plugins::Probe;
use ondol_handler::{Handler, HandlerConfig, Key, Plugins};
use ondol_host::{ALLOWLIST_VARIABLE, Allowlist, Environment, LoadOptions};
use ondol_protocol::ControlPlane;
use ondol_tests::{Actor, Server, ServerProcess, check, fill, key, keys, plain, watchdog};
use recording_plugin::{FILE_VARIABLE, NAME, sum};
use serde_json::{Value, json};

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
const PAGE: u64 = 65_536;
const LIMIT: Duration = Duration::from_secs(120);

fn content(text: &str, len: usize, writer: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, text, writer);
    bytes
}

fn put(handler: &Handler, text: &str, len: usize, writer: u64) {
    let mut page = handler.alloc(len).unwrap();
    page.write_from(&content(text, len, writer));
    handler.store(&key(text), page).unwrap();
}

/// What the plugin wrote down since it was last asked.
struct Record {
    path: PathBuf,
    read: usize,
}

impl Record {
    fn new(dir: &Path) -> Self {
        Self {
            path: dir.join("record"),
            read: 0,
        }
    }

    fn variable(&self) -> (&str, &str) {
        (FILE_VARIABLE, self.path.to_str().unwrap())
    }

    fn news(&mut self) -> Vec<Value> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let news: Vec<_> = text
            .lines()
            .skip(self.read)
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        self.read += news.len();
        news
    }

    /// The one call that there was.
    fn only(&mut self) -> Value {
        let news = self.news();
        assert_eq!(news.len(), 1, "{news:?}");
        news.into_iter().next().unwrap()
    }
}

fn recording(record: &Record, page_sizes: &[u64]) -> HandlerConfig {
    let options = LoadOptions::new(Environment::of([
        record.variable(),
        (ALLOWLIST_VARIABLE, NAME),
    ]));
    let mut config = plain(page_sizes);
    config.plugins = Plugins::LinkedWith(Box::new(options));
    config
}

/// The objects of a directory as the engine itself describes them.
struct Truth {
    entries: HashMap<Key, (u64, u64, u64)>,
    regions: HashMap<u64, (u64, u64, Option<PathBuf>)>,
}

fn truth(handler: &Handler, plane: &dyn ControlPlane) -> Truth {
    let regions = plane.regions().unwrap();
    let strides: HashMap<_, _> = regions
        .iter()
        .map(|region| (region.handle.span.region_id.0, region.stride))
        .collect();
    let objects = handler.list(None, 10_000).unwrap().objects.into_iter();
    let entries = objects.map(|object| {
        let region = object.location.page.region.0;
        let offset = u64::from(object.location.page.index) * strides[&region];
        (object.key, (region, offset, object.location.len))
    });
    let entries = entries.collect();
    let regions = regions.into_iter().map(|region| {
        let span = region.handle.span;
        (span.region_id.0, (span.offset, span.length, region.path))
    });
    Truth {
        entries,
        regions: regions.collect(),
    }
}

impl Truth {
    /// The hint that a batch of these keys implies.
    fn hint(&self, hook: &str, texts: &[&str], of: impl Fn(&str) -> (bool, Option<u64>)) -> Value {
        let entries: Vec<_> = texts
            .iter()
            .map(|text| {
                let name = key(text);
                let Some((region, offset, length)) = self.entries.get(&name) else {
                    return json!({ "key": name.to_string(), "found": false });
                };
                let (region_offset, region_length, path) = &self.regions[region];
                let (mapped, sum) = of(text);
                json!({
                    "key": name.to_string(),
                    "found": true,
                    "region": region,
                    "region_offset": region_offset,
                    "region_length": region_length,
                    "offset": offset,
                    "length": length,
                    "mapped": mapped,
                    "path": path,
                    "sum": sum,
                })
            })
            .collect();
        json!({ "hook": hook, "entries": entries })
    }
}

#[test]
fn a_consumers_plugin_sees_no_other_hints_than_its_batches_imply() {
    let _watchdog = watchdog("plugins", LIMIT);
    let dir = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(ACTOR, dir.path(), 16);
    let mut record = Record::new(dir.path());
    let mut producer = Actor::client_with(ACTOR, server.socket(), &["page=100001"], &[]);
    let observer = Handler::connect(server.socket(), plain(&[PAGE])).unwrap();
    let plane = ondol_handler::SocketPlane::connect(
        server.socket(),
        ondol_handler::SocketOptions::default(),
    )
    .unwrap();
    let lens: HashMap<String, usize> = (0..30_usize)
        .map(|index| (format!("p{index}"), 100_001 - index * 3000))
        .collect();
    for (text, len) in &lens {
        producer.ok(&format!("put {text} {len} 1"));
    }
    let mut consumer = Actor::client_with(
        ACTOR,
        server.socket(),
        &[],
        &[record.variable(), ("MARU_PLUGINS", NAME)],
    );
    assert_eq!(record.only(), json!({ "hook": "on_init" }));
    let whole = |text: &str| (true, Some(sum(&content(text, lens[text], 1))));

    // Prefetch maps nothing, so there are places, but no bytes.
    let truth_now = truth(&observer, &*plane);
    assert_eq!(consumer.ok("prefetch p1 absent p2"), "2 of 3");
    let expected = truth_now.hint("on_prefetch", &["p1", "absent", "p2"], |_| (false, None));
    assert_eq!(record.only(), expected);
    assert_eq!(consumer.ok("mapped"), "0");

    // A single retrieve fires no seam, and maps one region.
    consumer.ok("get p3 object");
    assert_eq!(record.news(), Vec::<Value>::new());
    assert_eq!(consumer.ok("mapped"), "1");
    consumer.ok("drop object");

    // Batches: found and not, twice the same, in the order asked.
    let asked = ["p4", "nothing", "p29", "p4", "p0"];
    assert_eq!(consumer.ok(&format!("batch {}", asked.join(" "))), "10111");
    assert_eq!(
        record.only(),
        truth_now.hint("on_batch_retrieve", &asked, whole)
    );
    let all: Vec<String> = (0..30).map(|index| format!("p{index}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(
        consumer.ok(&format!("batch {}", all.join(" "))),
        "1".repeat(30)
    );
    assert_eq!(
        record.only(),
        truth_now.hint("on_batch_retrieve", &all, whole)
    );

    // What is mapped by now comes with its bytes in a prefetch, too.
    consumer.ok("prefetch p5 p6");
    assert_eq!(
        record.only(),
        truth_now.hint("on_prefetch", &["p5", "p6"], whole)
    );

    // Staging is ready only if everything is there.
    assert_eq!(consumer.ok("stage p7 p8"), "true");
    assert_eq!(
        record.only(),
        truth_now.hint("on_stage", &["p7", "p8"], whole)
    );
    assert_eq!(consumer.ok("stage p7 absent"), "false");
    assert_eq!(
        record.only(),
        truth_now.hint("on_stage", &["p7", "absent"], whole)
    );

    // Regions in which the consumer itself stored get hints like any other.
    consumer.ok("put own 5000 2");
    let truth_now = truth(&observer, &*plane);
    let own = |_: &str| (true, Some(sum(&content("own", 5000, 2))));
    assert_eq!(consumer.ok("batch own"), "1");
    assert_eq!(
        record.only(),
        truth_now.hint("on_batch_retrieve", &["own"], own)
    );

    // A batch of nothing, and a deleted object.
    producer.ok("delete p9");
    let truth_now = truth(&observer, &*plane);
    assert_eq!(consumer.ok("batch p9 p10"), "01");
    assert_eq!(
        record.only(),
        truth_now.hint("on_batch_retrieve", &["p9", "p10"], whole)
    );

    let stats: Value = serde_json::from_str(&consumer.ok("plugins")).unwrap();
    assert_eq!(
        stats.as_object().unwrap().keys().collect::<Vec<_>>(),
        [NAME]
    );
    assert_eq!(stats[NAME]["lines"], 9);
    assert_eq!(stats[NAME]["host"]["errors"], 0);

    // The close comes once, while the regions are still mapped.
    consumer.ok("close");
    let close = record.only();
    assert_eq!(close["hook"], "on_close");
    let regions = close["mapped"].as_array().unwrap().len();
    assert_eq!(regions, truth_now.regions.len(), "{close}");
    consumer.ok("close");
    assert_eq!(record.news(), Vec::<Value>::new());
    assert!(consumer.finish().success());
    // The producer had no plugin and the consumer's was not told of what the producer did.
    assert!(producer.finish().success());
}

#[test]
fn on_close_is_not_called_without_a_connection_nor_paired_with_on_init() {
    let _watchdog = watchdog("plugins", LIMIT);
    let server = Server::start(4);
    let dir = server.dir();
    let mut record = Record::new(&dir);
    let hooks = |record: &mut Record| -> Vec<String> {
        let news = record.news();
        news.iter()
            .map(|line| line["hook"].as_str().unwrap().to_owned())
            .collect()
    };
    // A handler that does not connect calls nothing.
    let nowhere = dir.join("nowhere.sock");
    assert!(Handler::connect(&nowhere, recording(&record, &[PAGE])).is_err());
    assert!(hooks(&mut record).is_empty());

    let handler = server.handler(recording(&record, &[PAGE]));
    assert_eq!(hooks(&mut record), ["on_init"]);
    handler.close();
    handler.close();
    assert_eq!(hooks(&mut record), ["on_close"]);
    handler.reconnect().unwrap();
    assert!(hooks(&mut record).is_empty(), "on_init is for construction");
    handler.reconnect().unwrap();
    assert_eq!(hooks(&mut record), ["on_close"]);
    drop(handler);
    assert_eq!(hooks(&mut record), ["on_close", "drop"]);
    let handler = server.handler(recording(&record, &[PAGE]));
    handler.close();
    drop(handler);
    assert_eq!(hooks(&mut record), ["on_init", "on_close", "drop"]);
}

#[test]
fn a_region_of_which_only_pages_were_written_is_not_called_unmapped() {
    let _watchdog = watchdog("plugins", LIMIT);
    let server = Server::start(4);
    let mut record = Record::new(&server.dir());
    let handler = server.handler(recording(&record, &[PAGE]));
    put(&handler, "own", 1000, 1);
    assert_eq!(handler.prefetch(&[key("own")]).unwrap().found, 1);
    let lines = record.news();
    let entry = &lines[1]["entries"][0];
    assert_eq!(
        (&entry["found"], &entry["mapped"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(handler.batch_retrieve(&[key("own")]).unwrap().len(), 1);
    let entry = &record.only()["entries"][0];
    assert_eq!(entry["sum"], sum(&content("own", 1000, 1)));
}

#[test]
fn a_plugin_that_panics_or_errs_does_not_disturb_a_retrieve() {
    let _watchdog = watchdog("plugins", LIMIT);
    let server = Server::start(4);
    let probe = Probe::new();
    let mut record = Record::new(&server.dir());
    let (probe_name, probe_id) = probe.variable();
    let environment = Environment::of([record.variable(), (probe_name, probe_id.as_str())]);
    let broken = [
        "panic-batch-retrieve",
        "panic-payload",
        "panic-prefetch",
        "panic-stage",
        "panic-close",
        "panic-stats",
        "panic-lane",
        "error-batch-retrieve",
        "error-display",
        "error-close",
        "stage-short",
        "factory-panics",
    ];
    let allowed = Allowlist::only(broken.into_iter().chain([NAME]));
    let mut config = plain(&[PAGE]);
    config.plugins = Plugins::LinkedWith(Box::new(
        LoadOptions::new(environment).with_allowlist(allowed),
    ));
    let handler = server.handler(config);
    (0..4).for_each(|index| put(&handler, &format!("k{index}"), 5000, 1));
    let names = keys("k", 4);
    for _ in 0..10 {
        for (index, object) in (0..).zip(handler.batch_retrieve(&names).unwrap()) {
            assert_eq!(check(&object.unwrap(), &format!("k{index}")), Ok(1));
        }
        assert_eq!(handler.match_prefix(&names).unwrap().len(), 4);
        assert_eq!(handler.prefetch(&names).unwrap().found, 4);
        let stats = handler.stats().unwrap();
        assert_eq!(
            stats.plugins.len(),
            broken.len(),
            "all but the one that was never made"
        );
    }
    let staged = handler.stage(&names);
    assert!(!staged.ready(), "{staged:?}");
    let calls = record.news();
    let count = |hook| calls.iter().filter(|line| line["hook"] == hook).count();
    assert_eq!(
        (
            count("on_batch_retrieve"),
            count("on_prefetch"),
            count("on_stage")
        ),
        (20, 10, 1)
    );
    // Who panicked is not called again.
    let stats = handler.stats().unwrap().plugins;
    for name in [
        "panic-batch-retrieve",
        "panic-payload",
        "panic-prefetch",
        "panic-stage",
    ] {
        assert_eq!(stats[name]["host"]["panics"], 1, "{name}: {}", stats[name]);
    }
    handler.close();
    let close = record.only();
    assert_eq!(close["hook"], "on_close");
}

#[test]
fn bytes_of_a_batch_stay_valid_while_the_handler_closes() {
    // The hook reads every byte of the batch while another thread closes and reopens the handler.
    let _watchdog = watchdog("plugins", LIMIT);
    let server = Server::start(4);
    let mut record = Record::new(&server.dir());
    let handler = server.handler(recording(&record, &[PAGE]));
    (0..4).for_each(|index| put(&handler, &format!("k{index}"), 65_000, 1));
    let names = keys("k", 4);
    let pressure = server.handler(plain(&[PAGE]));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut hits = 0;
                    while hits < 100 {
                        // While it is closed, calls fail; that is all that may happen.
                        let found = handler.batch_retrieve(&names);
                        hits += found.map_or(0, |found| found.iter().flatten().count());
                        let _ = handler.prefetch(&names);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                handler.close();
                handler.reconnect().unwrap();
                // Whatever is evicted comes back.
                (0..4).for_each(|index| put(&pressure, &format!("k{index}"), 65_000, 1));
                (0..20).for_each(|index| put(&pressure, &format!("x{index}"), 65_000, 2));
                (0..20).for_each(|index| drop(pressure.delete(&key(&format!("x{index}")))));
            }
        });
        let ended: Vec<_> = readers
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    let mut seen = 0;
    for line in record.news() {
        for entry in line["entries"].as_array().into_iter().flatten() {
            let text = entry["key"].as_str().unwrap();
            if let Some(found) = entry["sum"].as_u64() {
                assert_eq!(found, sum(&content(text, 65_000, 1)), "{entry}");
                seen += 1;
            }
        }
    }
    assert!(seen > 0);
}
