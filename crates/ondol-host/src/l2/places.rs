//! Backends that would keep their objects in one place.

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::AdapterSpec;

/// The parameter that names the directory of a backend, also of one that another one wraps.
const PLACE: &str = "base_path";

/// The first directory that two backends both have, with the numbers of the two.
pub(super) fn shared(specs: &[AdapterSpec]) -> Option<(usize, usize, PathBuf)> {
    let mut known: Vec<(usize, PathBuf)> = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let mut own = Vec::new();
        collect(&spec.parameters, &mut own);
        for place in own {
            if let Some((other, _)) = known.iter().find(|(_, other)| *other == place) {
                return Some((*other, index, place));
            }
            known.push((index, place));
        }
    }
    None
}

fn collect(map: &Map<String, Value>, places: &mut Vec<PathBuf>) {
    for (key, value) in map {
        match value {
            Value::String(path) if key == PLACE => {
                let path = PathBuf::from(path);
                places.push(fs::canonicalize(&path).unwrap_or(path));
            }
            Value::Object(inner) => collect(inner, places),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared_of(list: &str) -> Option<(usize, usize)> {
        let specs = AdapterSpec::parse_list(list).unwrap();
        shared(&specs).map(|(first, second, _)| (first, second))
    }

    #[test]
    fn one_directory_for_two_backends_is_found_however_it_is_written() {
        let list =
            r#"[{"type":"x"},{"type":"fs","base_path":"/"},{"type":"fs","base_path":"/usr/.."}]"#;
        assert_eq!(shared_of(list), Some((1, 2)));
        let list = r#"[{"type":"native_plugin","adapter_params":{"base_path":"/no/such"}},
            {"type":"fault_inject","inner":{"type":"fs","base_path":"/no/such"}}]"#;
        assert_eq!(shared_of(list), Some((0, 1)));
        let list = r#"[{"type":"fs","base_path":"/a"},{"type":"fs","base_path":"/b"}]"#;
        assert_eq!(shared_of(list), None);
    }
}
