use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};
use ondol_plugin::{
    FactoryContext, HandlerPluginFactory, HandlerView, Hooks, RetrievedBatch, StageResult,
};
use serde_json::{Map, Value, json};

use crate::call::{Guest, Line};
use crate::clock::Clock;
use crate::hook::{DEFERRABLE, Hook, PER_CALL};
use crate::lane::{Lane, OwnedBatch};
use crate::record::{Interest, Record};
use crate::stage::Sum;
use crate::{LoadOptions, PluginReport, PluginState, Registry, guarded};

/// The key of the host's own figures within the statistics of each plugin; a plugin's figure of that name is
/// replaced.
pub const HOST_STATS_KEY: &str = "host";

/// The handler plugins of one handler: those in use, and what became of the rest.
pub struct HandlerPlugins {
    interest: Arc<Interest>,
    tenants: Vec<Tenant>,
    entries: Vec<Entry>,
    unmatched: Vec<String>,
    clock: Clock,
    close_grace: Duration,
}

struct Tenant {
    line: Line,
    lane: Option<Lane>,
}

/// One linked factory and what became of it.
struct Entry {
    factory: &'static HandlerPluginFactory,
    state: PluginState,
    reason: Option<String>,
    record: Option<Arc<Record>>,
}

/// Why a factory is not in use.
struct Refusal(PluginState, String);

impl HandlerPlugins {
    /// No plugins.
    pub fn none() -> Self {
        Self::empty(Clock::manual(), Duration::ZERO)
    }

    /// Makes an instance of every factory that `options` admits. Never fails: what does not load is logged and
    /// in the [`report`](Self::report).
    pub fn load(registry: &Registry, options: LoadOptions) -> Self {
        let mut plugins = Self::empty(options.clock.clone(), options.close_grace);
        let mut first: Option<&'static HandlerPluginFactory> = None;
        for &factory in registry.factories() {
            let earlier = first.filter(|first| first.name() == factory.name());
            let outcome = match earlier {
                Some(earlier) if options.allowlist.allows(factory.name()) => {
                    Err(duplicate(factory, earlier))
                }
                _ => plugins.admit(factory, &options),
            };
            first = earlier.or(Some(factory));
            plugins.enter(factory, outcome);
        }
        plugins.unmatched = unmatched(registry, &options);
        plugins
    }

    /// What became of every linked plugin, in the registry's order.
    pub fn report(&self) -> Vec<PluginReport> {
        self.entries.iter().map(Entry::report).collect()
    }

    /// Allowlisted names that no linked plugin has.
    pub fn unmatched(&self) -> &[String] {
        &self.unmatched
    }

    /// Whether any plugin in use wants any of `hooks`: one relaxed load.
    #[inline]
    pub fn is_interested(&self, hooks: Hooks) -> bool {
        self.interest.contains(hooks.bits())
    }

    /// The end of the handler's construction.
    pub fn init(&self, view: &dyn HandlerView) {
        for tenant in self.wanting(Hook::Init) {
            let _ = tenant.line.call(Hook::Init, |plugin| plugin.on_init(view));
        }
    }

    /// The end of a batch retrieve. `own` makes a batch that outlives this call; it is called once for each
    /// deferred plugin that has room for it.
    #[inline]
    pub fn batch_retrieve(
        &self,
        view: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
        own: &dyn Fn() -> OwnedBatch,
    ) {
        if self.is_interested(Hooks::BATCH_RETRIEVE) {
            self.deliver(Hook::BatchRetrieve, view, batch, own);
        }
    }

    /// The end of a prefetch; `own` as in [`batch_retrieve`](Self::batch_retrieve).
    #[inline]
    pub fn prefetch(
        &self,
        view: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
        own: &dyn Fn() -> OwnedBatch,
    ) {
        if self.is_interested(Hooks::PREFETCH) {
            self.deliver(Hook::Prefetch, view, batch, own);
        }
    }

    /// Has the batch staged by every plugin that does, one after the other; may block. The result is the sum
    /// of theirs and is ready only if each of theirs is, and there is one.
    pub fn stage(&self, view: &dyn HandlerView, batch: &RetrievedBatch<'_>) -> StageResult {
        let requested = batch.len() as u64;
        let mut sum = Sum::default();
        for tenant in self.wanting(Hook::Stage) {
            let part = match tenant
                .line
                .call(Hook::Stage, |plugin| plugin.on_stage(view, batch))
            {
                Ok(Some(part)) => part,
                Ok(None) => continue,
                Err(error) => StageResult::failed(requested, error),
            };
            sum.add(tenant.line.record.name(), requested, part);
        }
        sum.finish(requested)
    }

    /// The close of a connected handler. Does not wait for lanes: batches that still wait there are dropped
    /// first, so that no hint for a region follows the plugin's `on_close`. Call [`settle`](Self::settle)
    /// before, outside the handler's lock, to have them delivered.
    pub fn close(&self, view: &dyn HandlerView) {
        for tenant in &self.tenants {
            tenant.line.record.clear_backlog();
        }
        for tenant in self.wanting(Hook::Close) {
            let _ = tenant
                .line
                .call(Hook::Close, |plugin| plugin.on_close(view));
        }
    }

