//! The suite of connectors: a good one passes, and those that are wrong in one way each are told in which.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use ondol_plugin::l2::{
    BlockingBackend, Completion, EventNotifier, FutureId, LoadOutcome, NativeConnector, ObjectKey,
    ObjectRef, PageMut, WorkerPool,
};
use ondol_testkit::connector::{Check, Subject};
use ondol_testkit::l2::{Capabilities, MapBackend};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    SignalFirst,
    LostSignal,
    StuckSignal,
    LostCompletion,
    CompletedTwice,
    StrangeCompletion,
    NumberUsedTwice,
    ShortList,
    FailureWithoutReason,
    WrongByte,
    WrongLength,
    DroppedTrailer,
    TruncatedToThePage,
    MissingFound,
    PageLost,
    BufferKept,
    HalfVisible,
    DeleteLies,
    ForgottenAtRestart,
    LostAtClose,
    HangInClose,
    WorksAfterClose,
    PanicInSet,
}

use Fault as F;

/// That somebody has seen something; waited for, but not for ever.
#[derive(Default)]
struct Seen(AtomicBool);

impl Seen {
    fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn wait(&self) {
        let begun = Instant::now();
        while !self.0.load(Ordering::Acquire) && begun.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Inner {
    objects: Arc<MapBackend>,
    fault: Fault,
    done: Mutex<Vec<Completion>>,
    signal: EventNotifier,
    kept: Mutex<Vec<ObjectRef>>,
    half_is_seen: Seen,
}

struct Connector {
    inner: Arc<Inner>,
    workers: WorkerPool,
    next: AtomicU64,
    late: Mutex<Vec<Completion>>,
    closed: Mutex<bool>,
}

/// Completes its request when it is dropped, at the latest.
struct Request {
    inner: Arc<Inner>,
    completion: Completion,
}

impl Drop for Request {
    fn drop(&mut self) {
        let done = std::mem::take(&mut self.completion);
        self.inner.complete(done);
    }
}

impl Inner {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn complete(&self, completion: Completion) {
        if self.is(F::LostCompletion) {
            return;
        }
        let mut done = self.done.lock().unwrap();
        if self.is(F::CompletedTwice) {
            done.push(Completion {
                future: completion.future,
                ok: true,
                ..Completion::default()
            });
        }
        if self.is(F::StrangeCompletion) {
            done.push(Completion {
                future: 4711,
                ok: true,
                ..Completion::default()
            });
        }
        done.push(completion);
        drop(done);
        if !self.is(F::LostSignal) {
            self.signal.notify();
        }
    }

    fn load(&self, key: &ObjectKey, page: &mut PageMut) -> (bool, u64) {
        let Some(mut stored) = self.objects.get(key) else {
            return (self.is(F::MissingFound), page.room() as u64);
        };
        self.half_is_seen.set();
        if self.is(F::WrongByte)
            && let Some(first) = stored.first_mut()
        {
            *first ^= 1;
        }
        if self.is(F::TruncatedToThePage) {
            let _ = page.fill(&stored[..stored.len().min(page.room())]);
            return (true, stored.len() as u64);
        }
        self.objects.put(key.clone(), stored.clone());
        match self.objects.load(key, page) {
            LoadOutcome::Found(bytes) => (true, bytes),
            _ => (false, 0),
        }
    }

    fn set(&self, key: ObjectKey, object: &ObjectRef) {
        if self.is(F::DroppedTrailer) {
            self.objects.put(key, object.body());
        } else if self.is(F::HalfVisible) && self.objects.get(&key).is_none() {
            self.objects
                .put(key.clone(), &object.body()[..object.body().len() / 2]);
            self.half_is_seen.wait();
            self.objects.put(key, object.to_vec());
        } else {
            self.objects.put(key, object.to_vec());
        }
    }
}

impl Connector {
    fn open(objects: Arc<MapBackend>, fault: Fault) -> anyhow::Result<Box<dyn NativeConnector>> {
        Ok(Box::new(Self {
            inner: Arc::new(Inner {
                objects,
                fault,
                done: Mutex::default(),
                signal: EventNotifier::new()?,
                kept: Mutex::default(),
                half_is_seen: Seen::default(),
            }),
            workers: WorkerPool::new("connector", 2)?,
            next: AtomicU64::new(1),
            late: Mutex::default(),
            closed: Mutex::new(false),
        }))
    }

    fn begin(
        &self,
        keys: &[String],
        work: impl FnOnce(&Inner, Vec<ObjectKey>, &mut Completion) + Send + 'static,
    ) -> anyhow::Result<FutureId> {
        let closed = *self.closed.lock().unwrap();
        ensure!(
            !closed || self.inner.is(F::WorksAfterClose),
            "the connector is closed"
        );
        let future = match self.inner.is(F::NumberUsedTwice) {
            true => 1,
            false => self.next.fetch_add(1, Ordering::Relaxed),
        };
        if self.inner.is(F::LostAtClose) && future > 32 {
            // What waits in a queue when the close comes.
            return Ok(FutureId(future));
        }
        let keys = keys
            .iter()
            .map(|key| key.parse())
            .collect::<Result<Vec<_>, _>>()?;
        let mut request = Request {
            inner: Arc::clone(&self.inner),
            completion: Completion {
                future,
                error: "the request ended unfinished".to_owned(),
                ..Completion::default()
            },
        };
        let job = move || {
            let Request { inner, completion } = &mut request;
            work(inner, keys, completion);
        };
        match closed {
            true => job(),
            false => drop(self.workers.run(job)),
        }
        Ok(FutureId(future))
    }
}

fn succeed(completion: &mut Completion, per_key: Vec<bool>) {
    completion.ok = true;
    completion.error.clear();
    completion.per_key = Some(per_key);
}

impl NativeConnector for Connector {
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.inner.signal.as_fd()
    }

    fn submit_batch_get(&self, keys: &[String], pages: Vec<PageMut>) -> anyhow::Result<FutureId> {
        self.begin(keys, move |inner, keys, completion| {
            completion.pages = pages;
            let pages = keys.iter().zip(&mut completion.pages);
            let (found, lengths) = pages.map(|(key, page)| inner.load(key, page)).unzip();
            completion.lengths = Some(lengths);
            succeed(completion, found);
            if inner.is(F::PageLost) {
                completion.pages.pop();
            }
        })
    }

    fn submit_batch_set(
        &self,
        keys: &[String],
        objects: Vec<ObjectRef>,
    ) -> anyhow::Result<FutureId> {
        assert!(!self.inner.is(F::PanicInSet), "as it should");
        self.begin(keys, move |inner, keys, completion| {
            if inner.is(F::FailureWithoutReason) {
                completion.error.clear();
                return;
            }
            for (key, object) in keys.into_iter().zip(&objects) {
                inner.set(key, object);
            }
            if inner.is(F::BufferKept) {
                inner.kept.lock().unwrap().extend(objects);
            }
            completion.ok = true;
            completion.error.clear();
        })
    }

    fn submit_batch_exists(&self, keys: &[String]) -> anyhow::Result<FutureId> {
        self.begin(keys, |inner, keys, completion| {
            let sizes: Vec<_> = keys
                .iter()
                .map(|key| inner.objects.lookup(key).unwrap())
                .collect();
            let longer = u64::from(inner.is(F::WrongLength));
            let lengths = sizes.iter().map(|size| size.unwrap_or(0) + longer);
            // Only a get sees the half.
            completion.lengths = (!inner.is(F::HalfVisible)).then(|| lengths.collect());
            let mut exist: Vec<_> = sizes.iter().map(Option::is_some).collect();
            if inner.is(F::ShortList) {
                exist.pop();
            }
            succeed(completion, exist);
        })
    }

    fn submit_batch_delete(&self, keys: &[String]) -> anyhow::Result<Option<FutureId>> {
        let future = self.begin(keys, |inner, keys, completion| {
            if !inner.is(F::DeleteLies) {
                keys.iter().for_each(|key| drop(inner.objects.delete(key)));
            }
            succeed(completion, vec![true; keys.len()]);
        });
        future.map(Some)
    }

    fn drain_completions(&self) -> Vec<Completion> {
        if !self.inner.is(F::StuckSignal) {
            self.inner.signal.consume();
        }
        let done = std::mem::take(&mut *self.inner.done.lock().unwrap());
        match self.inner.fault {
            F::SignalFirst => std::mem::replace(&mut self.late.lock().unwrap(), done),
            _ => done,
        }
    }

    fn close(&self) {
        if self.inner.is(F::HangInClose) {
            loop {
                thread::park();
            }
        }
        *self.closed.lock().unwrap() = true;
        self.workers.close(Duration::from_secs(60));
    }
}

fn subject(fault: Fault) -> Subject {
    let storages: Mutex<HashMap<PathBuf, Arc<MapBackend>>> = Mutex::default();
    let subject = Subject::opened_by(move |dir| {
        let mut storages = storages.lock().unwrap();
        if fault == F::ForgottenAtRestart {
            storages.clear();
        }
        let objects = storages.entry(dir.to_owned()).or_default();
        Connector::open(Arc::clone(objects), fault)
    });
    subject.with_capabilities(Capabilities::default().persisting())
}

mod good {
    use super::*;

