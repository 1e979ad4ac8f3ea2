use std::sync::Arc;
use std::time::Duration;

use crate::Quotas;

/// How the storage tier works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TieringConfig {
    /// What is stored, and what becomes of it in memory then.
    pub store_policy: StorePolicy,
    /// Whether what prefetches load stays in memory for others after who asked is done with it (`retain`), or may go first.
    pub retain_prefetched: bool,
    /// Uses of an object before it is stored; 1 stores all. Objects used once do not wear the disk then.
    pub admit_after_uses: u32,
    /// Objects that may wait to be stored.
    pub store_queue: usize,
    /// What happens when more wait.
    pub store_overflow: StoreOverflow,
    /// Bytes of objects that stores may hold leased at once, over all backends; an eighth of the pool at most.
    pub store_in_flight_bytes: u64,
    /// How long one store may take.
    pub store_timeout: Duration,
    /// How often a store that failed and may succeed later is tried again.
    pub store_retries: u32,
    /// The pause before the first of these tries; it doubles each time, and varies by up to a half.
    pub store_backoff: Duration,
    /// Failures in a row that open a backend's circuit breaker.
    pub breaker_failures: u32,
    /// How long an open breaker waits before it lets one store try.
    pub breaker_pause: Duration,
    /// Lookups or loads of a backend in a row that time out before prefetches leave it out, but for one after each `breaker_pause`.
    pub read_breaker_timeouts: u32,
    /// Bytes that loads may fill at once, over all backends. Each of them has an equal share, so that one that hangs does not hold up
    /// the others; one request may load in any case. An eighth of the pool at most.
    pub load_in_flight_bytes: u64,
    /// How long a lookup may take.
    pub lookup_timeout: Duration,
    /// How long a load may take.
    pub load_timeout: Duration,
    /// How many bytes each cache salt may have; may be changed while it is in use.
    pub quotas: Arc<Quotas>,
    /// Seed of everything random.
    pub seed: u64,
}

/// What is stored, and what becomes of it in memory then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorePolicy {
    /// Everything goes to every backend and stays in memory: write-through.
    #[default]
    Default,
    /// The same, then it leaves memory if nobody holds it.
    SkipL1,
}

/// What happens when more objects wait to be stored than may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreOverflow {
    /// They stay in memory and are found again when there is room.
    #[default]
    Wait,
    /// The oldest that waits is dropped, and counted.
    DropOldest,
}

/// The part of the pool that stores may hold, and the part that loads may: clients must find pages beside a backend that hangs.
const PART_IN_FLIGHT: u64 = 8;

impl TieringConfig {
    /// With what a pool of so many bytes allows.
    pub(crate) fn bounded(mut self, pool_bytes: u64) -> Self {
        let most = (pool_bytes / PART_IN_FLIGHT).max(1);
        self.store_in_flight_bytes = self.store_in_flight_bytes.min(most);
        self.load_in_flight_bytes = self.load_in_flight_bytes.min(most);
        self
    }
}

impl Default for TieringConfig {
    fn default() -> Self {
        Self {
            store_policy: StorePolicy::Default,
            retain_prefetched: false,
            admit_after_uses: 1,
            store_queue: 65_536,
            store_overflow: StoreOverflow::Wait,
            store_in_flight_bytes: 256 << 20,
            store_timeout: Duration::from_secs(60),
            store_retries: 3,
            store_backoff: Duration::from_millis(100),
            breaker_failures: 5,
            breaker_pause: Duration::from_secs(5),
            read_breaker_timeouts: 3,
            load_in_flight_bytes: 256 << 20,
            lookup_timeout: Duration::from_secs(5),
            load_timeout: Duration::from_secs(60),
            quotas: Arc::default(),
            seed: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // M18: with the defaults a small pool was taken whole by a backend that hung.
    #[test]
    fn what_is_in_flight_leaves_most_of_a_small_pool_to_clients() {
        let config = TieringConfig::default().bounded(32 << 20);
        let in_flight = config.store_in_flight_bytes + config.load_in_flight_bytes;
        assert_eq!(in_flight, 8 << 20);
        let config = TieringConfig::default();
        let bounded = config.clone().bounded(64 << 30);
        assert_eq!(bounded.load_in_flight_bytes, config.load_in_flight_bytes);
    }
}
