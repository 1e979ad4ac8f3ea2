//! Settings as text, from the configuration file, the environment and the command line, each with where it came from.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::log::LogArgs;

/// Every setting: its key in the configuration file, from which the names of its variable (`ONDOL_KEY`) and of its
/// flag (`--key`, with dashes) follow, and how many values it takes.
const SETTINGS: &[(&str, Takes)] = &[
    ("pool", Takes::Many),
    ("durability", Takes::One),
    ("fresh", Takes::One),
    ("verify", Takes::One),
    ("log_segment", Takes::One),
    ("log_compact", Takes::One),
    ("policy", Takes::One),
    ("region_size", Takes::One),
    ("share_limit", Takes::One),
    ("pool_mode", Takes::One),
    ("state_dir", Takes::One),
    ("socket", Takes::One),
    ("socket_mode", Takes::One),
    ("group", Takes::One),
    ("allow_uid", Takes::Many),
    ("max_clients", Takes::One),
    ("max_connections", Takes::One),
    ("max_connections_per_process", Takes::One),
    ("frame_budget", Takes::One),
    ("http", Takes::One),
    ("l2_adapter", Takes::Json),
    ("l2_store_policy", Takes::One),
    ("l2_prefetch_policy", Takes::One),
    ("l2_admit_after", Takes::One),
    ("l2_store_overflow", Takes::One),
    ("l2_store_in_flight", Takes::One),
    ("l2_load_in_flight", Takes::One),
    ("l2_store_timeout", Takes::One),
    ("l2_lookup_timeout", Takes::One),
    ("l2_load_timeout", Takes::One),
    ("l2_close_timeout", Takes::One),
    ("log", Takes::One),
    ("log_format", Takes::One),
];

/// How many values a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    One,
    /// Several; in a variable they are separated by commas.
    Many,
    /// Several that hold commas themselves; a variable is one value.
    Json,
}

/// A setting that somebody made.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    values: Vec<String>,
    from: String,
}

/// The settings that were made; of two makers the later one is heard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers(BTreeMap<&'static str, Given>);

/// The configuration file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    pool: Option<OneOrMany>,
    durability: Option<String>,
    fresh: Option<Switch>,
    verify: Option<String>,
    log_segment: Option<Scalar>,
    log_compact: Option<Scalar>,
    policy: Option<String>,
    region_size: Option<Scalar>,
    share_limit: Option<Scalar>,
    pool_mode: Option<String>,
    state_dir: Option<String>,
    socket: Option<String>,
    socket_mode: Option<String>,
    group: Option<Scalar>,
    allow_uid: Option<OneOrMany>,
    max_clients: Option<Scalar>,
    max_connections: Option<Scalar>,
    max_connections_per_process: Option<Scalar>,
    frame_budget: Option<Scalar>,
    http: Option<String>,
    l2_adapter: Option<OneOrManyObjects>,
    l2_store_policy: Option<String>,
    l2_prefetch_policy: Option<String>,
    l2_admit_after: Option<Scalar>,
    l2_store_overflow: Option<String>,
    l2_store_in_flight: Option<Scalar>,
    l2_load_in_flight: Option<Scalar>,
    l2_store_timeout: Option<Seconds>,
    l2_lookup_timeout: Option<Seconds>,
    l2_load_timeout: Option<Seconds>,
    l2_close_timeout: Option<Seconds>,
    log: Option<String>,
    log_format: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a whole number, or a text such as \"64MiB\"")]
