use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

/// One `--l2-adapter`, with the keys that all types have in common read.
///
/// The JSON is LMCache's (0.5.6): an object with a `type`, the keys below, and the parameters of the type. Keys that nobody
/// knows are ignored, as there. `required` is ours.
///
/// ```
/// use ondol_host::l2::AdapterSpec;
///
/// let spec: AdapterSpec = r#"{"type":"fs","base_path":"/mnt/kv","eviction":{"eviction_policy":"LRU"}}"#.parse()?;
/// assert_eq!(spec.type_name, "fs");
/// assert_eq!(spec.eviction.unwrap().policy, "lru");
/// # Ok::<(), ondol_host::l2::SpecError>(())
/// ```
#[derive(Clone)]
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

/// LMCache's names of eviction policies, and ours.
const POLICIES: [(&str, &str); 4] = [
    ("LRU", "lru"),
    ("ARC", "arc"),
    ("IsolatedLRU", "isolated-lru"),
    ("S3FIFO", "s3-fifo"),
];

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// It is no JSON.
    #[error(
        "the adapter is {found}, which is no JSON: {reason}; expected an object such as {{\"type\":\"fs\",…}}"
    )]
    NoJson {
        /// The text, shortened.
        found: String,
        /// What the parser says.
        reason: String,
    },
    /// It is JSON of another kind.
    #[error("the adapter is {found}; expected an object such as {{\"type\":\"fs\",…}}{or_list}")]
    NoObject {
        /// What it is.
        found: String,
        /// Whether a list would do as well.
        or_list: &'static str,
    },
    /// A key that must be given.
    #[error("`{field}` is missing; expected {expected}")]
    Missing {
        /// The key.
        field: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A value that cannot be.
    #[error("`{field}` is {found}; expected {expected}")]
    Wrong {
        /// The key.
        field: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
}

impl AdapterSpec {
    /// Reads the common keys of a configuration.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn parse(parameters: &Map<String, Value>) -> Result<Self, SpecError> {
        let fields = Fields {
            within: "",
            map: parameters,
        };
        let type_name = fields.name("type", "the name of an adapter type such as \"fs\"")?;
        let type_name = type_name.ok_or_else(|| SpecError::Missing {
            field: "type".to_owned(),
            expected: "the name of an adapter type such as \"fs\"",
        })?;
        let affinity_tag = fields.name("affinity_tag", "the name of a memory tier")?;
        Ok(Self {
            type_name,
            eviction: fields
                .object("eviction")?
                .map(EvictionSpec::parse)
                .transpose()?,
            transforms: transforms(fields.get("serde"))?,
            shared: fields.switch("shared", false)?,
            affinity_tag: affinity_tag.unwrap_or_else(|| "_default".to_owned()),
            persist_enabled: fields.switch("persist_enabled", true)?,
            required: fields.switch("required", true)?,
            parameters: parameters.clone(),
        })
    }

    /// Reads a list of configurations, or a single one.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn parse_list(text: &str) -> Result<Vec<Self>, SpecError> {
        let maps = match json(text)? {
            Value::Object(map) => vec![map],
            Value::Array(items) => items
                .into_iter()
                .map(|item| object(item, ""))
                .collect::<Result<_, _>>()?,
            other => vec![object(other, " or a list of them")?],
        };
        maps.iter().map(Self::parse).collect()
    }
}

impl FromStr for AdapterSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::parse(&object(json(text)?, "")?)
    }
}

/// Prints the names of parameters only: values may be secret.
impl fmt::Debug for AdapterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterSpec")
            .field("type", &self.type_name)
            .field("eviction", &self.eviction)
            .field("required", &self.required)
            .field("parameters", &self.parameters.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl EvictionSpec {
    fn parse(map: &Map<String, Value>) -> Result<Self, SpecError> {
        let fields = Fields {
            within: "eviction.",
            map,
        };
        let expected = "LRU, ARC, IsolatedLRU, noop, or one of our policies such as \"s3-fifo\"";
        let Some(policy) = fields.name("eviction_policy", expected)? else {
            return Err(SpecError::Missing {
                field: "eviction.eviction_policy".to_owned(),
                expected,
            });
        };
        let ours = POLICIES
            .iter()
            .find(|(theirs, _)| *theirs == policy)
            .map(|(_, ours)| (*ours).to_owned());
        Ok(Self {
            policy: ours.unwrap_or(policy),
            trigger_watermark: fields.part("trigger_watermark", 0.8)?,
            eviction_ratio: fields.part("eviction_ratio", 0.2)?,
        })
    }
}

fn transforms(serde: Option<&Value>) -> Result<Vec<Map<String, Value>>, SpecError> {
    let expected = "an object with a `type` such as {\"type\":\"zstd\"}, or a list of such objects";
    let wrong = |found: &Value| SpecError::Wrong {
        field: "serde".to_owned(),
        found: shown(found),
        expected,
    };
    let one = |item: &Value| match item {
        Value::Object(map) if map.get("type").is_some_and(Value::is_string) => Ok(map.clone()),
        other => Err(wrong(other)),
    };
    match serde {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(one).collect(),
        Some(single) => Ok(vec![one(single)?]),
    }
}

/// The keys of an object; one that is `null` counts as not given.
pub(super) struct Fields<'a> {
    /// What stands before a key in a message.
    pub(super) within: &'a str,
    pub(super) map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn wrong(&self, key: &str, found: &Value, expected: &'static str) -> SpecError {
        SpecError::Wrong {
            field: format!("{}{key}", self.within),
            found: shown(found),
            expected,
        }
    }

    /// A text that is not empty.
    pub(super) fn name(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<String>, SpecError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
            Some(other) => Err(self.wrong(key, other, expected)),
        }
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, SpecError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    fn switch(&self, key: &str, default: bool) -> Result<bool, SpecError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(on)) => Ok(*on),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    fn part(&self, key: &str, default: f64) -> Result<f64, SpecError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        match value.as_f64() {
            Some(part) if part > 0.0 && part <= 1.0 => Ok(part),
            _ => Err(self.wrong(key, value, "a number above 0 and at most 1")),
        }
    }
}

