//! Giving up a pool.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, ensure};
use ondol_memory::{
    DeviceEnv, DeviceUri, Log, PoolRecord, find_leftover_dir, find_leftovers, format_size,
};
use ondol_server::StateDir;

use super::state::{BOOKS, LOG};

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
    let state = StateDir::lock(state_dir)?;
    let log = state.path().join(LOG);
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

    // The log goes first: without the devices that it names, a server would refuse to start.
    if log.exists() {
        Log::remove(&log)?;
        fs::remove_dir_all(&log).with_context(|| format!("cannot remove {}", log.display()))?;
        removed.push(log.display().to_string());
    }
    for left in pool {
        left.remove()?;
        removed.push(format!(
            "{} ({})",
            left.device.display(),
            format_size(left.bytes)
        ));
    }
    let books = state.path().join(BOOKS);
    match fs::remove_dir_all(&books) {
        Ok(()) => removed.push(books.display().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("cannot remove {}", books.display()));
        }
    }
    Ok(removed)
}

fn is_same(one: &Path, other: &Path) -> bool {
    let full = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    full(one) == full(other)
}
