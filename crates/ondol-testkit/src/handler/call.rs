//! Calls of a plugin's code, on threads of their own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ondol_plugin::{
    FactoryContext, HandlerPlugin, HandlerPluginFactory, Hooks, RetrievedBatch, StageResult,
};

use crate::apart::{Outcome, Whereabouts, apart, complaint};
use crate::{FakeBatch, FakeView};

/// Builds a plugin; `None` if its factory declines.
pub(super) fn build(
    factory: &'static HandlerPluginFactory,
    environment: &Arc<HashMap<String, String>>,
    deadline: Duration,
) -> Outcome<Option<Instance>> {
    let environment = Arc::clone(environment);
    apart(deadline, "factory", move |at| {
        let find = |name: &str| environment.get(name).cloned();
        let built = factory.build(&FactoryContext::new(&find));
        let Some(plugin) = returned(at, built)? else {
            return Ok(None);
        };
        let plugin: Arc<dyn HandlerPlugin> = plugin.into();
        at.set("hooks");
        let hooks = plugin.hooks();
        at.set("deferred");
        let _ = plugin.deferred();
        Ok(Some(Instance {
            plugin: Some(plugin),
            hooks,
            deadline,
        }))
    })
}

/// An error is shown here, on the plugin's thread, since showing it runs the plugin's code.
fn returned<T>(at: &Whereabouts, result: Result<T, impl std::fmt::Display>) -> Outcome<T> {
    result.or_else(|error| complaint(at.get(), format!("returned an error: {error:#}")))
}

/// One plugin.
pub(super) struct Instance {
    // Taken by `end` only.
    plugin: Option<Arc<dyn HandlerPlugin>>,
    hooks: Hooks,
    deadline: Duration,
}

impl Instance {
    /// Whether the plugin asked for the hook.
    pub(super) fn wants(&self, hook: Hooks) -> bool {
        self.hooks.contains(hook)
    }

    /// Runs `work`, which calls the plugin, on a thread of its own.
    pub(super) fn drive<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Caller) -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        let Some(plugin) = self.plugin.clone() else {
            return complaint("plugin", "has ended");
        };
        let hooks = self.hooks;
        apart(self.deadline, "plugin", move |at| {
            work(&Caller {
                plugin,
                hooks,
                at: at.clone(),
            })
        })
    }

    /// Runs the plugin's destructor.
    pub(super) fn end(mut self) -> Outcome<()> {
        let plugin = self.plugin.take();
        apart(self.deadline, "destructor", move |_| {
            drop(plugin);
            Ok(())
        })
    }
}

/// Calls the hooks that the plugin asked for, as a handler does.
pub(super) struct Caller {
    plugin: Arc<dyn HandlerPlugin>,
    hooks: Hooks,
    at: Whereabouts,
}

impl Caller {
    /// `on_init`.
    pub(super) fn init(&self, view: &FakeView) -> Outcome<()> {
        self.enter(Hooks::INIT)
            .map_or(Ok(()), |plugin| returned(&self.at, plugin.on_init(view)))
    }

    /// `on_batch_retrieve`.
    pub(super) fn batch_retrieve(&self, view: &FakeView, batch: &FakeBatch) -> Outcome<()> {
        let batch = RetrievedBatch::new(batch);
        self.enter(Hooks::BATCH_RETRIEVE).map_or(Ok(()), |plugin| {
            returned(&self.at, plugin.on_batch_retrieve(view, &batch))
        })
    }

    /// `on_prefetch`.
    pub(super) fn prefetch(&self, view: &FakeView, batch: &FakeBatch) -> Outcome<()> {
        let batch = RetrievedBatch::new(batch);
        self.enter(Hooks::PREFETCH).map_or(Ok(()), |plugin| {
            returned(&self.at, plugin.on_prefetch(view, &batch))
        })
    }

    /// `on_stage`.
    pub(super) fn stage(&self, view: &FakeView, batch: &FakeBatch) -> Outcome<Option<StageResult>> {
        let batch = RetrievedBatch::new(batch);
        self.enter(Hooks::STAGE).map_or(Ok(None), |plugin| {
            returned(&self.at, plugin.on_stage(view, &batch))
        })
    }

    /// `on_close`.
    pub(super) fn close(&self, view: &FakeView) -> Outcome<()> {
        self.enter(Hooks::CLOSE)
            .map_or(Ok(()), |plugin| returned(&self.at, plugin.on_close(view)))
    }

    /// `contribute_stats`: the names of the figures and how many values they hold in all.
    pub(super) fn stats(&self) -> Option<(Vec<String>, usize)> {
        let figures = self.enter(Hooks::STATS)?.contribute_stats()?;
        let names = figures.keys().cloned().collect();
        let size = figures.values().map(|value| value.to_string().len()).sum();
        Some((names, size))
    }

    /// Every hook that takes a batch.
    pub(super) fn hint(&self, view: &FakeView, batch: &FakeBatch) -> Outcome<()> {
        self.batch_retrieve(view, batch)?;
        self.prefetch(view, batch)?;
        self.stage(view, batch).map(drop)
    }

    fn enter(&self, hook: Hooks) -> Option<&dyn HandlerPlugin> {
        if !self.hooks.contains(hook) {
            return None;
        }
        self.at.set(hook.names().next().unwrap_or("hook"));
        Some(&*self.plugin)
    }
}
