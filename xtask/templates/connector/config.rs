use serde::Deserialize;

/// The parameters of the connector, as they stand under `adapter_params`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct {{Type}}Config {
    /// Threads that serve requests.
    pub num_workers: usize,
}

impl Default for {{Type}}Config {
    fn default() -> Self {
        Self { num_workers: 4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_has_a_default() {
        let config: {{Type}}Config = serde_json::from_str("{\"unknown\": 1}").unwrap();
        assert_eq!(config, {{Type}}Config::default());
    }
}
