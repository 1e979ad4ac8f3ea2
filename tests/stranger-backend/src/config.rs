use std::path::PathBuf;

use serde::Deserialize;

/// The parameters of the backend, as they stand in the JSON beside `type`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct JournalFileConfig {
    /// The file.
    pub path: PathBuf,
    /// Bytes of objects that are kept; more are refused.
    pub max_bytes: Option<u64>,
    /// Threads that store and load.
    pub num_workers: usize,
}

/// What somebody wrote.
#[derive(Deserialize)]
struct Written {
    path: PathBuf,
    max_bytes: Option<u64>,
    num_workers: Option<usize>,
}

impl TryFrom<Written> for JournalFileConfig {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        if written.path.file_name().is_none() {
            return Err(format!(
                "path is {:?}; expected the name of a file",
                written.path
            ));
        }
        if written.max_bytes == Some(0) {
            return Err("max_bytes is 0; expected at least 1, or nothing for no limit".to_owned());
        }
        let num_workers = written.num_workers.unwrap_or(4);
        if !(1..=256).contains(&num_workers) {
            return Err(format!("num_workers is {num_workers}; expected 1 to 256"));
        }
        Ok(Self {
            path: written.path,
            max_bytes: written.max_bytes,
            num_workers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(json: serde_json::Value) -> Result<JournalFileConfig, String> {
        serde_json::from_value(json).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_has_a_default() {
        let expected = JournalFileConfig {
            path: "/data/kv".into(),
            max_bytes: None,
            num_workers: 4,
        };
        assert_eq!(
            read(json!({"path": "/data/kv", "unknown": true})),
            Ok(expected)
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        for (json, name) in [
            (json!({}), "path"),
            (json!({"path": ""}), "path"),
            (json!({"path": "/data/.."}), "path"),
            (json!({"path": "/data/kv", "max_bytes": 0}), "max_bytes"),
            (json!({"path": "/data/kv", "num_workers": 0}), "num_workers"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
