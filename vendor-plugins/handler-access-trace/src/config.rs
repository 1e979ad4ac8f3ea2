use std::path::PathBuf;
use std::time::Duration;

use ondol_plugin::FactoryContext;

use crate::Error;

/// What the environment asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file to append to.
    pub path: PathBuf,
    /// When lines must reach the file.
    pub flush: Flush,
}

/// When lines must reach the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// After every line.
    Line,
    /// At least this often.
    Interval(Duration),
    /// When the handler closes, or the buffer is full.
    Close,
}

impl Config {
    /// The configuration in the environment; `None` if it names no file.
    ///
    /// # Errors
    /// [`Error::Flush`] if the flush policy is not one.
    pub fn from_context(context: &FactoryContext<'_>) -> Result<Option<Self>, Error> {
        let Some(path) = context.var("ONDOL_ACCESS_TRACE") else {
            return Ok(None);
        };
        let flush = match context.var("ONDOL_ACCESS_TRACE_FLUSH") {
            None => Flush::default(),
            Some(text) => Flush::parse(&text).ok_or(Error::Flush { found: text })?,
        };
        Ok(Some(Self {
            path: path.into(),
            flush,
        }))
    }
}

impl Flush {
    fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "line" => Some(Self::Line),
            "close" => Some(Self::Close),
            "interval" => Some(Self::default()),
            other => duration(other.strip_prefix("interval:")?).map(Self::Interval),
        }
    }
}

impl Default for Flush {
    fn default() -> Self {
        Self::Interval(Duration::from_secs(1))
    }
}

/// A whole number with the unit `ms` or `s`, and not nothing: a writer that flushes all the time is `line`.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = number.parse().ok().filter(|number| *number > 0)?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<Option<Config>, Error> {
        let find = |name: &str| {
            let hit = variables.iter().find(|(variable, _)| *variable == name);
            hit.map(|(_, value)| (*value).to_owned())
        };
        Config::from_context(&FactoryContext::new(&find))
    }

    #[test]
    fn without_a_file_it_is_not_configured() {
        assert_eq!(config(&[]).unwrap(), None);
        assert_eq!(config(&[("ONDOL_ACCESS_TRACE", "  ")]).unwrap(), None);
        assert_eq!(
            config(&[("ONDOL_ACCESS_TRACE_FLUSH", "nonsense")]).unwrap(),
            None
        );
    }

    #[test]
    fn every_flush_policy_is_understood_and_nothing_else() {
        let flush = |text: &str| {
            config(&[
                ("ONDOL_ACCESS_TRACE", "/t"),
                ("ONDOL_ACCESS_TRACE_FLUSH", text),
            ])
            .map(|config| config.unwrap().flush)
        };
        let second = Flush::Interval(Duration::from_secs(1));
        assert_eq!(flush("").unwrap(), second);
        assert_eq!(flush("interval").unwrap(), second);
        assert_eq!(flush(" line ").unwrap(), Flush::Line);
        assert_eq!(flush("close").unwrap(), Flush::Close);
        assert_eq!(
            flush("interval:250ms").unwrap(),
            Flush::Interval(Duration::from_millis(250))
        );
        assert_eq!(
            flush("interval:3s").unwrap(),
            Flush::Interval(Duration::from_secs(3))
        );
        for bad in [
            "lines",
            "interval:",
            "interval:5",
            "interval:0s",
            "interval:-1s",
            "interval:1h",
        ] {
            let error = flush(bad).unwrap_err().to_string();
            assert!(
                error.contains(bad) && error.contains("expected line, interval"),
                "{error}"
            );
        }
    }
}
