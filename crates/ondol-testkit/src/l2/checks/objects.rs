use ondol_plugin::l2::{LoadItem, LoadOutcome};

use super::Bench;
use crate::apart::{Outcome, complaint};
use crate::l2::DropCounter;
use crate::l2::driver::{Driver, Kind, expect_loaded};
use crate::l2::samples::{Sample, keys, samples};

pub(super) fn round_trip(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let stored = [
        Sample::new(1, 4096, 64),
        Sample::salted(1, 5000, 64, "tenant"),
        Sample::new(1, 77, 3).of_model("other", 1),
    ];
    let bytes = driver.store(&stored)?;
    let right: usize = stored.iter().map(Sample::stored_len).sum();
    if bytes != right as u64 {
        return complaint(
            "submit_store",
            format!("said that {bytes} bytes were transferred; expected {right}"),
        );
    }
    driver.expect_all(&stored, bench.can().knows_sizes)?;
    let again = driver.store(&stored)?;
    if bench.can().skips_duplicates && again != 0 {
        return complaint(
            "submit_store",
            format!("transferred {again} bytes of objects that were there; expected 0"),
        );
    }
    driver.expect_all(&stored, bench.can().knows_sizes)
}

pub(super) fn sizes(bench: &Bench<'_>) -> Outcome<()> {
    let bodies = [0, 1, 511, 4095, 4096, 4097, 65_536, (1 << 20) + 3];
    let trailers = [0, 1, 96, 2048];
    let driver = bench.open()?;
    let mut mixed = Vec::new();
    for (row, body) in bodies.into_iter().enumerate() {
        for (column, trailer) in trailers.into_iter().enumerate() {
            mixed.push(Sample::new((row * 10 + column) as u64, body, trailer));
        }
    }
    driver.store(&mixed)?;
    driver.expect_all(&mixed, bench.can().knows_sizes)?;
    if bench.can().knows_sizes {
        split_anywhere(&driver)?;
    }
    Ok(())
}

/// The parts of a page need not end where those of the object do.
fn split_anywhere(driver: &Driver) -> Outcome<()> {
    let sample = Sample::new(1000, 100, 20);
    driver.store(std::slice::from_ref(&sample))?;
    let counter = DropCounter::new();
    for (body, trailer) in [
        (120, 0),
        (0, 120),
        (60, 60),
        (119, 1),
        (200, 0),
        (100, 500),
        (4096, 2048),
    ] {
        let item = LoadItem {
            key: sample.key.clone(),
            page: counter.page(body, trailer),
        };
        let task = driver.submit_load(vec![item])?;
        expect_loaded(&driver.loaded(task, 1)?, 0, &sample)?;
    }
    Ok(())
}

pub(super) fn large_batches(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let all = samples(0, 1000, 1000, 24);
    let (there, absent): (Vec<_>, Vec<_>) = all
        .iter()
        .cloned()
        .enumerate()
        .partition(|(index, _)| index % 5 != 4);
    let unnumbered = |samples: Vec<(usize, Sample)>| -> Vec<_> {
        samples.into_iter().map(|(_, sample)| sample).collect()
    };
    let (there, absent) = (unnumbered(there), unnumbered(absent));
    driver.store(&there)?;
    let found = driver.lookup(keys(&all))?;
    let wrong = (0..all.len()).find(|index| found.found.test(*index) != (index % 5 != 4));
    if let Some(index) = wrong {
        return complaint(
            "submit_lookup_and_lock",
            format!(
                "is wrong about key {index} of 1000: found {}",
                found.found.test(index)
            ),
        );
    }
    driver.unlock(&keys(&there));
    let loaded = driver.load(&all)?;
    for (index, sample) in all.iter().enumerate() {
        match index % 5 {
            4 => expect_missing(&loaded.0[index].outcome, sample)?,
            _ => expect_loaded(&loaded, index, sample)?,
        }
    }
    if bench.can().deletes {
        let gone = driver.delete(&keys(&all))?.gone;
        if gone.count_ones() != all.len() {
            return complaint(
                "delete",
                format!("left {} of 1000 keys", all.len() - gone.count_ones()),
            );
        }
    }
    driver.store(&absent)?;
    driver.expect_all(&absent, bench.can().knows_sizes)
}

fn expect_missing(outcome: &LoadOutcome, sample: &Sample) -> Outcome<()> {
    match outcome {
        LoadOutcome::Missing => Ok(()),
        other => complaint(
            "submit_load",
            format!(
                "answered {other:?} for {}, which is not there; expected Missing",
                sample.key
            ),
        ),
    }
}

pub(super) fn empty_batches(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let submitted = [
        (
            Kind::Store,
            driver.try_submit(Kind::Store, "submit_store", |adapter| {
                adapter.submit_store(Vec::new())
            })?,
        ),
        (
            Kind::Lookup,
            driver.try_submit(Kind::Lookup, "submit_lookup_and_lock", |adapter| {
                adapter.submit_lookup_and_lock(Vec::new())
            })?,
        ),
        (
            Kind::Load,
            driver.try_submit(Kind::Load, "submit_load", |adapter| {
                adapter.submit_load(Vec::new())
            })?,
        ),
    ];
    for (kind, task) in submitted {
        let task = match task {
            Ok(task) => task,
            Err(_) if bench.can().refuses_empty_batches => continue,
            Err(error) => return complaint("submit", format!("refused an empty batch: {error:#}")),
        };
        match kind {
            Kind::Store => drop(driver.stored(task)?),
            Kind::Lookup => drop(driver.found(task, 0)?),
            Kind::Load => drop(driver.loaded(task, 0)?),
        }
    }
    driver.unlock(&[]);
    if bench.can().deletes {
        driver.delete(&[])?;
    }
    driver.store(&samples(1, 1, 10, 0)).map(drop)
}

pub(super) fn duplicates(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let one = Sample::new(1, 500, 12);
    let twice = [one.clone(), Sample::new(2, 500, 12), one.clone()];
    driver.store(&twice)?;
    let loaded = driver.load(&twice)?;
    for (index, sample) in twice.iter().enumerate() {
        expect_loaded(&loaded, index, sample)?;
    }
    let usage = driver.usage()?;
    if usage.objects != 2 {
        return complaint(
            "usage",
            format!(
                "has {} objects after a batch with one key twice; expected 2",
                usage.objects
            ),
        );
    }
    driver.expect_all(&twice, bench.can().knows_sizes)
}

pub(super) fn missing_keys(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let there = Sample::new(1, 500, 12);
    driver.store(std::slice::from_ref(&there))?;
    let others = [
        Sample::new(2, 500, 12),
        // Alike but for the salt, or the model.
        Sample::salted(1, 500, 12, "salt"),
        Sample::new(1, 500, 12).of_model("other", 1),
    ];
    let found = driver.lookup(keys(&others))?;
    if found.found.count_ones() > 0 {
        return complaint(
            "submit_lookup_and_lock",
            format!(
                "found {} of three keys that are not there",
                found.found.count_ones()
            ),
        );
    }
    let loaded = driver.load(&others)?;
    for (index, sample) in others.iter().enumerate() {
        expect_missing(&loaded.0[index].outcome, sample)?;
        if loaded.0[index].page.is_none() {
            return complaint(
                "query_load",
                "kept the page of a key that is missing; expected it back",
            );
        }
    }
    driver.unlock(&keys(&others));
    if bench.can().deletes {
        let deleted = driver.delete(&keys(&others))?;
        if deleted.gone.count_ones() != others.len() {
            return complaint("delete", "did not call a key gone that is not there");
        }
    }
    driver.expect_all(&[there], bench.can().knows_sizes)
}
