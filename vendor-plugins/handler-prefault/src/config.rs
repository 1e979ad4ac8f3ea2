use ondol_plugin::FactoryContext;

use crate::Error;

/// What the environment asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many bytes may be pinned; 0 for none.
    pub pin_bytes: u64,
}

impl Config {
    /// The configuration in the environment; `None` unless it switches the plugin on.
    ///
    /// # Errors
    /// [`Error`] if a variable holds what it can not.
    pub fn from_context(context: &FactoryContext<'_>) -> Result<Option<Self>, Error> {
        let Some(switch) = context.var("ONDOL_PREFAULT") else {
            return Ok(None);
        };
        match switch.trim().to_ascii_lowercase().as_str() {
            "1" | "on" | "true" => {}
            "0" | "off" | "false" => return Ok(None),
            _ => return Err(Error::Switch { found: switch }),
        }
        let pin_bytes = match context.var("ONDOL_PREFAULT_PIN_BYTES") {
            None => 0,
            Some(text) => size(&text).ok_or(Error::PinBytes { found: text })?,
        };
        Ok(Some(Self { pin_bytes }))
    }
}

fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "kib" => 10,
        "mib" => 20,
        "gib" => 30,
        "tib" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
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
    fn it_is_inert_until_switched_on() {
        assert_eq!(config(&[]), Ok(None));
        assert_eq!(config(&[("ONDOL_PREFAULT_PIN_BYTES", "64MiB")]), Ok(None));
        for off in ["0", "off", "False", " "] {
            assert_eq!(config(&[("ONDOL_PREFAULT", off)]), Ok(None), "{off}");
        }
        for on in ["1", "on", "TRUE", " on "] {
            assert_eq!(
                config(&[("ONDOL_PREFAULT", on)]),
                Ok(Some(Config { pin_bytes: 0 })),
                "{on}"
            );
        }
        let error = config(&[("ONDOL_PREFAULT", "yes please")]).unwrap_err();
        assert!(error.to_string().contains("yes please"), "{error}");
    }

    #[test]
    fn sizes_have_units_and_limits() {
        let pin = |text: &str| {
            config(&[("ONDOL_PREFAULT", "1"), ("ONDOL_PREFAULT_PIN_BYTES", text)])
                .map(|config| config.unwrap().pin_bytes)
        };
        assert_eq!(pin("0"), Ok(0));
        assert_eq!(pin("4096"), Ok(4096));
        assert_eq!(pin("64MiB"), Ok(64 << 20));
        assert_eq!(pin(" 2 gib "), Ok(2 << 30));
        for bad in [
            "MiB",
            "-1",
            "1.5GiB",
            "64MB",
            "64M",
            "16777216TiB",
            "99999999999999999999",
        ] {
            let error = pin(bad).unwrap_err().to_string();
            assert!(
                error.contains(bad) && error.contains("such as 64MiB"),
                "{error}"
            );
        }
    }
}
