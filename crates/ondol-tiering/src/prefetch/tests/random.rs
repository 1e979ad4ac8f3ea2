//! Many requests over backends that do whatever they like.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ondol_plugin::l2::{LoadOutcome, LookupResult, ObjectKey};
use ondol_testkit::l2::ManualAdapter;
use serde_json::json;

use super::rig::*;
use crate::prefetch::plan::Shape;
use crate::prefetch::{FetchPolicy, PrefetchRequest, Row};

/// Keys that are asked for.
const ASKED: usize = 48;

/// Numbers from a seed: xorshift64*.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }
}

/// Serves an adapter's tasks until told to stop, in any order and with any outcome; well when `is_good`.
fn serve(
    adapter: &ManualAdapter,
    shelf: &HashMap<ObjectKey, Vec<u8>>,
    mut random: Random,
    is_good: &AtomicBool,
    stop: &AtomicBool,
) {
    let (mut lookups, mut loads) = (Vec::new(), Vec::new());
    while !stop.load(Ordering::Relaxed) || !lookups.is_empty() || !loads.is_empty() {
        let (_, new_lookups, new_loads) = adapter.waiting();
        lookups.extend((0..new_lookups).map(|_| adapter.next_lookup()));
        loads.extend((0..new_loads).map(|_| adapter.next_load()));
        let is_bad = !is_good.load(Ordering::Relaxed);
        if !lookups.is_empty() && (!is_bad || random.one_in(3)) {
            let lookup = lookups.swap_remove(random.below(lookups.len()));
            let asked = lookup.keys.len();
            if is_bad && random.one_in(8) {
                lookup.end(LookupResult::failed(asked, "as it happens"));
            } else {
                lookup.find(|name| {
                    let stored = shelf.get(name)?;
                    let len = if is_bad && random.one_in(9) {
                        random.below(9000)
                    } else {
                        stored.len()
                    };
                    (!is_bad || !random.one_in(7)).then_some(len as u64)
                });
            }
        } else if !loads.is_empty() && (!is_bad || random.one_in(3)) {
            let load = loads.swap_remove(random.below(loads.len()));
            if is_bad && random.one_in(9) {
                // Its result is a failure then, and its pages are let go.
                drop(load);
                continue;
            }
            load.each(|item| {
                let mut stored = shelf[&item.key].clone();
                let outcome = if is_bad { random.below(12) } else { 11 };
                match outcome {
                    0 => return LoadOutcome::Missing,
                    1 => return LoadOutcome::Failed("as it happens".to_owned()),
                    2 => return LoadOutcome::Corrupt("as it happens".to_owned()),
                    3 => {
                        let at = random.below(stored.len());
                        stored[at] ^= 1 << random.below(8);
                    }
                    4 => stored.truncate(random.below(stored.len())),
                    // Another object.
                    5 => {
                        let other = shelf.values().nth(random.below(shelf.len()));
                        stored = other.unwrap().clone();
                    }
                    // Filled, and said not to be.
                    6 => {
                        let _ = item.page.fill(&stored);
                        return LoadOutcome::Missing;
                    }
                    _ => {}
                }
                match item.page.fill(&stored) {
                    Ok(filled) => LoadOutcome::Found(filled),
                    Err(error) => LoadOutcome::Failed(error.to_string()),
                }
            });
        } else {
            thread::yield_now();
        }
    }
}

/// Asks for this and that, and looks at what comes.
fn ask(rig: &Rig, mut random: Random) {
    for _ in 0..60 {
        let columns = random.below(9);
        let rows: Vec<_> = (0..=random.below(2))
            .map(|_| {
                let first = random.below(ASKED);
                Row {
                    keys: keys((first..first + columns).map(|number| number % ASKED)),
                    window: random.one_in(4).then_some(2),
                    expected_len: random.one_in(2).then_some(LEN as u64),
                }
            })
            .collect();
        let request = PrefetchRequest {
            rows: rows.clone(),
            policy: if random.one_in(4) {
                FetchPolicy::Full
            } else {
                FetchPolicy::Prefix
            },
            timeout: match random.below(4) {
                0 => Duration::from_micros(random.next() % 3000),
                _ => WATCHDOG,
            },
        };
        let shape = Shape {
            policy: request.policy,
            windows: rows.iter().map(|row| row.window).collect(),
            columns,
        };
        let prefetch = rig.controller.submit(request);
        let until = match random.below(6) {
            0 => {
                drop(prefetch);
                continue;
            }
            1 => {
                prefetch.abort();
                continue;
            }
            2 => Instant::now() + Duration::from_micros(random.next() % 2000),
            _ => Instant::now() + 2 * WATCHDOG,
        };
        let report = prefetch.wait(until);
        assert_eq!(shape.wanted(&report.present, columns), report.present);
        for ((row, leases), present) in rows.iter().zip(&report.leases).zip(&report.present) {
            for (column, (key, lease)) in row.keys.iter().zip(leases).enumerate() {
                assert_eq!(lease.is_some(), present.test(column));
                if let Some(lease) = lease {
                    assert!(lease.as_ref() == body(key), "wrong bytes for {key}");
                }
            }
        }
        if random.one_in(3) {
            drop(report);
            let first = random.below(ASKED);
            rig.l1
                .memory
                .evict(&keys((first..first + 12).map(|number| number % ASKED)));
        }
    }
}

#[test]
fn whatever_backends_and_callers_do_nothing_is_left_and_nothing_is_wrong() {
    for seed in 0..24 {
        let mut random = Random::new(seed + 1);
        let mut config = config();
        config.load_in_flight_bytes = [1, 20_000, 1 << 20][random.below(3)];
        let transforms = if random.one_in(3) {
            json!([{"type": "lz4"}])
        } else {
            json!([])
        };
        let rig = Rig::with(1 + random.below(3), 4 << 20, config, &transforms);
        let shelf = Arc::new(rig.shelf(&keys(0..ASKED)));
        let (is_good, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            for adapter in &rig.adapters {
                let random = Random::new(random.next());
                let (shelf, is_good, stop) = (&shelf, &is_good, &stop);
                scope.spawn(move || serve(adapter, shelf, random, is_good, stop));
            }
            let callers: Vec<_> = (0..3)
                .map(|_| {
                    let random = Random::new(random.next());
                    let rig = &rig;
                    scope.spawn(move || ask(rig, random))
                })
                .collect();
            let failed: Vec<_> = callers
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .filter_map(Result::err)
                .collect();
            is_good.store(true, Ordering::Relaxed);
            if failed.is_empty() {
                rig.assert_all_is_given_back();
                // And everything still works.
                let all = keys(0..ASKED);
                let report = finish(rig.ask(&all));
                assert_eq!(report.present[0].count_ones(), ASKED, "seed {seed}");
                rig.assert_right(&all, &report);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(failed.is_empty(), "a caller failed with seed {seed}");
        });
        rig.assert_all_is_given_back();
    }
}