    ondol_testkit::connector_conformance!(
        open: |_| Connector::open(Arc::default(), F::None),
    );
}

#[test]
fn a_good_connector_passes() {
    ondol_testkit::connector::run(&subject(F::None)).assert();
}

/// Runs one check on a connector with this fault, and expects that it is found in this place, for this reason.
#[track_caller]
fn expect(fault: Fault, check: Check, place: &str, what: &str) {
    let subject = match fault {
        // What never ends is waited for, so not for long.
        F::SignalFirst | F::LostSignal | F::LostCompletion | F::LostAtClose | F::HangInClose => {
            subject(fault).with_patience(Duration::from_secs(1))
        }
        _ => subject(fault),
    };
    let report = check.run(&subject);
    let [violation] = report.violations() else {
        panic!("{fault:?} was not found: {report}");
    };
    assert_eq!(
        (violation.check, violation.place.as_str()),
        (check.name(), place),
        "{report}"
    );
    assert!(
        violation.what.contains(what),
        "{fault:?}: {what:?} is not in {report}"
    );
}

#[test]
fn a_signal_before_its_completion() {
    expect(
        F::SignalFirst,
        Check::Completions,
        "drain_completions",
        "publish it first",
    );
}

#[test]
fn a_signal_that_is_lost() {
    expect(
        F::LostSignal,
        Check::Completions,
        "drain_completions",
        "no signal",
    );
}

#[test]
fn a_signal_that_is_not_reset() {
    expect(F::StuckSignal, Check::Descriptor, "event_fd", "resets it");
}

#[test]
fn a_completion_that_is_lost() {
    expect(
        F::LostCompletion,
        Check::RoundTrip,
        "drain_completions",
        "every request must complete",
    );
}

#[test]
fn a_completion_that_comes_twice() {
    expect(
        F::CompletedTwice,
        Check::Completions,
        "drain_completions",
        "each completes once",
    );
}

#[test]
fn a_completion_of_nothing() {
    expect(
        F::StrangeCompletion,
        Check::Completions,
        "drain_completions",
        "request 4711",
    );
}

#[test]
fn one_number_for_two_requests() {
    expect(
        F::NumberUsedTwice,
        Check::Completions,
        "submit_batch_exists",
        "to two requests",
    );
}

#[test]
fn a_list_that_is_too_short() {
    expect(
        F::ShortList,
        Check::RoundTrip,
        "drain_completions",
        "one for each key",
    );
}

#[test]
fn a_failure_without_a_reason() {
    expect(
        F::FailureWithoutReason,
        Check::RoundTrip,
        "drain_completions",
        "without saying why",
    );
}

#[test]
fn a_byte_that_is_wrong() {
    expect(
        F::WrongByte,
        Check::RoundTrip,
        "submit_batch_get",
        "other bytes",
    );
}

#[test]
fn a_length_that_is_wrong() {
    expect(
        F::WrongLength,
        Check::RoundTrip,
        "submit_batch_exists",
        "bytes; expected",
    );
}

#[test]
fn a_trailer_that_is_dropped() {
    expect(
        F::DroppedTrailer,
        Check::RoundTrip,
        "submit_batch_exists",
        "body and trailer",
    );
}

#[test]
fn an_object_that_is_cut_to_its_page() {
    expect(
        F::TruncatedToThePage,
        Check::SmallPages,
        "submit_batch_get",
        "not whole",
    );
}

#[test]
fn a_missing_key_that_is_found() {
    expect(
        F::MissingFound,
        Check::MissingKeys,
        "submit_batch_get",
        "not there",
    );
}

#[test]
fn a_page_that_does_not_come_back() {
    expect(
        F::PageLost,
        Check::Buffers,
        "drain_completions",
        "pages of a get back",
    );
}

#[test]
fn a_buffer_that_is_kept() {
    expect(
        F::BufferKept,
        Check::Buffers,
        "submit_batch_set",
        "kept 16 of 16 buffers",
    );
}

#[test]
fn an_object_that_is_visible_in_part() {
    expect(
        F::HalfVisible,
        Check::Atomicity,
        "submit_batch_get",
        "bytes; expected",
    );
}

#[test]
fn a_delete_that_lies() {
    expect(
        F::DeleteLies,
        Check::Deletion,
        "submit_batch_delete",
        "left objects",
    );
}

#[test]
fn objects_that_are_forgotten_at_a_restart() {
    expect(
        F::ForgottenAtRestart,
        Check::Restart,
        "submit_batch_exists",
        "did not find",
    );
}

#[test]
fn a_request_that_is_lost_at_the_close() {
    expect(
        F::LostAtClose,
        Check::Close,
        "close",
        "without a completion",
    );
}

#[test]
fn a_close_that_hangs() {
    expect(F::HangInClose, Check::Close, "close", "did not return");
}

#[test]
fn work_after_the_close() {
    expect(
        F::WorksAfterClose,
        Check::AfterClose,
        "submit",
        "after the close",
    );
}

#[test]
fn a_panic_in_a_set() {
    expect(
        F::PanicInSet,
        Check::RoundTrip,
        "submit_batch_set",
        "panicked: as it should",
    );
}
