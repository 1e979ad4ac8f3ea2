//! What the linked binary says about itself, and how it compares with the committed tables.
//!
//! The binary is asked, not this program: a table is the sum of the rows that are linked in, and only the binary
//! links them all.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::drift::{Drift, Level};
use crate::workspace;

/// The output of `ondol contract --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Catalogue {
    /// The frozen layouts.
    pub layouts: Vec<Layout>,
    /// The metrics.
    pub metrics: Vec<Metric>,
    /// The eviction policies.
    pub policies: Vec<Policy>,
    /// The transforms of what is stored.
    pub transforms: Vec<Transform>,
}

/// A transform of what is stored.
#[derive(Clone, Debug, Deserialize)]
pub struct Transform {
    /// What stands for it in storage.
    pub id: u8,
    /// Its name.
    pub name: String,
}

/// A frozen layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The type's name.
    pub name: String,
    /// The number that grows with every change of the rest.
    pub revision: u32,
    /// Size in bytes.
    pub size: u64,
    /// Alignment in bytes.
    pub align: u64,
    /// Fields by offset.
    pub fields: Vec<Field>,
}

/// A field of a frozen layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// The field's name.
    pub name: String,
    /// Offset in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

/// A metric.
#[derive(Clone, Debug, Deserialize)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// Whether it counts or measures.
    pub kind: String,
}

/// An eviction policy.
#[derive(Clone, Debug, Deserialize)]
pub struct Policy {
    /// Its name.
    pub name: String,
}

impl Catalogue {
    /// Asks the binary.
    ///
    /// # Errors
    /// A binary that fails or prints something else.
    pub fn of(binary: &Path) -> Result<Self> {
        let text = workspace::read(Command::new(binary).args(["contract", "--json"]))?;
        serde_json::from_str(&text).context("the output of `ondol contract --json`")
    }

    /// The metrics as they are committed: a kind and a name a line.
    pub fn metrics_text(&self) -> String {
        lines(
            self.metrics
                .iter()
                .map(|metric| format!("{} {}", metric.kind.to_lowercase(), metric.name)),
        )
    }

    /// The policies as they are committed: a name a line.
    pub fn policies_text(&self) -> String {
        lines(self.policies.iter().map(|policy| policy.name.clone()))
    }

    /// The transforms as they are committed: a number and a name a line.
    pub fn transforms_text(&self) -> String {
        lines(
            self.transforms
                .iter()
                .map(|transform| format!("{} {}", transform.id, transform.name)),
        )
    }

    /// The layouts as they are committed.
    ///
    /// # Errors
    /// None that data of this kind can cause.
    pub fn layouts_text(&self) -> Result<String> {
        let mut layouts = self.layouts.clone();
        layouts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(serde_json::to_string_pretty(&layouts)? + "\n")
    }
}

fn lines(rows: impl Iterator<Item = String>) -> String {
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    rows.into_iter().map(|row| row + "\n").collect()
}

/// Compares committed layouts with those of the code.
///
/// # Errors
/// Text that does not parse, and rows that changed without a higher revision: other processes would take the
/// new layout for the old one, so no blessing covers that.
pub fn compare_layouts(old: &str, new: &str) -> Result<Vec<Drift>> {
    let old: Vec<Layout> = serde_json::from_str(old).context("the committed layouts")?;
    let new: Vec<Layout> = serde_json::from_str(new).context("the layouts of the code")?;
    let mut drifts = Vec::new();
    for before in &old {
        let Some(after) = new.iter().find(|layout| layout.name == before.name) else {
            drifts.push(Drift::new(
                Level::Major,
                format!("layout {}", before.name),
                &row(before),
                "",
            ));
            continue;
        };
        if after == before {
            continue;
        }
        if after.revision <= before.revision {
            let name = &before.name;
            anyhow::bail!(
                "layout {name} changed but its revision is still {}; raise it in the row of {name}\n    - {}\n    + {}",
                after.revision,
                row(before),
                row(after)
            );
        }
        drifts.push(Drift::new(
            Level::Major,
            format!("layout {}", before.name),
            &row(before),
            &row(after),
        ));
    }
    for after in &new {
        if !old.iter().any(|before| before.name == after.name) {
            drifts.push(Drift::new(
                Level::Minor,
                format!("layout {}", after.name),
                "",
                &row(after),
            ));
        }
    }
    Ok(drifts)
}

fn row(layout: &Layout) -> String {
    let fields = layout
        .fields
        .iter()
        .map(|field| format!("{}@{}+{}", field.name, field.offset, field.size));
    let fields = fields.collect::<Vec<_>>().join(" ");
    format!(
        "{} revision {} size {} align {}: {fields}",
        layout.name, layout.revision, layout.size, layout.align
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::drift::level;

    fn layout(name: &str, revision: u32, size: u64) -> Layout {
        let field = |name: &str, offset| Field {
            name: name.to_owned(),
            offset,
            size: 8,
        };
        Layout {
            name: name.to_owned(),
            revision,
            size,
            align: 8,
            fields: vec![field("word", 0), field("owner", 8)],
        }
    }

    fn compare(old: &[Layout], new: &[Layout]) -> Result<Vec<Drift>> {
        compare_layouts(&serde_json::to_string(old)?, &serde_json::to_string(new)?)
    }

    #[test]
    fn a_layout_may_change_only_with_its_revision() {
        let old = [layout("Slot", 1, 16)];
        assert!(compare(&old, &old).unwrap().is_empty());
        let raised = compare(&old, &[layout("Slot", 2, 24)]).unwrap();
        assert_eq!(level(&raised), Some(Level::Major));
        for revision in [0, 1] {
            let error = compare(&old, &[layout("Slot", revision, 24)])
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("Slot") && error.contains("size 24"),
                "{error}"
            );
        }
        let mut moved = layout("Slot", 1, 16);
        moved.fields.swap(0, 1);
        compare(&old, &[moved]).unwrap_err();
    }

    #[test]
    fn a_layout_that_is_gone_is_major_and_a_new_one_minor() {
        let (slot, head) = (layout("Slot", 1, 16), layout("Head", 1, 16));
        let drift = |old: &[Layout], new: &[Layout]| level(&compare(old, new).unwrap());
        let both = [slot.clone(), head];
        assert_eq!(
            drift(std::slice::from_ref(&slot), &both),
            Some(Level::Minor)
        );
        assert_eq!(drift(&both, &[slot]), Some(Level::Major));
    }

    #[test]
    fn tables_do_not_depend_on_the_linkers_order() {
        let read = |json: &str| serde_json::from_str::<Catalogue>(json).unwrap();
        let one = read(
            r#"{"layouts":[],"metrics":[{"name":"b","kind":"Gauge","help":""},{"name":"a","kind":"counter","help":""}],"policies":[{"name":"s3fifo","summary":""},{"name":"lru","summary":""}],"transforms":[{"id":2,"name":"zstd","summary":""},{"id":1,"name":"lz4","summary":""}]}"#,
        );
        assert_eq!(one.metrics_text(), "counter a\ngauge b\n");
        assert_eq!(one.policies_text(), "lru\ns3fifo\n");
        assert_eq!(one.transforms_text(), "1 lz4\n2 zstd\n");
        assert_eq!(one.layouts_text().unwrap(), "[]\n");
    }
}
