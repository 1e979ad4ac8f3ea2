//! Opening what a configuration means.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, SendError, bounded};
use ondol_connector::{Bridge, BridgeOptions, Table};
use ondol_plugin::l2::{L1Mapping, L2Adapter, OpenContext};
use serde_json::{Map, Value};

use super::describe::describe;
use super::places;
use super::registry::Linked;
use super::resolve::{self, Connector, Resolved};
use super::{AdapterSpec, Backend, L2Registry, LaneOptions, SpecError};
use crate::guarded;

/// How many adapters may wrap one another.
const MOST_NESTED: usize = 8;
/// `affinity_tag` of the pool.
const ONLY_TIER: &str = "_default";
/// How long backends may take to close when another one does not open.
const CLOSE_AGAIN: Duration = Duration::from_secs(5);
/// After this part of the time that it has, an adapter that opens is said to take long.
const LONG_PART: u32 = 6;

/// Why a backend cannot be opened; the message says what is linked in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("storage backend {backend}: {cause}; {linked}")]
pub struct OpenError {
    /// Its name.
    pub backend: String,
    /// What is wrong.
    pub cause: Cause,
    linked: Linked,
}

/// What is wrong with a backend that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The configuration itself.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is no adapter of this type.
    #[error("`type` is {found:?}{}; expected a type that is linked in, \"plugin\" or \"native_plugin\"",
        if *is_foreign { ", a type of LMCache that this program does not have" } else { "" })]
    UnknownType {
        /// The type.
        found: String,
        /// Whether LMCache has it.
        is_foreign: bool,
    },
    /// There is no type of this name.
    #[error(
        "`module_path` and `class_name` are {module_path:?} and {class_name:?}, which no {what} has; expected one of: {}",
        list(known)
    )]
    UnknownClass {
        /// What was looked for.
        what: &'static str,
        /// The module.
        module_path: String,
        /// The name.
        class_name: String,
        /// The types that there are.
        known: Vec<String>,
    },
    /// The parameters are not what the adapter expects.
    #[error("its parameters are no {class}: {reason}")]
    Config {
        /// The configuration class.
        class: &'static str,
        /// Field, value and expectation.
        reason: String,
    },
    /// The adapter or the connector does not open.
    #[error("it does not open: {0}")]
    Failed(String),
    /// It is still opening.
    #[error(
        "it has not opened within {waited:?}, and what it waits for is not known; it is left to itself"
    )]
    Hangs {
        /// How long was waited.
        waited: Duration,
    },
    /// Adapters that wrap adapters without end.
    #[error("more than {MOST_NESTED} adapters wrap one another")]
    TooDeep,
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// Looks whether there are adapters of these types, and whether they take their parameters, without opening any: what is wrong
/// with a configuration can so be told before anything was made. Those that are not [required](AdapterSpec::required) are left to
/// [`open_all`]. What only a shared library knows is not looked at.
///
/// # Errors
/// [`OpenError`] of the first one that cannot be opened.
pub fn check(specs: &[AdapterSpec]) -> Result<(), OpenError> {
    L2Registry::global().check(specs)
}

/// Opens the backend that `spec` means with what is linked in, and starts its lane. `index` is its place among the backends and
/// part of its name; `mappings` is how the pool is mapped.
///
/// # Errors
/// [`OpenError`]; nothing stays open then.
pub fn open(
    spec: &AdapterSpec,
    index: usize,
    mappings: &[L1Mapping],
) -> Result<Arc<Backend>, OpenError> {
    L2Registry::global().open(spec, index, mappings, LaneOptions::default())
}

/// Opens backends in their order. One that does not open is left out with a loud message if it is not
/// [required](AdapterSpec::required).
///
/// # Errors
/// [`OpenError`] of the first one that is required and does not open; those before it are closed again.
pub fn open_all(
    specs: &[AdapterSpec],
    mappings: &[L1Mapping],
) -> Result<Vec<Arc<Backend>>, OpenError> {
    L2Registry::global().open_all(specs, mappings, &LaneOptions::default())
}