    /// Waits until the lanes have done what is queued now, but not longer than `within`; false if they have not.
    pub fn settle(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let mut lanes = self
            .tenants
            .iter()
            .filter_map(|tenant| tenant.lane.as_ref());
        lanes.all(|lane| lane.settle(deadline))
    }

    /// The figures of every plugin that was loaded, by name, with the host's own under [`HOST_STATS_KEY`].
    pub fn stats(&self) -> Map<String, Value> {
        let mut stats = Map::new();
        for tenant in &self.tenants {
            let line = &tenant.line;
            let mut figures = Map::new();
            if line.record.wants(Hook::Stats) {
                let answer = line.call(Hook::Stats, |plugin| Ok(plugin.contribute_stats()));
                figures = answer.ok().flatten().unwrap_or_default();
            }
            figures.insert(HOST_STATS_KEY.to_owned(), host_stats(&line.record));
            stats.insert(line.record.name().to_owned(), Value::Object(figures));
        }
        stats
    }

    fn empty(clock: Clock, close_grace: Duration) -> Self {
        Self {
            interest: Arc::new(Interest::new()),
            tenants: Vec::new(),
            entries: Vec::new(),
            unmatched: Vec::new(),
            clock,
            close_grace,
        }
    }

    fn admit(
        &self,
        factory: &'static HandlerPluginFactory,
        options: &LoadOptions,
    ) -> Result<Tenant, Refusal> {
        let name = factory.name();
        check_name(name)?;
        if !options.allowlist.allows(name) {
            let reason = format!("not in the allowlist ({})", crate::ALLOWLIST_VARIABLE);
            return Err(Refusal(PluginState::Skipped, reason));
        }
        let failed =
            |what: &str, why: String| Refusal(PluginState::Failed, format!("{what} {why}"));
        let var = |name: &str| options.environment.var(name);
        let built = guarded(|| {
            factory
                .build(&FactoryContext::new(&var))
                .map_err(|error| format!("{error:#}"))
        });
        let guest = match built {
            Ok(Ok(Some(plugin))) => Arc::new(Guest::new(plugin)),
            Ok(Ok(None)) => {
                let reason = "its factory declined; most plugins do so until they are configured";
                return Err(Refusal(PluginState::Declined, reason.to_owned()));
            }
            Ok(Err(error)) => return Err(failed("its factory failed:", error)),
            Err(panicked) => return Err(failed("its factory", panicked.to_string())),
        };
        let hooks = guarded(|| guest.ask(|plugin| plugin.hooks()))
            .map_err(|panicked| failed("hooks()", panicked.to_string()))?;
        let deferred = guarded(|| guest.ask(|plugin| plugin.deferred()))
            .map_err(|panicked| failed("deferred()", panicked.to_string()))?;
        let deferred = deferred.bits() & hooks.bits() & DEFERRABLE;

        let record = Arc::new(Record::new(name, hooks, deferred, options, &self.interest));
        let line = Line {
            guest,
            record,
            clock: self.clock.clone(),
        };
        let lane = (deferred != 0)
            .then(|| Lane::start(line.clone(), options.lane_capacity))
            .transpose()
            .map_err(|error| failed("its lane's thread did not start:", error.to_string()))?;
        line.record.enlist();
        if hooks.bits() & PER_CALL != 0 {
            self.clock.watch(&line.record);
        }
        Ok(Tenant { line, lane })
    }

    fn enter(&mut self, factory: &'static HandlerPluginFactory, outcome: Result<Tenant, Refusal>) {
        let (plugin, package) = (factory.name(), factory.package());
        let (state, reason, record) = match outcome {
            Ok(tenant) => {
                let record = Arc::clone(&tenant.line.record);
                tracing::info!(plugin, package = package.name, version = package.version,
                    hooks = ?record.hooks(), "plugin loaded");
                self.tenants.push(tenant);
                (PluginState::Loaded, None, Some(record))
            }
            Err(Refusal(state, reason)) => {
                match state {
                    PluginState::Skipped | PluginState::Declined => {
                        tracing::debug!(plugin, package = package.name, %state, reason, "plugin not loaded");
                    }
                    _ => {
                        tracing::warn!(plugin, package = package.name, %state, reason, "plugin not loaded");
                    }
                }
                (state, Some(reason), None)
            }
        };
        self.entries.push(Entry {
            factory,
            state,
            reason,
            record,
        });
    }

    fn wanting(&self, hook: Hook) -> impl Iterator<Item = &Tenant> {
        self.tenants
            .iter()
            .filter(move |tenant| tenant.line.record.wants(hook))
    }

