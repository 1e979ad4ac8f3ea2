//! Event descriptors in use: no two lanes may wait on one.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};

use ondol_plugin::l2::EventFds;
use parking_lot::Mutex;

static CLAIMED: Mutex<BTreeMap<RawFd, String>> = Mutex::new(BTreeMap::new());

/// The right to wait on three descriptors. Let go of it before they are closed.
#[derive(Debug)]
pub(super) struct Claim([RawFd; 3]);

impl Claim {
    /// Claims the descriptors of a backend.
    ///
    /// # Errors
    /// A text that says which of them is the same as which other.
    pub(super) fn of(backend: &str, fds: EventFds<'_>) -> Result<Self, String> {
        let kinds = ["store", "lookup", "load"];
        let numbers = [fds.store, fds.lookup, fds.load].map(|fd| fd.as_raw_fd());
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            if numbers[a] == numbers[b] {
                return Err(format!(
                    "its event descriptors for {} and {} are both number {}; expected three distinct ones",
                    kinds[a], kinds[b], numbers[a]
                ));
            }
        }
        let mut claimed = CLAIMED.lock();
        for (kind, number) in kinds.iter().zip(numbers) {
            if let Some(other) = claimed.get(&number) {
                return Err(format!(
                    "its event descriptor for {kind}, number {number}, is one of {other}'s; expected one of its own"
                ));
            }
        }
        claimed.extend(numbers.map(|number| (number, backend.to_owned())));
        Ok(Self(numbers))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = CLAIMED.lock();
        for number in &self.0 {
            claimed.remove(number);
        }
    }
}
