//! The failpoints, and which one is tried next.

use std::collections::BTreeMap;

use ondol_tests::Random;

use crate::storage::is_of_storage;

/// Where a failpoint is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// In a server that makes a new pool.
    Fresh,
    /// In a server that finds a pool and serves it.
    Server,
    /// In a client.
    Client,
}

/// What happens there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Kill,
    Stop,
    Error,
}

/// One order to one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shot {
    pub(crate) name: &'static str,
    pub(crate) action: Action,
    hit: u64,
}

/// What became of all orders at one place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score {
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    pub(crate) errors: u64,
    pub(crate) shots: u64,
}

#[derive(Debug)]
struct Point {
    name: &'static str,
    can_fail: bool,
    site: Site,
    /// Misses in a row at this site.
    misses: u32,
    /// Hits in a row.
    hits: u32,
    /// Misses since the last hit, wherever they were.
    dry: u64,
    /// The hit is drawn from 1 to this.
    reach: u64,
    score: Score,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Points(Vec<Point>);

const MISSES: u32 = 5;

/// Tries after which a place that was never reached is given up; every site has been tried by then.
const HOPELESS: u64 = 20;

impl Points {
    /// Those that are linked into this program, which is server and client.
    pub(crate) fn linked() -> Self {
        Self::of(linked())
    }

