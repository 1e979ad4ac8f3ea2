use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use super::driver::{Driver, expect_got, is_readable, names};
use super::{Capabilities, Report, Subject, Violation};
use crate::apart::{Complaint, Outcome, Whereabouts, apart, complaint, side_by_side};
use crate::l2::DropCounter;
use crate::l2::samples::{Sample, samples};

/// How many times the patience with one request a whole check may take.
const CHECK_PATIENCE: u32 = 10;
const THREADS: u64 = 8;
const ROUNDS: u64 = 12;

/// One thing that native connectors must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// The descriptor signals a completion, and draining resets it.
    Descriptor,
    /// What was set exists and is got unchanged; setting it again changes nothing.
    RoundTrip,
    /// Each request completes once, under a number of its own, and its signal comes when it can be drained.
    Completions,
    /// Bodies and trailers from nothing to a MiB, mixed within a batch.
    Sizes,
    /// Batches of a thousand keys, a part of which is not there.
    LargeBatches,
    /// Batches without a key complete or are refused.
    EmptyBatches,
    /// Keys that are not there.
    MissingKeys,
    /// Pages that are too small for what is stored.
    SmallPages,
    /// An object is visible whole or not at all while it is being set.
    Atomicity,
    /// Buffers are let go when the completion is drained, and pages come back.
    Buffers,
    /// Deleted objects are gone.
    Deletion,
    /// Many threads at once.
    Threads,
    /// Opened again on the same storage.
    Restart,
    /// Closed with requests pending: every one completes, and buffers are let go.
    Close,
    /// Nothing succeeds after a close, and nothing panics.
    AfterClose,
}

impl Check {
    /// Every check.
    pub const ALL: [Self; 15] = [
        Self::Descriptor,
        Self::RoundTrip,
        Self::Completions,
        Self::Sizes,
        Self::LargeBatches,
        Self::EmptyBatches,
        Self::MissingKeys,
        Self::SmallPages,
        Self::Atomicity,
        Self::Buffers,
        Self::Deletion,
        Self::Threads,
        Self::Restart,
        Self::Close,
        Self::AfterClose,
    ];

    /// The check in a few words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Descriptor => "descriptor",
            Self::RoundTrip => "round trip",
            Self::Completions => "completions",
            Self::Sizes => "sizes",
            Self::LargeBatches => "large batches",
            Self::EmptyBatches => "empty batches",
            Self::MissingKeys => "missing keys",
            Self::SmallPages => "small pages",
            Self::Atomicity => "atomicity",
            Self::Buffers => "buffers",
            Self::Deletion => "deletion",
            Self::Threads => "many threads",
            Self::Restart => "restart",
            Self::Close => "close",
            Self::AfterClose => "after a close",
        }
    }

    /// Runs this check on a connector of its own.
    pub fn run(self, subject: &Subject) -> Report {
        let check = match self {
            Self::Descriptor => descriptor,
            Self::RoundTrip => round_trip,
            Self::Completions => completions,
            Self::Sizes => sizes,
            Self::LargeBatches => large_batches,
            Self::EmptyBatches => empty_batches,
            Self::MissingKeys => missing_keys,
            Self::SmallPages => small_pages,
            Self::Atomicity => atomicity,
            Self::Buffers => buffers,
            Self::Deletion => deletion,
            Self::Threads => threads,
            Self::Restart => restart,
            Self::Close => close,
            Self::AfterClose => after_close,
        };
        let outcome = apart(subject.patience * CHECK_PATIENCE, "testkit", {
            let subject = subject.clone();
            move |at| {
                let dir = TempDir::new();
                let dir = dir.or_else(|error| complaint("testkit", error.to_string()))?;
                check(&Bench { subject, dir, at })
            }
        });
        Report::of(outcome.err().map(|found| Violation::of(self.name(), found)))
    }
}

/// What a check works with: a directory of its own, and a way to open connectors there.
struct Bench<'a> {
    subject: Subject,
    dir: TempDir,
    at: &'a Whereabouts,
}