    fn deliver(
        &self,
        hook: Hook,
        view: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
        own: &dyn Fn() -> OwnedBatch,
    ) {
        for Tenant { line, lane } in self.wanting(hook) {
            match lane {
                Some(lane) if line.record.defers(hook) => lane.offer(line, hook, own),
                // The outcome is on the record; a hook never changes what the handler answers.
                _ => {
                    let _ = line.call(hook, |plugin| match hook {
                        Hook::Prefetch => plugin.on_prefetch(view, batch),
                        _ => plugin.on_batch_retrieve(view, batch),
                    });
                }
            }
        }
    }
}

impl Drop for HandlerPlugins {
    fn drop(&mut self) {
        let mut tenants = std::mem::take(&mut self.tenants);
        if tenants.is_empty() {
            return;
        }
        let deadline = Instant::now() + self.close_grace;
        for tenant in &mut tenants {
            self.clock.forget(&tenant.line.record);
            if let Some(lane) = &mut tenant.lane {
                lane.close();
            }
        }
        for Tenant { line, lane } in &mut tenants {
            if lane.as_mut().is_some_and(|lane| !lane.join(deadline)) {
                line.record.clear_backlog();
                tracing::warn!(
                    plugin = line.record.name(),
                    "a deferred call does not return; its thread and the batch it was given are left to it"
                );
            }
        }
        end_guests(tenants, self.close_grace);
    }
}

impl fmt::Debug for HandlerPlugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerPlugins")
            .field("report", &self.report())
            .finish_non_exhaustive()
    }
}

impl Entry {
    fn report(&self) -> PluginReport {
        let package = self.factory.package();
        let record = self.record.as_deref();
        let verdict = record.and_then(Record::verdict);
        let hooks = record.map_or(Hooks::NONE, Record::hooks);
        let deferred = record.map_or(0, Record::deferred);
        let counts = record.map(Record::counts).unwrap_or_default();
        PluginReport {
            name: self.factory.name(),
            package: package.name,
            version: package.version,
            state: verdict.map_or(self.state, |verdict| verdict.state),
            reason: verdict
                .map(|verdict| verdict.reason.clone())
                .or_else(|| self.reason.clone()),
            hooks: hooks.names().collect(),
            deferred: Hook::ALL
                .into_iter()
                .filter(|hook| deferred & hook.bit() != 0)
                .map(Hook::name)
                .collect(),
            errors: counts.errors,
            panics: counts.panics,
            overruns: counts.overruns,
            dropped: counts.dropped,
        }
    }
}

/// Runs the destructors of plugins on a thread of their own, so that one that hangs does not hang the handler.
fn end_guests(tenants: Vec<Tenant>, grace: Duration) {
    let (ended, end) = bounded::<()>(0);
    let thread = std::thread::Builder::new().name("ondol-plugin-end".into());
    let spawned = thread.spawn(move || {
        drop(tenants);
        drop(ended);
    });
    // If no thread was to be had, the closure, and with it every plugin, was dropped by the attempt.
    if spawned.is_ok() && end.recv_timeout(grace) == Err(RecvTimeoutError::Timeout) {
        tracing::warn!("the destructor of a plugin does not return; it is left to itself");
    }
}

fn duplicate(factory: &HandlerPluginFactory, first: &HandlerPluginFactory) -> Refusal {
    let which = first.package();
    let mut reason = format!(
        "another plugin of this name, from {} {}, comes first; rename one of them",
        which.name, which.version
    );
    if which == factory.package() {
        reason.push_str(
            " (both are of one package, so which of them came first is the linker's choice)",
        );
    }
    Refusal(PluginState::Duplicate, reason)
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let is_odd = |c: char| c == ',' || c.is_whitespace() || c.is_control();
    if name.is_empty() || name.contains(is_odd) {
        let reason = format!(
            "its name is {name:?}; expected a name without commas, blanks and control characters, \
             which an allowlist could not hold"
        );
        return Err(Refusal(PluginState::Rejected, reason));
    }
    Ok(())
}

fn unmatched(registry: &Registry, options: &LoadOptions) -> Vec<String> {
    let linked: BTreeSet<_> = registry
        .factories()
        .iter()
        .map(|factory| factory.name())
        .collect();
    let unmatched: Vec<_> = options
        .allowlist
        .names()
        .filter(|name| !linked.contains(name))
        .map(str::to_owned)
        .collect();
    if !unmatched.is_empty() {
        tracing::warn!(
            unmatched = unmatched.join(", "),
            linked = linked.into_iter().collect::<Vec<_>>().join(", "),
            "the allowlist ({}) names plugins that are not linked into this program",
            crate::ALLOWLIST_VARIABLE
        );
    }
    unmatched
}

fn host_stats(record: &Record) -> Value {
    let counts = record.counts();
    let verdict = record.verdict();
    json!({
        "state": verdict.map_or(PluginState::Loaded, |verdict| verdict.state),
        "reason": verdict.map(|verdict| &verdict.reason),
        "errors": counts.errors,
        "panics": counts.panics,
        "overruns": counts.overruns,
        "dropped": counts.dropped,
    })
}
