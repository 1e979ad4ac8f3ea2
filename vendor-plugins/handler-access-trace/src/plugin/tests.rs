use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ondol_plugin::{
    BatchEntry, BatchSource, FactoryContext, HandlerPluginFactory, Key, RegionId, RegionSpan,
    inventory,
};

use super::*;
use crate::line::MAX_KEYS;

struct View;

impl HandlerView for View {
    fn is_region_mapped(&self, _: RegionId) -> bool {
        true
    }
    fn get_region_dax_path(&self, _: RegionId) -> Option<PathBuf> {
        None
    }
}

/// Keys that are found when their length is given.
struct Keys(Vec<(Key, Option<u64>)>);

impl BatchSource for Keys {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn entry(&self, index: usize) -> BatchEntry<'_> {
        let (key, length) = &self.0[index];
        let region = RegionSpan {
            region_id: RegionId(1),
            offset: 0,
            length: 1 << 40,
        };
        match length {
            Some(length) => BatchEntry::located(key, region, 0, *length, None),
            None => BatchEntry::missed(key),
        }
    }
}

fn keys(list: &[(&str, Option<u64>)]) -> Keys {
    Keys(
        list.iter()
            .map(|(text, length)| (Key::text(text).unwrap(), *length))
            .collect(),
    )
}

fn retrieve(trace: &AccessTrace, keys: &Keys) {
    trace
        .on_batch_retrieve(&View, &RetrievedBatch::new(keys))
        .unwrap();
}