    fn of(names: Vec<(&'static str, bool)>) -> Self {
        // A name may stand at several places of the source.
        let mut by_name = BTreeMap::new();
        for (name, can_fail) in names {
            *by_name.entry(name).or_insert(false) |= can_fail;
        }
        let point = |(name, can_fail): (&'static str, bool)| Point {
            name,
            can_fail,
            site: match name.split('.').next() {
                Some("client") => Site::Client,
                Some("device") => Site::Fresh,
                _ => Site::Server,
            },
            misses: 0,
            hits: 0,
            dry: 0,
            reach: if is_rare(name) { 1 } else { 64 },
            score: Score::default(),
        };
        Self(by_name.into_iter().map(point).collect())
    }

    /// The one of this site that has been reached and tried least often, of those that a process of this epoch may come to.
    pub(crate) fn next(
        &self,
        site: Site,
        random: &mut Random,
        may_come: impl Fn(&str) -> bool,
    ) -> Option<Shot> {
        let tried = |point: &Point| 2 * point.score.kills + point.dry;
        let here = self.0.iter();
        let here = here.filter(|point| point.site == site && may_come(point.name));
        let here: Vec<_> = here.collect();
        let least = here.iter().map(|point| tried(point)).min()?;
        let equal: Vec<_> = here.iter().filter(|point| tried(point) == least).collect();
        let point = equal[random.below(equal.len() as u64) as usize];
        let action = match random.below(10) {
            0 if point.can_fail => Action::Error,
            1 if point.score.kills > 1 => Action::Stop,
            _ => Action::Kill,
        };
        // As often within the first few as behind them.
        let bits = u64::from(point.reach.ilog2()) + 1;
        let most = 1_u64 << random.below(bits);
        Some(Shot {
            name: point.name,
            action,
            hit: 1 + random.below(most),
        })
    }

    /// The first time that a process comes to this place.
    pub(crate) fn first(&self, name: &str) -> Option<Shot> {
        let point = self.0.iter().find(|point| point.name == name)?;
        Some(Shot {
            name: point.name,
            action: Action::Kill,
            hit: 1,
        })
    }

    fn point(&mut self, name: &str) -> Option<&mut Point> {
        self.0.iter_mut().find(|point| point.name == name)
    }

    /// The process has done at this place what it was to do.
    pub(crate) fn hit(&mut self, shot: Shot) {
        let Some(point) = self.point(shot.name) else {
            return;
        };
        point.misses = 0;
        point.dry = 0;
        point.hits += 1;
        // Carefully, as a process comes to many a place only once.
        if point.hits.is_multiple_of(3) {
            point.reach = (point.reach * 2).min(1024);
        }
        point.score.shots += 1;
        match shot.action {
            Action::Kill => point.score.kills += 1,
            Action::Stop => point.score.stops += 1,
            Action::Error => point.score.errors += 1,
        }
    }

    /// The process has not come to this place that often; it is tried sooner next time, and then elsewhere.
    pub(crate) fn missed(&mut self, shot: Shot) {
        let Some(point) = self.point(shot.name) else {
            return;
        };
        point.score.shots += 1;
        point.hits = 0;
        point.dry += 1;
        point.misses += 1;
        point.reach = (point.reach / 4).max(1);
        let may_move = !is_of_storage(point.name);
        if may_move && point.misses >= MISSES && point.reach == 1 && point.score.kills == 0 {
            point.misses = 0;
            point.site = match point.site {
                Site::Server => Site::Client,
                Site::Client => Site::Fresh,
                Site::Fresh => Site::Server,
            };
        }
    }

    /// Whether each one has killed a process so often, or cannot be reached on this machine, as many tries have shown.
    pub(crate) fn all_reached(&self, often: u64) -> bool {
        let done = |point: &Point| {
            let Score { kills, shots, .. } = point.score;
            kills >= often || (kills == 0 && shots >= HOPELESS)
        };
        self.0.iter().all(done)
    }

    /// What became of each, by name.
    pub(crate) fn scores(&self) -> impl Iterator<Item = (&'static str, Score)> {
        self.0.iter().map(|point| (point.name, point.score))
    }
}

/// Whether a process comes to this place a few times at most.
fn is_rare(name: &str) -> bool {
    let areas = [
        "attach.",
        "checkpoint.",
        "close.",
        "detach.",
        "device.",
        "l2evict.",
        "recover.",
        "resume.",
    ];
    areas.iter().any(|area| name.starts_with(area))
}

#[cfg(feature = "failpoints")]
fn linked() -> Vec<(&'static str, bool)> {
    let row = |point: &'static ondol_catalog::Failpoint| (point.name, point.can_fail);
    ondol_catalog::failpoints().into_iter().map(row).collect()
}

#[cfg(not(feature = "failpoints"))]
fn linked() -> Vec<(&'static str, bool)> {
    Vec::new()
}

/// Does what the environment says.
///
/// # Errors
/// What is wrong with it.
#[cfg(feature = "failpoints")]
pub(crate) fn arm() -> anyhow::Result<()> {
    let orders = std::env::var(crate::FAILPOINTS).unwrap_or_default();
    ondol_catalog::arm_failpoints(&orders).map_err(anyhow::Error::msg)
}

#[cfg(not(feature = "failpoints"))]
pub(crate) fn arm() -> anyhow::Result<()> {
    let orders = std::env::var(crate::FAILPOINTS).unwrap_or_default();
    anyhow::ensure!(
        orders.is_empty(),
        "{} is set, but this program was built without the feature `failpoints`; use cargo xtask torture",
        crate::FAILPOINTS
    );
    Ok(())
}

impl Shot {
    /// As the environment has it.
    pub(crate) fn order(&self) -> String {
        let action = match self.action {
            Action::Kill => "kill",
            Action::Stop => "stop",
            Action::Error => "error",
        };
        format!("{}={action}@{}", self.name, self.hit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_its_turn_and_one_that_is_not_reached_is_tried_elsewhere() {
        let names = vec![
            ("log.write", true),
            ("log.sync", false),
            ("client.store", false),
            ("log.write", false),
        ];
        let mut points = Points::of(names);
        let mut random = Random::new(1);
        let any = |_: &str| true;
        let none = points.next(Site::Server, &mut random, |name| {
            name != "log.sync" && name != "log.write"
        });
        assert!(none.is_none());
        assert!(points.next(Site::Fresh, &mut random, any).is_none());
        for _ in 0..400 {
            let shot = points.next(Site::Server, &mut random, any).unwrap();
            assert!(shot.order().starts_with("log."));
            assert!(shot.action != Action::Error || shot.name == "log.write");
            points.hit(shot);
        }
        let kills: Vec<_> = points.scores().map(|(_, score)| score.kills).collect();
        assert_eq!(kills[0], 0);
        assert!(kills[1] > 100 && kills[2] > 100, "{kills:?}");
        assert!(!points.all_reached(1));
        while let Some(shot) = points.next(Site::Client, &mut random, any) {
            points.missed(shot);
        }
        assert_eq!(
            points.next(Site::Fresh, &mut random, any).unwrap().name,
            "client.store"
        );
    }
}
