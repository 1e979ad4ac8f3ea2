use serde::Deserialize;

/// The parameters of the backend, as they stand in the JSON beside `type`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct {{Type}}Config {
    /// Objects that are kept; more are refused.
    pub max_objects: Option<usize>,
    /// Threads that store and load.
    pub num_workers: usize,
}

impl Default for {{Type}}Config {
    fn default() -> Self {
        Self {
            max_objects: None,
            num_workers: 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: serde_json::Value) -> Result<{{Type}}Config, serde_json::Error> {
        serde_json::from_value(json)
    }

    #[test]
    fn what_is_not_given_has_a_default() {
        let config = read(serde_json::json!({"max_objects": 7, "unknown": true})).unwrap();
        assert_eq!(
            config,
            {{Type}}Config {
                max_objects: Some(7),
                ..{{Type}}Config::default()
            }
        );
    }

    #[test]
    fn a_value_of_another_kind_is_named_in_the_error() {
        let error = read(serde_json::json!({"num_workers": "many"})).unwrap_err();
        assert!(error.to_string().contains("many"), "{error}");
    }
}
