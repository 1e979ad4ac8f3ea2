//! `ondol contract`: the tables of this binary, for the contract check. A table is the sum of the rows that are
//! linked in, so only the binary can tell.

use std::process::ExitCode;

use ondol_catalog::{FrozenLayout, layouts, metrics, policies, transforms};
use serde_json::{Value, json};

use crate::output::print_json;

/// Print the tables that are linked into this program
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object, which is the only form there is
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(_: &Args) -> anyhow::Result<ExitCode> {
    let metrics = metrics().into_iter().map(|metric| {
        let kind = format!("{:?}", metric.kind).to_lowercase();
        json!({ "name": metric.name, "kind": kind, "help": metric.help })
    });
    let policies = policies()
        .into_iter()
        .map(|policy| json!({ "name": policy.name, "summary": policy.summary }));
    let transforms = transforms().into_iter().map(|transform| {
        json!({ "id": transform.id, "name": transform.name, "summary": transform.summary })
    });
    #[cfg_attr(
        not(feature = "failpoints"),
        expect(unused_mut, reason = "only builds for tests have more")
    )]
    let mut tables = json!({
        "layouts": layouts().into_iter().map(layout).collect::<Vec<_>>(),
        "metrics": metrics.collect::<Vec<_>>(),
        "policies": policies.collect::<Vec<_>>(),
        "transforms": transforms.collect::<Vec<_>>(),
    });
    #[cfg(feature = "failpoints")]
    {
        let row = |point: &ondol_catalog::Failpoint| json!({ "name": point.name, "can_fail": point.can_fail });
        let rows = ondol_catalog::failpoints().into_iter().map(row);
        tables["failpoints"] = rows.collect();
    }
    print_json(&tables)?;
    Ok(ExitCode::SUCCESS)
}

fn layout(layout: &FrozenLayout) -> Value {
    let fields = layout
        .fields
        .iter()
        .map(|field| json!({ "name": field.name, "offset": field.offset, "size": field.size }));
    json!({
        "name": layout.name,
        "revision": layout.revision,
        "size": layout.size,
        "align": layout.align,
        "fields": fields.collect::<Vec<_>>(),
    })
}
