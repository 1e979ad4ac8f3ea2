//! The state directory of a server, and the pool that its log speaks of.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::Context;
use ondol_handler::SOCKET_NAME;
use ondol_memory::{
    ClientReport, DeviceEnv, DeviceRecord, DeviceUri, Leftover, LogError, PoolRecord,
    check_own_dir, find_leftover_dir, find_strays, format_size, inspect_log,
};
use ondol_shm::{LeaseBook, Liveness, Process, SlotTableView, boot_id};
use rustix::fs::{StatVfsMountFlags, statvfs};

use super::hold::{Hold, is_absence};
use super::report::{ClientView, Cure, DeviceView, LogView, Report, Socket};

/// The log's directory in the state directory.
pub(super) const LOG: &str = "log";
/// The directory of the lease books.
pub(super) const BOOKS: &str = "leases";
/// The directory of the slot tables.
pub(super) const SLOTS: &str = "slots";

/// Looks at the directory, and at the devices of its pool.
pub(super) fn examine(
    report: &mut Report,
    hold: &Hold,
    leftovers: &[Leftover],
    env: &DeviceEnv,
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
    examine_lock(report, &dir);
    examine_socket(report, &dir, is_running);
    examine_drafts(report, &dir, is_running);
    if !is_own(report, &dir.join(LOG)) {
        return Ok(());
    }
    let is_known = examine_log(report, &dir, is_running);
    if let Some(record) = examine_record(report, &dir) {
        for device in &record.devices {
            examine_device(report, &record, device, leftovers, env)?;
        }
        if is_rebooted(&record) {
            // Their numbers may be those of others by now.
            report
                .clients
                .iter_mut()
                .for_each(|client| client.state = "dead");
        }
    }
    // Which of them are without a client is only known where the clients are.
    for kind in [BOOKS, SLOTS] {
        if is_own(report, &dir.join(kind)) {
            examine_client_files(report, &dir, kind, is_known && !is_running);
        }
    }
    if is_known && !is_running {
        examine_needed_files(report, &dir);
    }
    Ok(())
}

/// Whether the machine was restarted since this was written.
pub(super) fn is_rebooted(record: &PoolRecord) -> bool {
    boot_id().is_ok_and(|boot| boot != record.boot)
}

/// Whether a directory is the server's own, so that what has the names of its files is Ondol's. One that is not there is.
fn is_own(report: &mut Report, dir: &Path) -> bool {
    match check_own_dir(dir) {
        Ok(()) => true,
        Err(error) if is_absence(&error) => true,
        Err(error) => {
            report.attend(
                format!("{} cannot be used: {error}", dir.display()),
                "a server does not start before; what is in it is left alone",
            );
            false
        }
    }
}

/// A lock that is no file locks nothing.
fn examine_lock(report: &mut Report, dir: &Path) {
    let lock = dir.join("lock");
    if fs::symlink_metadata(&lock).is_ok_and(|stat| !stat.is_file()) {
        report.attend(
            format!("{} is no plain file", lock.display()),
            "move it away; a server does not start before",
        );
    }
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
    match fs::symlink_metadata(&path) {
        Ok(stat) if stat.file_type().is_socket() => {}
        Ok(_) => {
            report.attend(
                format!("{} is no socket", path.display()),
                "move it away; a server does not start before, unless `--socket` names another place",
            );
            return;
        }
        Err(_) => return,
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
    if let Some(last) = found.segments.last() {
        examine_room(report, &dir.join(LOG), last.bytes);
    }
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

/// Whether the next file of the log can be made, which takes as much as the last one.
fn examine_room(report: &mut Report, log: &Path, needed: u64) {
    let Ok(disk) = statvfs(log) else { return };
    let shown = log.display();
    if disk.f_flag.contains(StatVfsMountFlags::RDONLY) {
        report.attend(
            format!("the disk of {shown} can only be read"),
            "make it writable; until then a server takes no changes, or does not start",
        );
        return;
    }
    let blocks = match rustix::process::geteuid().is_root() {
        true => disk.f_bfree,
        false => disk.f_bavail,
    };
    let free = blocks.saturating_mul(disk.f_frsize);
    if free < needed {
        report.attend(
            format!(
                "the disk of {shown} has {} left, and the next segment of the log takes {}",
                format_size(free),
                format_size(needed)
            ),
            "make room there; without, a server serves what it has, and soon takes no changes",
        );
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
    env: &DeviceEnv,
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
    let rebooted = is_rebooted(record);
    let mut remedy =
        "bring it back, or start with `ondol serve --fresh`, which begins with an empty pool";
    let (state, is_fine) = match found {
        _ if !device.outlives_process() => ("goes with its server".to_owned(), true),
        _ if rebooted && device.is_volatile() => ("gone with a reboot".to_owned(), true),
        None => {
            let strays = find_strays(device, env)?.filter(|strays| strays.is_whole());
            let state = strays.map_or("gone".to_owned(), |strays| {
                remedy =
                    "bring that back, or run `ondol doctor --remove`, which gives up pool and log";
                format!(
                    "there, but its owner file {} is gone",
                    strays.owner_file.display()
                )
            });
            (state, false)
        }
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
        report.attend(format!("{uri}, a device of the pool, is {state}"), remedy);
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

/// The client whose lease book or slot table has this name.
pub(super) fn client_of_file(name: &OsStr) -> Option<u64> {
    let name = name.to_str()?;
    let client: u64 = name.parse().ok()?;
    // No server gives any other spelling.
    (client.to_string() == name).then_some(client)
}

fn examine_client_files(report: &mut Report, dir: &Path, kind: &str, can_judge: bool) {
    let Ok(entries) = fs::read_dir(dir.join(kind)) else {
        return;
    };
    for entry in entries.flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let Some(id) = client_of_file(&entry.file_name()).filter(|_| is_file) else {
            continue;
        };
        match report.clients.iter_mut().find(|client| client.id == id) {
            Some(view) => view.book |= kind == BOOKS,
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

/// Without the book and the slot table of a client that may live, a server does not know what must not be overwritten.
fn examine_needed_files(report: &mut Report, dir: &Path) {
    // A server that knew no slot tables left none.
    let has_slots = fs::read_dir(dir.join(SLOTS)).is_ok_and(|mut files| files.next().is_some());
    let mut unusable = Vec::new();
    for client in report
        .clients
        .iter()
        .filter(|client| client.state != "dead")
    {
        let path = |kind: &str| dir.join(kind).join(client.id.to_string());
        let mut note = |error: String| {
            unusable.push(format!(
                "client {} (process {}) may still read the pool, and what it reads cannot be told: {error}",
                client.id, client.pid
            ));
        };
        if let Err(error) = LeaseBook::open(&path(BOOKS)) {
            note(error.to_string());
        }
        let slots = path(SLOTS);
        if has_slots && let Err(error) = SlotTableView::inspect(&slots) {
            note(format!("slot table {}: {error}", slots.display()));
        }
    }
    for what in unusable {
        report.attend(
            what,
            "end that process, then start a server; or start with `ondol serve --fresh`, which leaves it its memory",
        );
    }
}
