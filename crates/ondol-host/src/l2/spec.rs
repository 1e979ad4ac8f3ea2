use serde_json::{Map, Value};

/// One `--l2-adapter`, with the keys that all types have in common read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdapterSpec {
    /// `type`, as it stands.
    pub type_name: String,
    /// `eviction`: who makes room when the backend fills; `None` leaves that to the backend.
    pub eviction: Option<EvictionSpec>,
    /// `serde`: the transforms, first to last; each is `{"type":…}` with its parameters.
    pub transforms: Vec<Map<String, Value>>,
    /// `shared`: whether other hosts use the same storage.
    pub shared: bool,
    /// `affinity_tag`: the memory tier that objects are loaded into.
    pub affinity_tag: String,
    /// `persist_enabled`: whether objects outlive this server there.
    pub persist_enabled: bool,
    /// `required`: whether a server without it shall not start.
    pub required: bool,
    /// The whole object.
    pub parameters: Map<String, Value>,
}

/// `eviction` of an [`AdapterSpec`].
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionSpec {
    /// `eviction_policy`: a row of the catalogue's policies, by LMCache's or our name, or `noop`.
    pub policy: String,
    /// `trigger_watermark`: the part of the capacity at which eviction begins.
    pub trigger_watermark: f64,
    /// `eviction_ratio`: the part of the bytes in use that goes then.
    pub eviction_ratio: f64,
}
