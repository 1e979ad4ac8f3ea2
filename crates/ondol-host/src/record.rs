use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ondol_plugin::Hooks;
use parking_lot::Mutex;

use crate::clock::{next_record_id, ticks};
use crate::hook::Hook;
use crate::lane::Backlog;
use crate::{LoadOptions, PluginState};

/// The union of what the plugins in use want.
#[derive(Debug)]
pub(crate) struct Interest {
    mask: AtomicU32,
    listeners: Mutex<[u32; Hook::ALL.len()]>,
}

/// What the host knows of one loaded plugin, apart from the plugin itself: the watchdog holds records, and a
/// watchdog must never be the one to run a plugin's destructor.
#[derive(Debug)]
pub(crate) struct Record {
    id: u32,
    name: &'static str,
    hooks: Hooks,
    deferred: u32,
    /// The hooks while the plugin is in use; 0 from then on.
    active: AtomicU32,
    /// Failures in a row, by hook.
    rows: [AtomicU32; Hook::ALL.len()],
    /// Which kinds of trouble were logged loudly already.
    announced: AtomicU32,
    errors: AtomicU64,
    panics: AtomicU64,
    overruns: AtomicU64,
    dropped: AtomicU64,
    limits: Limits,
    interest: Arc<Interest>,
    verdict: OnceLock<Verdict>,
    backlog: OnceLock<Backlog>,
}

/// Why a plugin is not in use any more.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) state: PluginState,
    pub(crate) reason: String,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    budget: Duration,
    budget_ticks: u32,
    hang_ticks: u32,
    deferred_hang_ticks: u32,
    quarantine_after: u32,
}

/// Kinds of trouble that are announced once per hook.
#[derive(Clone, Copy)]
enum Trouble {
    Error = 0,
    Overrun = 1,
    Dropped = 2,
}

/// Counts of one plugin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) errors: u64,
    pub(crate) panics: u64,
    pub(crate) overruns: u64,
    pub(crate) dropped: u64,
}

impl Interest {
    pub(crate) fn new() -> Self {
        Self {
            mask: AtomicU32::new(0),
            listeners: Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn contains(&self, bits: u32) -> bool {
        self.mask.load(Ordering::Relaxed) & bits != 0
    }

    fn change(&self, hooks: Hooks, by: impl Fn(&mut u32)) {
        let mut listeners = self.listeners.lock();
        let mut mask = 0;
        for hook in Hook::ALL {
            let count = &mut listeners[hook.index()];
            if hooks.bits() & hook.bit() != 0 {
                by(count);
            }
            if *count > 0 {
                mask |= hook.bit();
            }
        }
        self.mask.store(mask, Ordering::Relaxed);
    }
}

impl Record {
    pub(crate) fn new(
        name: &'static str,
        hooks: Hooks,
        deferred: u32,
        options: &LoadOptions,
        interest: &Arc<Interest>,
    ) -> Self {
        let budget_ticks = ticks(options.budget);
        Self {
            id: next_record_id(),
            name,
            hooks,
            deferred,
            active: AtomicU32::new(hooks.bits()),
            rows: Default::default(),
            announced: AtomicU32::new(0),
            errors: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            overruns: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            limits: Limits {
                budget: options.budget,
                budget_ticks,
                hang_ticks: ticks(options.hang_after).max(budget_ticks),
                deferred_hang_ticks: ticks(options.deferred_hang_after),
                quarantine_after: options.quarantine_after,
            },
            interest: Arc::clone(interest),
            verdict: OnceLock::new(),
            backlog: OnceLock::new(),
        }
    }

    /// Lets the seams see this plugin.
    pub(crate) fn enlist(&self) {
        self.interest.change(self.hooks, |count| *count += 1);
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn hooks(&self) -> Hooks {
        self.hooks
    }

    #[inline]
    pub(crate) fn wants(&self, hook: Hook) -> bool {
        self.active.load(Ordering::Relaxed) & hook.bit() != 0
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.verdict.get().is_none()
    }

    #[inline]
    pub(crate) fn defers(&self, hook: Hook) -> bool {
        self.deferred & hook.bit() != 0
    }

    pub(crate) fn deferred(&self) -> u32 {
        self.deferred
    }

    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.get()
    }

    pub(crate) fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            errors: read(&self.errors),
            panics: read(&self.panics),
            overruns: read(&self.overruns),
            dropped: read(&self.dropped),
        }
    }

