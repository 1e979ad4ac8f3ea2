//! Giving up a pool.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, ensure};
use ondol_memory::{
    DeviceEnv, DeviceUri, Log, PoolRecord, Strays, check_own_dir, find_leftover_dir,
    find_leftovers, find_strays, format_size,
};
use ondol_server::StateDir;

use super::hold::is_absence;
use super::state::{BOOKS, LOG, client_of_book, is_rebooted};

/// Removes log, lease books and pool of a state directory, and says what was removed.
///
/// # Errors
/// If a server runs there, or the system refuses.
pub(super) fn remove(state_dir: &Path, env: &DeviceEnv) -> anyhow::Result<Vec<String>> {
    ensure!(
        state_dir.is_dir(),
        "there is no directory {}; --state-dir names the server's",
        state_dir.display()
    );
    // Held to the end: no server starts meanwhile.
    let state = StateDir::borrow(state_dir)?;
    let (log, books) = (state.path().join(LOG), state.path().join(BOOKS));
    for dir in [&log, &books] {
        match check_own_dir(dir) {
            Err(error) if !is_absence(&error) => {
                return Err(error).with_context(|| format!("cannot use {}", dir.display()));
            }
            _ => {}
        }
    }
    let mut removed = Vec::new();

    // A record that cannot be read tells of no devices, but keeps nobody from giving them up: those in shared memory
    // name the state directory themselves.
    let record = PoolRecord::load(&log).ok().flatten();
    let mut pool = find_leftovers(env)?;
    for device in record.iter().flat_map(|record| &record.devices) {
        if let DeviceUri::Dir { path, .. } = device.uri() {
            pool.extend(find_leftover_dir(path)?);
        }
    }
    pool.retain(|left| {
        left.state
            .as_deref()
            .is_some_and(|dir| is_same(dir, state.path()))
    });

    // Only the log tells of these.
    for left in strays(record.as_ref(), env)? {
        left.remove()?;
        removed.push(format!(
            "{} ({})",
            left.device.display(),
            format_size(left.bytes)
        ));
    }

    // The log goes first: without the devices that it names, a server would refuse to start.
    if log.exists() {
        Log::remove(&log)?;
        remove_empty(&log, &mut removed)?;
    }
    for left in pool {
        left.remove()?;
        removed.push(format!(
            "{} ({})",
            left.device.display(),
            format_size(left.bytes)
        ));
    }
    if books.exists() {
        let failed = || format!("cannot remove what is in {}", books.display());
        for entry in fs::read_dir(&books).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            if client_of_book(&entry.file_name()).is_some() {
                fs::remove_file(entry.path()).with_context(failed)?;
            }
        }
        remove_empty(&books, &mut removed)?;
    }
    Ok(removed)
}

/// Removes a directory in which nothing of Ondol's is left. With anything else in it, it stays.
fn remove_empty(dir: &Path, removed: &mut Vec<String>) -> anyhow::Result<()> {
    let shown = dir.display();
    match fs::remove_dir(dir) {
        Ok(()) => removed.push(shown.to_string()),
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            removed.push(format!(
                "what was Ondol's in {shown}; the rest is left alone"
            ));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot remove {shown}")),
    }
    Ok(())
}

/// Files of the pool that no lock file speaks of any more.
fn strays(record: Option<&PoolRecord>, env: &DeviceEnv) -> anyhow::Result<Vec<Strays>> {
    let mut strays = Vec::new();
    let Some(record) = record else {
        return Ok(strays);
    };
    let rebooted = is_rebooted(record);
    for device in &record.devices {
        if rebooted && device.is_volatile() {
            // Their numbers may be those of other files by now.
            continue;
        }
        strays.extend(find_strays(device, env)?.filter(|found| !found.owner_file.exists()));
    }
    Ok(strays)
}

fn is_same(one: &Path, other: &Path) -> bool {
    let full = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    full(one) == full(other)
}
