use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Nothing that a test waits for takes longer unless it never comes.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// Waits until `holds`, trying again and again.
///
/// # Panics
/// If it does not within [`WATCHDOG`]; says `what` was waited for.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "waited for {} s: {what}",
            WATCHDOG.as_secs()
        );
        thread::sleep(Duration::from_millis(2));
    }
}

/// Ends the process, with what can be said about its threads, if the guard is not dropped within `limit`: a test
/// that hangs shall say so.
#[must_use]
pub fn watchdog(test: &'static str, limit: Duration) -> impl Drop {
    let (done, wait) = channel::<()>();
    thread::spawn(move || {
        if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{test} did not end within {} s; threads:", limit.as_secs());
            for task in fs::read_dir("/proc/self/task")
                .into_iter()
                .flatten()
                .flatten()
            {
                let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
                eprintln!(
                    "  {} {} waits in {}",
                    task.file_name().display(),
                    read("comm").trim(),
                    read("wchan")
                );
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "the test that would clean up hangs"
            )]
            std::process::exit(101);
        }
    });
    Guard(done)
}

struct Guard(Sender<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}
