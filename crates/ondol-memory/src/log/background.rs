//! The threads of a log: one keeps room ahead and tries again what failed, the other makes checkpoints.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ondol_shm::ForkGuard;
use tracing::{info, warn};

use super::checkpoint;
use super::error::LogError;
use super::files;
use super::progress::Progress;
use super::recovery::{Base, replay};
use super::walk::Route;
use super::writer::{Shared, Work};

/// How long a thread waits after a failure before it tries again; checkpoints wait longer from failure to failure.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The threads, which end when this is dropped.
#[derive(Debug)]
pub(super) struct Background {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    home: ForkGuard,
}

impl Background {
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let mut background = Self {
            shared: shared.clone(),
            threads: Vec::new(),
            home: ForkGuard::new(),
        };
        let mut start = |name: &str, run: fn(&Shared)| {
            let shared = shared.clone();
            let thread = thread::Builder::new().name(name.to_owned());
            background.threads.push(thread.spawn(move || run(&shared))?);
            io::Result::Ok(())
        };
        start("ondol-log-room", keep_room)?;
        start("ondol-log-save", keep_short)?;
        Ok(background)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // A forked child has neither the threads nor, perhaps, ever the lock that tells them to end.
        if !self.home.is_home() {
            return;
        }
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.ask(|work| work.stop = true);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so; there is nothing of it left to end.
            let _ = thread.join();
        }
    }
}

/// Waits for work, and before that for `pause` where something failed; `None` at the end.
fn next_work(
    shared: &Shared,
    pause: Option<Duration>,
    mine: impl Fn(&mut Work) -> Option<(bool, bool)>,
) -> Option<(bool, bool)> {
    let mut work = shared.work.lock();
    if let Some(pause) = pause {
        // Work that comes meanwhile makes it no likelier that what failed would succeed.
        let until = Instant::now() + pause;
        while !work.stop && !shared.work_came.wait_until(&mut work, until).timed_out() {}
    }
    loop {
        if work.stop {
            return None;
        }
        if let Some(found) = mine(&mut work) {
            return Some(found);
        }
        shared.work_came.wait(&mut work);
    }
}

/// Makes the next segment ahead of its need, and flushes what nobody waits for.
fn keep_room(shared: &Shared) {
    let mine = |work: &mut Work| {
        let found = (
            std::mem::take(&mut work.spare),
            std::mem::take(&mut work.flush),
        );
        (found != (false, false)).then_some(found)
    };
    let mut pause = None;
    let mut fails = false;
    while let Some((spare, flush)) = next_work(shared, pause, mine) {
        pause = None;
        if spare {
            let made = shared.make_spare();
            if made.is_err() {
                shared.ask(|work| work.spare = true);
                pause = Some(RETRY);
            }
            match made {
                Err(error) if !fails => {
                    warn!(%error, dir = %shared.dir.display(), "no room for the next segment of the log");
                }
                Ok(()) if fails => info!("there is room for the log again"),
                _ => {}
            }
            fails = pause.is_some();
        }
        // A failure asks for another try by itself.
        if flush && shared.flush(shared.position()).is_err() {
            pause = Some(RETRY);
        }
    }
}

/// Makes a checkpoint whenever the closed segments have grown beyond the limit.
fn keep_short(shared: &Shared) {
    let mine = |work: &mut Work| std::mem::take(&mut work.compact).then_some((true, false));
    let mut pause = None;
    while next_work(shared, pause, mine).is_some() {
        let due = {
            let archive = shared.archive.lock();
            archive.closed_bytes() > shared.options.compact_limit(archive.checkpoint.bytes)
        };
        if !due {
            pause = None;
            continue;
        }
        match make_checkpoint(shared) {
            Ok(()) => pause = None,
            Err(_) if shared.stopping.load(Ordering::Relaxed) => return,
            Err(error) => {
                shared
                    .counters
                    .failed_checkpoints
                    .fetch_add(1, Ordering::Relaxed);
                warn!(%error, "cannot make a checkpoint of the log; it grows until one can be made");
                pause = Some(pause.map_or(RETRY, |last: Duration| (2 * last).min(LONGEST_RETRY)));
                shared.ask(|work| work.compact = true);
            }
        }
    }
}

/// Replays the closed segments over the last checkpoint, both from the disk, and publishes the result. What is served
/// meanwhile is not touched.
fn make_checkpoint(shared: &Shared) -> Result<(), LogError> {
    let Shared {
        dir,
        identity,
        stopping: stop,
        ..
    } = shared;
    let (base, end) = {
        let archive = shared.archive.lock();
        let Some((last, _)) = archive.closed.back() else {
            return Ok(());
        };
        (archive.checkpoint.clone(), last.end())
    };
    let mut progress = Progress::quiet();
    let image = checkpoint::read(
        &base.path,
        identity,
        shared.empty.emptied(),
        stop,
        &mut progress,
    )?;
    let route = Route {
        dir,
        identity,
        from: base.position,
        until: Some(end),
        stop,
    };
    let (image, walked) = replay(route, image, &mut progress)?;
    if let Some((span, path)) = walked.segments.last().filter(|_| walked.end != end) {
        let found = "no whole record";
        return Err(LogError::corrupt(
            path,
            walked.end - span.first,
            found,
            "a closed segment, whole to its end",
        ));
    }
    let bytes = checkpoint::write(dir, identity, end, &image, stop)?;
    let made = Base {
        position: end,
        path: dir.join(files::checkpoint_name(end)),
        bytes,
    };
    info!(
        objects = image.objects.len(),
        changes = walked.changes,
        bytes,
        seconds = progress.seconds(),
        "made a checkpoint of the log"
    );
    shared.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
    let unneeded: Vec<_> = {
        let mut archive = shared.archive.lock();
        archive.checkpoint = made;
        let covered = archive
            .closed
            .partition_point(|(span, _)| span.end() <= end);
        archive
            .closed
            .drain(..covered)
            .map(|(_, path)| path)
            .collect()
    };
    for path in std::iter::once(base.path).chain(unneeded) {
        ondol_catalog::failpoint!("checkpoint.sweep");
        if let Err(error) = files::remove_file(&path) {
            warn!(%error, "what a checkpoint made needless stays until the next start");
        }
    }
    ondol_catalog::failpoint!("checkpoint.swept");
    Ok(())
}
