use std::sync::Arc;

use ondol_plugin::HandlerPlugin;

use crate::clock::{Clock, enter, leave};
use crate::guarded;
use crate::hook::Hook;
use crate::record::Record;

/// A plugin's instance. Its destructor is foreign code and runs under guard, wherever the last owner lets go.
pub(crate) struct Guest(Option<Box<dyn HandlerPlugin>>);

/// A guest with its record and the clock that judges it: all that a call needs.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) guest: Arc<Guest>,
    pub(crate) record: Arc<Record>,
    pub(crate) clock: Clock,
}

impl Guest {
    pub(crate) fn new(plugin: Box<dyn HandlerPlugin>) -> Self {
        Self(Some(plugin))
    }

    #[inline]
    fn plugin(&self) -> Option<&dyn HandlerPlugin> {
        self.0.as_deref()
    }

    /// Asks the plugin something outside the hooks.
    pub(crate) fn ask<R: Default>(&self, question: impl FnOnce(&dyn HandlerPlugin) -> R) -> R {
        self.plugin().map(question).unwrap_or_default()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let plugin = self.0.take();
        if let Err(panicked) = guarded(|| drop(plugin)) {
            tracing::warn!(error = %panicked, "the destructor of a plugin failed; what it held may be lost");
        }
    }
}

impl Line {
    /// Calls the plugin and judges the call. An error of the plugin is formatted and dropped within the guard.
    #[inline]
    pub(crate) fn call<R>(
        &self,
        hook: Hook,
        call: impl FnOnce(&dyn HandlerPlugin) -> anyhow::Result<R>,
    ) -> Result<R, String> {
        let Some(plugin) = self.guest.plugin() else {
            return Err("the plugin is gone".to_owned());
        };
        let record = &*self.record;
        let entered = self.clock.now();
        let before = hook.is_watched().then(|| enter(record.id(), hook, entered));
        let outcome = guarded(|| call(plugin).map_err(describe));
        if let Some(before) = before {
            leave(before);
        }
        match outcome {
            Ok(Ok(answer)) => {
                let took = self.clock.now().wrapping_sub(entered);
                if hook.is_watched() && !record.defers(hook) && record.is_over_budget(took) {
                    record.overran(hook);
                } else {
                    record.succeeded(hook);
                }
                Ok(answer)
            }
            Ok(Err(message)) => {
                record.erred(hook, &message);
                Err(message)
            }
            Err(panicked) => {
                record.panicked(hook, &panicked.message);
                Err(panicked.to_string())
            }
        }
    }
}

#[cold]
fn describe(error: anyhow::Error) -> String {
    format!("{error:#}")
}
