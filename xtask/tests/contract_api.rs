//! The mutations of a contract crate that the check must notice, and the edits that it must not.

use xtask::contract::api::{classify, normalise, normalise_crate};
use xtask::contract::drift::{Level, level};

const CONTRACT: &str = r#"
//! A small contract.

mod batch {
    use std::fmt;
    use std::time::Duration;
    use crate::Key;

    /// One key of a batch.
    #[derive(Clone, Copy)]
    pub struct BatchEntry<'a> {
        key: &'a Key,
        place: Option<Place>,
    }

    #[derive(Clone, Copy)]
    struct Place {
        offset: u64,
    }

    struct Unrelated(u8);

    impl<'a> BatchEntry<'a> {
        /// The key.
        pub fn key(&self) -> &'a Key {
            self.key
        }
        /// Where it is.
        pub fn offset(&self) -> Option<u64> {
            self.place.map(|place| place.offset)
        }
        pub fn waited(&self, limit: Duration) -> bool {
            limit.is_zero()
        }
        fn hidden(&self) {}
    }

    impl fmt::Debug for BatchEntry<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("entry")
        }
    }

    impl Unrelated {
        pub fn nobody_sees(&self) {}
    }
}

pub use batch::BatchEntry;
pub use inventory;

pub struct Key(Vec<u8>);

/// Longest key.
pub const MAX_KEY_BYTES: usize = 1024;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub offset: u64,
    pub length: u32,
}

#[non_exhaustive]
#[derive(Debug, PartialEq)]
pub enum Fault {
    TooLong { found: usize },
    Unknown,
}

#[derive(Debug)]
pub enum Closed {
    Yes,
    No,
}

#[non_exhaustive]
pub struct Context {
    pub depth: u32,
}

pub trait Plugin: Send + Sync {
    /// Called once.
    fn on_init(&self, view: &dyn View) -> Result<(), Fault> {
        let _ = view;
        Ok(())
    }
    fn on_close(&self, view: &dyn View);
    fn name(&self) -> &str;
}

pub trait View {
    fn is_mapped(&self, region: u64) -> bool;
}

#[macro_export]
macro_rules! package {
    () => {
        $crate::Package { name: env!("CARGO_PKG_NAME") }
    };
}

inventory::collect!(Key);

#[cfg(test)]
mod tests {
    pub fn nobody_sees_this_either() {}
}
"#;

fn drift_of(from: &str, to: &str) -> Option<Level> {
    assert!(CONTRACT.contains(from), "nothing to mutate: {from}");
    let old = normalise(CONTRACT).unwrap();
    let new = normalise(&CONTRACT.replacen(from, to, 1)).unwrap();
    let drifts = classify(&old, &new).unwrap();
    assert_eq!(
        drifts.is_empty(),
        old == new,
        "texts and drifts disagree on {from}"
    );
    level(&drifts)
}