impl Bench<'_> {
    fn can(&self) -> &Capabilities {
        &self.subject.capabilities
    }

    fn open(&self) -> Outcome<Driver> {
        self.at.set("open");
        let opened = (self.subject.open)(self.dir.path()).map_err(|error| Complaint {
            place: "open".to_owned(),
            what: format!("failed: {error:#}"),
        });
        Driver::new(opened?, self.at, self.subject.patience)
    }
}

fn descriptor(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    driver.set(&samples(0, 1, 100, 10))?;
    let (pending, _) = driver.sweep()?;
    if pending == 0 && is_readable(driver.connector("event_fd")) {
        return complaint(
            "event_fd",
            "is readable after everything was drained; drain_completions resets it",
        );
    }
    driver.expect_all(&samples(0, 1, 100, 10))
}

fn round_trip(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let stored = [
        Sample::new(1, 4096, 64),
        Sample::salted(1, 5000, 64, "tenant"),
        Sample::new(1, 77, 3).of_model("other", 1),
    ];
    driver.set(&stored)?;
    driver.expect_all(&stored)?;
    driver.set(&stored)?;
    driver.expect_all(&stored)
}

fn completions(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    for round in 0..100 {
        let sample = samples(round, 1, 64, 8);
        driver.set(&sample)?;
        driver.expect_all(&sample)?;
    }
    let all = samples(0, 100, 64, 8);
    let futures: Vec<_> = all
        .chunks(1)
        .map(|one| driver.submit_exists(one))
        .collect::<Outcome<_>>()?;
    for future in futures {
        let done = driver.completed(future, 1)?;
        if done.per_key.is_some_and(|keys| !keys[0]) {
            return complaint("submit_batch_exists", "did not find a key that was set");
        }
    }
    driver.sweep().map(drop)
}

fn sizes(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let mut mixed = Vec::new();
    for body in [0, 1, 511, 4095, 4096, 4097, 65_536, (1 << 20) + 3] {
        for trailer in [0, 1, 96, 2048] {
            mixed.push(Sample::new(mixed.len() as u64, body, trailer));
        }
    }
    driver.set(&mixed)?;
    driver.expect_all(&mixed)?;
    if !bench.can().knows_sizes {
        return Ok(());
    }
    // The parts of a page need not end where those of the object do.
    let sample = &[Sample::new(1000, 100, 20)];
    driver.set(sample)?;
    let counter = DropCounter::new();
    for (body, trailer) in [(120, 0), (0, 120), (60, 60), (119, 1), (200, 0), (100, 500)] {
        let got = driver.get_into(sample, vec![counter.page(body, trailer)])?;
        expect_got(got[0].as_ref(), &sample[0])?;
    }
    Ok(())
}

fn large_batches(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let all = samples(0, 1000, 1000, 24);
    let is_there = |index: usize| index % 5 != 4;
    let numbered = all.iter().cloned().enumerate();
    let there: Vec<_> = numbered
        .filter(|(index, _)| is_there(*index))
        .map(|(_, sample)| sample)
        .collect();
    driver.set(&there)?;
    let exist = driver.exists(&all)?;
    if let Some(index) = (0..all.len()).find(|index| exist[*index] != is_there(*index)) {
        return complaint(
            "submit_batch_exists",
            format!("is wrong about key {index} of 1000: {}", exist[index]),
        );
    }
    for (index, (got, sample)) in driver.get(&all)?.iter().zip(&all).enumerate() {
        match is_there(index) {
            true => expect_got(got.as_ref(), sample)?,
            false if got.is_some() => {
                return complaint(
                    "submit_batch_get",
                    format!("found {}, which is not there", sample.key),
                );
            }
            false => {}
        }
    }
    Ok(())
}

fn empty_batches(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let submitted = [
        driver.try_submit("submit_batch_set", |connector| {
            connector.submit_batch_set(&[], Vec::new())
        })?,
        driver.try_submit("submit_batch_get", |connector| {
            connector.submit_batch_get(&[], Vec::new())
        })?,
        driver.try_submit("submit_batch_exists", |connector| {
            connector.submit_batch_exists(&[])
        })?,
    ];
    // A batch without a key may be refused, at once or in its completion.
    for future in submitted.into_iter().flatten() {
        driver.completed(future, 0)?;
    }
    driver.set(&samples(1, 1, 10, 0))?;
    driver.expect_all(&samples(1, 1, 10, 0))
}

