//! Traces: one request a line.

use std::io::{BufRead, Read};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

/// The longest line of a trace, in bytes.
const LONGEST_LINE: u64 = 16 << 20;

/// So many blocks one client can hold at once, and ask for with one message.
const MOST_BLOCKS: usize = 65_536;

/// Reads at most `limit` requests.
pub(super) fn parse(mut input: impl BufRead, limit: usize) -> Result<Vec<Vec<u64>>> {
    let mut requests = Vec::new();
    let mut text = String::new();
    let mut line = 0_u64;
    while requests.len() < limit {
        text.clear();
        line += 1;
        let len = (&mut input)
            .take(LONGEST_LINE + 1)
            .read_line(&mut text)
            .with_context(|| format!("line {line} cannot be read"))?;
        if len == 0 {
            break;
        }
        ensure!(
            len as u64 <= LONGEST_LINE,
            "line {line} has more than {LONGEST_LINE} bytes; expected one request a line"
        );
        if !text.trim().is_empty() {
            requests.push(parse_line(&text).with_context(|| format!("line {line}"))?);
        }
    }
    ensure!(!requests.is_empty(), "there is no request in it");
    Ok(requests)
}

/// One request. Its times and lengths are checked, though only the blocks are replayed.
fn parse_line(text: &str) -> Result<Vec<u64>> {
    let fields: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| anyhow::anyhow!("{}; expected one JSON object", strip_line(&error)))?;
    number(
        &fields,
        "timestamp",
        "a number of milliseconds",
        Value::as_f64,
    )?;
    number(&fields, "input_length", "a number of tokens", Value::as_u64)?;
    number(
        &fields,
        "output_length",
        "a number of tokens",
        Value::as_u64,
    )?;
    let expected = "a list of block ids, whole numbers from 0";
    let ids = match fields.get("hash_ids") {
        Some(Value::Array(ids)) => ids,
        found => bail!("hash_ids is {}; expected {expected}", shown(found)),
    };
    ensure!(
        ids.len() <= MOST_BLOCKS,
        "hash_ids has {} ids; expected at most {MOST_BLOCKS}, as many blocks as one client can hold",
        ids.len()
    );
    ids.iter()
        .enumerate()
        .map(|(index, id)| {
            id.as_u64().with_context(|| {
                format!(
                    "hash_ids[{index}] is {}; expected {expected}",
                    shown(Some(id))
                )
            })
        })
        .collect()
}

fn number<T>(
    fields: &Map<String, Value>,
    name: &str,
    expected: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<T> {
    let found = fields.get(name);
    found
        .and_then(read)
        .with_context(|| format!("{name} is {}; expected {expected}", shown(found)))
}

fn shown(value: Option<&Value>) -> String {
    const LONGEST: usize = 40;
    let Some(value) = value else {
        return "missing".to_owned();
    };
    let text = value.to_string();
    if text.chars().count() <= LONGEST {
        return text;
    }
    text.chars().take(LONGEST).chain("…".chars()).collect()
}

/// Without the line number, which is always 1 as lines are parsed one by one.
fn strip_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(text, _)| text);
    format!("{text} at column {}", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", parse(text.as_bytes(), usize::MAX).unwrap_err())
    }

    const GOOD: &str = r#"{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 18446744073709551615]}"#;

    #[test]
    fn a_trace_is_read_and_unknown_fields_and_empty_lines_are_passed_over() {
        let text = format!(
            "{GOOD}\n\n{{\"hash_ids\":[],\"timestamp\":1.5,\"output_length\":0,\"input_length\":0,\"chat\":{{}}}}\r\n{GOOD}"
        );
        let good = vec![0, u64::MAX];
        let requests = parse(text.as_bytes(), usize::MAX).unwrap();
        assert_eq!(requests, [good.clone(), vec![], good.clone()]);
        assert_eq!(parse(text.as_bytes(), 1).unwrap(), [good]);
    }

    #[test]
    fn what_is_wrong_in_a_trace_is_named_by_line_and_field() {
        for (bad, named) in [
            ("{\"timestamp\": 0", "expected one JSON object"),
            ("[1]", "expected one JSON object"),
            (r#"{"input_length":1}"#, "timestamp is missing"),
            (
                r#"{"timestamp":0,"input_length":-1,"output_length":1,"hash_ids":[]}"#,
                "input_length is -1; expected a number of tokens",
            ),
            (
                r#"{"timestamp":0,"input_length":1,"output_length":"x","hash_ids":[]}"#,
                "output_length is \"x\"",
            ),
            (
                r#"{"timestamp":0,"input_length":1,"output_length":1}"#,
                "hash_ids is missing",
            ),
            (
                r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[4,5.5]}"#,
                "hash_ids[1] is 5.5",
            ),
        ] {
            let text = error(&format!("{GOOD}\n\n{bad}\n"));
            assert!(text.contains("line 3") && text.contains(named), "{text}");
            assert!(!text.contains("line 1"), "{text}");
        }
        let ids = "7,".repeat(MOST_BLOCKS) + "7";
        let many =
            format!(r#"{{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[{ids}]}}"#);
        let text = error(&format!("{GOOD}\n{many}"));
        assert!(
            text.contains("line 2") && text.contains("has 65537 ids"),
            "{text}"
        );
        let text = error(&format!(
            "{GOOD}\n{}",
            " ".repeat(LONGEST_LINE as usize + 1)
        ));
        assert!(
            text.contains("line 2 has more than 16777216 bytes"),
            "{text}"
        );
        assert!(error("\n").contains("no request"));
        assert!(error("\u{7f}").contains("line 1"));
    }
}
