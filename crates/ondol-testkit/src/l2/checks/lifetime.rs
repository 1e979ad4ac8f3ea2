use super::Bench;
use super::inventory::expect_usage;
use crate::apart::{Outcome, complaint};
use crate::l2::DropCounter;
use crate::l2::driver::{Kind, expect_loaded, load_batch, store_batch};
use crate::l2::samples::{Sample, keys, samples};

pub(super) fn restart(bench: &Bench<'_>) -> Outcome<()> {
    let mut there = samples(0, 20, 1500, 40);
    there.extend((0..4).map(|number| Sample::salted(number, 700, 0, "salt")));
    let driver = bench.open()?;
    driver.store(&there)?;
    if bench.can().deletes {
        driver.delete(&keys(&there[..1]))?;
        there.remove(0);
    }
    // A lock ends with the process that took it.
    driver.lookup(keys(&there[..1]))?;
    driver.close();
    drop(driver);
    for end in ["a close", "an end without a close"] {
        let opened = bench.open();
        let driver = opened.map_err(|complaint| complaint.after(end))?;
        if !bench.can().persists {
            let loaded = driver.load(&there)?;
            for (index, sample) in there.iter().enumerate() {
                if loaded.found().test(index) {
                    expect_loaded(&loaded, index, sample)?;
                }
            }
            continue;
        }
        driver.expect_all(&there, bench.can().knows_sizes)?;
        let when = format!("after {end}");
        expect_usage(
            &driver.usage()?,
            &there.iter().collect::<Vec<_>>(),
            bench.can().exact_usage,
            &when,
        )?;
        if bench.can().lists && driver.list(7, None)?.len() != there.len() {
            return complaint("list_keys", format!("is not complete after {end}"));
        }
        if bench.can().deletes {
            let gone = driver.delete(&keys(&there[..1]))?.gone;
            if !gone.test(0) {
                return complaint(
                    "delete",
                    format!("of a key that was locked before {end} did not call it gone"),
                );
            }
            there.remove(0);
        }
        let more = Sample::new(1000 + there.len() as u64, 100, 1);
        driver.store(std::slice::from_ref(&more))?;
        there.push(more);
    }
    Ok(())
}

pub(super) fn close(bench: &Bench<'_>) -> Outcome<()> {
    const TASKS: u64 = 32;
    const PER_TASK: usize = 8;
    let driver = bench.open()?;
    let there = samples(0, PER_TASK as u64, 16_384, 64);
    driver.store(&there)?;
    let counter = DropCounter::new();
    for round in 1..=TASKS {
        let new = samples(1000 * round, PER_TASK as u64, 16_384, 64);
        driver.submit_store(store_batch(&new, &counter))?;
        driver.submit_lookup(keys(&there))?;
        driver.submit_load(load_batch(&there, &counter))?;
    }
    let abandoned = usize::try_from(driver.close().abandoned).unwrap_or(usize::MAX);
    let unfinished = driver.sweep()?;
    if unfinished > abandoned {
        return complaint(
            "close",
            format!(
                "left {unfinished} tasks without a result and reported {abandoned} as abandoned; every task must end, \
                 with an error if need be"
            ),
        );
    }
    driver.drop_results();
    let held = counter.held();
    if held > abandoned.saturating_mul(PER_TASK) {
        return complaint(
            "close",
            format!(
                "kept {held} buffers with {abandoned} tasks abandoned; let go of what no task touches any more"
            ),
        );
    }
    driver.close();
    Ok(())
}

pub(super) fn after_close(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let there = samples(0, 4, 512, 8);
    driver.store(&there)?;
    driver.close();
    let counter = DropCounter::new();
    let new = samples(100, 4, 512, 8);
    let mut late = Vec::new();
    late.extend(driver.try_submit(Kind::Store, "submit_store", |adapter| {
        adapter.submit_store(store_batch(&new, &counter))
    })?);
    late.extend(
        driver.try_submit(Kind::Lookup, "submit_lookup_and_lock", |adapter| {
            adapter.submit_lookup_and_lock(keys(&there))
        })?,
    );
    late.extend(driver.try_submit(Kind::Load, "submit_load", |adapter| {
        adapter.submit_load(load_batch(&there, &counter))
    })?);
    let unfinished = driver.sweep()?;
    if unfinished > 0 {
        return complaint(
            "submit",
            format!(
                "took {unfinished} tasks after the close that do not end; refuse them, or fail them at once"
            ),
        );
    }
    let (stored, loaded) = driver.drop_results();
    if !stored.is_empty() || !loaded.is_empty() {
        return complaint(
            "submit",
            "carried out a task after the close; expected an error",
        );
    }
    if counter.held() > 0 {
        return complaint(
            "submit",
            format!("kept {} buffers of tasks that it refused", counter.held()),
        );
    }
    driver.unlock(&keys(&there));
    for task in late {
        driver.adapter("cancel").cancel(task);
    }
    let _ = driver.adapter("delete").delete(&keys(&there));
    driver.adapter("usage").usage();
    let _ = driver
        .adapter("list_keys")
        .list_keys(&ondol_plugin::l2::ListRequest {
            page_size: 10,
            ..Default::default()
        });
    if driver.close().abandoned > 0 {
        return complaint(
            "close",
            "abandoned tasks of which there were none, when it was called again",
        );
    }
    Ok(())
}