#[test]
fn what_breaks_a_plugin_is_major() {
    let mutations = [
        ("hook renamed", "fn on_init", "fn on_start"),
        (
            "hook's argument type",
            "fn on_init(&self, view: &dyn View)",
            "fn on_init(&self, view: &View2)",
        ),
        (
            "argument added",
            "fn on_close(&self, view: &dyn View)",
            "fn on_close(&self, view: &dyn View, hard: bool)",
        ),
        (
            "required method added",
            "fn name(&self) -> &str;",
            "fn name(&self) -> &str; fn id(&self) -> u64;",
        ),
        (
            "defaulted became required",
            "Result<(), Fault> {\n        let _ = view;\n        Ok(())\n    }",
            "Result<(), Fault>;",
        ),
        (
            "required method removed",
            "fn on_close(&self, view: &dyn View);",
            "",
        ),
        ("supertrait dropped", "Plugin: Send + Sync", "Plugin: Send"),
        (
            "supertrait added",
            "Plugin: Send + Sync",
            "Plugin: Send + Sync + 'static",
        ),
        (
            "accessor's signature",
            "pub fn offset(&self) -> Option<u64>",
            "pub fn offset(&self) -> u64",
        ),
        (
            "accessor's receiver",
            "pub fn key(&self)",
            "pub fn key(self)",
        ),
        (
            "accessor removed",
            "pub fn key(&self) -> &'a Key {\n            self.key\n        }",
            "",
        ),
        (
            "accessor made private",
            "pub fn key(&self)",
            "pub(crate) fn key(&self)",
        ),
        (
            "view's accessor changed",
            "is_mapped(&self, region: u64)",
            "is_mapped(&self, region: u32)",
        ),
        ("field removed", "        place: Option<Place>,\n", ""),
        (
            "private field added",
            "place: Option<Place>,",
            "place: Option<Place>, seen: bool,",
        ),
        (
            "field of a private type that the layout reaches",
            "offset: u64,\n    }",
            "offset: u64, generation: u32,\n    }",
        ),
        ("field's type", "pub length: u32", "pub length: u64"),
        (
            "repr(C) fields reordered",
            "pub offset: u64,\n    pub length: u32,",
            "pub length: u32,\n    pub offset: u64,",
        ),
        ("repr dropped", "#[repr(C)]\n", ""),
        (
            "derive dropped",
            "Clone, Copy, Debug)]\npub struct Span",
            "Clone, Debug)]\npub struct Span",
        ),
        (
            "const value",
            "MAX_KEY_BYTES: usize = 1024",
            "MAX_KEY_BYTES: usize = 512",
        ),
        ("const type", "MAX_KEY_BYTES: usize", "MAX_KEY_BYTES: u32"),
        (
            "variant added to a closed enum",
            "Yes,\n    No,",
            "Yes,\n    No,\n    Maybe,",
        ),
        (
            "variant added in the middle",
            "TooLong { found: usize },",
            "TooLong { found: usize }, Between,",
        ),
        ("variant removed", "    Unknown,\n", ""),
        ("variants reordered", "Yes,\n    No,", "No,\n    Yes,"),
        (
            "non_exhaustive dropped",
            "#[non_exhaustive]\n#[derive(Debug, PartialEq)]",
            "#[derive(Debug, PartialEq)]",
        ),
        (
            "item removed",
            "pub struct Context {\n    pub depth: u32,\n}",
            "",
        ),
        ("re-export removed", "pub use batch::BatchEntry;", ""),
        ("other crate's re-export removed", "pub use inventory;", ""),
        (
            "trait implementation removed",
            "impl fmt::Debug for BatchEntry<'_>",
            "impl fmt::Debug for Unrelated",
        ),
        ("macro body", "name: env!", "title: env!"),
        ("macro no longer exported", "#[macro_export]\n", ""),
        ("registry gone", "inventory::collect!(Key);", ""),
        (
            "a type of the same name from elsewhere",
            "use std::time::Duration;",
            "use clock::Duration;",
        ),
        (
            "made conditional",
            "pub trait View",
            "#[cfg(unix)] pub trait View",
        ),
    ];
    for (what, from, to) in mutations {
        assert_eq!(drift_of(from, to), Some(Level::Major), "{what}");
    }
}

#[test]
fn what_an_existing_plugin_cannot_notice_is_minor() {
    let mutations = [
        (
            "defaulted method",
            "fn name(&self) -> &str;",
            "fn name(&self) -> &str; fn on_idle(&self) {}",
        ),
        (
            "new item",
            "pub struct Key",
            "pub struct New; pub struct Key",
        ),
        ("new accessor", "fn hidden(&self)", "pub fn hidden(&self)"),
        (
            "variant at the end of an open enum",
            "    Unknown,\n",
            "    Unknown,\n    Busy,\n",
        ),
        (
            "field at the end of an open struct",
            "pub depth: u32,",
            "pub depth: u32, pub width: u32,",
        ),
        (
            "derive added",
            "#[derive(Debug)]\npub enum Closed",
            "#[derive(Clone, Debug)]\npub enum Closed",
        ),
    ];
    for (what, from, to) in mutations {
        assert_eq!(drift_of(from, to), Some(Level::Minor), "{what}");
    }
}