    /// What waits for the plugin, to be emptied when the plugin goes out of use: batches hold leases.
    pub(crate) fn set_backlog(&self, backlog: Backlog) {
        // A record has one lane.
        let _ = self.backlog.set(backlog);
    }

    pub(crate) fn hang_limit(&self, hook: Hook) -> u32 {
        if self.defers(hook) {
            self.limits.deferred_hang_ticks
        } else {
            self.limits.hang_ticks
        }
    }

    #[inline]
    pub(crate) fn is_over_budget(&self, ticks: u32) -> bool {
        ticks > self.limits.budget_ticks
    }

    #[inline]
    pub(crate) fn succeeded(&self, hook: Hook) {
        let row = &self.rows[hook.index()];
        if row.load(Ordering::Relaxed) != 0 {
            row.store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    pub(crate) fn erred(&self, hook: Hook, message: &str) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        if self.is_news(Trouble::Error, hook) {
            tracing::warn!(
                plugin = self.name,
                hook = hook.name(),
                error = message,
                "plugin returned an error; more of the kind are logged at debug"
            );
        } else {
            tracing::debug!(
                plugin = self.name,
                hook = hook.name(),
                error = message,
                "plugin returned an error"
            );
        }
        self.failed(hook, || format!("the last error was: {message}"));
    }

    #[cold]
    pub(crate) fn overran(&self, hook: Hook) {
        self.overruns.fetch_add(1, Ordering::Relaxed);
        let budget = self.limits.budget;
        if self.is_news(Trouble::Overrun, hook) {
            tracing::warn!(
                plugin = self.name,
                hook = hook.name(),
                ?budget,
                "plugin overran its budget; more of the kind are logged at debug"
            );
        } else {
            tracing::debug!(
                plugin = self.name,
                hook = hook.name(),
                ?budget,
                "plugin overran its budget"
            );
        }
        self.failed(hook, || {
            format!("the last one overran its budget of {budget:?}")
        });
    }

    #[cold]
    pub(crate) fn panicked(&self, hook: Hook, message: &str) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        self.retire(
            PluginState::Panicked,
            format!("{} panicked: {message}", hook.name()),
        );
    }

    #[cold]
    pub(crate) fn hangs(&self, hook: Hook) {
        self.retire(
            PluginState::Quarantined,
            format!("{} hangs: a call of it has not returned", hook.name()),
        );
    }

    #[cold]
    pub(crate) fn dropped(&self, hook: Hook) {
        self.count_dropped(1);
        if self.is_news(Trouble::Dropped, hook) {
            tracing::warn!(
                plugin = self.name,
                hook = hook.name(),
                "a deferred plugin does not keep up, so batches pass it by; they are counted as dropped"
            );
        }
    }

    pub(crate) fn count_dropped(&self, batches: u64) {
        self.dropped.fetch_add(batches, Ordering::Relaxed);
    }

    /// Drops what waits for the plugin.
    pub(crate) fn clear_backlog(&self) {
        if let Some(backlog) = self.backlog.get() {
            self.count_dropped(backlog.clear());
        }
    }

    fn failed(&self, hook: Hook, last: impl FnOnce() -> String) {
        let row = self.rows[hook.index()].fetch_add(1, Ordering::Relaxed) + 1;
        if self.limits.quarantine_after != 0 && row >= self.limits.quarantine_after {
            self.retire(
                PluginState::Quarantined,
                format!("{} failed {row} times in a row; {}", hook.name(), last()),
            );
        }
    }

    fn retire(&self, state: PluginState, reason: String) {
        if self.verdict.set(Verdict { state, reason }).is_err() {
            return;
        }
        self.active.store(0, Ordering::Relaxed);
        self.interest.change(self.hooks, |count| *count -= 1);
        self.clear_backlog();
        if let Some(Verdict { state, reason }) = self.verdict.get() {
            tracing::warn!(plugin = self.name, %state, reason, "plugin will not be called any more");
        }
    }

    fn is_news(&self, trouble: Trouble, hook: Hook) -> bool {
        let bit = 1 << (trouble as usize * Hook::ALL.len() + hook.index());
        self.announced.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}
