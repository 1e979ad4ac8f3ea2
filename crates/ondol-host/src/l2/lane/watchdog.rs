use std::time::{Duration, Instant};

use super::shared::Shared;

/// Steps of the watchdog within the time after which a call counts as hanging.
const STEPS: u32 = 16;
/// Steps without anything to watch after which the watchdog sleeps until there is something.
const IDLE_STEPS: u32 = 16;

/// Watches the lane until the backend is gone: a call that hangs, tasks that time out meanwhile, and refusals to deliver.
///
/// Time in a call is counted in steps of this thread, not by a clock, so that a process that was stopped or a machine
/// too busy to run the watchdog accuses nobody.
pub(super) fn run(shared: &Shared) {
    let step = (shared.options.hang_after / STEPS)
        .clamp(Duration::from_millis(1), Duration::from_millis(250));
    let limit = shared.options.hang_after.div_duration_f64(step).ceil() as u32;
    let mut seen = None;
    let mut steps = 0;
    let mut idle = 0;
    let mut next = Instant::now() + step;
    while deliver(shared, next, &mut idle) {
        let now = Instant::now();
        if now < next {
            continue;
        }
        next = now + step;
        shared.expire(now);
        let call = shared.call.read();
        steps = if call.is_some() && call == seen {
            steps + 1
        } else {
            0
        };
        seen = call;
        judge(shared, call.map(|(_, method)| method), steps, limit);
    }
}

/// Waits until `next`, or for refusals, and delivers those; `false` at the end.
fn deliver(shared: &Shared, next: Instant, idle: &mut u32) -> bool {
    let mut ledger = shared.ledger.lock();
    if ledger.failures.is_empty() {
        if ledger.is_abandoned {
            return false;
        }
        let is_idle = ledger.lane_ended || ledger.lane_asleep && ledger.unfinished() == 0;
        *idle = if is_idle { *idle + 1 } else { 0 };
        if *idle > IDLE_STEPS {
            ledger.watchdog_asleep = true;
            shared.to_watch.wait(&mut ledger);
            ledger.watchdog_asleep = false;
        } else {
            shared.to_watch.wait_until(&mut ledger, next);
        }
    }
    let failures = std::mem::take(&mut ledger.failures);
    if !failures.is_empty() {
        ledger.is_failing = true;
        drop(ledger);
        for (done, error) in failures {
            done.fail(error);
        }
        shared.ledger.lock().is_failing = false;
        shared.has_ended.notify_all();
    }
    true
}

fn judge(shared: &Shared, method: Option<&'static str>, steps: u32, limit: u32) {
    let slow = method.filter(|_| steps >= limit.div_ceil(2));
    let mut ledger = shared.ledger.lock();
    if let (Some(method), None) = (slow, ledger.slow) {
        tracing::warn!(
            backend = shared.name,
            method,
            "a call into a storage adapter takes long"
        );
    }
    ledger.slow = slow;
    let is_hanging = steps >= limit && ledger.quarantine.is_none();
    drop(ledger);
    if let (Some(method), true) = (method, is_hanging) {
        let hang_after = shared.options.hang_after;
        shared.quarantine(
            format!("{method} did not return within {hang_after:?}"),
            false,
        );
    }
}