enum Scalar {
    Number(u64),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a number of seconds")]
enum Seconds {
    Whole(u64),
    Part(f64),
    Text(String),
}

/// Tables, or JSON in a text.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a table or a JSON text, or a list of these")]
enum OneOrManyObjects {
    One(Object),
    Many(Vec<Object>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a table or a JSON text")]
enum Object {
    Text(String),
    Table(serde_json::Map<String, serde_json::Value>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "true or false")]
enum Switch {
    Bare(bool),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a value or a list of values")]
enum OneOrMany {
    One(Scalar),
    Many(Vec<Scalar>),
}

impl From<Scalar> for String {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Number(number) => number.to_string(),
            Scalar::Text(text) => text,
        }
    }
}

impl From<Seconds> for String {
    fn from(seconds: Seconds) -> Self {
        match seconds {
            Seconds::Whole(number) => number.to_string(),
            Seconds::Part(number) => number.to_string(),
            Seconds::Text(text) => text,
        }
    }
}

impl From<Object> for String {
    fn from(object: Object) -> Self {
        match object {
            Object::Text(text) => text,
            Object::Table(map) => serde_json::Value::Object(map).to_string(),
        }
    }
}

impl OneOrManyObjects {
    fn into_texts(self) -> Vec<String> {
        match self {
            Self::One(object) => vec![object.into()],
            Self::Many(objects) => objects.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<Switch> for String {
    fn from(switch: Switch) -> Self {
        match switch {
            Switch::Bare(on) => on.to_string(),
            Switch::Text(text) => text,
        }
    }
}

impl OneOrMany {
    fn into_texts(self) -> Vec<String> {
        match self {
            Self::One(scalar) => vec![scalar.into()],
            Self::Many(scalars) => scalars.into_iter().map(Into::into).collect(),
        }
    }
}

impl Given {
    /// Reads the value; what is wrong with it is told together with where it came from.
    pub(crate) fn parse<T, E>(&self, read: impl Fn(&str) -> Result<T, E>) -> anyhow::Result<T>
    where
        Result<T, E>: Context<T, E>,
    {
        let value = self.values.first().map_or("", String::as_str);
        read(value).with_context(|| self.from.clone())
    }

    /// Reads all values.
    pub(crate) fn parse_all<T, E>(
        &self,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> anyhow::Result<Vec<T>>
    where
        Result<T, E>: Context<T, E>,
    {
        let read = |value: &String| read(value).with_context(|| self.from.clone());
        self.values.iter().map(read).collect()
    }
}

impl Layers {
    /// The setting of this key, if it was made.
    pub(crate) fn get(&self, key: &str) -> Option<&Given> {
        self.0.get(key)
    }

    /// Reads the setting of this key, if it was made.
    pub(crate) fn parse<T, E>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> anyhow::Result<Option<T>>
    where
        Result<T, E>: Context<T, E>,
    {
        self.get(key).map(|given| given.parse(read)).transpose()
    }

    /// Who made the setting, for an error that came up later; `fallback` if nobody did.
    pub(crate) fn origin<'a>(&'a self, key: &str, fallback: &'a str) -> &'a str {
        self.get(key).map_or(fallback, |given| &given.from)
    }

    fn set(&mut self, key: &'static str, values: Vec<String>, from: impl Display) {
        if !values.is_empty() {
            let from = from.to_string();
            self.0.insert(key, Given { values, from });
        }
    }

    /// Adds a configuration file.
    pub(crate) fn with_file(mut self, path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration file {shown}"))?;
        let file: File = toml::from_str(&text)
            .with_context(|| format!("configuration file {shown} is not as expected"))?;
        let one = |value: Option<String>| Vec::from_iter(value);
        let scalar = |value: Option<Scalar>| Vec::from_iter(value.map(Into::into));
        let seconds = |value: Option<Seconds>| Vec::from_iter(value.map(Into::into));
        let objects = file.l2_adapter.map(OneOrManyObjects::into_texts);
        let many = |value: Option<OneOrMany>| value.map_or_else(Vec::new, OneOrMany::into_texts);
        for (key, values) in [
            ("pool", many(file.pool)),
            ("durability", one(file.durability)),
            ("fresh", one(file.fresh.map(Into::into))),
            ("verify", one(file.verify)),
            ("log_segment", scalar(file.log_segment)),
            ("log_compact", scalar(file.log_compact)),
            ("policy", one(file.policy)),
            ("region_size", scalar(file.region_size)),
            ("share_limit", scalar(file.share_limit)),
            ("pool_mode", one(file.pool_mode)),
            ("state_dir", one(file.state_dir)),
            ("socket", one(file.socket)),
            ("socket_mode", one(file.socket_mode)),
            ("group", scalar(file.group)),
            ("allow_uid", many(file.allow_uid)),
            ("max_clients", scalar(file.max_clients)),
            ("max_connections", scalar(file.max_connections)),
            (
                "max_connections_per_process",
                scalar(file.max_connections_per_process),
            ),
            ("frame_budget", scalar(file.frame_budget)),
            ("http", one(file.http)),
            ("l2_adapter", objects.unwrap_or_default()),
            ("l2_store_policy", one(file.l2_store_policy)),
            ("l2_prefetch_policy", one(file.l2_prefetch_policy)),
            ("l2_admit_after", scalar(file.l2_admit_after)),
            ("l2_store_overflow", one(file.l2_store_overflow)),
            ("l2_store_in_flight", scalar(file.l2_store_in_flight)),
            ("l2_load_in_flight", scalar(file.l2_load_in_flight)),
            ("l2_store_timeout", seconds(file.l2_store_timeout)),
            ("l2_lookup_timeout", seconds(file.l2_lookup_timeout)),
            ("l2_load_timeout", seconds(file.l2_load_timeout)),
            ("l2_close_timeout", seconds(file.l2_close_timeout)),
            ("log", one(file.log)),
            ("log_format", one(file.log_format)),
        ] {
            self.set(key, values, format_args!("{shown}, key `{key}`"));
        }
        Ok(self)
    }

    /// Adds the variables `ONDOL_…` of the environment; one that is blank says nothing.
    pub(crate) fn with_environment(mut self) -> anyhow::Result<Self> {
        for &(key, takes) in SETTINGS {
            let variable = variable(key);
            let Some(value) = std::env::var_os(&variable) else {
                continue;
            };
            let Ok(value) = value.into_string() else {
                bail!("{variable} is not UTF-8");
            };
            let values: Vec<&str> = if takes == Takes::Many {
                value.split(',').collect()
            } else {
                vec![&value]
            };
            let given = values.into_iter().map(str::trim);
            let given = given.filter(|value| !value.is_empty()).map(str::to_owned);
            self.set(key, given.collect(), &variable);
        }
        Ok(self)
    }

    /// Adds a flag of the command line.
    pub(crate) fn with_flag<'a>(
        mut self,
        key: &'static str,
        values: impl IntoIterator<Item = &'a String>,
    ) -> Self {
        let flag = format!("--{}", key.replace('_', "-"));
        self.set(key, values.into_iter().cloned().collect(), flag);
        self
    }

    /// Adds the flags of the log.
    pub(crate) fn with_log(self, args: &LogArgs) -> Self {
        self.with_flag("log", &args.log)
            .with_flag("log_format", &args.log_format)
    }
}

fn variable(key: &str) -> String {
    format!("ONDOL_{}", key.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn file(text: &str) -> anyhow::Result<Layers> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("ondol.toml");
        fs::write(&path, text)?;
        Layers::default().with_file(&path)
    }

    #[test]
    fn every_key_of_the_file_is_a_setting_and_keeps_where_it_came_from() {
        let text = SETTINGS.iter().map(|(key, takes)| {
            let value = match takes {
                Takes::One => "'1'",
                Takes::Many => "['1', 2]",
                Takes::Json => "['1', { type = 'x', eviction = { a = 0.5 } }]",
            };
            format!("{key} = {value}\n")
        });
        let layers = file(&text.collect::<String>()).unwrap();
        for &(key, takes) in SETTINGS {
            let given = layers.get(key).unwrap();
            let values: &[&str] = match takes {
                Takes::One => &["1"],
                Takes::Many => &["1", "2"],
                Takes::Json => &["1", r#"{"eviction":{"a":0.5},"type":"x"}"#],
            };
            assert_eq!(given.values, values);
            let from = &given.from;
            assert!(
                from.ends_with(&format!("ondol.toml, key `{key}`")),
                "{from}"
            );
        }
    }

    #[test]
    fn backends_may_be_tables_or_json_and_keep_their_order() {
        let layers = file(
            r#"
l2_load_timeout = 0.5
[[l2_adapter]]
type = "fs"
base_path = "/mnt/a,b"
[l2_adapter.eviction]
eviction_policy = "LRU"
[[l2_adapter]]
type = "memory"
"#,
        );
        let layers = layers.unwrap();
        let texts = &layers.get("l2_adapter").unwrap().values;
        assert_eq!(
            texts,
            &[
                r#"{"base_path":"/mnt/a,b","eviction":{"eviction_policy":"LRU"},"type":"fs"}"#,
                r#"{"type":"memory"}"#
            ]
        );
        assert_eq!(layers.get("l2_load_timeout").unwrap().values, ["0.5"]);
        let one = file(r#"l2_adapter = '{"type":"memory"}'"#).unwrap();
        assert_eq!(
            one.get("l2_adapter").unwrap().values,
            [r#"{"type":"memory"}"#]
        );
        let text = format!("{:#}", file("l2_adapter = 7").unwrap_err());
        assert!(text.contains("a table or a JSON text"), "{text}");
    }

    #[test]
    fn numbers_may_stand_bare_and_a_list_may_be_one_value() {
        let layers = file("pool = 4194304\nregion_size = 65536\nallow_uid = 7").unwrap();
        for (key, value) in [
            ("pool", "4194304"),
            ("region_size", "65536"),
            ("allow_uid", "7"),
        ] {
            assert_eq!(layers.get(key).unwrap().values, [value]);
        }
    }

    #[test]
    fn a_wrong_key_or_kind_is_told_with_its_line() {
        let text = format!("{:#}", file("policy = 'lru'\npools = []").unwrap_err());
        for part in ["ondol.toml", "line 2", "unknown field `pools`", "`pool`"] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        let text = format!("{:#}", file("region_size = [1]").unwrap_err());
        assert!(text.contains("64MiB"), "{text}");
    }

    #[test]
    fn a_flag_is_heard_before_the_file_and_an_error_names_its_maker() {
        let layers = file("region_size = 'x'\npolicy = 'lru'").unwrap();
        let read = ondol_memory::parse_size;
        let error = layers.parse("region_size", read).unwrap_err();
        assert!(
            format!("{error:#}").contains("key `region_size`: size \"x\""),
            "{error:#}"
        );
        let layers = layers.with_flag("region_size", [&"y".to_owned()]);
        let error = layers.parse("region_size", read).unwrap_err();
        assert!(
            format!("{error:#}").starts_with("--region-size: size \"y\""),
            "{error:#}"
        );
        assert_eq!(layers.get("policy").unwrap().values, ["lru"]);
    }
}