fn stat(trace: &AccessTrace, name: &str) -> u64 {
    trace.contribute_stats().unwrap()[name].as_u64().unwrap()
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A sink under a test's control: what arrived, whether it takes anything now, and how the next writes end.
#[derive(Clone, Default)]
struct Sink(Arc<(Mutex<Inside>, Condvar)>);

#[derive(Default)]
struct Inside {
    text: Vec<u8>,
    is_shut: bool,
    waiting: usize,
    /// How many bytes of a write are taken before it fails.
    failures: VecDeque<usize>,
    fails_now: bool,
}

impl Sink {
    fn lines(&self) -> Vec<Value> {
        let inside = self.0.0.lock().unwrap();
        let text = std::str::from_utf8(&inside.text).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
    fn text(&self) -> String {
        String::from_utf8(self.0.0.lock().unwrap().text.clone()).unwrap()
    }
    fn shut(&self, is_shut: bool) {
        self.0.0.lock().unwrap().is_shut = is_shut;
        self.0.1.notify_all();
    }
    fn is_held(&self) -> bool {
        self.0.0.lock().unwrap().waiting > 0
    }
    fn fail_after(&self, bytes: usize) {
        self.0.0.lock().unwrap().failures.push_back(bytes);
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inside = self.0.0.lock().unwrap();
        inside.waiting += 1;
        while inside.is_shut {
            inside = self.0.1.wait(inside).unwrap();
        }
        inside.waiting -= 1;
        if std::mem::take(&mut inside.fails_now) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = match inside.failures.pop_front() {
            Some(0) => return Err(io::ErrorKind::StorageFull.into()),
            Some(taken) => {
                inside.fails_now = true;
                taken
            }
            None => bytes.len(),
        };
        inside.text.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_line_says_what_was_asked_hit_and_read() {
    let sink = Sink::default();
    let trace = AccessTrace::to(sink.clone(), Flush::Line).unwrap();
    let mut batch = keys(&[("chunk \"1\"\n", Some(2048)), ("chunk-2", None)]);
    batch.0.push((Key::integer(7), Some(100)));
    retrieve(&trace, &batch);
    trace
        .on_prefetch(&View, &RetrievedBatch::new(&keys(&[])))
        .unwrap();
    drop(trace);

    assert!(sink.text().starts_with("{\"ts\":"), "{}", sink.text());
    let mut lines = sink.lines();
    for line in &mut lines {
        let ts = line.as_object_mut().unwrap().remove("ts").unwrap();
        assert!(ts.as_f64().unwrap() > 1.6e9, "{ts}");
    }
    assert_eq!(
        lines,
        [
            serde_json::json!({
                "op": "batch_retrieve", "asked": 3, "hit": 2, "read": 2148,
                "keys": [batch.0[0].0.to_string(), "chunk-2", "int:7"],
                "found": [true, false, true], "bytes": [2048, 0, 100],
            }),
            serde_json::json!({
                "op": "prefetch", "asked": 0, "hit": 0, "read": 0, "keys": [], "found": [], "bytes": [],
            }),
        ]
    );
}

#[test]
fn a_long_batch_is_cut_and_counted_whole() {
    let sink = Sink::default();
    let trace = AccessTrace::to(sink.clone(), Flush::Line).unwrap();
    retrieve(
        &trace,
        &Keys((0..1000).map(|key| (Key::integer(key), Some(2))).collect()),
    );
    drop(trace);
    let line = &sink.lines()[0];
    assert_eq!(line["keys"].as_array().unwrap().len(), MAX_KEYS);
    assert_eq!(
        (&line["asked"], &line["hit"], &line["read"]),
        (&1000.into(), &1000.into(), &2000.into())
    );
    assert_eq!(line["omitted"], 1000 - MAX_KEYS);
}

#[test]
fn a_writer_that_is_stuck_blocks_nobody_and_drops_are_counted() {
    let sink = Sink::default();
    let trace = AccessTrace::to(sink.clone(), Flush::Line).unwrap();
    let batch = keys(&[("k", Some(1))]);
    sink.shut(true);
    retrieve(&trace, &batch);
    eventually("the writer is stuck in a write", || sink.is_held());
    let offered = 5000;
    (0..offered).for_each(|_| retrieve(&trace, &batch));
    trace.on_close(&View).unwrap();
    let dropped = stat(&trace, "dropped");
    sink.shut(false);
    assert!(dropped > 0 && dropped < offered, "{dropped}");
    eventually("all that was accepted is written", || {
        stat(&trace, "written") == 1 + offered - dropped
    });
    drop(trace);
    assert_eq!(sink.lines().len() as u64, 1 + offered - dropped);
}

#[test]
fn few_calls_of_many_long_keys_are_bounded_too() {
    let sink = Sink::default();
    let trace = AccessTrace::to(sink.clone(), Flush::Line).unwrap();
    let long = "k".repeat(1000);
    let batch = Keys(
        (0..MAX_KEYS)
            .map(|_| (Key::text(&long).unwrap(), None))
            .collect(),
    );
    sink.shut(true);
    retrieve(&trace, &batch);
    eventually("the writer is stuck in a write", || sink.is_held());
    (0..100).for_each(|_| retrieve(&trace, &batch));
    let dropped = stat(&trace, "dropped");
    sink.shut(false);
    assert!(dropped > 0);
}

#[test]
fn closing_flushes_what_waits_for_the_close() {
    let sink = Sink::default();
    let trace = AccessTrace::to(sink.clone(), Flush::Close).unwrap();
    (0..10).for_each(|_| retrieve(&trace, &keys(&[("k", None)])));
    assert_eq!((sink.text().as_str(), stat(&trace, "written")), ("", 0));
    trace.on_close(&View).unwrap();
    eventually("all is written", || stat(&trace, "written") == 10);
    assert_eq!(sink.lines().len(), 10);
}

#[test]
fn a_full_buffer_is_written_before_the_close() {
    let trace = AccessTrace::to(Sink::default(), Flush::Close).unwrap();
    let long = "k".repeat(1000);
    (0..200).for_each(|_| retrieve(&trace, &keys(&[(&long, None)])));
    eventually("something is written", || stat(&trace, "written") > 0);
}

#[test]
fn an_interval_flushes_without_a_further_call() {
    let trace =
        AccessTrace::to(Sink::default(), Flush::Interval(Duration::from_millis(5))).unwrap();
    for round in 1..=3 {
        retrieve(&trace, &keys(&[("k", None)]));
        eventually("the line is written", || stat(&trace, "written") == round);
    }
}

#[test]
fn a_full_disk_is_counted_and_the_trace_goes_on() {
    let sink = Sink::default();
    let trace = AccessTrace::to(sink.clone(), Flush::Line).unwrap();
    let batch = keys(&[("k", Some(1))]);
    sink.fail_after(0);
    retrieve(&trace, &batch);
    eventually("the failure is counted", || stat(&trace, "errors") == 1);
    retrieve(&trace, &batch);
    eventually("the next line is written", || stat(&trace, "written") == 1);
    assert_eq!(stat(&trace, "dropped"), 1);
    assert_eq!(sink.lines().len(), 1);
}

#[test]
fn half_a_line_does_not_spoil_the_next() {
    let sink = Sink::default();
    let trace = AccessTrace::to(sink.clone(), Flush::Line).unwrap();
    let batch = keys(&[("k", Some(1))]);
    sink.fail_after(10);
    retrieve(&trace, &batch);
    eventually("the failure is counted", || stat(&trace, "errors") == 1);
    retrieve(&trace, &batch);
    retrieve(&trace, &batch);
    drop(trace);
    let text = sink.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), lines[0].len()), (3, 10), "{text}");
    for line in &lines[1..] {
        serde_json::from_str::<Value>(line).unwrap();
    }
}

fn build(variables: &[(&str, &str)]) -> anyhow::Result<Option<Box<dyn HandlerPlugin>>> {
    let find = |name: &str| {
        let hit = variables.iter().find(|(variable, _)| *variable == name);
        hit.map(|(_, value)| (*value).to_owned())
    };
    let mut factories = inventory::iter::<HandlerPluginFactory>.into_iter();
    let factory = factories
        .find(|factory| factory.name() == "access-trace")
        .unwrap();
    factory.build(&FactoryContext::new(&find))
}

#[test]
fn what_is_registered_declines_until_configured_and_appends_then() {
    assert!(build(&[]).unwrap().is_none());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let variables = [("ONDOL_ACCESS_TRACE", path.to_str().unwrap())];
    for lines in 1..=2 {
        let plugin = build(&variables).unwrap().unwrap();
        plugin
            .on_batch_retrieve(&View, &RetrievedBatch::new(&keys(&[("k", None)])))
            .unwrap();
        drop(plugin);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), lines);
    }
}

#[test]
fn a_file_that_can_not_be_opened_is_named() {
    let error = build(&[("ONDOL_ACCESS_TRACE", "/no/such/folder/trace")])
        .err()
        .unwrap();
    let error = format!("{error:#}");
    assert!(
        error.contains("/no/such/folder/trace") && error.contains("No such file"),
        "{error}"
    );
}
