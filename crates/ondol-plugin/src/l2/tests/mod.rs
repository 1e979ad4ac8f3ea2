mod bitmap;
mod buffer;
mod completion;
mod config;
mod locks;
mod object_key;
mod pool;
mod worker;

use std::time::Duration;

use super::{KvRank, ObjectKey};

/// How long anything may take before it counts as never.
const WATCHDOG: Duration = Duration::from_secs(60);

fn key(number: u8) -> ObjectKey {
    salted(number, "")
}

fn salted(number: u8, salt: &str) -> ObjectKey {
    ObjectKey::new("model", KvRank(0x0100_0100), 0, [number], salt).unwrap()
}
