//! The state directory of a server, and the pool that its log speaks of.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::Context;
use ondol_handler::SOCKET_NAME;
use ondol_memory::{
    ClientReport, DeviceRecord, DeviceUri, Leftover, LogError, PoolRecord, find_leftover_dir,
    format_size, inspect_log,
};
use ondol_shm::{Liveness, Process, boot_id};

use super::hold::{Hold, is_absence};
use super::report::{ClientView, Cure, DeviceView, LogView, Report, Socket};

/// The log's directory in the state directory.
pub(super) const LOG: &str = "log";
/// The directory of the lease books.
pub(super) const BOOKS: &str = "leases";

/// Looks at the directory, and at the devices of its pool.
pub(super) fn examine(
    report: &mut Report,
    hold: &Hold,
    leftovers: &[Leftover],
) -> anyhow::Result<()> {
    (report.server, report.pid) = match hold {
        Hold::Running(pid) => ("running", *pid),
        Hold::Free(pid, _) => ("stopped", *pid),
        Hold::Never => ("never", None),
    };
    let dir = report.state_dir.clone();
    let stat = match fs::symlink_metadata(&dir) {
        Ok(stat) => stat,
        Err(error) if is_absence(&error) => return Ok(()),
        Err(error) => return Err(error).context(format!("cannot look at {}", dir.display())),
    };
    let is_running = hold.is_running();
    examine_modes(report, &dir, &stat);
    examine_socket(report, &dir, is_running);
    examine_drafts(report, &dir, is_running);
    let is_known = examine_log(report, &dir, is_running);
    if let Some(record) = examine_record(report, &dir) {
        for device in &record.devices {
            examine_device(report, &record, device, leftovers)?;
        }
    }
    // Whose books are without a client is only known where the clients are.
    examine_books(report, &dir, is_known && !is_running);
    Ok(())
}

fn examine_modes(report: &mut Report, dir: &Path, stat: &fs::Metadata) {
    if !stat.is_dir() || stat.mode() & 0o022 != 0 {
        report.attend(
            format!(
                "{} is no directory that only its owner can write",
                dir.display()
            ),
            format!(
                "run `chmod 700 {}`; a server does not start before",
                dir.display()
            ),
        );
    }
    let secret = dir.join("secret");
    if let Ok(stat) = fs::symlink_metadata(&secret)
        && (stat.mode() & 0o077 != 0 || stat.len() != 32 || !stat.is_file())
    {
        report.attend(
            format!(
                "{} has mode {:04o} and {} bytes; expected a file of mode 0600 with 32 bytes",
                secret.display(),
                stat.mode() & 0o7777,
                stat.len()
            ),
            "delete it: the next start makes a new one, and clients open the memory anew",
        );
    }
}

/// The default socket; a server may have been told of another one, of which nothing is written down.
fn examine_socket(report: &mut Report, dir: &Path, is_running: bool) {
    let path = dir.join(SOCKET_NAME);
    if !fs::symlink_metadata(&path).is_ok_and(|stat| stat.file_type().is_socket()) {
        return;
    }
    if !is_running {
        let what = format!("{} was left by a server that was killed", path.display());
        let remedy = "the next start removes it, as does `ondol doctor --clean`";
        report.find(what, remedy, false, Some(Cure::File(path.clone())));
    }
    report.socket = Some(Socket {
        path,
        stale: !is_running,
    });
}

/// Files that were being written when their server was killed.
fn examine_drafts(report: &mut Report, dir: &Path, is_running: bool) {
    if is_running {
        return;
    }
    let secret = dir.join("secret.new");
    if fs::symlink_metadata(&secret).is_ok() {
        let what = format!("{} was never finished", secret.display());
        let remedy = "the next start replaces it; `ondol doctor --clean` removes it";
        report.find(what, remedy, false, Some(Cure::File(secret)));
    }
}

/// Whether the log could be read, so that the clients are known.
fn examine_log(report: &mut Report, dir: &Path, is_running: bool) -> bool {
    let found = match inspect_log(&dir.join(LOG)) {
        Ok(found) => found,
        Err(LogError::Missing { .. }) => return true,
        Err(error) => {
            report_damage(report, error.to_string(), is_running);
            return false;
        }
    };
    let sizes = found.segments.iter().map(|segment| segment.bytes);
    let sizes = sizes.chain(found.checkpoints.iter().map(|checkpoint| checkpoint.bytes));
    report.log = Some(LogView {
        pool: found.pool.to_string(),
        clean: found.clean,
        segments: found.segments.len() as u64,
        bytes: sizes.sum(),
        position: found.end.0,
        checkpoint: found.checkpoints.last().map(|last| last.position.0),
        torn_bytes: found.torn_bytes,
        objects: found.objects,
    });
    report.clients = found.clients.iter().map(client).collect();
    if found.torn_bytes > 0 && !is_running {
        let what = format!(
            "the log ends in {} bytes of an unfinished write",
            found.torn_bytes
        );
        let remedy = "the next start cuts them off; nobody was told of what they hold";
        report.find(what, remedy, false, None);
    }
    match found.problem {
        None => true,
        Some(problem) => {
            report_damage(report, problem, is_running);
            false
        }
    }
}

