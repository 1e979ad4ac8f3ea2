//! What was done and what was found.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::journal::Kind;
use crate::oracle::Fault;
use crate::points::{Points, Score};
use crate::storage::Storage;

/// Counters of the storage tier, and what the report calls them.
pub(crate) const STORAGE_WORK: [(&str, &str); 5] = [
    ("ondol_l2_stored_objects_total", "stored"),
    ("ondol_l2_prefetch_loaded_total", "brought back"),
    ("ondol_l2_evicted_objects_total", "evicted there"),
    ("ondol_l2_prefetch_corrupt_total", "found corrupt"),
    ("ondol_l2_failed_store_batches_total", "batches refused"),
];

/// The figures of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) epochs: u64,
    pub(crate) rounds: u64,
    pub(crate) server_kills: u64,
    pub(crate) client_kills: u64,
    pub(crate) stops: u64,
    pub(crate) clean_ends: u64,
    pub(crate) starts: u64,
    pub(crate) disks_filled: u64,
    pub(crate) starts_on_full_disk: u64,
    pub(crate) checks: u64,
    pub(crate) stored: u64,
    pub(crate) verified: u64,
    pub(crate) evictions: u64,
    pub(crate) checkpoints: u64,
    /// Pools of readers, and kills and evictions there.
    pub(crate) pools_of_readers: u64,
    pub(crate) kills_with_readers: u64,
    pub(crate) evictions_with_readers: u64,
    /// Kills with storage behind the pool.
    pub(crate) kills_with_storage: u64,
    /// Pools by the storage behind them.
    pub(crate) storages: BTreeMap<Storage, u64>,
    /// Checks in which nothing that was acknowledged could have gone anywhere.
    pub(crate) claims: u64,
    /// Objects that an observer got though memory did not have them.
    pub(crate) brought: u64,
    /// What storage did, by the names of its counters.
    pub(crate) storage_work: BTreeMap<&'static str, u64>,
    pub(crate) faults: Vec<Fault>,
}

impl Report {
    pub(crate) fn kills(&self) -> u64 {
        self.server_kills + self.client_kills
    }

    fn count(&self, kind: Kind) -> usize {
        self.faults
            .iter()
            .filter(|fault| fault.kind == kind)
            .count()
    }

    /// For people.
    pub(crate) fn text(&self, seed: u64, took: Duration, points: &Points, each: u64) -> String {
        let mut text = String::new();
        let mut line = |what: &str, value: String| {
            let _ = writeln!(text, "{what:<14} {value}");
        };
        line("seed", seed.to_string());
        line("time", format!("{:.1} s", took.as_secs_f64()));
        let by_failpoint: u64 = points.scores().map(|(_, score)| score.kills).sum();
        line(
            "kills",
            format!(
                "{}: {} of servers, {} of clients; {by_failpoint} at failpoints",
                self.kills(),
                self.server_kills,
                self.client_kills
            ),
        );
        line(
            "other",
            format!(
                "{} stops (SIGSTOP), {} clean ends, {} disks filled, {} starts on a full disk",
                self.stops, self.clean_ends, self.disks_filled, self.starts_on_full_disk
            ),
        );
        line(
            "servers",
            format!(
                "{} starts in {} rounds of {} pools, {} checkpoints",
                self.starts, self.rounds, self.epochs, self.checkpoints
            ),
        );
        line(
            "objects",
            format!(
                "{} stored, {} verified in {} checks and by clients all the time, {} evicted",
                self.stored, self.verified, self.checks, self.evictions
            ),
        );
        if self.pools_of_readers > 0 {
            line(
                "readers",
                format!(
                    "{} pools of four readers and a writer; {} kills and {} evictions in them",
                    self.pools_of_readers, self.kills_with_readers, self.evictions_with_readers
                ),
            );
        }
        if self.storages.keys().any(|storage| storage.is_there()) {
            let pools = self.storages.iter();
            let pools: Vec<_> = pools
                .map(|(storage, count)| format!("{count} {}", storage.word()))
                .collect();
            line(
                "storage",
                format!(
                    "{} kills with it; pools: {}",
                    self.kills_with_storage,
                    pools.join(", ")
                ),
            );
            let work = STORAGE_WORK.iter().map(|(name, word)| {
                let count = self.storage_work.get(name).copied().unwrap_or(0);
                format!("{count} {word}")
            });
            line("", work.collect::<Vec<_>>().join(", "));
            line(
                "",
                format!("{} brought and verified by observers", self.brought),
            );
        }
        line(
            "claims",
            format!(
                "in {} of {} checks whatever was acknowledged must be there (all fit memory, or storage keeps all that leaves it); in the \
                 others it may be missing, but for objects whose files are there",
                self.claims, self.checks
            ),
        );
        let mut missing = Vec::new();
        for (name, score) in points.scores() {
            if score.shots > 0 {
                let Score {
                    kills,
                    stops,
                    errors,
                    ..
                } = score;
                let counts = format!("{kills:>4} kills {stops:>3} stops {errors:>3} errors");
                line("", format!("{name:<34} {counts}"));
            }
            if score.kills < each {
                missing.push(format!("{name} ({} in {} tries)", score.kills, score.shots));
            }
        }
        if points.scores().next().is_none() {
            line("failpoints", "none: built without them".to_owned());
        } else if !missing.is_empty() {
            line(
                "not reached",
                format!("{each} times: {}", missing.join(", ")),
            );
        }
        let broken = self.count(Kind::Broken);
        line(
            "found",
            format!(
                "{} corrupt, {} phantom, {} lost, {} leaked{}",
                self.count(Kind::Corrupt),
                self.count(Kind::Phantom),
                self.count(Kind::Lost),
                self.count(Kind::Leaked),
                if broken > 0 {
                    format!(", {broken} broken")
                } else {
                    String::new()
                }
            ),
        );
        text
    }
}