impl L2Registry {
    /// As the function [`open`], with the factories of this registry and these options.
    ///
    /// # Errors
    /// As there.
    pub fn open(
        &self,
        spec: &AdapterSpec,
        index: usize,
        mappings: &[L1Mapping],
        options: LaneOptions,
    ) -> Result<Arc<Backend>, OpenError> {
        let name = name_of(spec, index);
        let opened = self.open_in_time(&name, spec, mappings, options);
        opened.map_err(|cause| self.error(name, cause))
    }

    /// Opens on a thread of its own, which is left to itself if that takes too long.
    fn open_in_time(
        &self,
        name: &str,
        spec: &AdapterSpec,
        mappings: &[L1Mapping],
        options: LaneOptions,
    ) -> Result<Arc<Backend>, Cause> {
        let waited = options.open_timeout;
        // What is given up is never left behind in the channel.
        let (sender, opened) = bounded(0);
        let log = tracing::dispatcher::get_default(Clone::clone);
        let (registry, mappings, spec) = (self.clone(), mappings.to_vec(), spec.clone());
        let backend = name.to_owned();
        let open = move || {
            let opening = Opening {
                registry: &registry,
                name: &backend,
                mappings: &mappings,
                depth: Cell::new(0),
            };
            let opened = opening.open(&spec).and_then(|(adapter, verifies)| {
                Backend::start(&backend, spec, verifies, adapter, options)
                    .map_err(|error| Cause::Failed(error.to_string()))
            });
            if let Err(SendError(Ok(late))) = sender.send(opened) {
                late.close(CLOSE_AGAIN);
            }
        };
        let spawned = thread::Builder::new()
            .name(format!("l2-{name}-open"))
            .spawn(move || tracing::dispatcher::with_default(&log, open));
        spawned.map_err(|error| Cause::Failed(format!("no thread: {error}")))?;
        let soon = waited / LONG_PART;
        let mut result = opened.recv_timeout(soon);
        if matches!(result, Err(RecvTimeoutError::Timeout)) {
            tracing::warn!(
                backend = name,
                limit = ?waited,
                "a storage backend takes long to open; it is waited for"
            );
            result = opened.recv_timeout(waited - soon);
        }
        match result {
            Ok(opened) => opened,
            Err(RecvTimeoutError::Timeout) => Err(Cause::Hangs { waited }),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Cause::Failed("the thread that opened it ended".to_owned()))
            }
        }
    }

    fn error(&self, backend: String, cause: Cause) -> OpenError {
        OpenError {
            backend,
            cause,
            linked: self.linked(),
        }
    }

    /// As the function [`check`], with the factories of this registry.
    ///
    /// # Errors
    /// As there.
    pub fn check(&self, specs: &[AdapterSpec]) -> Result<(), OpenError> {
        let required = specs.iter().enumerate().filter(|(_, spec)| spec.required);
        for (index, spec) in required {
            let resolved = resolve::resolve(self, spec).and_then(|resolved| match resolved {
                Resolved::Connector {
                    connector: Connector::Linked(factory),
                    parameters,
                    ..
                } if factory.c_entry().is_none() => {
                    resolve::read(factory.own_config(), parameters).map(drop)
                }
                _ => Ok(()),
            });
            resolved.map_err(|cause| self.error(name_of(spec, index), cause))?;
        }
        Ok(())
    }

    /// As the function [`open_all`], with the factories of this registry and these options.
    ///
    /// # Errors
    /// As there.
    pub fn open_all(
        &self,
        specs: &[AdapterSpec],
        mappings: &[L1Mapping],
        options: &LaneOptions,
    ) -> Result<Vec<Arc<Backend>>, OpenError> {
        if let Some((first, second, place)) = places::shared(specs) {
            tracing::warn!(
                first = name_of(&specs[first], first),
                second = name_of(&specs[second], second),
                place = %place.display(),
                "two storage backends have one directory: each object is stored once and counted twice; leave one of them out"
            );
        }
        let mut backends: Vec<Arc<Backend>> = Vec::with_capacity(specs.len());
        for (index, spec) in specs.iter().enumerate() {
            if spec.affinity_tag != ONLY_TIER {
                tracing::warn!(
                    type_name = spec.type_name,
                    affinity_tag = spec.affinity_tag,
                    "there is one memory tier, {ONLY_TIER}, and objects are loaded into that"
                );
            }
            match self.open(spec, index, mappings, options.clone()) {
                Ok(backend) => {
                    tracing::info!(backend = backend.name(), "storage backend opened");
                    backends.push(backend);
                }
                Err(error) if !spec.required => {
                    tracing::error!(
                        %error,
                        "a storage backend does not open and is LEFT OUT, as it is not required: nothing is stored in it or found there"
                    );
                }
                Err(error) => {
                    for backend in &backends {
                        backend.close(CLOSE_AGAIN);
                    }
                    return Err(error);
                }
            }
        }
        Ok(backends)
    }
}

