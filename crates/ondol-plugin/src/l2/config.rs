use std::any::Any;
use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The parameters that a backend is opened with: typed, if a configuration class was found for them, and as they
/// stood in the configuration.
pub struct AdapterConfig {
    parameters: Map<String, Value>,
    typed: Option<Box<dyn Any + Send + Sync>>,
}

/// Why parameters are not what a backend expects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

type Parse = fn(&Map<String, Value>) -> Result<Box<dyn Any + Send + Sync>, ConfigError>;

/// A type that the parameters of a backend can be read into, under the name by which a configuration can ask for it.
#[derive(Clone, Copy)]
pub struct ConfigClass {
    name: &'static str,
    parse: Parse,
}

impl ConfigClass {
    /// The class `name`, which reads parameters into a `C`. Unknown parameters are `C`'s to refuse or ignore; LMCache
    /// ignores them.
    pub const fn new<C: DeserializeOwned + Any + Send + Sync>(name: &'static str) -> Self {
        Self {
            name,
            parse: |parameters| Ok(Box::new(read::<C>(parameters)?)),
        }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Reads parameters.
    ///
    /// # Errors
    /// [`ConfigError`], which names the field and what was expected.
    pub fn read(&self, parameters: Map<String, Value>) -> Result<AdapterConfig, ConfigError> {
        let typed = (self.parse)(&parameters)?;
        Ok(AdapterConfig {
            parameters,
            typed: Some(typed),
        })
    }
}

impl fmt::Debug for ConfigClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConfigClass").field(&self.name).finish()
    }
}

impl AdapterConfig {
    /// Parameters that no class reads.
    pub fn raw(parameters: Map<String, Value>) -> Self {
        Self {
            parameters,
            typed: None,
        }
    }

    /// The parameters as they stood in the configuration.
    pub fn parameters(&self) -> &Map<String, Value> {
        &self.parameters
    }

    /// The typed parameters, if they were read into a `C`.
    pub fn typed<C: Any>(&self) -> Option<&C> {
        self.typed.as_ref()?.downcast_ref()
    }

    /// The parameters as a `C`: the typed ones if they are, else read now.
    ///
    /// # Errors
    /// [`ConfigError`], which names the field and what was expected.
    pub fn read<C: DeserializeOwned + Any + Clone>(&self) -> Result<C, ConfigError> {
        match self.typed() {
            Some(config) => Ok(Clone::clone(config)),
            None => read(&self.parameters),
        }
    }
}

/// Reads parameters into a `C`; an error begins with the name of the field.
fn read<C: DeserializeOwned>(parameters: &Map<String, Value>) -> Result<C, ConfigError> {
    serde_path_to_error::deserialize(Value::Object(parameters.clone()))
        .map_err(|error| ConfigError(error.to_string()))
}

/// Prints the names of parameters only: values may be secret.
impl fmt::Debug for AdapterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterConfig")
            .field("parameters", &self.parameters.keys().collect::<Vec<_>>())
            .field("typed", &self.typed.is_some())
            .finish()
    }
}