fn missing_keys(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let there = [Sample::new(1, 500, 12)];
    driver.set(&there)?;
    let others = [
        Sample::new(2, 500, 12),
        Sample::salted(1, 500, 12, "salt"),
        Sample::new(1, 500, 12).of_model("other", 1),
    ];
    if driver.exists(&others)?.contains(&true) {
        return complaint("submit_batch_exists", "found a key that is not there");
    }
    if driver.get(&others)?.iter().any(Option::is_some) {
        return complaint("submit_batch_get", "found a key that is not there");
    }
    if bench.can().deletes {
        driver.delete(&others)?;
    }
    driver.expect_all(&there)
}

fn small_pages(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let sample = Sample::new(1, 1000, 50);
    driver.set(std::slice::from_ref(&sample))?;
    let counter = DropCounter::new();
    let twice = [sample.clone(), sample.clone()];
    for (body, trailer) in [(0, 0), (1, 0), (1000, 0), (1000, 49), (0, 1049)] {
        let pages = vec![counter.page(body, trailer), counter.page(1000, 50)];
        let got = driver.get_into(&twice, pages)?;
        if got[0].is_some() {
            return complaint(
                "submit_batch_get",
                format!(
                    "found an object of 1050 bytes in a page of {}; expected that it is not, since it is not whole",
                    body + trailer
                ),
            );
        }
        expect_got(got[1].as_ref(), &sample)?;
    }
    driver.expect_all(&[sample])
}

fn atomicity(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let large = samples(0, 3, 2 << 20, 64);
    let is_over = AtomicBool::new(false);
    let writer = || {
        let outcome = large
            .iter()
            .try_for_each(|sample| driver.set(std::slice::from_ref(sample)));
        is_over.store(true, Ordering::Release);
        outcome
    };
    let reader = || {
        while !is_over.load(Ordering::Acquire) {
            driver.exists(&large)?;
            for (got, sample) in driver.get(&large)?.iter().zip(&large) {
                if got.is_some() {
                    expect_got(got.as_ref(), sample)?;
                }
            }
        }
        Ok(())
    };
    side_by_side(vec![Box::new(writer), Box::new(reader)])?;
    driver.expect_all(&large)
}

fn buffers(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let counter = DropCounter::new();
    for round in 0..32 {
        let there = samples(16 * round, 16, 4096, 32);
        for _ in 0..2 {
            let future = driver.submit_set(&there, &counter)?;
            driver.completed(future, there.len())?;
            if counter.held() > 0 {
                return complaint(
                    "submit_batch_set",
                    format!(
                        "kept {} of 16 buffers after its completion was drained; let go of them first",
                        counter.held()
                    ),
                );
            }
        }
        let wanted = [&there[..], &samples(100_000, 4, 4096, 32)].concat();
        let pages = wanted.iter().map(|_| counter.page(4096, 32)).collect();
        let got = driver.get_into(&wanted, pages)?;
        for (got, sample) in got.iter().zip(&there) {
            expect_got(got.as_ref(), sample)?;
        }
        drop(got);
        if counter.held() > 0 {
            return complaint(
                "submit_batch_get",
                "kept pages after their completion was drained",
            );
        }
    }
    Ok(())
}

fn deletion(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let stored = samples(0, 6, 300, 20);
    driver.set(&stored)?;
    let (deleted, kept) = stored.split_at(3);
    let Some(gone) = driver.delete(deleted)? else {
        return match bench.can().deletes {
            true => complaint("submit_batch_delete", "cannot; say so in the capabilities"),
            false => Ok(()),
        };
    };
    if gone.contains(&false) {
        return complaint(
            "submit_batch_delete",
            format!("of three keys said {gone:?}"),
        );
    }
    if driver.exists(deleted)?.contains(&true) || driver.get(deleted)?.iter().any(Option::is_some) {
        return complaint(
            "submit_batch_delete",
            "left objects that it had called deleted",
        );
    }
    driver.delete(deleted)?;
    driver.expect_all(kept)?;
    driver.set(deleted)?;
    driver.expect_all(&stored)
}

