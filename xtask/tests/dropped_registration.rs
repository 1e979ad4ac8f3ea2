//! A plugin among the dependencies of a binary that does not name it: the linker drops its registration without
//! a word, and the registry step must not.

use xtask::contract::registry::{Build, inspect};
use xtask::workspace::Workspace;

#[test]
fn a_registration_that_the_linker_dropped_fails_with_both_lists() {
    let workspace = Workspace::load().unwrap();
    let dir = workspace
        .root
        .join("tests/contract-fixtures/dropped-registration");
    // The versions that are downloaded already.
    std::fs::copy(workspace.root.join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    let promised = ["fixture-plugin".to_owned()];
    let look = |features: &[&str]| {
        let features: Vec<_> = features.iter().map(|&feature| feature.to_owned()).collect();
        let build = Build {
            manifest: &dir.join("Cargo.toml"),
            package: "dropped-registration",
            target: workspace.target(),
            features: Some(&features),
            release: false,
        };
        inspect(&build.run().unwrap(), &promised)
    };

    let silent = look(&[]).unwrap_err().to_string();
    assert!(
        silent.contains("promise packages [fixture-plugin]"),
        "{silent}"
    );
    assert!(silent.contains("registers []"), "{silent}");

    let loud = look(&["self-check"]).unwrap_err().to_string();
    assert!(loud.contains("78"), "{loud}");
    assert!(
        loud.contains("expected packages [fixture-plugin], found []"),
        "{loud}"
    );
    assert!(loud.contains("use fixture_plugin as _;"), "{loud}");

    // All that is missing is the name.
    assert_eq!(look(&["named", "self-check"]).unwrap(), 1);
}
