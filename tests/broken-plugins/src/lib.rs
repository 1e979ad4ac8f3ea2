//! Plugins that misbehave on purpose, each under a name of its own: admit by allowlist the one to be studied.
//!
//! What a plugin was called for, and when a hanging one may go on, goes through a [`Probe`] that the test makes
//! and the plugin finds by the variable [`PROBE_VARIABLE`] of its environment.
//!
//! | name | what it does |
//! |---|---|
//! | `healthy`, `healthy-deferred` | nothing wrong; the latter on its lane |
//! | `panic-init`, `panic-batch-retrieve`, `panic-prefetch`, `panic-stage`, `panic-close`, `panic-stats` | panics in that hook |
//! | `panic-hooks`, `panic-deferred`, `panic-drop` | panics in `hooks()`, `deferred()`, its destructor |
//! | `panic-payload` | panics in `on_batch_retrieve`; the payload's destructor panics too, with a payload like it |
//! | `panic-lane` | panics in `on_batch_retrieve` on its lane |
//! | `error-init`, `error-batch-retrieve`, `error-prefetch`, `error-stage`, `error-close` | returns an error |
//! | `error-alternating` | returns an error from every other `on_batch_retrieve` |
//! | `error-display` | returns an error that panics when it is shown |
//! | `hang-batch-retrieve`, `hang-stage`, `hang-stats`, `hang-drop` | hangs there until the probe is opened |
//! | `hang-lane` | hangs in `on_batch_retrieve` on its lane |
//! | `stage-none`, `stage-short` | declines to stage; claims to be ready for one key less than asked |
//! | `stats-host` | claims the host's own key in its figures |
//! | `factory-errs`, `factory-panics`, `factory-error-display`, `factory-declines` | does not come to be |
//! | `twin` (twice) | two plugins of one name, from packages `broken-plugins` and `broken-plugins-other` |
//! | an empty name, `two words`, `comma,name` | names that no allowlist can hold |

#![forbid(unsafe_code)]

mod plugin;
mod probe;

pub use probe::{PROBE_VARIABLE, Probe};

use ondol_plugin::{HandlerPluginFactory, Hooks, Package, inventory, package};
use plugin::{Broken, Fault, Unprintable};

/// The package that the second `twin` claims to come from.
pub const OTHER_PACKAGE: Package = Package {
    name: "broken-plugins-other",
    version: "0.1.0",
};

macro_rules! broken {
    ($($name:literal: $fault:ident at $place:literal $(, deferred $deferred:expr)?;)*) => {$(
        inventory::submit! {
            HandlerPluginFactory::new($name, package!(), |context| {
                #[allow(unused_mut, unused_assignments, reason = "not every row defers")]
                let mut deferred = Hooks::NONE;
                $(deferred = $deferred;)?
                Ok(Some(Broken::boxed(context, Fault::$fault, $place, deferred)))
            })
        }
    )*};
}

broken! {
    "healthy": Nothing at "";
    "healthy-deferred": Nothing at "", deferred Hooks::ALL;
    "panic-init": Panic at "on_init";
    "panic-batch-retrieve": Panic at "on_batch_retrieve";
    "panic-prefetch": Panic at "on_prefetch";
    "panic-stage": Panic at "on_stage";
    "panic-close": Panic at "on_close";
    "panic-stats": Panic at "contribute_stats";
    "panic-hooks": Panic at "hooks";
    "panic-deferred": Panic at "deferred";
    "panic-drop": Panic at "drop";
    "panic-payload": PanicPayload at "on_batch_retrieve";
    "panic-lane": Panic at "on_batch_retrieve", deferred Hooks::ALL;
    "error-init": Error at "on_init";
    "error-batch-retrieve": Error at "on_batch_retrieve";
    "error-prefetch": Error at "on_prefetch";
    "error-stage": Error at "on_stage";
    "error-close": Error at "on_close";
    "error-alternating": ErrorAlternating at "on_batch_retrieve";
    "error-display": ErrorDisplay at "on_batch_retrieve";
    "hang-batch-retrieve": Hang at "on_batch_retrieve";
    "hang-stage": Hang at "on_stage";
    "hang-stats": Hang at "contribute_stats";
    "hang-drop": Hang at "drop";
    "hang-lane": Hang at "on_batch_retrieve", deferred Hooks::BATCH_RETRIEVE;
    "stage-none": StageNone at "on_stage";
    "stage-short": StageShort at "on_stage";
    "stats-host": StatsHost at "contribute_stats";
    "": Nothing at "";
    "two words": Nothing at "";
    "comma,name": Nothing at "";
    "twin": Nothing at "";
}

inventory::submit! {
    HandlerPluginFactory::new("twin", OTHER_PACKAGE, |context| {
        Ok(Some(Broken::boxed(context, Fault::Nothing, "", Hooks::NONE)))
    })
}

inventory::submit! {
    HandlerPluginFactory::new("factory-errs", package!(), |_| {
        Err(anyhow::anyhow!("no such device").context("could not open the device"))
    })
}

inventory::submit! {
    HandlerPluginFactory::new("factory-panics", package!(), |_| panic!("born to fail"))
}

inventory::submit! {
    HandlerPluginFactory::new("factory-error-display", package!(), |_| Err(Unprintable.into()))
}

inventory::submit! {
    HandlerPluginFactory::new("factory-declines", package!(), |_| Ok(None))
}