/// The name of a backend in logs and figures.
fn name_of(spec: &AdapterSpec, index: usize) -> String {
    format!("{}#{index}", spec.type_name)
}

/// A backend that is being opened.
struct Opening<'a> {
    registry: &'a L2Registry,
    name: &'a str,
    mappings: &'a [L1Mapping],
    depth: Cell<usize>,
}

impl Opening<'_> {
    /// The adapter, and whether it checks what it gives back.
    fn open(&self, spec: &AdapterSpec) -> Result<(Box<dyn L2Adapter>, bool), Cause> {
        let open_inner = |parameters: &Map<String, Value>| self.open_inner(parameters);
        let context = OpenContext::new(self.name)
            .with_mappings(self.mappings)
            .with_inner(&open_inner);
        match resolve::resolve(self.registry, spec)? {
            Resolved::Adapter { factory, config } => {
                let adapter = foreign(|| factory.open(config, &context))?;
                Ok((adapter, factory.does_verify()))
            }
            Resolved::Connector {
                connector,
                parameters,
                max_capacity_bytes,
            } => {
                let adapter = self.connect(connector, parameters, max_capacity_bytes, &context)?;
                Ok((adapter, false))
            }
        }
    }

    fn connect(
        &self,
        connector: Connector,
        parameters: Map<String, Value>,
        max_capacity_bytes: Option<u64>,
        context: &OpenContext<'_>,
    ) -> Result<Box<dyn L2Adapter>, Cause> {
        let connector = match connector {
            Connector::Linked(factory) => match factory.c_entry() {
                Some(entry) => foreign(|| {
                    let table = Table::linked(entry)?;
                    Ok(table.open(factory.class_name(), &parameters, context)?)
                })?,
                None => {
                    let config = resolve::read(factory.own_config(), parameters)?;
                    foreign(|| factory.open(config, context))?
                }
            },
            Connector::Library { path, class_name } => foreign(|| {
                let table = Table::load(&path)?;
                Ok(table.open(&class_name, &parameters, context)?)
            })?,
        };
        let options = BridgeOptions {
            max_capacity_bytes,
            ..BridgeOptions::default()
        };
        let bridge = foreign(|| Ok(Bridge::new(self.name, connector, options)?))?;
        Ok(Box::new(bridge))
    }

    fn open_inner(&self, parameters: &Map<String, Value>) -> anyhow::Result<Box<dyn L2Adapter>> {
        let spec = AdapterSpec::parse(parameters)?;
        if spec.eviction.is_some() || !spec.transforms.is_empty() {
            tracing::warn!(
                backend = self.name,
                inner = spec.type_name,
                "`eviction` and `serde` of an adapter that another one wraps are not heard; they belong to the outer one"
            );
        }
        let depth = self.depth.get() + 1;
        if depth >= MOST_NESTED {
            return Err(Cause::TooDeep.into());
        }
        self.depth.set(depth);
        let opened = self.open(&spec);
        self.depth.set(depth - 1);
        Ok(opened?.0)
    }
}

/// Runs foreign code; its error is formatted and dropped under the guard.
fn foreign<R>(open: impl FnOnce() -> anyhow::Result<R>) -> Result<R, Cause> {
    let opened = guarded(|| open().map_err(describe));
    opened
        .unwrap_or_else(|panicked| Err(panicked.to_string()))
        .map_err(Cause::Failed)
}
