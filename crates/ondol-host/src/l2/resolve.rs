//! From a configuration to the factory that it means, and to the parameters in the form that the factory expects.

use std::path::{Path, PathBuf};

use ondol_plugin::l2::{AdapterConfig, ConfigClass, L2AdapterFactory, NativeConnectorFactory};
use serde_json::{Map, Value};

use super::open::Cause;
use super::spec::Fields;
use super::{AdapterSpec, L2Registry, SpecError};

/// Types of LMCache 0.5.6 that nobody has written for Ondol.
const FOREIGN_TYPES: [&str; 17] = [
    "resp",
    "valkey",
    "raw_block",
    "dax",
    "nixl_native",
    "nixl_store",
    "nixl_store_dynamic",
    "mooncake_store",
    "hf3fs",
    "aerospike",
    "bigtable",
    "hfbucket",
    "sagemaker-hyperpod",
    "s3",
    "p2p",
    "fs_native",
    "mock",
];

/// Keys that the host reads, so that no adapter has to know them.
const COMMON_KEYS: [&str; 7] = [
    "type",
    "eviction",
    "serde",
    "shared",
    "affinity_tag",
    "persist_enabled",
    "required",
];

/// What a configuration means.
pub(super) enum Resolved {
    Adapter {
        factory: &'static L2AdapterFactory,
        config: AdapterConfig,
    },
    Connector {
        connector: Connector,
        parameters: Map<String, Value>,
        max_capacity_bytes: Option<u64>,
    },
}

