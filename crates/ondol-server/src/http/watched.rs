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
        match self.engine.health() {
            Err(why) => Health::Bad(why),
            Ok(()) if self.engine.is_loaded() => match self.engine.degraded() {
                Some(why) => Health::Degraded(why),
                None => Health::Good,
            },
            Ok(()) => {
                let objects = self.engine.restart().objects;
                Health::Busy(format!("loading {objects} objects of the last run"))
            }
        }
    }

    fn samples(&self) -> Vec<Sample> {
        let stats = self.engine.stats();
        let mut samples = figures::of_engine(&stats);
        samples.extend(stats.l2.iter().flat_map(figures::of_storage));
        let counters = self.door.counters();
        samples.extend(counters.map(|counter| Sample::new(counter.metric(), counter.get())));
        let is_loaded = self.engine.is_loaded();
        samples.extend(figures::of_restart(self.engine.restart(), is_loaded));
        samples.extend(self.engine.log_stats().iter().flat_map(figures::of_log));
        samples.push(figures::of_health(self.engine.health().is_ok()));
        samples.push(figures::of_start(self.started));
        samples
    }
}
