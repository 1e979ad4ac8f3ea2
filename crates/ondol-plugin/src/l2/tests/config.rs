use serde_json::json;

use crate::l2::{AdapterConfig, ConfigClass};

#[derive(Clone, Debug, serde::Deserialize)]
struct Disk {
    path: String,
    #[serde(default)]
    retry: Retry,
}

#[derive(Clone, Debug, Default, serde::Deserialize)]
struct Retry {
    times: u32,
}

fn parameters(value: serde_json::Value) -> serde_json::Map<String, serde_json::Value> {
    value.as_object().unwrap().clone()
}

#[test]
fn a_parameter_of_another_kind_is_refused_with_its_name() {
    let class = ConfigClass::new::<Disk>("DiskConfig");
    let refused = |value| class.read(parameters(value)).unwrap_err().to_string();
    for error in [
        refused(json!({"path": 7})),
        AdapterConfig::raw(parameters(json!({"path": 7})))
            .read::<Disk>()
            .unwrap_err()
            .to_string(),
    ] {
        assert!(
            error.starts_with("path: ") && error.contains('7'),
            "{error}"
        );
    }
    let nested = refused(json!({"path": "/x", "retry": {"times": "often"}}));
    assert!(
        nested.contains("retry.times") && nested.contains("often"),
        "{nested}"
    );
    let missing = refused(json!({}));
    assert!(missing.contains("path"), "{missing}");
}

#[test]
fn typed_parameters_are_read_once_and_raw_ones_when_asked_for() {
    let class = ConfigClass::new::<Disk>("DiskConfig");
    let given = parameters(json!({"path": "/x", "retry": {"times": 3}, "unknown": true}));
    let typed = class.read(given.clone()).unwrap();
    assert_eq!(typed.typed::<Disk>().unwrap().retry.times, 3);
    let raw = AdapterConfig::raw(given);
    assert!(raw.typed::<Disk>().is_none());
    assert_eq!(raw.read::<Disk>().unwrap().path, "/x");
}