/// Where a native connector comes from.
pub(super) enum Connector {
    Linked(&'static NativeConnectorFactory),
    Library { path: PathBuf, class_name: String },
}

pub(super) fn resolve(registry: &L2Registry, spec: &AdapterSpec) -> Result<Resolved, Cause> {
    match spec.type_name.as_str() {
        "plugin" => plugin(registry, &spec.parameters),
        "native_plugin" => native_plugin(registry, &spec.parameters),
        name => {
            let Some(factory) = registry.adapter_of_type(name) else {
                return Err(Cause::UnknownType {
                    found: name.to_owned(),
                    is_foreign: FOREIGN_TYPES.contains(&name),
                });
            };
            let mut parameters = spec.parameters.clone();
            parameters.retain(|key, _| !COMMON_KEYS.contains(&key.as_str()));
            let config = read(factory.own_config(), parameters)?;
            Ok(Resolved::Adapter { factory, config })
        }
    }
}

/// `{"type":"plugin"}`: a linked adapter by its Rust type.
fn plugin(registry: &L2Registry, map: &Map<String, Value>) -> Result<Resolved, Cause> {
    let fields = Fields { within: "", map };
    let class = Class::read(&fields)?;
    let adapters = registry.adapters().iter();
    let found =
        class.find(adapters.map(|factory| (factory.module_path(), factory.class_name(), *factory)));
    let Some(factory) = found else {
        let known = registry.adapters().iter();
        let known =
            known.map(|factory| format!("{}::{}", factory.module_path(), factory.class_name()));
        return Err(class.unknown("adapter", known.collect()));
    };
    let parameters = fields
        .object("adapter_params")?
        .cloned()
        .unwrap_or_default();
    let wanted = fields.name("config_class_name", "the name of a configuration class")?;
    let config = read(config_class(factory, wanted.as_deref()), parameters)?;
    Ok(Resolved::Adapter { factory, config })
}

/// LMCache's order: the class that the configuration names, the adapter's name followed by `Config`, the class that the adapter
/// names itself, none.
fn config_class(factory: &L2AdapterFactory, wanted: Option<&str>) -> Option<ConfigClass> {
    let by_name = |name: &str| factory.configs().find(|class| class.name() == name);
    if let Some(wanted) = wanted {
        if let Some(class) = by_name(wanted) {
            return Some(class);
        }
        let known: Vec<_> = factory.configs().map(|class| class.name()).collect();
        tracing::warn!(
            config_class_name = wanted,
            adapter = factory.class_name(),
            known = ?known,
            "the adapter has no such configuration class; the next candidate is tried"
        );
    }
    by_name(&format!("{}Config", factory.class_name())).or_else(|| factory.own_config())
}

/// `{"type":"native_plugin"}`: a linked connector by its type, or a row of a shared library's table.
fn native_plugin(registry: &L2Registry, map: &Map<String, Value>) -> Result<Resolved, Cause> {
    let fields = Fields { within: "", map };
    let class = Class::read(&fields)?;
    let parameters = fields
        .object("adapter_params")?
        .cloned()
        .unwrap_or_default();
    let max_capacity_bytes = capacity(&fields)?;
    let is_library = Path::new(&class.module_path)
        .extension()
        .is_some_and(|extension| extension == "so");
    let connector = if is_library {
        Connector::Library {
            path: class.module_path.into(),
            class_name: class.class_name,
        }
    } else {
        let connectors = registry.connectors().iter();
        let found = class.find(
            connectors.map(|factory| (factory.module_path(), factory.class_name(), *factory)),
        );
        let Some(factory) = found else {
            let known = registry.connectors().iter();
            let known =
                known.map(|factory| format!("{}::{}", factory.module_path(), factory.class_name()));
            return Err(class.unknown("native connector", known.collect()));
        };
        Connector::Linked(factory)
    };
    Ok(Resolved::Connector {
        connector,
        parameters,
        max_capacity_bytes,
    })
}

/// `max_capacity_gb`, in GiB as LMCache counts; 0 says nothing.
fn capacity(fields: &Fields<'_>) -> Result<Option<u64>, SpecError> {
    let Some(value) = fields.get("max_capacity_gb") else {
        return Ok(None);
    };
    const GIB: f64 = (1_u64 << 30) as f64;
    match value.as_f64() {
        Some(0.0) => Ok(None),
        Some(gib) if (1.0 / GIB..=GIB).contains(&gib) => Ok(Some((gib * GIB) as u64)),
        _ => {
            let expected = "a number of GiB from 1 byte (1e-9) to 1 EiB (2^30), or 0 for no limit";
            Err(fields.wrong("max_capacity_gb", value, expected))
        }
    }
}

/// Reads parameters into a class, if there is one.
pub(super) fn read(
    class: Option<ConfigClass>,
    parameters: Map<String, Value>,
) -> Result<AdapterConfig, Cause> {
    let Some(class) = class else {
        return Ok(AdapterConfig::raw(parameters));
    };
    // `Deserialize` may be written by hand.
    let read = crate::guarded(|| class.read(parameters).map_err(|error| error.to_string()));
    read.unwrap_or_else(|panicked| Err(panicked.to_string()))
        .map_err(|reason| Cause::Config {
            class: class.name(),
            reason,
        })
}

/// A type by module and name.
struct Class {
    module_path: String,
    class_name: String,
}

impl Class {
    fn read(fields: &Fields<'_>) -> Result<Self, SpecError> {
        let expected = "the module of a linked crate such as \"my_plugin\"";
        let module_path = fields.name("module_path", expected)?;
        let named = "the name of a type in it such as \"MyAdapter\"";
        let class_name = fields.name("class_name", named)?;
        let missing = |field: &str, expected| SpecError::Missing {
            field: field.to_owned(),
            expected,
        };
        Ok(Self {
            module_path: module_path.ok_or_else(|| missing("module_path", expected))?,
            class_name: class_name.ok_or_else(|| missing("class_name", named))?,
        })
    }

    /// The candidate that is meant: the name must be the same; the module is its own or one that its own lies in, as a type is
    /// often known by the path of a crate that only re-exports it. Its own goes first. Dots and `::` are the same.
    fn find<T: Copy>(
        &self,
        candidates: impl Iterator<Item = (&'static str, &'static str, T)>,
    ) -> Option<T> {
        let asked = self.module_path.replace('.', "::").replace('-', "_");
        let below = format!("{asked}::");
        let mut inner = None;
        for (module_path, class_name, candidate) in candidates {
            if class_name != self.class_name {
                continue;
            }
            if module_path == asked {
                return Some(candidate);
            }
            if module_path.starts_with(&below) && inner.is_none() {
                inner = Some(candidate);
            }
        }
        inner
    }

    fn unknown(self, what: &'static str, known: Vec<String>) -> Cause {
        Cause::UnknownClass {
            what,
            module_path: self.module_path,
            class_name: self.class_name,
            known,
        }
    }
}
