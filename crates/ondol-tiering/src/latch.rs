use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Something that happens once and that others wait for.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    happened: Mutex<bool>,
    changed: Condvar,
}

impl Latch {
    /// It has happened.
    pub(crate) fn set(&self) {
        *self.happened.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until it has happened, or `until`; whether it has.
    pub(crate) fn wait(&self, until: Instant) -> bool {
        let mut happened = self.happened.lock();
        while !*happened {
            if self.changed.wait_until(&mut happened, until).timed_out() {
                break;
            }
        }
        *happened
    }
}

/// Sets a latch when it goes, also when a thread panics.
struct SetOnDrop(Arc<Latch>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Runs `work` on a thread of its own; the latch is set when it has ended and let go of all that it held.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Arc<Latch>> {
    let ended: Arc<Latch> = Arc::default();
    let set = SetOnDrop(Arc::clone(&ended));
    thread::Builder::new().name(name.into()).spawn(move || {
        let _set = set;
        work();
    })?;
    Ok(ended)
}