/// A log that a server writes to may change while it is read here, so that what is seen then is no proof.
fn report_damage(report: &mut Report, what: String, is_running: bool) {
    if !is_running {
        report.attend(
            what.clone(),
            "or run `ondol doctor --remove`, which gives up pool and log",
        );
    }
    report.log_error = Some(what);
}

fn client(found: &ClientReport) -> ClientView {
    let state = match Process::find(&found.process) {
        Ok(Liveness::Alive(_)) => "alive",
        Ok(Liveness::Dead) => "dead",
        _ => "unknown",
    };
    ClientView {
        id: found.client.0,
        pid: found.process.pid,
        state,
        granted_pages: found.granted_pages,
        pins: found.pins,
        book: false,
    }
}

fn examine_record(report: &mut Report, dir: &Path) -> Option<PoolRecord> {
    match PoolRecord::load(&dir.join(LOG)) {
        Ok(record) => record,
        Err(error) => {
            report.attend(error.to_string(), "or run `ondol doctor --remove`");
            None
        }
    }
}

/// Whether a device is still the one that the log speaks of.
fn examine_device(
    report: &mut Report,
    record: &PoolRecord,
    device: &DeviceRecord,
    leftovers: &[Leftover],
) -> anyhow::Result<()> {
    let found = match device.uri() {
        DeviceUri::Dir { path, .. } => find_leftover_dir(path)?,
        uri => leftovers.iter().find(|left| stands_for(left, uri)).cloned(),
    };
    let size = match device.uri() {
        DeviceUri::Shm { size, .. } => *size,
        DeviceUri::Hugetlb { size, .. } => Some(*size),
        _ => None,
    };
    let rebooted = boot_id().is_ok_and(|boot| boot != record.boot);
    let (state, is_fine) = match found {
        _ if !device.outlives_process() => ("goes with its server".to_owned(), true),
        _ if rebooted && device.is_volatile() => ("gone with a reboot".to_owned(), true),
        None => ("gone".to_owned(), false),
        Some(found) if found.pool != Some(record.pool) => {
            let pool = found
                .pool
                .map_or("no pool".to_owned(), |pool| format!("pool {pool}"));
            (
                format!("of {pool} now; expected pool {}", record.pool),
                false,
            )
        }
        Some(found) if found.files == 0 && found.scheme() != "dax" => ("gone".to_owned(), false),
        Some(found) if size.is_some_and(|size| size != found.bytes) => (
            format!(
                "{} long; expected {}",
                found.bytes,
                size.unwrap_or_default()
            ),
            false,
        ),
        Some(found) => (format!("there, {}", format_size(found.bytes)), true),
    };
    let uri = device.uri().to_string();
    if !is_fine {
        report.attend(
            format!("{uri}, a device of the pool, is {state}"),
            "bring it back, or start with `ondol serve --fresh`, which begins with an empty pool",
        );
    }
    report.devices.push(DeviceView {
        device: uri,
        state,
        volatile: device.is_volatile(),
    });
    Ok(())
}

fn stands_for(left: &Leftover, uri: &DeviceUri) -> bool {
    left.scheme() == uri.scheme()
        && match uri {
            DeviceUri::Shm { name, .. } => left
                .device
                .file_name()
                .is_some_and(|found| found == name.as_str()),
            DeviceUri::Hugetlb { path, .. } | DeviceUri::Dax { path, .. } => left.device == *path,
            _ => false,
        }
}

/// A book is called after its client.
fn examine_books(report: &mut Report, dir: &Path, can_judge: bool) {
    let Ok(entries) = fs::read_dir(dir.join(BOOKS)) else {
        return;
    };
    for entry in entries.flatten() {
        let client = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let view =
            client.and_then(|id: u64| report.clients.iter_mut().find(|client| client.id == id));
        match view {
            Some(view) => view.book = true,
            None if can_judge => {
                let path = entry.path();
                let what = format!("{} is of no client that the log knows", path.display());
                let remedy = "the next start removes it, as does `ondol doctor --clean`";
                report.find(what, remedy, false, Some(Cure::File(path)));
            }
            None => {}
        }
    }
}
