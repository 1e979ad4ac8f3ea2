//! Places where a test can end the process, stop it, or make an operation fail.
//!
//! A failpoint stands between two steps whose order matters. Without the feature `failpoints` it is nothing at all. With
//! it, each one is a row of [`FAILPOINTS`], so that a test can go through all of them, and the environment variable
//! `ONDOL_FAILPOINTS` says what happens where: `NAME=ACTION@HIT`, separated by commas, where ACTION is `kill` (the
//! process kills itself with SIGKILL), `stop` (it stops itself with SIGSTOP) or `error` (the operation fails, this time and
//! every later time), and HIT counts from 1.

use std::sync::atomic::{AtomicU64, Ordering};

use linkme::distributed_slice;

/// One place.
#[derive(Debug)]
pub struct Failpoint {
    /// Its name, such as `log.write`.
    pub name: &'static str,
    /// Whether the operation around it can be made to fail.
    pub can_fail: bool,
    hits: AtomicU64,
    kill_at: AtomicU64,
    stop_at: AtomicU64,
    fail_from: AtomicU64,
}

const NEVER: u64 = u64::MAX;

/// Every failpoint that is linked in.
#[distributed_slice]
pub static FAILPOINTS: [Failpoint];

/// Every failpoint that is linked in, by name.
pub fn failpoints() -> Vec<&'static Failpoint> {
    crate::sorted_by_name(&FAILPOINTS, |failpoint| failpoint.name)
}

impl Failpoint {
    /// A row of [`FAILPOINTS`]; use the macro [`failpoint!`](crate::failpoint!).
    pub const fn new(name: &'static str, can_fail: bool) -> Self {
        Self {
            name,
            can_fail,
            hits: AtomicU64::new(0),
            kill_at: AtomicU64::new(NEVER),
            stop_at: AtomicU64::new(NEVER),
            fail_from: AtomicU64::new(NEVER),
        }
    }

    /// The process is at this place; whether the operation shall fail.
    pub fn reach(&self) -> bool {
        let hit = self.hits.fetch_add(1, Ordering::Relaxed) + 1;
        let signal = |signal| {
            // It cannot fail for a signal to oneself; were it to, the test would miss the end that it waits for.
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        };
        if hit == self.kill_at.load(Ordering::Relaxed) {
            signal(rustix::process::Signal::KILL);
        }
        if hit == self.stop_at.load(Ordering::Relaxed) {
            signal(rustix::process::Signal::STOP);
        }
        hit >= self.fail_from.load(Ordering::Relaxed)
    }
}

/// Does what a text of the form of `ONDOL_FAILPOINTS` says.
///
/// # Errors
/// What is wrong with the text; then nothing is changed.
pub fn arm_failpoints(text: &str) -> Result<(), String> {
    let mut orders = Vec::new();
    for order in text
        .split(',')
        .map(str::trim)
        .filter(|order| !order.is_empty())
    {
        let wrong = |what: &str| format!("failpoint {order:?}: {what}; expected NAME=ACTION@HIT");
        let (name, action) = order.split_once('=').ok_or_else(|| wrong("no `=`"))?;
        let (action, hit) = action.split_once('@').ok_or_else(|| wrong("no `@`"))?;
        let hit: u64 = hit.parse().map_err(|_| wrong("the hit is no number"))?;
        let found = FAILPOINTS.iter().find(|failpoint| failpoint.name == name);
        let failpoint = found.ok_or_else(|| wrong("no such place is linked in"))?;
        let setting = match action {
            "kill" => &failpoint.kill_at,
            "stop" => &failpoint.stop_at,
            "error" if failpoint.can_fail => &failpoint.fail_from,
            "error" => return Err(wrong("nothing can fail there")),
            _ => return Err(wrong("the action is not kill, stop or error")),
        };
        orders.push((setting, hit));
    }
    orders
        .into_iter()
        .for_each(|(setting, hit)| setting.store(hit, Ordering::Relaxed));
    Ok(())
}
