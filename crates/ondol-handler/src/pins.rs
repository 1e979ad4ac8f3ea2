//! The pins that this client made, so that each can be named when it is taken back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_plugin::Key;
use ondol_protocol::Pin;
use parking_lot::Mutex;

/// A pin whose answer was lost stays here: taking it back is right whether it was made or not.
#[derive(Debug)]
pub(crate) struct Pins {
    next: AtomicU64,
    made: Mutex<HashMap<Key, Vec<u64>>>,
}

impl Pins {
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicU64::new(1),
            made: Mutex::default(),
        }
    }

    /// A new pin of each key.
    pub(crate) fn propose(&self, keys: &[Key]) -> Vec<Pin> {
        let pin = |key: &Key| Pin {
            key: key.clone(),
            number: self.next.fetch_add(1, Ordering::Relaxed),
        };
        let pins: Vec<_> = keys.iter().map(pin).collect();
        let mut made = self.made.lock();
        for Pin { key, number } in &pins {
            made.entry(key.clone()).or_default().push(*number);
        }
        pins
    }

    /// Takes one pin of each key; nothing where there is none.
    pub(crate) fn take(&self, keys: &[Key]) -> Vec<Option<Pin>> {
        let mut made = self.made.lock();
        let mut take = |key: &Key| {
            let numbers = made.get_mut(key)?;
            let number = numbers.pop()?;
            if numbers.is_empty() {
                made.remove(key);
            }
            let key = key.clone();
            Some(Pin { key, number })
        };
        keys.iter().map(&mut take).collect()
    }

    /// Puts pins back that may still exist.
    pub(crate) fn restore(&self, pins: impl IntoIterator<Item = Pin>) {
        let mut made = self.made.lock();
        for Pin { key, number } in pins {
            made.entry(key).or_default().push(number);
        }
    }

    /// Forgets a pin that does not exist.
    pub(crate) fn forget(&self, pin: &Pin) {
        let mut made = self.made.lock();
        if let Some(numbers) = made.get_mut(&pin.key) {
            numbers.retain(|number| *number != pin.number);
            if numbers.is_empty() {
                made.remove(&pin.key);
            }
        }
    }
}
