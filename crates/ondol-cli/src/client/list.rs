//! `ondol ls`.

use std::io::Write;
use std::process::ExitCode;

use ondol_handler::{Key, ObjectInfo, Plugins};
use ondol_memory::format_size;
use serde_json::json;

use super::ServerArgs;
use super::key::shown;
use crate::output::stdout;

/// The server gives fewer at once if it wants to.
const AT_ONCE: u32 = 16_384;

/// List the objects of a server
///
/// In the order of the keys' bytes, in which a shorter text comes before a longer one. Shows size, the beginning of
/// the layout's fingerprint, leases, pins and key.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only keys that begin so, as they are printed
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    prefix: String,
    /// Only the first so many
    #[arg(long, value_name = "COUNT", value_parser = read_limit)]
    limit: Option<u64>,
    /// Print one JSON object a line: key, tag and key_bytes (which name it exactly), size, region, page, layout,
    /// checksum, leases, pins
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

fn read_limit(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("expected a whole number, such as 100; found {text:?}"))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let client = args.server.connect(Plugins::None)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut after: Option<Key> = None;
    let mut out = stdout();
    if !args.json {
        writeln!(
            out,
            "{:>12}  {:12}  {:>6}  {:>4}  KEY",
            "SIZE", "LAYOUT", "LEASES", "PINS"
        )?;
    }
    while left > 0 {
        // A prefix may sieve out any number of them.
        let at_once = if args.prefix.is_empty() {
            u32::try_from(left).unwrap_or(AT_ONCE).min(AT_ONCE)
        } else {
            AT_ONCE
        };
        let part = client.handler.list(after.as_ref(), at_once)?;
        for object in &part.objects {
            let key = shown(&object.key);
            if left == 0 {
                break;
            }
            if key.starts_with(&args.prefix) {
                left -= 1;
                let line = if args.json {
                    as_json(&key, object)
                } else {
                    as_row(&key, object)
                };
                writeln!(out, "{line}")?;
            }
        }
        if !part.more {
            break;
        }
        // If all of a part has gone meanwhile, the same question has another answer.
        after = part
            .objects
            .last()
            .map(|object| object.key.clone())
            .or(after);
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn as_row(key: &str, object: &ObjectInfo) -> String {
    let mut layout = match object.meta.layout {
        Some(layout) => layout.to_string(),
        None => "-".to_owned(),
    };
    layout.truncate(12);
    format!(
        "{:>12}  {layout:12}  {:>6}  {:>4}  {key}",
        format_size(object.location.len),
        object.leases,
        object.pins
    )
}

fn as_json(key: &str, object: &ObjectInfo) -> String {
    let hexadecimal =
        |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let page = object.location.page;
    json!({
        "key": key,
        "tag": object.key.tag() as u8,
        "key_bytes": hexadecimal(object.key.bytes()),
        "size": object.location.len,
        "region": page.region.0,
        "page": page.index,
        "layout": object.meta.layout.map(|layout| layout.to_string()),
        "checksum": object.meta.checksum.map(|checksum| format!("{checksum:016x}")),
        "leases": object.leases,
        "pins": object.pins,
    })
    .to_string()
}
