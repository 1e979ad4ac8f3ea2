use ondol_plugin::l2::L2AdapterFactory;
use serde_json::{Map, Value, json};

use super::Bench;
use crate::apart::{Outcome, complaint};
use crate::l2::subject::open;

/// Keys that all types have in common, and `type` itself.
const COMMON_KEYS: [&str; 7] = [
    "type",
    "eviction",
    "serde",
    "shared",
    "affinity_tag",
    "persist_enabled",
    "required",
];

pub(super) fn parameters(bench: &Bench<'_>) -> Outcome<()> {
    let Some(registration) = &bench.subject.registration else {
        return Ok(());
    };
    let found = registration.config(bench.dir.path());
    let config = found.or_else(|error| complaint("configuration", format!("{error:#}")))?;
    let found = registration.factory(&config);
    let factory = found.or_else(|error| complaint("registration", format!("{error:#}")))?;
    let listed = factory.parameter_list();
    for name in config.keys() {
        let is_common = COMMON_KEYS.contains(&name.as_str());
        if !is_common && listed.iter().all(|parameter| parameter.name != name) {
            return complaint(
                "parameters",
                format!(
                    "leave `{name}` out, which is configured; list it, so that `ondol plugins` shows it"
                ),
            );
        }
    }
    for parameter in listed {
        let mut nonsense = config.clone();
        nonsense.insert(parameter.name.to_owned(), json!({"nonsense": [null]}));
        try_open(bench, factory, &nonsense);
        if parameter.default.is_none() {
            let mut without = config.clone();
            without.remove(parameter.name);
            expect_refusal(bench, factory, &without, parameter.name)?;
        }
    }
    Ok(())
}

/// Opens it and closes it again, if it opens; why it does not.
fn try_open(
    bench: &Bench<'_>,
    factory: &L2AdapterFactory,
    config: &Map<String, Value>,
) -> Option<String> {
    bench.at.set("open");
    match open(factory, config) {
        Ok(adapter) => {
            bench.at.set("close");
            adapter.close(bench.subject.patience);
            None
        }
        Err(error) => Some(format!("{error:#}")),
    }
}

fn expect_refusal(
    bench: &Bench<'_>,
    factory: &L2AdapterFactory,
    config: &Map<String, Value>,
    missing: &str,
) -> Outcome<()> {
    match try_open(bench, factory, config) {
        Some(error) if error.contains(missing) => Ok(()),
        Some(error) => complaint(
            "open",
            format!("failed without `{missing}` and did not name it: {error}"),
        ),
        None => complaint(
            "open",
            format!(
                "did well without `{missing}`, which must be given according to its parameters"
            ),
        ),
    }
}
