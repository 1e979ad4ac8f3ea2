use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ondol_engine::Engine;

use super::{Health, Observed, Sample, figures};
use crate::UnixDoor;

/// An engine behind its door, as those see it who watch.
#[derive(Debug)]
pub struct Watched {
    engine: Arc<Engine>,
    door: Arc<UnixDoor>,
    started: f64,
}

impl Watched {
    /// From now on.
    pub fn new(engine: Arc<Engine>, door: Arc<UnixDoor>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            engine,
            door,
            started: now.map_or(0.0, |now| now.as_secs_f64()),
        }
    }
}

impl Observed for Watched {
    fn health(&self) -> Health {
        Health::Good
    }

    fn samples(&self) -> Vec<Sample> {
        let mut samples = figures::of_engine(&self.engine.stats());
        let counters = self.door.counters();
        samples.extend(counters.map(|counter| Sample::new(counter.metric(), counter.get())));
        samples.push(figures::of_start(self.started));
        samples
    }
}