fn threads(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let shared = samples(0, 4, 2048, 16);
    driver.set(&shared)?;
    let one = |number: u64| {
        let (driver, shared) = (&driver, &shared);
        let deletes = bench.can().deletes;
        move || {
            for round in 0..ROUNDS {
                let own = samples(1000 * (number + 1) + 10 * round, 6, 2048, 16);
                driver.set(&own)?;
                driver.expect_all(&own)?;
                driver.expect_all(shared)?;
                if deletes {
                    driver.delete(&own)?;
                }
            }
            Ok(())
        }
    };
    let work = (0..THREADS).map(|number| Box::new(one(number)) as _);
    side_by_side(work.collect())?;
    driver.expect_all(&shared)
}

fn restart(bench: &Bench<'_>) -> Outcome<()> {
    let there = samples(0, 20, 1500, 40);
    let driver = bench.open()?;
    driver.set(&there)?;
    driver.close();
    drop(driver);
    for _ in ["a close", "an end without a close"] {
        let driver = bench.open()?;
        if bench.can().persists {
            driver.expect_all(&there)?;
        } else {
            for (got, sample) in driver.get(&there)?.iter().zip(&there) {
                if got.is_some() {
                    expect_got(got.as_ref(), sample)?;
                }
            }
        }
    }
    Ok(())
}

fn close(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let there = samples(0, 8, 16_384, 64);
    driver.set(&there)?;
    let counter = DropCounter::new();
    for round in 1..=32 {
        driver.submit_set(&samples(1000 * round, 8, 16_384, 64), &counter)?;
        driver.submit_exists(&there)?;
        let pages = there.iter().map(|_| counter.page(16_384, 64)).collect();
        driver.submit_get(&there, pages)?;
    }
    driver.close();
    // What the drainer has not been told of is drained here.
    let mut pending = driver.sweep()?.0;
    if pending > 0 {
        driver.settle();
        pending = driver.sweep()?.0;
    }
    if pending > 0 {
        return complaint(
            "close",
            format!(
                "left {pending} requests without a completion; each completes, with an error if need be"
            ),
        );
    }
    if counter.held() > 0 {
        return complaint(
            "close",
            format!("kept {} buffers of requests that are over", counter.held()),
        );
    }
    driver.close();
    Ok(())
}

fn after_close(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let there = samples(0, 4, 512, 8);
    driver.set(&there)?;
    driver.close();
    let counter = DropCounter::new();
    let objects = there
        .iter()
        .map(|sample| counter.object(sample.body.clone()))
        .collect();
    let pages = there.iter().map(|_| counter.page(512, 8)).collect();
    let submitted = [
        driver.try_submit("submit_batch_set", |connector| {
            connector.submit_batch_set(&names(&samples(9, 4, 512, 8)), objects)
        })?,
        driver.try_submit("submit_batch_get", |connector| {
            connector.submit_batch_get(&names(&there), pages)
        })?,
        driver.try_submit("submit_batch_exists", |connector| {
            connector.submit_batch_exists(&names(&there))
        })?,
    ];
    if submitted.iter().any(Result::is_ok) {
        driver.settle();
    }
    let (pending, well) = driver.sweep()?;
    if pending > 0 {
        return complaint(
            "submit",
            format!(
                "took {pending} requests after the close that do not complete; refuse them, or fail them"
            ),
        );
    }
    if well > 0 {
        return complaint(
            "submit",
            "carried out a request after the close; expected an error",
        );
    }
    if counter.held() > 0 {
        return complaint(
            "submit",
            format!(
                "kept {} buffers of requests that it refused",
                counter.held()
            ),
        );
    }
    driver.close();
    Ok(())
}
