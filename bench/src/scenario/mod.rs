//! What is measured. Each scenario is a file here and a line of [`SCENARIOS`].

mod churn;
mod hit_rate;
mod lookup;
mod processes;
mod restart;
mod retrieve;
mod storage;
mod store;
mod waiting;

pub(crate) use waiting::echo;

use std::path::PathBuf;

use anyhow::Result;
use ondol::HandlerConfig;

use crate::baseline::{Peers, Places};
use crate::harness::Effort;
use crate::machine::Machine;
use crate::report::Section;
use crate::server::Server;

/// A scenario: its name for `--only`, a line for `--help`, and what runs it.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) run: fn(&mut Context) -> Result<Section>,
}

/// All scenarios, in the order in which they are run and shown.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "lookup",
        summary: "find and lease objects, find none, ask whether there are any; by batch size",
        run: lookup::run,
    },
    Scenario {
        name: "retrieve",
        summary: "read objects of 4 KiB, 256 KiB and 2 MiB, in place and copied",
        run: retrieve::run,
    },
    Scenario {
        name: "store",
        summary: "write objects of 4 KiB, 256 KiB and 2 MiB",
        run: store::run,
    },
    Scenario {
        name: "processes",
        summary: "look up, read and write with 1 to 4 processes at once",
        run: processes::run,
    },
    Scenario {
        name: "churn",
        summary: "4 readers and a writer in a pool that is always full",
        run: churn::run,
    },
    Scenario {
        name: "hit-rate",
        summary: "hits of a trace by eviction policy and capacity, beside the optimum",
        run: hit_rate::run,
    },
    Scenario {
        name: "storage",
        summary: "store to the backends behind the pool and load from them",
        run: storage::run,
    },
    Scenario {
        name: "restart",
        summary: "the time until a killed server serves again, by the number of its objects",
        run: restart::run,
    },
    Scenario {
        name: "waiting",
        summary: "a round trip that does nothing",
        run: waiting::run,
    },
];

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Enough to see that everything runs.
    Smoke,
    /// Five minutes on two cores in all.
    Quick,
    Full,
}

/// What scenarios are given.
pub(crate) struct Context {
    pub(crate) scale: Scale,
    pub(crate) effort: Effort,
    pub(crate) machine: Machine,
    pub(crate) peers: Peers,
    pub(crate) places: Places,
    /// The executable `ondol`; this program serves itself without it.
    pub(crate) server: Option<PathBuf>,
    /// Traces that eviction policies are compared with; a synthetic one if there is none.
    pub(crate) traces: Vec<PathBuf>,
    /// Number of objects, if it was given.
    pub(crate) objects: Option<u64>,
}

impl Context {
    /// The first figure in a smoke test, the second in a quick run, the third in a full one.
    pub(crate) fn scaled<T>(&self, smoke: T, quick: T, full: T) -> T {
        match self.scale {
            Scale::Smoke => smoke,
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }

    /// A server with a pool of so many bytes.
    pub(crate) fn serve(&self, pool_bytes: u64, more: &[String]) -> Result<Server> {
        Server::start(self.server.as_deref(), pool_bytes, more)
    }

    /// Bytes that a pool needs besides its objects: pages that clients keep in stock, regions that are not full.
    fn slack(&self) -> u64 {
        self.scaled(40 << 20, 128 << 20, 128 << 20)
    }

    /// Bytes that a copying scenario goes over in a turn: more than the caches hold, so that memory is what is measured.
    pub(crate) fn working_set(&self) -> usize {
        let beyond_caches = (2 * self.machine.largest_cache()).clamp(256 << 20, 1 << 30) as usize;
        self.scaled(4 << 20, beyond_caches, 2 * beyond_caches)
    }

    /// How many objects of `bytes` a copying scenario goes over in a turn.
    pub(crate) fn objects_of(&self, bytes: usize) -> usize {
        let most = self.scaled(16, 2048, 8192);
        (self.working_set() / bytes).clamp(2, most)
    }

    /// Lets the peers forget everything, so that no scenario pays for the one before.
    pub(crate) fn clear_peers(&mut self) -> Result<()> {
        self.peers
            .present
            .iter_mut()
            .try_for_each(|peer| peer.clear())
    }
}

/// A client that stores with checksums and verifies what it reads.
fn verifying() -> HandlerConfig {
    let mut config = HandlerConfig::default();
    config.checksum = true;
    config
}

/// The lengths of objects that are copied, with their names.
const SIZES: [(usize, &str); 3] = [
    (4 << 10, "4 KiB"),
    (256 << 10, "256 KiB"),
    (2 << 20, "2 MiB"),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn scenarios_have_names_of_their_own() {
        let names: HashSet<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), SCENARIOS.len());
    }
}
