//! Failures that tests order.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::writer::Batch;

#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) fail_write: AtomicBool,
    pub(super) fail_sync: AtomicBool,
    pub(super) fail_segment: AtomicBool,
    /// The bytes of every attempt to write.
    pub(super) attempts: Mutex<Vec<Vec<u8>>>,
}

fn refuse(flag: &AtomicBool) -> io::Result<()> {
    match flag.load(Ordering::Relaxed) {
        true => Err(io::Error::other("ordered by a test")),
        false => Ok(()),
    }
}

impl Faults {
    pub(super) fn write(&self, batch: &Batch) -> io::Result<()> {
        self.attempts.lock().push(batch.bytes.clone());
        refuse(&self.fail_write)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        refuse(&self.fail_sync)
    }

    pub(super) fn segment(&self) -> io::Result<()> {
        refuse(&self.fail_segment)
    }
}
