//! Giving up a pool.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use ondol_memory::{
    DeviceEnv, DeviceUri, Log, PoolRecord, Strays, check_own_dir, find_leftover_dir,
    find_leftovers, find_strays, format_size,
};
use ondol_server::StateDir;
use ondol_shm::SlotTableView;

use super::hold::is_absence;
use super::state::{BOOKS, LOG, SLOTS, client_of_file, is_rebooted};

/// Removes log, lease books, slot tables and pool of a state directory, and says what was removed.
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
    let [log, books, slots] = [LOG, BOOKS, SLOTS].map(|name| state.path().join(name));
    for dir in [&log, &books, &slots] {
        match check_own_dir(dir) {
            Err(error) if !is_absence(&error) => {
                return Err(error).with_context(|| format!("cannot use {}", dir.display()));
            }
            _ => {}
        }
    }
    let mut removed = Vec::new();
    for table in files_in(&slots)? {
        // Before its pages are: a client that lives takes no lease any more. What is no table nobody can use.
        let _ = SlotTableView::adopt(&table);
    }

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
    for dir in [books, slots] {
        for file in files_in(&dir)? {
            fs::remove_file(&file)
                .with_context(|| format!("cannot remove what is in {}", dir.display()))?;
        }
        if dir.exists() {
            remove_empty(&dir, &mut removed)?;
        }
    }
    Ok(removed)
}

/// The files of clients in a directory, if it is there.
fn files_in(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let failed = || format!("cannot look into {}", dir.display());
    let mut files = Vec::new();
    if dir.exists() {
        for entry in fs::read_dir(dir).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            if client_of_file(&entry.file_name()).is_some() {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
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
