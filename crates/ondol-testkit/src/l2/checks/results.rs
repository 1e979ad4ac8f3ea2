use std::collections::HashSet;
use std::os::fd::{AsRawFd, BorrowedFd};

use ondol_plugin::l2::{EventFds, Health, L2Adapter, TaskId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

use super::Bench;
use crate::apart::{Outcome, complaint};
use crate::l2::DropCounter;
use crate::l2::driver::{load_batch, store_batch};
use crate::l2::samples::{Sample, keys, samples};

/// How often a signal is waited for. A result that comes after its signal is late in one of these.
const ROUNDS: u64 = 100;

fn numbers(fds: &EventFds<'_>) -> [i32; 3] {
    [fds.store, fds.lookup, fds.load].map(|fd| fd.as_raw_fd())
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

pub(super) fn descriptors(bench: &Bench<'_>) -> Outcome<()> {
    let other_dir = TempDir::new().or_else(|error| complaint("testkit", error.to_string()))?;
    let first = bench.open_at(bench.dir.path())?;
    let second = bench.open_at(other_dir.path())?;
    bench.at.set("event_fds");
    let numbers_at_first = numbers(&first.event_fds());
    let all: HashSet<_> = numbers_at_first
        .into_iter()
        .chain(numbers(&second.event_fds()))
        .collect();
    if all.len() != 6 {
        return complaint(
            "event_fds",
            format!(
                "of two adapters are {numbers_at_first:?} and {:?}; expected six different ones",
                numbers(&second.event_fds())
            ),
        );
    }
    second.close(bench.subject.patience);
    let sample = samples(0, 1, 100, 10);
    bench.at.set("submit_store");
    let task = first.submit_store(store_batch(&sample, &DropCounter::new()));
    if let Err(error) = task {
        return complaint("submit_store", format!("was refused: {error:#}"));
    }
    signalled(&*first, bench)?;
    if numbers(&first.event_fds()) != numbers_at_first {
        return complaint(
            "event_fds",
            "changed; expected the same until the end of close",
        );
    }
    first.close(bench.subject.patience);
    Ok(())
}

/// Waits for the signal of a store, and expects that reading eight bytes ends it.
fn signalled(adapter: &dyn L2Adapter, bench: &Bench<'_>) -> Outcome<()> {
    bench.at.set("event_fds");
    let fd = adapter.event_fds().store;
    let patience = Timespec::try_from(bench.subject.patience).ok();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    if !poll(&mut fds, patience.as_ref()).is_ok_and(|ready| ready > 0) {
        return complaint("event_fds", "did not signal a store that was submitted");
    }
    let stored = adapter.pop_completed_stores();
    // Every signal was given before the result of the only task; a late one more is harmless.
    for _ in 0..3 {
        let _ = rustix::io::read(fd, &mut [0; 8]);
        if !is_readable(fd) {
            break;
        }
    }
    if is_readable(fd) {
        return complaint(
            "event_fds",
            "stays readable after eight bytes were read; expected that this resets it, as of an eventfd",
        );
    }
    match stored.len() {
        1 => Ok(()),
        count => complaint(
            "pop_completed_stores",
            format!(
                "gave {count} results at the signal of one store; publish the result first, then signal"
            ),
        ),
    }
}

pub(super) fn one_shot(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    for round in 0..ROUNDS {
        let sample = samples(round, 1, 64, 8);
        let store = driver.submit_store(store_batch(&sample, &DropCounter::new()))?;
        driver.stored(store)?;
        let lookup = driver.submit_lookup(keys(&sample))?;
        driver.found(lookup, 1)?;
        let load = driver.submit_load(load_batch(&sample, &DropCounter::new()))?;
        driver.loaded(load, 1)?;
        driver.unlock(&keys(&sample));
        let is_given = |place, given: bool| match given {
            true => complaint(
                place,
                "gave a result that was given before, or is none of its kind",
            ),
            false => Ok(()),
        };
        let pop = driver
            .adapter("pop_completed_stores")
            .pop_completed_stores();
        is_given("pop_completed_stores", !pop.is_empty())?;
        for task in [store, lookup, load, TaskId(u64::MAX)] {
            let adapter = driver.adapter("query_lookup_and_lock");
            is_given(
                "query_lookup_and_lock",
                adapter.query_lookup_and_lock(task).is_some(),
            )?;
            let adapter = driver.adapter("query_load");
            is_given("query_load", adapter.query_load(task).is_some())?;
        }
    }
    // A task is asked for by its kind only.
    let sample = samples(0, 1, 64, 8);
    let lookup = driver.submit_lookup(keys(&sample))?;
    if driver.adapter("query_load").query_load(lookup).is_some() {
        return complaint("query_load", "gave a result for a lookup");
    }
    driver.found(lookup, 1)?;
    driver.unlock(&keys(&sample));
    driver.sweep().map(drop)
}

pub(super) fn cancel(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let there = samples(0, 8, 4096, 16);
    driver.store(&there)?;
    let counter = DropCounter::new();
    driver.adapter("cancel").cancel(TaskId(u64::MAX));
    for round in 0..16 {
        let new = samples(100 + 8 * round, 8, 4096, 16);
        let store = driver.submit_store(store_batch(&new, &counter))?;
        let lookup = driver.submit_lookup(keys(&there))?;
        let load = driver.submit_load(load_batch(&there, &counter))?;
        for task in [load, store, lookup, load] {
            driver.adapter("cancel").cancel(task);
        }
        driver.stored(store)?;
        let found = driver.found(lookup, there.len())?;
        driver.unlock_found(&found, &keys(&there));
        driver.loaded(load, there.len())?;
        driver.adapter("cancel").cancel(store);
    }
    if counter.held() > 0 {
        return complaint(
            "cancel",
            format!(
                "left {} buffers held by tasks that have ended",
                counter.held()
            ),
        );
    }
    driver.expect_all(&there, bench.can().knows_sizes)
}

pub(super) fn status(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    driver.store(&[Sample::new(1, 100, 10)])?;
    let status = driver.adapter("status").status();
    if status.health != Health::Healthy || status.read_only {
        return complaint(
            "status",
            format!("is {status:?}; expected a healthy adapter that takes stores"),
        );
    }
    driver.close();
    driver.adapter("status").status();
    Ok(())
}
