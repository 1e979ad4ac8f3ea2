use ondol_catalog::{
    BuiltTransform, Secrecy, TRANSFORMS, Transform, TransformedObject, transform, transforms,
};
use serde_json::{Map, Value};

use super::CodecError;
use super::trailer::MAX_CHAIN;

/// LMCache's transforms that there are none of here.
const FOREIGN: [&str; 3] = ["fp8", "turboquant", "asym_k16_v8"];

/// Transforms of bytes, the first to be applied first.
#[derive(Debug, Default)]
pub(super) struct Chain(Vec<Stage>);

#[derive(Debug)]
struct Stage {
    id: u8,
    name: &'static str,
    transform: Box<dyn Transform>,
}

/// What a list of transforms means.
#[derive(Debug)]
pub(super) struct Configured {
    pub(super) chain: Chain,
    /// The word on checking, if `checksum` is among them: whether objects that cannot be checked are refused.
    pub(super) check: Option<bool>,
}

impl Chain {
    /// Makes what is configured.
    pub(super) fn configured(list: &[Map<String, Value>]) -> Result<Configured, CodecError> {
        let mut chain = Self::default();
        let mut check = None;
        let mut seen = Vec::new();
        for given in list {
            let row = row(given)?;
            if seen.contains(&row.name) {
                return Err(CodecError(format!(
                    "serde has {:?} twice; expected each transform once",
                    row.name
                )));
            }
            seen.push(row.name);
            match (row.build)(given).map_err(CodecError)? {
                BuiltTransform::Check { require } => check = Some(require),
                BuiltTransform::Bytes(transform) => chain.0.push(Stage {
                    id: row.id,
                    name: row.name,
                    transform,
                }),
            }
        }
        if chain.0.len() > MAX_CHAIN {
            return Err(CodecError(format!(
                "serde has {} transforms; expected at most {MAX_CHAIN}",
                chain.0.len()
            )));
        }
        chain.warn();
        Ok(Configured { chain, check })
    }

    fn warn(&self) {
        let secret = self.0.iter().position(Stage::is_secret);
        if let Some(later) = secret.and_then(|at| self.0.get(at + 1)) {
            tracing::warn!(
                transform = later.name,
                "serde: what is encrypted does not compress; let the transform come before the encryption"
            );
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_secret(&self) -> bool {
        self.0.iter().any(Stage::is_secret)
    }

    /// The numbers of the transforms, as they stand in a trailer.
    pub(super) fn ids(&self) -> [u8; MAX_CHAIN] {
        let mut ids = [0; MAX_CHAIN];
        for (id, stage) in ids.iter_mut().zip(&self.0) {
            *id = stage.id;
        }
        ids
    }

    /// Applies all of them, of which there is at least one.
    pub(super) fn encode(
        &self,
        object: &TransformedObject<'_>,
        bytes: &[u8],
    ) -> Result<Vec<u8>, CodecError> {
        let mut encoded: Option<Vec<u8>> = None;
        for stage in &self.0 {
            let bytes = encoded.as_deref().unwrap_or(bytes);
            encoded = Some(stage.transform.encode(object, bytes).map_err(CodecError)?);
        }
        Ok(encoded.unwrap_or_else(|| bytes.to_vec()))
    }

    /// The most bytes that all of them make of `len` bytes.
    pub(super) fn max_encoded_len(&self, len: u64) -> u64 {
        let longest = |len, stage: &Stage| stage.transform.max_encoded_len(len);
        self.0.iter().fold(len, longest)
    }

    /// Undoes the transforms of these numbers, with what is configured here where it is, else with what needs no
    /// configuration.
    pub(super) fn decode(
        &self,
        ids: impl DoubleEndedIterator<Item = u8>,
        object: &TransformedObject<'_>,
        stored: &[u8],
    ) -> Result<Vec<u8>, CodecError> {
        let mut own = Vec::new();
        let ids: Vec<_> = ids.collect();
        for id in &ids {
            if !self.0.iter().any(|stage| stage.id == *id) {
                own.push(unconfigured(*id)?);
            }
        }
        let find = |id: &u8| self.0.iter().chain(&own).find(|stage| stage.id == *id);
        let stages: Vec<_> = ids.iter().filter_map(find).collect();
        for stage in &self.0 {
            let is_there = ids.contains(&stage.id);
            if stage.transform.secrecy() == Secrecy::Required && !is_there {
                return Err(CodecError(format!(
                    "it was stored without {0}; such objects are read with \"accept_plain\": true in {0}",
                    stage.name
                )));
            }
        }
        // How long it can have been before each of them.
        let mut limits = Vec::with_capacity(stages.len());
        let mut longest = object.len;
        for stage in &stages {
            limits.push(longest);
            longest = stage.transform.max_encoded_len(longest);
        }
        let mut decoded: Option<Vec<u8>> = None;
        for (stage, limit) in stages.iter().zip(limits).rev() {
            let stored = decoded.as_deref().unwrap_or(stored);
            let bytes = stage.transform.decode(object, stored, limit);
            decoded = Some(bytes.map_err(CodecError)?);
        }
        Ok(decoded.unwrap_or_else(|| stored.to_vec()))
    }

    /// Decodes what was stored with nothing said beside it.
    pub(super) fn decode_bare(
        &self,
        salt: &str,
        stored: &[u8],
        limit: u64,
    ) -> Result<Vec<u8>, CodecError> {
        match &self.0[..] {
            [] if stored.len() as u64 <= limit => Ok(stored.to_vec()),
            [] => Err(CodecError(format!(
                "it has {} bytes; expected at most {limit}",
                stored.len()
            ))),
            [only] => {
                let decoded = only.transform.decode_bare(salt, stored, limit);
                decoded.map_err(CodecError)
            }
            _ => Err(CodecError(
                "it has no trailer, and so it is not known what was done to it".to_owned(),
            )),
        }
    }
}

impl Stage {
    fn is_secret(&self) -> bool {
        self.transform.secrecy() != Secrecy::None
    }
}

fn row(given: &Map<String, Value>) -> Result<&'static ondol_catalog::TransformRow, CodecError> {
    let linked = || {
        let names: Vec<_> = transforms().iter().map(|row| row.name).collect();
        names.join(", ")
    };
    let Some(name) = given.get("type") else {
        return Err(CodecError(format!(
            "serde has no \"type\"; expected one of: {}",
            linked()
        )));
    };
    let found = name.as_str().and_then(transform);
    found.ok_or_else(|| {
        let why = if name.as_str().is_some_and(|name| FOREIGN.contains(&name)) {
            "a transform of LMCache's that changes values, while Ondol gives back the bytes that were stored"
        } else {
            "no transform that is linked in"
        };
        CodecError(format!(
            "serde type is {name}, {why}; expected one of: {}",
            linked()
        ))
    })
}

/// The transform of this number, if it needs no configuration.
fn unconfigured(id: u8) -> Result<Stage, CodecError> {
    let row = TRANSFORMS.iter().find(|row| row.id == id);
    let row = row.ok_or_else(|| {
        CodecError(format!(
            "it was stored with transform {id}, which is not linked in"
        ))
    })?;
    match (row.build)(&Map::new()) {
        Ok(BuiltTransform::Bytes(transform)) => Ok(Stage {
            id,
            name: row.name,
            transform,
        }),
        Ok(BuiltTransform::Check { .. }) | Err(_) => Err(CodecError(format!(
            "it was stored with {}, which is not configured here",
            row.name
        ))),
    }
}