#[test]
fn what_nobody_outside_can_notice_is_no_drift() {
    let edits = [
        ("doc text", "/// Called once.", "/// Called exactly once."),
        ("doc removed", "/// Longest key.\n", ""),
        (
            "default body",
            "let _ = view;\n        Ok(())",
            "view.is_mapped(1); Ok(())",
        ),
        (
            "argument renamed",
            "on_close(&self, view: &dyn View)",
            "on_close(&self, handler: &dyn View)",
        ),
        (
            "private method",
            "fn hidden(&self) {}",
            "fn other(&self, n: u8) {}",
        ),
        (
            "private type that nothing reaches",
            "struct Unrelated(u8)",
            "struct Unrelated(u16)",
        ),
        (
            "test code",
            "pub fn nobody_sees_this_either() {}",
            "pub fn renamed() {}",
        ),
        (
            "lint attribute",
            "pub struct Key",
            "#[allow(dead_code)] pub struct Key",
        ),
        (
            "order of methods",
            "fn on_close(&self, view: &dyn View);\n    fn name(&self) -> &str;",
            "fn name(&self) -> &str;\n    fn on_close(&self, view: &dyn View);",
        ),
        (
            "order of derives",
            "#[derive(Debug, PartialEq)]",
            "#[derive(PartialEq, Debug)]",
        ),
    ];
    for (what, from, to) in edits {
        assert_eq!(drift_of(from, to), None, "{what}");
    }
}

#[test]
fn an_item_may_move_between_private_modules() {
    let moved = CONTRACT.replace(
        "pub struct Key(Vec<u8>);",
        "mod key { pub struct Key(Vec<u8>); }\npub use key::Key;",
    );
    assert_eq!(normalise(&moved).unwrap(), normalise(CONTRACT).unwrap());
}

#[test]
fn a_drift_shows_the_line_that_drifted() {
    let old = normalise(CONTRACT).unwrap();
    let new = normalise(&CONTRACT.replace("-> Option<u64>", "-> u64")).unwrap();
    let drifts = classify(&old, &new).unwrap();
    assert_eq!(drifts.len(), 1, "{drifts:#?}");
    assert_eq!(
        drifts[0].removed,
        ["pub fn offset(&self) -> Option<u64> {}"]
    );
    assert_eq!(drifts[0].added, ["pub fn offset(&self) -> u64 {}"]);
}

#[test]
fn items_that_the_source_does_not_show_are_refused() {
    for source in [
        "my_items!();",
        "macro_rules! make { () => { pub struct Made; } } make!();",
        "pub trait T { methods!(); }",
        "pub struct S; impl S { methods!(); }",
        "#[plugin_trait] pub trait T {}",
        "pub struct S { pub field: the_type!() }",
        "mod inner { my_items!(); }",
    ] {
        let error = normalise(source).expect_err(source).to_string();
        assert!(error.contains("written out"), "{source}: {error}");
    }
}

/// The surface of the contract crate itself.
fn the_contract() -> String {
    let root = xtask::workspace::root().unwrap();
    normalise_crate(&root.join("crates/ondol-plugin/src/lib.rs")).unwrap()
}

fn methods<'a>(surface: &'a str, head: &str) -> Vec<&'a str> {
    let start = surface
        .find(head)
        .unwrap_or_else(|| panic!("no `{head}` in\n{surface}"));
    let body = &surface[start..];
    let body = &body[..body.find("\n}").unwrap()];
    let names = body
        .lines()
        .filter_map(|line| line.trim().strip_prefix("fn "));
    names.filter_map(|line| line.split('(').next()).collect()
}

#[test]
fn a_hook_may_ask_exactly_two_things() {
    let surface = the_contract();
    let asked = methods(&surface, "pub trait HandlerView {");
    assert_eq!(asked, ["get_region_dax_path", "is_region_mapped"]);
}

#[test]
fn a_plugin_is_shared_between_threads() {
    let surface = the_contract();
    let hooks = methods(&surface, "pub trait HandlerPlugin: Send + Sync {");
    assert!(hooks.contains(&"on_batch_retrieve"), "{hooks:?}");
}
