use std::sync::Arc;
use std::time::Instant;

use ondol_catalog::{Policy, policies, policy};
use ondol_host::l2::EvictionSpec;
use ondol_plugin::l2::ObjectKey;
use parking_lot::{Condvar, Mutex};

/// The most reports that wait to be heard.
const LIMIT: usize = 65_536;
/// Bytes of an object, at most: what a backend says beyond that is made up, and sums of it would say nothing.
pub(super) const MAX_OBJECT_BYTES: u64 = 1 << 40;
/// Reports that are heard at once, even if nothing is urgent.
const PLENTY: usize = 1024;

/// What the eviction of one backend hears.
#[derive(Debug)]
pub(crate) struct Reports {
    pub(super) spec: EvictionSpec,
    pub(super) policy: &'static Policy,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    reports: Vec<Report>,
    /// Whether stores were not reported since there was no room.
    lost: bool,
    /// Bytes that may still be stored before there may be something to do.
    headroom: u64,
    /// Whether any store may bring a salt over its quota.
    any_quota: bool,
    /// Whether to look at the backend now.
    look: bool,
    stop: bool,
    sleeps: bool,
}

/// What happened to an object.
#[derive(Debug)]
pub(super) enum Report {
    /// It is there, with so many bytes; 0 if that is not known.
    Stored(ObjectKey, u64),
    Loaded(ObjectKey),
    Deleted(ObjectKey),
}

/// What was heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) reports: Vec<Report>,
    pub(super) lost: bool,
    pub(super) stop: bool,
}

impl Reports {
    /// Reports for an eviction of this kind; `None` for `noop`, which is none.
    ///
    /// # Errors
    /// What is wrong with the specification.
    pub(crate) fn new(spec: &EvictionSpec) -> Result<Option<Arc<Self>>, String> {
        let name = spec.policy.as_str();
        // LMCache's spellings (`eviction_policy`, 0.5.6) beside the catalogue's.
        let ours = match name {
            "noop" => return Ok(None),
            "LRU" => "lru",
            "ARC" => "arc",
            "IsolatedLRU" => "isolated-lru",
            other => other,
        };
        let Some(policy) = policy(ours) else {
            let known: Vec<_> = policies().iter().map(|policy| policy.name).collect();
            return Err(format!(
                "eviction_policy is {name:?}; expected LRU, ARC, IsolatedLRU, noop or one of {}",
                known.join(", ")
            ));
        };
        for (field, value) in [
            ("trigger_watermark", spec.trigger_watermark),
            ("eviction_ratio", spec.eviction_ratio),
        ] {
            if !(value > 0.0 && value <= 1.0) {
                return Err(format!(
                    "{field} is {value}; expected more than 0 and at most 1"
                ));
            }
        }
        Ok(Some(Arc::new(Self {
            spec: spec.clone(),
            policy,
            state: Mutex::new(State {
                reports: Vec::new(),
                lost: false,
                headroom: 0,
                any_quota: true,
                look: true,
                stop: false,
                sleeps: false,
            }),
            wake: Condvar::new(),
        })))
    }

    /// These objects are stored, with so many bytes each; 0 if that is not known.
    pub(crate) fn stored<'a>(&self, objects: impl Iterator<Item = (&'a ObjectKey, u64)>) {
        let mut state = self.state.lock();
        if state.stop {
            return;
        }
        for (key, bytes) in objects {
            let bytes = bytes.min(MAX_OBJECT_BYTES);
            state.headroom = state.headroom.saturating_sub(bytes);
            if state.reports.len() < LIMIT {
                state.reports.push(Report::Stored(key.clone(), bytes));
            } else {
                state.lost = true;
            }
        }
        let urgent = state.headroom == 0 || state.any_quota;
        self.unlock(state, urgent);
    }

    /// These objects were loaded. Under load, reports may be left out.
    pub(crate) fn loaded(&self, keys: &[ObjectKey]) {
        self.add(keys, Report::Loaded);
    }

    /// These objects are gone. A report that is left out does no harm: eviction notices.
    pub(crate) fn deleted(&self, keys: &[ObjectKey]) {
        self.add(keys, Report::Deleted);
    }

    fn add(&self, keys: &[ObjectKey], report: fn(ObjectKey) -> Report) {
        let mut state = self.state.lock();
        if state.stop {
            return;
        }
        let room = LIMIT.saturating_sub(state.reports.len());
        let reports = keys.iter().take(room).cloned().map(report);
        state.reports.extend(reports);
        self.unlock(state, false);
    }

    /// Something else may make it necessary to delete.
    pub(crate) fn look(&self) {
        let mut state = self.state.lock();
        state.look = true;
        self.unlock(state, true);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        self.unlock(state, true);
    }

    #[cfg(test)]
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    fn unlock(&self, mut state: parking_lot::MutexGuard<'_, State>, urgent: bool) {
        state.look |= urgent;
        let wakes = state.sleeps && (state.look || state.stop || state.reports.len() >= PLENTY);
        drop(state);
        if wakes {
            self.wake.notify_one();
        }
    }

    /// What there is to hear, waited for until `until`.
    pub(super) fn next(&self, until: Option<Instant>) -> Heard {
        let mut state = self.state.lock();
        while !(state.look || state.stop || state.lost || state.reports.len() >= PLENTY) {
            state.sleeps = true;
            let timed_out = match until {
                Some(until) => self.wake.wait_until(&mut state, until).timed_out(),
                None => {
                    self.wake.wait(&mut state);
                    false
                }
            };
            state.sleeps = false;
            if timed_out {
                break;
            }
        }
        state.look = false;
        Heard {
            reports: std::mem::take(&mut state.reports),
            lost: std::mem::take(&mut state.lost),
            stop: state.stop,
        }
    }

    /// Whether so many reports wait that they must be heard before a long work goes on.
    pub(super) fn is_filling(&self) -> bool {
        let state = self.state.lock();
        state.stop || state.reports.len() > LIMIT / 2
    }

    /// When to be woken: after so many stored bytes, or after any store, since a salt may have too much then.
    pub(super) fn wake_after(&self, headroom: u64, any_quota: bool) {
        let mut state = self.state.lock();
        // What was stored meanwhile was not counted yet.
        let waiting = state.reports.iter().map(|report| match report {
            Report::Stored(_, bytes) => *bytes,
            Report::Loaded(_) | Report::Deleted(_) => 0,
        });
        let waiting = waiting.fold(0, u64::saturating_add);
        state.headroom = headroom.saturating_sub(waiting);
        state.any_quota = any_quota;
        state.look |= waiting > 0 && (state.headroom == 0 || any_quota);
    }
}

#[cfg(test)]
mod tests {
    use ondol_plugin::l2::KvRank;

    use super::*;

    // Their sum was more than a number holds.
    #[test]
    fn sizes_that_a_backend_made_up_are_bounded() {
        let spec = EvictionSpec {
            policy: "lru".into(),
            trigger_watermark: 0.8,
            eviction_ratio: 0.2,
        };
        let reports = Reports::new(&spec).expect("it is linked in");
        let reports = reports.expect("it is none of `noop`");
        let key = |n: u8| ObjectKey::new("model", KvRank(1), 0, [n], "").expect("a key");
        let keys = [key(1), key(2)];
        reports.stored(keys.iter().map(|key| (key, u64::MAX)));
        reports.wake_after(1000, false);
        let heard = reports.next(None).reports;
        assert_eq!(heard.len(), 2);
        assert!(
            heard
                .iter()
                .all(|report| matches!(report, Report::Stored(_, MAX_OBJECT_BYTES)))
        );
    }
}