fn json(text: &str) -> Result<Value, SpecError> {
    serde_json::from_str(text).map_err(|error| SpecError::NoJson {
        found: shortened(text),
        reason: error.to_string(),
    })
}

fn object(value: Value, or_list: &'static str) -> Result<Map<String, Value>, SpecError> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(SpecError::NoObject {
            found: shown(&other),
            or_list,
        }),
    }
}

/// A value as it stood, shortened.
fn shown(value: &Value) -> String {
    shortened(&value.to_string())
}

fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> AdapterSpec {
        text.parse().unwrap()
    }

    #[test]
    fn common_keys_have_the_defaults_that_lmcache_gives_them() {
        let spec = read(r#"{"type":"fs"}"#);
        assert_eq!(spec.affinity_tag, "_default");
        assert!(!spec.shared && spec.persist_enabled && spec.required);
        assert!(spec.eviction.is_none() && spec.transforms.is_empty());
        let eviction = read(r#"{"type":"fs","eviction":{"eviction_policy":"ARC"}}"#).eviction;
        let expected = EvictionSpec {
            policy: "arc".to_owned(),
            trigger_watermark: 0.8,
            eviction_ratio: 0.2,
        };
        assert_eq!(eviction, Some(expected));
    }

    #[test]
    fn policies_go_by_either_name_and_unknown_keys_are_left_to_the_type() {
        for (given, ours) in [
            ("LRU", "lru"),
            ("IsolatedLRU", "isolated-lru"),
            ("s3-fifo", "s3-fifo"),
            ("noop", "noop"),
        ] {
            let text = format!(r#"{{"type":"x","eviction":{{"eviction_policy":"{given}"}}}}"#);
            assert_eq!(read(&text).eviction.unwrap().policy, ours);
        }
        let spec = read(r#"{"type":"x","num_workers":4,"shared":null}"#);
        assert_eq!(spec.parameters["num_workers"], 4);
        assert!(!spec.shared);
    }

    #[test]
    fn transforms_are_one_or_several() {
        let types = |text: &str| -> Vec<String> {
            let transforms = read(text).transforms;
            let name = |map: &Map<String, Value>| map["type"].as_str().unwrap().to_owned();
            transforms.iter().map(name).collect()
        };
        assert_eq!(types(r#"{"type":"x","serde":{"type":"zstd"}}"#), ["zstd"]);
        let two = r#"{"type":"x","serde":[{"type":"zstd","level":3},{"type":"aesgcm"}]}"#;
        assert_eq!(types(two), ["zstd", "aesgcm"]);
    }

    #[test]
    fn what_is_wrong_is_told_with_field_value_and_expectation() {
        for (text, said) in [
            ("fs", "the adapter is fs, which is no JSON"),
            ("[1]", "the adapter is [1]; expected an object"),
            ("{}", "`type` is missing; expected the name of an adapter"),
            (r#"{"type":3}"#, "`type` is 3; expected the name"),
            (
                r#"{"type":"x","shared":"yes"}"#,
                "`shared` is \"yes\"; expected true or false",
            ),
            (
                r#"{"type":"x","eviction":"LRU"}"#,
                "`eviction` is \"LRU\"; expected an object",
            ),
            (
                r#"{"type":"x","eviction":{}}"#,
                "`eviction.eviction_policy` is missing; expected LRU, ARC",
            ),
            (
                r#"{"type":"x","eviction":{"eviction_policy":"LRU","trigger_watermark":80}}"#,
                "`eviction.trigger_watermark` is 80; expected a number above 0 and at most 1",
            ),
            (
                r#"{"type":"x","eviction":{"eviction_policy":"LRU","eviction_ratio":0}}"#,
                "`eviction.eviction_ratio` is 0; expected",
            ),
            (
                r#"{"type":"x","serde":"zstd"}"#,
                "`serde` is \"zstd\"; expected an object with a `type`",
            ),
            (r#"{"type":"x","serde":[{}]}"#, "`serde` is {}; expected"),
        ] {
            let error = text.parse::<AdapterSpec>().unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }

    #[test]
    fn a_list_may_be_a_single_one_and_secrets_are_not_printed() {
        assert_eq!(AdapterSpec::parse_list(r#"{"type":"a"}"#).unwrap().len(), 1);
        let two = AdapterSpec::parse_list(r#"[{"type":"a"},{"type":"b","password":"x1y2"}]"#);
        let two = two.unwrap();
        assert_eq!(two[1].type_name, "b");
        assert!(!format!("{two:?}").contains("x1y2"));
        let error = AdapterSpec::parse_list("7").unwrap_err().to_string();
        assert!(error.contains("or a list of them"), "{error}");
    }
}
