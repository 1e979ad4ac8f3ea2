use ondol_plugin::l2::ObjectKey;

use super::Bench;
use crate::apart::{Outcome, complaint};
use crate::l2::driver::Driver;
use crate::l2::samples::{keys, samples};

/// Deletes one key and expects that it is gone, or that it is locked.
fn delete_one(driver: &Driver, key: &ObjectKey, expected: &'static str, when: &str) -> Outcome<()> {
    let result = driver.delete(std::slice::from_ref(key))?;
    let found = match (result.gone.test(0), result.locked.test(0)) {
        (true, _) => "gone",
        (_, true) => "locked",
        _ => "neither gone nor locked",
    };
    match found == expected {
        true => Ok(()),
        false => complaint(
            "delete",
            format!("of a key {when} said {found}; expected {expected}"),
        ),
    }
}

pub(super) fn locks(bench: &Bench<'_>) -> Outcome<()> {
    if !bench.can().deletes {
        return Ok(());
    }
    let driver = bench.open()?;
    let stored = samples(0, 4, 300, 20);
    let all = keys(&stored);
    // To ask for what is not there locks nothing.
    driver.lookup(all.clone())?;
    driver.store(&stored)?;
    delete_one(&driver, &all[0], "gone", "that a lookup did not find")?;
    driver.store(&stored[..1])?;

    driver.lookup(all[..2].to_vec())?;
    driver.lookup(all[..1].to_vec())?;
    delete_one(&driver, &all[0], "locked", "with two locks")?;
    driver.unlock(&all[..1]);
    delete_one(
        &driver,
        &all[0],
        "locked",
        "with one of two locks given back",
    )?;
    let whole = driver.delete(&all)?;
    if (whole.locked.to_string(), whole.gone.to_string()) != ("1100".into(), "0011".into()) {
        return complaint(
            "delete",
            format!(
                "of four keys, the first two locked, said locked {} and gone {}; expected 1100 and 0011",
                whole.locked, whole.gone
            ),
        );
    }
    // What is locked is there all the while.
    let loaded = driver.load(&stored[..2])?;
    if loaded.found().count_ones() != 2 {
        return complaint("delete", "removed an object that is locked");
    }
    driver.unlock(&all[..2]);
    delete_one(&driver, &all[0], "gone", "with every lock given back")?;
    delete_one(&driver, &all[1], "gone", "with every lock given back")?;

    // An unlock too many is ignored, and does not count against the next lock.
    driver.store(&stored[..1])?;
    driver.unlock(&[all[0].clone(), all[0].clone(), all[3].clone()]);
    driver.lookup(all[..1].to_vec())?;
    delete_one(
        &driver,
        &all[0],
        "locked",
        "that was unlocked too often before it was locked",
    )?;
    driver.unlock(&all[..1]);
    delete_one(&driver, &all[0], "gone", "with every lock given back")
}

pub(super) fn deletion(bench: &Bench<'_>) -> Outcome<()> {
    if !bench.can().deletes {
        return Ok(());
    }
    let driver = bench.open()?;
    let stored = samples(0, 6, 300, 20);
    driver.store(&stored)?;
    let (deleted, kept) = stored.split_at(3);
    for when in ["that is there", "that was deleted before"] {
        let gone = driver.delete(&keys(deleted))?.gone;
        if gone.count_ones() != deleted.len() {
            return complaint(
                "delete",
                format!("of three keys {when} said gone {gone}; expected 111"),
            );
        }
    }
    let found = driver.lookup(keys(deleted))?;
    let loaded = driver.load(deleted)?;
    if found.found.count_ones() + loaded.found().count_ones() > 0 {
        return complaint("delete", "left objects that it had called gone");
    }
    driver.expect_all(kept, bench.can().knows_sizes)?;
    // A name can be used again, for another object.
    let mut again = samples(100, 3, 700, 5);
    for (again, before) in again.iter_mut().zip(deleted) {
        again.key = before.key.clone();
    }
    driver.store(&again)?;
    driver.expect_all(&again, bench.can().knows_sizes)
}
