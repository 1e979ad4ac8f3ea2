use anyhow::{Context, Result};
use ondol_plugin::FactoryContext;

/// The variable that switches the plugin on.
const VARIABLE: &str = "{{VARIABLE}}";

/// What the environment asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Objects shorter than this are left alone.
    pub min_bytes: u64,
}

impl Config {
    /// The configuration in the environment; `None` if there is none, so that the plugin declines.
    ///
    /// # Errors
    /// A value that is no number.
    pub fn from_context(context: &FactoryContext<'_>) -> Result<Option<Self>> {
        let Some(text) = context.var(VARIABLE) else {
            return Ok(None);
        };
        let min_bytes = text
            .trim()
            .parse()
            .with_context(|| format!("{VARIABLE} is {text:?}; expected a number of bytes"))?;
        Ok(Some(Self { min_bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(value: Option<&str>) -> Result<Option<Config>> {
        let find = |name: &str| value.filter(|_| name == VARIABLE).map(str::to_owned);
        Config::from_context(&FactoryContext::new(&find))
    }

    #[test]
    fn without_its_variable_it_is_not_configured() {
        assert_eq!(config(None).unwrap(), None);
        assert_eq!(config(Some("  ")).unwrap(), None);
    }

    #[test]
    fn a_value_is_read_or_named_in_the_error() {
        assert_eq!(config(Some(" 4096 ")).unwrap(), Some(Config { min_bytes: 4096 }));
        let error = config(Some("many")).unwrap_err().to_string();
        assert!(error.contains("\"many\"") && error.contains(VARIABLE), "{error}");
    }
}
