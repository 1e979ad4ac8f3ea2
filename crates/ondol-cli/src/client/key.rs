//! Keys as people write them.

use std::str::FromStr;

use anyhow::{Context, bail};
use ondol_handler::{Key, KeyTag};

/// Prefixes of keys that are no plain text.
const PREFIXES: [&str; 6] = [
    "text:",
    "int:",
    "raw:",
    "msgpack:",
    "lmcache:",
    "lmcache-hex:",
];

/// A key on the command line: a text, unless it begins with one of the prefixes under which `ondol ls` prints other
/// keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyArg(pub(crate) Key);

/// What the help of a command says about its keys.
pub(crate) const HELP: &str = "A key is a text. Keys of other kinds are written as `ondol ls` prints them: int:5, \
    lmcache:TEXT, raw:HEX, msgpack:HEX, lmcache-hex:HEX. A text that begins like one of these is written after \
    text:, so that text:int:5 is the text int:5.";

impl FromStr for KeyArg {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (prefix, rest) = PREFIXES
            .into_iter()
            .find_map(|prefix| Some((prefix, text.strip_prefix(prefix)?)))
            .unwrap_or(("text:", text));
        let key = match prefix {
            "int:" => Ok(Key::integer(rest.parse().with_context(|| {
                format!("{rest:?} is no whole number; the text {text:?} is written text:{text}")
            })?)),
            "raw:" => Key::new(KeyTag::Raw, &hexadecimal(rest, text)?),
            "msgpack:" => Key::new(KeyTag::MessagePack, &hexadecimal(rest, text)?),
            "lmcache-hex:" => Key::new(KeyTag::LmCache, &hexadecimal(rest, text)?),
            "lmcache:" => Key::new(KeyTag::LmCache, rest.as_bytes()),
            _ => Key::text(rest),
        };
        Ok(Self(key?))
    }
}

/// The key as [`KeyArg`] reads it, unless it holds characters that are printed escaped.
pub(crate) fn shown(key: &Key) -> String {
    let is_mistakable = |text: &str| PREFIXES.into_iter().any(|prefix| text.starts_with(prefix));
    if key.as_text().is_some_and(is_mistakable) {
        return format!("text:{key}");
    }
    key.to_string()
}

fn hexadecimal(digits: &str, text: &str) -> anyhow::Result<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16);
    let pair = |pair: &[u8]| match *pair {
        [high, low] => Some((value(high)? << 4 | value(low)?) as u8),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(pair).collect();
    match bytes {
        Some(bytes) => Ok(bytes),
        None => bail!(
            "{digits:?} is no even number of hexadecimal digits; the text {text:?} is written text:{text}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Key> {
        Ok(text.parse::<KeyArg>()?.0)
    }

    #[test]
    fn every_kind_of_key_can_be_written_as_it_is_printed() {
        for (text, key) in [
            ("foo", Key::text("foo").unwrap()),
            ("model/llama:7", Key::text("model/llama:7").unwrap()),
            ("int:5", Key::integer(5)),
            ("text:int:5", Key::text("int:5").unwrap()),
            ("text:text:x", Key::text("text:x").unwrap()),
            ("raw:00ff", Key::new(KeyTag::Raw, &[0, 255]).unwrap()),
            ("lmcache:m@1", Key::new(KeyTag::LmCache, b"m@1").unwrap()),
            ("lmcache-hex:ff", Key::new(KeyTag::LmCache, &[255]).unwrap()),
            (
                "msgpack:c0",
                Key::new(KeyTag::MessagePack, &[0xc0]).unwrap(),
            ),
        ] {
            assert_eq!(read(text).unwrap(), key, "{text}");
            assert_eq!(shown(&key), text);
        }
        assert_eq!(read("text:foo").unwrap(), Key::text("foo").unwrap());
    }

    #[test]
    fn what_is_no_key_is_told_how_to_be_one() {
        for text in ["int:x", "int:-1", "raw:0", "raw:xy", "msgpack:é"] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(
                error.contains(&format!("is written text:{text}")),
                "{error}"
            );
        }
        assert!(
            read(&"k".repeat(2000))
                .unwrap_err()
                .to_string()
                .contains("1024")
        );
    }
}
