use std::collections::{BTreeMap, BTreeSet};

use ondol_plugin::l2::{ListRequest, Usage};

use super::Bench;
use crate::apart::{Outcome, complaint};
use crate::l2::samples::{Sample, keys, samples};

/// The largest capacity that the check of eviction fills.
const MOST_CAPACITY: u64 = 64 << 20;

/// Compares usage with what is there.
pub(super) fn expect_usage(
    usage: &Usage,
    there: &[&Sample],
    exact: bool,
    when: &str,
) -> Outcome<()> {
    if usage.objects != there.len() as u64 {
        return complaint(
            "usage",
            format!(
                "has {} objects {when}; expected {}",
                usage.objects,
                there.len()
            ),
        );
    }
    let mut by_salt: BTreeMap<&str, u64> = BTreeMap::new();
    for sample in there {
        *by_salt.entry(sample.key.cache_salt()).or_default() += sample.stored_len() as u64;
    }
    let salts: BTreeSet<_> = by_salt.keys().copied().collect();
    let has_bytes = |(salt, bytes): (&'_ String, &u64)| (*bytes > 0).then(|| salt.clone());
    let found: BTreeSet<_> = usage.bytes_by_salt.iter().filter_map(has_bytes).collect();
    if found.iter().map(String::as_str).ne(salts.iter().copied()) {
        return complaint(
            "usage",
            format!("has the salts {found:?} {when}; expected {salts:?}"),
        );
    }
    for (salt, right) in by_salt {
        let bytes = usage.bytes_by_salt.get(salt).copied().unwrap_or(0);
        if bytes < right || (exact && bytes != right) {
            return complaint(
                "usage",
                format!("has {bytes} bytes under the salt {salt:?} {when}; expected {right}"),
            );
        }
    }
    Ok(())
}

pub(super) fn usage(bench: &Bench<'_>) -> Outcome<()> {
    let exact = bench.can().exact_usage;
    let driver = bench.open()?;
    expect_usage(&driver.usage()?, &[], exact, "on an empty directory")?;
    let all = [
        Sample::new(1, 1000, 50),
        Sample::new(2, 2000, 0),
        Sample::salted(3, 3000, 50, "a"),
        Sample::salted(4, 1, 0, "b"),
    ];
    let there: Vec<_> = all.iter().collect();
    for sample in &all {
        driver.store(std::slice::from_ref(sample))?;
    }
    expect_usage(&driver.usage()?, &there, exact, "after four stores")?;
    driver.store(&all)?;
    expect_usage(
        &driver.usage()?,
        &there,
        exact,
        "after the same stores again",
    )?;
    driver.expect_all(&all, bench.can().knows_sizes)?;
    expect_usage(&driver.usage()?, &there, exact, "after lookups and loads")?;
    if !bench.can().deletes {
        return Ok(());
    }
    driver.delete(&keys(&all[..1]))?;
    driver.delete(&keys(&all[..1]))?;
    driver.delete(&keys(&all[3..]))?;
    expect_usage(
        &driver.usage()?,
        &there[1..3],
        exact,
        "after two were deleted",
    )?;
    driver.delete(&keys(&all))?;
    expect_usage(&driver.usage()?, &[], exact, "after all were deleted")
}

pub(super) fn listing(bench: &Bench<'_>) -> Outcome<()> {
    let driver = bench.open()?;
    let request = |page_size| ListRequest {
        page_size,
        ..ListRequest::default()
    };
    if !bench.can().lists {
        return match driver.adapter("list_keys").list_keys(&request(10)) {
            Err(_) => Ok(()),
            Ok(_) => complaint(
                "list_keys",
                "answered, though the adapter cannot list; expected an error",
            ),
        };
    }
    if !driver.list(10, None)?.is_empty() {
        return complaint("list_keys", "gave keys of an empty directory");
    }
    let mut all = samples(0, 20, 100, 10);
    all.extend((0..5).map(|number| Sample::salted(number, 200, 0, "salt")));
    all.extend((0..6).map(|number| Sample::new(number, 300, 1).of_model("other", number)));
    driver.store(&all)?;
    for page_size in [1, 7, all.len(), 1000] {
        expect_listed(&driver.list(page_size, None)?, &all, bench)?;
    }
    expect_listed(&driver.list(4, Some("other"))?, &all[25..], bench)?;
    expect_listed(&driver.list(4, Some("no such model"))?, &[], bench)?;
    if bench.can().deletes {
        driver.delete(&keys(&all[..10]))?;
        expect_listed(&driver.list(7, None)?, &all[10..], bench)?;
    }
    let strange = ListRequest {
        cursor: Some("no cursor of anybody's".to_owned()),
        ..request(10)
    };
    match driver.adapter("list_keys").list_keys(&strange) {
        Err(_) => Ok(()),
        Ok(_) => complaint(
            "list_keys",
            "took a cursor that it never gave; expected an error",
        ),
    }
}

fn expect_listed(
    listed: &[ondol_plugin::l2::KeyEntry],
    right: &[Sample],
    bench: &Bench<'_>,
) -> Outcome<()> {
    let found: BTreeMap<_, _> = listed
        .iter()
        .map(|entry| (&entry.key, entry.size_bytes))
        .collect();
    if found.len() != right.len() {
        return complaint(
            "list_keys",
            format!("gave {} keys; expected {}", found.len(), right.len()),
        );
    }
    for sample in right {
        let Some(size) = found.get(&sample.key) else {
            return complaint(
                "list_keys",
                format!("left {} out, which is there", sample.key),
            );
        };
        let len = sample.stored_len() as u64;
        if *size != 0 && (*size < len || (bench.can().exact_usage && *size != len)) {
            return complaint(
                "list_keys",
                format!("gave {size} bytes for {}; expected {len}", sample.key),
            );
        }
    }
    Ok(())
}

pub(super) fn eviction(bench: &Bench<'_>) -> Outcome<()> {
    if !bench.can().evicts {
        return Ok(());
    }
    let driver = bench.open()?;
    let capacity = match driver.usage()?.capacity_bytes {
        Some(capacity @ 1..=MOST_CAPACITY) => capacity,
        other => {
            return complaint(
                "usage",
                format!(
                    "has a capacity of {other:?}; expected one of at most 64 MiB where eviction is checked"
                ),
            );
        }
    };
    let body = usize::try_from(capacity / 16)
        .unwrap_or(usize::MAX)
        .saturating_sub(16)
        .max(1);
    let all = samples(0, 40, body, 16);
    let locked = &all[..2];
    for (index, sample) in all.iter().enumerate() {
        driver.store(std::slice::from_ref(sample))?;
        if index == 1 {
            driver.lookup(keys(locked))?;
        }
        let used = driver.usage()?.used_bytes;
        if used > capacity {
            return complaint(
                "usage",
                format!("is {used} bytes of a capacity of {capacity}; make room before a store"),
            );
        }
    }
    let loaded = driver.load(locked)?;
    if loaded.found().count_ones() != locked.len() {
        return complaint("eviction", "removed an object that is locked");
    }
    let found = driver.lookup(keys(&all[2..]))?;
    let there = found.found.count_ones();
    if there == 0 || !found.found.test(all.len() - 3) {
        return complaint(
            "eviction",
            format!(
                "left {there} objects, the last one stored among them: {}; expected it there",
                found.found.test(all.len() - 3)
            ),
        );
    }
    driver.unlock(&keys(&all));
    let usage = driver.usage()?;
    if usage.objects != (there + locked.len()) as u64 {
        return complaint(
            "usage",
            format!(
                "has {} objects after eviction; expected {}",
                usage.objects,
                there + locked.len()
            ),
        );
    }
    Ok(())
}
