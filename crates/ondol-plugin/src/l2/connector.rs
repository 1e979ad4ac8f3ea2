use std::ffi::c_void;
use std::fmt;
use std::os::fd::BorrowedFd;

use super::{AdapterConfig, ConfigClass, ObjectRef, OpenContext, PageMut, Parameter};
use crate::{Package, inventory};

/// A request that a connector has taken and not completed; unique while it is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FutureId(pub u64);

/// What became of one request of a connector.
#[derive(Debug, Default)]
pub struct Completion {
    /// The request.
    pub future: u64,
    /// Whether it succeeded as a whole.
    pub ok: bool,
    /// Why not.
    pub error: String,
    /// For each key whether it was found, loaded or deleted; `None` if `ok` says it for all.
    pub per_key: Option<Vec<bool>>,
    /// For each key the bytes that it has (exists) or that were loaded (get); `None` if the connector does not say, and
    /// then what was loaded filled its page.
    pub lengths: Option<Vec<u64>>,
    /// The pages of a get, in its order. One that is missing counts as not loaded.
    pub pages: Vec<PageMut>,
}

/// The smaller form of a storage backend: six methods, and a seventh that may be left out.
///
/// Keys are canonical strings of [`ObjectKey`](super::ObjectKey). Requests return at once with a number; when some are complete
/// the one event descriptor becomes readable, and [`drain_completions`](Self::drain_completions) gives each completion
/// once. Locks, usage and the three descriptors of an [`L2Adapter`](super::L2Adapter) are made by the bridge that wraps it.
///
/// The semantics are those of LMCache's `native_plugin` connectors (0.5.6).
pub trait NativeConnector: Send + Sync {
    /// Readable when completions can be drained.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Loads objects into pages. An object that is longer than its page is not loaded.
    ///
    /// # Errors
    /// If the request cannot be taken.
    fn submit_batch_get(&self, keys: &[String], pages: Vec<PageMut>) -> anyhow::Result<FutureId>;

    /// Stores objects, all or none of them.
    ///
    /// # Errors
    /// If the request cannot be taken.
    fn submit_batch_set(
        &self,
        keys: &[String],
        objects: Vec<ObjectRef>,
    ) -> anyhow::Result<FutureId>;

    /// Asks which objects are there.
    ///
    /// # Errors
    /// If the request cannot be taken.
    fn submit_batch_exists(&self, keys: &[String]) -> anyhow::Result<FutureId>;

    /// Deletes objects; `None` if the connector cannot.
    ///
    /// # Errors
    /// If the request cannot be taken.
    fn submit_batch_delete(&self, keys: &[String]) -> anyhow::Result<Option<FutureId>> {
        let _ = keys;
        Ok(None)
    }

    /// Completed requests, each once. Resets the event descriptor.
    fn drain_completions(&self) -> Vec<Completion>;

    /// Ends the connector. What is pending completes, with an error if need be, and can still be drained.
    fn close(&self);
}

type Open = fn(AdapterConfig, &OpenContext<'_>) -> anyhow::Result<Box<dyn NativeConnector>>;

/// The exported function of a connector that is written in C: it returns the table that `include/ondol_connector.h` draws.
pub type ConnectorEntry = unsafe extern "C" fn() -> *const c_void;

/// How a native connector is made. Const data.
///
/// It is found as `{"type":"native_plugin","module_path":…,"class_name":…}`, and by its type if it has one.
#[derive(Clone, Copy)]
pub struct NativeConnectorFactory {
    module_path: &'static str,
    class_name: &'static str,
    package: Package,
    config: Option<ConfigClass>,
    parameters: &'static [Parameter],
    source: Source,
}

#[derive(Clone, Copy)]
enum Source {
    Rust(Open),
    C(ConnectorEntry),
}

impl NativeConnectorFactory {
    /// A factory of connectors whose Rust type is `class_name` in `module_path`.
    pub const fn new(
        module_path: &'static str,
        class_name: &'static str,
        package: Package,
        open: Open,
    ) -> Self {
        Self {
            module_path,
            class_name,
            package,
            config: None,
            parameters: &[],
            source: Source::Rust(open),
        }
    }

    /// A factory of connectors that are linked in from C: the row `class_name` of the table that `entry` returns.
    pub const fn c(
        module_path: &'static str,
        class_name: &'static str,
        package: Package,
        entry: ConnectorEntry,
    ) -> Self {
        Self {
            module_path,
            class_name,
            package,
            config: None,
            parameters: &[],
            source: Source::C(entry),
        }
    }

    /// The configuration class that parameters are read into.
    pub const fn config<C>(mut self, name: &'static str) -> Self
    where
        C: serde::de::DeserializeOwned + std::any::Any + Send + Sync,
    {
        self.config = Some(ConfigClass::new::<C>(name));
        self
    }

    /// What may be configured.
    pub const fn parameters(mut self, parameters: &'static [Parameter]) -> Self {
        self.parameters = parameters;
        self
    }

    /// The module of its type.
    pub const fn module_path(&self) -> &'static str {
        self.module_path
    }

    /// The name of its type.
    pub const fn class_name(&self) -> &'static str {
        self.class_name
    }

    /// The crate that submitted it.
    pub const fn package(&self) -> Package {
        self.package
    }

    /// The configuration class that it names.
    pub const fn own_config(&self) -> Option<ConfigClass> {
        self.config
    }

    /// What may be configured.
    pub const fn parameter_list(&self) -> &'static [Parameter] {
        self.parameters
    }

    /// The exported function, if the connector is written in C.
    pub const fn c_entry(&self) -> Option<ConnectorEntry> {
        match self.source {
            Source::C(entry) => Some(entry),
            Source::Rust(_) => None,
        }
    }

    /// Opens a connector that is written in Rust.
    ///
    /// # Errors
    /// What the connector's own code reports, and for one that is written in C: whoever can call C opens those by
    /// [`c_entry`](Self::c_entry).
    pub fn open(
        &self,
        config: AdapterConfig,
        context: &OpenContext<'_>,
    ) -> anyhow::Result<Box<dyn NativeConnector>> {
        match self.source {
            Source::Rust(open) => open(config, context),
            Source::C(_) => anyhow::bail!("{} is written in C", self.class_name),
        }
    }
}

impl fmt::Debug for NativeConnectorFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeConnectorFactory")
            .field("module_path", &self.module_path)
            .field("class_name", &self.class_name)
            .field("package", &self.package)
            .finish_non_exhaustive()
    }
}

inventory::collect!(NativeConnectorFactory);
