use std::sync::atomic::{AtomicBool, Ordering};

use ondol_plugin::l2::LoadOutcome;

use super::Bench;
use crate::apart::{Outcome, complaint, side_by_side};
use crate::l2::driver::{Driver, expect_loaded};
use crate::l2::samples::{Sample, keys, samples};

const THREADS: u64 = 8;
const ROUNDS: u64 = 12;

pub(super) fn threads(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let shared = samples(0, 4, 2048, 16);
    let can = bench.can();
    let one = |number: u64| {
        let (driver, shared) = (&driver, &shared);
        move || {
            for round in 0..ROUNDS {
                let own = samples(1000 * (number + 1) + 10 * round, 6, 2048, 16);
                // Everybody stores what is shared.
                driver.store(&[&own[..], shared].concat())?;
                driver.expect_all(&own, can.knows_sizes)?;
                driver.expect_all(shared, can.knows_sizes)?;
                if can.deletes {
                    delete_own(driver, &own)?;
                }
                driver.adapter("usage").usage();
                driver.adapter("status").status();
                if can.lists {
                    driver.list_page(&ondol_plugin::l2::ListRequest {
                        page_size: 5,
                        ..Default::default()
                    })?;
                }
            }
            Ok(())
        }
    };
    let work = (0..THREADS).map(|number| Box::new(one(number)) as _);
    side_by_side(work.collect())?;
    driver.expect_all(&shared, can.knows_sizes)?;
    if can.deletes && driver.usage()?.objects != shared.len() as u64 {
        return complaint(
            "usage",
            format!(
                "has {} objects; expected {}, all else was deleted",
                driver.usage()?.objects,
                shared.len()
            ),
        );
    }
    Ok(())
}

fn delete_own(driver: &Driver, own: &[Sample]) -> Outcome<()> {
    let gone = driver.delete(&keys(own))?.gone;
    match gone.count_ones() == own.len() {
        true => Ok(()),
        false => complaint(
            "delete",
            format!("of keys that nobody locks said gone {gone}"),
        ),
    }
}

pub(super) fn atomicity(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let large = samples(0, 3, 2 << 20, 64);
    let is_over = AtomicBool::new(false);
    let writer = || {
        let outcome = large
            .iter()
            .try_for_each(|sample| driver.store(std::slice::from_ref(sample)).map(drop));
        is_over.store(true, Ordering::Release);
        outcome
    };
    let reader = || {
        while !is_over.load(Ordering::Acquire) {
            expect_whole(&driver, &large, bench.can().knows_sizes)?;
        }
        Ok(())
    };
    side_by_side(vec![Box::new(writer), Box::new(reader)])?;
    driver.expect_all(&large, bench.can().knows_sizes)
}

/// Each is there whole or not at all.
fn expect_whole(driver: &Driver, large: &[Sample], knows_sizes: bool) -> Outcome<()> {
    let found = driver.lookup(keys(large))?;
    let loaded = driver.load(large)?;
    for (index, sample) in large.iter().enumerate() {
        if found.found.test(index)
            && knows_sizes
            && found.sizes[index] != sample.stored_len() as u64
        {
            return complaint(
                "submit_lookup_and_lock",
                format!(
                    "found {} of {} bytes of an object that is being stored",
                    found.sizes[index],
                    sample.stored_len()
                ),
            );
        }
        match &loaded.0[index].outcome {
            LoadOutcome::Missing if found.found.test(index) => {
                return complaint("submit_load", "did not find an object that is locked");
            }
            LoadOutcome::Missing => {}
            LoadOutcome::Found(_) => expect_loaded(&loaded, index, sample)?,
            other => {
                return complaint(
                    "submit_load",
                    format!(
                        "answered {other:?} for an object that is being stored; expected Missing"
                    ),
                );
            }
        }
    }
    driver.unlock_found(&found, &keys(large));
    Ok(())
}
