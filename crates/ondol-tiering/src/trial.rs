//! Trying a backend's configuration without a server.

use ondol_host::l2::AdapterSpec;
use ondol_plugin::Key;
use ondol_plugin::l2::ObjectRef;
use ondol_shm::ObjectMeta;

use crate::attached::{codec_of, evictions_of, no_transforms};
use crate::codec::Codec;
use crate::{TieringError, object_key};

/// The `serde` and the `eviction` of a backend, which belong to the storage tier and not to the adapter.
#[derive(Debug)]
pub struct Trial {
    backend: String,
    codec: Codec,
}

impl Trial {
    /// Makes of a configuration what a server would make of it, which opens no backend; `verifies` as the adapter's factory has it.
    ///
    /// # Errors
    /// [`TieringError::Transforms`] or [`TieringError::Eviction`].
    pub fn new(spec: &AdapterSpec, verifies: bool) -> Result<Self, TieringError> {
        let codec = codec_of(&spec.type_name, spec, verifies)?;
        evictions_of(&spec.type_name, spec)?;
        Ok(Self {
            backend: spec.type_name.clone(),
            codec,
        })
    }

    /// What is stored of an object.
    ///
    /// # Errors
    /// [`TieringError::Transforms`].
    pub fn encode(&self, key: &Key, object: Vec<u8>) -> Result<ObjectRef, TieringError> {
        let (name, meta) = (object_key(key), ObjectMeta::default());
        let encoded = self.codec.encode_bytes(key, &name, object, meta);
        encoded.map_err(|error| no_transforms(&self.backend, &error))
    }

    /// The object of at most `limit` bytes that was stored like this.
    ///
    /// # Errors
    /// [`TieringError::Transforms`].
    pub fn decode(&self, key: &Key, stored: &[u8], limit: u64) -> Result<Vec<u8>, TieringError> {
        let decoded = self.codec.decode(key, &object_key(key), stored, limit);
        let decoded = decoded.map_err(|error| no_transforms(&self.backend, &error))?;
        Ok(decoded.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(json: &str) -> Result<Trial, String> {
        let spec: AdapterSpec = json.parse().unwrap();
        Trial::new(&spec, false).map_err(|error| error.to_string())
    }

    #[test]
    fn an_object_goes_there_and_back_as_a_server_would_have_it() {
        let trial = trial(r#"{"type":"fs","serde":{"type":"zstd"}}"#).unwrap();
        let (key, object) = (Key::integer(7), vec![0; 10_000]);
        let stored = trial.encode(&key, object.clone()).unwrap().to_vec();
        assert!(stored.len() < 1000, "it is compressed");
        assert_eq!(trial.decode(&key, &stored, 10_000).unwrap(), object);
        assert!(trial.decode(&Key::integer(8), &stored, 10_000).is_err());
    }

    #[test]
    fn what_a_server_would_refuse_is_refused() {
        for (json, said) in [
            (r#"{"type":"fs","serde":{"type":"gzip"}}"#, "serde of fs: "),
            (r#"{"type":"fs","serde":{"type":"zstd","level":99}}"#, "99"),
            (
                r#"{"type":"fs","eviction":{"eviction_policy":"MRU"}}"#,
                "eviction of fs: ",
            ),
        ] {
            let error = trial(json).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
