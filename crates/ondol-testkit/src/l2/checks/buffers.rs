use ondol_plugin::l2::{LoadItem, LoadOutcome};

use super::Bench;
use crate::apart::{Outcome, complaint};
use crate::l2::DropCounter;
use crate::l2::driver::{expect_loaded, load_batch, store_batch};
use crate::l2::samples::{Sample, keys, samples};

const ROUNDS: u64 = 32;

pub(super) fn small_pages(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let sample = Sample::new(1, 1000, 50);
    driver.store(std::slice::from_ref(&sample))?;
    let counter = DropCounter::new();
    for (body, trailer) in [(0, 0), (1, 0), (1000, 0), (1000, 49), (1049, 0), (0, 1049)] {
        let item = |body, trailer| LoadItem {
            key: sample.key.clone(),
            page: counter.page(body, trailer),
        };
        let task = driver.submit_load(vec![item(body, trailer), item(1000, 50)])?;
        let loaded = driver.loaded(task, 2)?;
        if matches!(loaded.0[0].outcome, LoadOutcome::Found(_)) {
            return complaint(
                "submit_load",
                format!(
                    "found an object of 1050 bytes in a page of {}; expected a failure, since it is not whole",
                    body + trailer
                ),
            );
        }
        // Its neighbour is none the worse.
        expect_loaded(&loaded, 1, &sample)?;
    }
    // Nor is the object: a page that is too small says nothing about what is stored.
    driver.expect_all(&[sample], bench.can().knows_sizes)
}

pub(super) fn are_let_go(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let counter = DropCounter::new();
    for round in 0..ROUNDS {
        let there = samples(16 * round, 16, 4096, 32);
        let absent = samples(100_000, 4, 4096, 32);
        for what in ["new", "stored"] {
            let task = driver.submit_store(store_batch(&there, &counter))?;
            driver.stored(task)?;
            if counter.held() > 0 {
                return complaint(
                    "submit_store",
                    format!(
                        "kept {} of 16 buffers of {what} objects after the result was there; let go of them first",
                        counter.held()
                    ),
                );
            }
        }
        let lookup = driver.lookup(keys(&there))?;
        driver.unlock_found(&lookup, &keys(&there));
        let wanted = [&there[..], &absent].concat();
        let task = driver.submit_load(load_batch(&wanted, &counter))?;
        let loaded = driver.loaded(task, wanted.len())?;
        let back = loaded
            .0
            .iter()
            .filter(|loaded| loaded.page.is_some())
            .count();
        if (back, counter.held()) != (wanted.len(), wanted.len()) {
            return complaint(
                "query_load",
                format!(
                    "gave {back} of {} pages back, of which {} are held; expected all of them",
                    wanted.len(),
                    counter.held()
                ),
            );
        }
        let found = loaded.found();
        for (index, sample) in there.iter().enumerate() {
            if found.test(index) {
                expect_loaded(&loaded, index, sample)?;
            }
        }
        drop(loaded);
        if counter.held() > 0 {
            return complaint("query_load", "kept pages after their result was taken");
        }
    }
    Ok(())
}
