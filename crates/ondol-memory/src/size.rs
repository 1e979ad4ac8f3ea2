//! Sizes as people write them: `65536`, `2GiB`, `1.5 MiB`, `10MB`.

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Accepted units, in lower case. A bare letter is binary, as in every tool that speaks of memory.
const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", KIB),
    ("kib", KIB),
    ("kb", 1_000),
    ("m", MIB),
    ("mib", MIB),
    ("mb", 1_000_000),
    ("g", GIB),
    ("gib", GIB),
    ("gb", 1_000_000_000),
    ("t", TIB),
    ("tib", TIB),
    ("tb", 1_000_000_000_000),
];

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// No number at the start.
    #[error(
        "size {found:?} has no number; expected a number with an optional unit, such as 65536, 64MiB or 1.5GiB"
    )]
    NoNumber {
        /// The text.
        found: String,
    },
    /// The unit is unknown.
    #[error(
        "size {found:?} has unit {unit:?}; expected KiB, MiB, GiB or TiB (also K, M, G, T), or KB, MB, GB or TB for powers of 1000, or no unit for bytes"
    )]
    UnknownUnit {
        /// The text.
        found: String,
        /// The unit in it.
        unit: String,
    },
    /// A fraction of a byte is left.
    #[error("size {found:?} is not a whole number of bytes")]
    NotWhole {
        /// The text.
        found: String,
    },
    /// More than 64 bits hold.
    #[error("size {found:?} is too large; expected less than 16777216 TiB")]
    TooLarge {
        /// The text.
        found: String,
    },
}

/// Reads a size in bytes: a whole or decimal number with an optional unit, in any case.
///
/// # Errors
/// [`SizeError`], which says what was found and what is accepted.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let found = || text.to_owned();
    let trimmed = text.trim();
    let number_len = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_len);
    let unit = unit.trim_start();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = !whole.is_empty()
        && !fraction.contains('.')
        && (number.len() == whole.len() || !fraction.is_empty());
    if !is_number {
        return Err(SizeError::NoNumber { found: found() });
    }
    let factor = UNITS
        .iter()
        .find(|(name, _)| unit.eq_ignore_ascii_case(name))
        .map(|&(_, factor)| u128::from(factor))
        .ok_or_else(|| SizeError::UnknownUnit {
            found: found(),
            unit: unit.to_owned(),
        })?;
    // Exact in integers: a float would lose bytes above 2^53, and 1.1KiB must be an error, not 1126 bytes.
    let fraction = fraction.trim_end_matches('0');
    let too_large = || SizeError::TooLarge { found: found() };
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = u128::from(whole) * factor;
    if !fraction.is_empty() {
        let not_whole = || SizeError::NotWhole { found: found() };
        let scale = u32::try_from(fraction.len())
            .ok()
            .filter(|&digits| digits <= 20)
            .map(|digits| 10_u128.pow(digits))
            .ok_or_else(not_whole)?;
        let scaled = fraction.parse::<u128>().map_err(|_| not_whole())? * factor;
        if !scaled.is_multiple_of(scale) {
            return Err(not_whole());
        }
        bytes += scaled / scale;
    }
    u64::try_from(bytes).map_err(|_| too_large())
}

/// A size for people: `2 GiB`, `1.5 MiB`, `1.37 GiB`; below 1 MiB exact, as `65536 B`.
pub fn format_size(bytes: u64) -> String {
    let Some((unit, factor)) = [("TiB", TIB), ("GiB", GIB), ("MiB", MIB)]
        .into_iter()
        .find(|&(_, factor)| bytes >= factor)
    else {
        return format!("{bytes} B");
    };
    // Rounded down, so that a size never looks larger than it is.
    let hundredths = u128::from(bytes) * 100 / u128::from(factor);
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {unit}")
}

/// A size without loss, as [`parse_size`] reads it: `2GiB`, `1536MiB`, `65537`.
pub(crate) fn exact_size(bytes: u64) -> String {
    [("TiB", TIB), ("GiB", GIB), ("MiB", MIB)]
        .into_iter()
        .find(|&(_, factor)| bytes >= factor && bytes.is_multiple_of(factor))
        .map_or_else(
            || bytes.to_string(),
            |(unit, factor)| format!("{}{unit}", bytes / factor),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("65536", 65_536),
            ("0", 0),
            ("2GiB", 2 << 30),
            ("64MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("1.50 gib", 3 << 29),
            ("10MB", 10_000_000),
            ("0.1kB", 100),
            ("4K", 4096),
            ("3t", 3 << 40),
            ("1.0", 1),
            (" 7 b ", 7),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_said_to_be_none() {
        for text in ["", "GiB", ".5G", "1.", "1.2.3M", "-1", "+1", "０"] {
            assert!(
                matches!(parse_size(text), Err(SizeError::NoNumber { .. })),
                "{text:?}: {:?}",
                parse_size(text)
            );
        }
        for (text, unit) in [
            ("12XB", "XB"),
            ("1e3", "e3"),
            ("5 Gi", "Gi"),
            ("1 G B", "G B"),
        ] {
            assert_eq!(
                parse_size(text),
                Err(SizeError::UnknownUnit {
                    found: text.to_owned(),
                    unit: unit.to_owned()
                })
            );
        }
        for text in ["1.5", "1.1KiB", "0.0000000000000000000000001T"] {
            assert!(
                matches!(parse_size(text), Err(SizeError::NotWhole { .. })),
                "{text}"
            );
        }
        for text in [
            "18446744073709551616",
            "16777216TiB",
            "99999999999999999999999T",
        ] {
            assert!(
                matches!(parse_size(text), Err(SizeError::TooLarge { .. })),
                "{text}"
            );
        }
        let message = parse_size("12XB").unwrap_err().to_string();
        assert!(
            message.contains("12XB") && message.contains("MiB"),
            "{message}"
        );
    }

    #[test]
    fn sizes_are_shown_short_and_never_larger_than_they_are() {
        for (bytes, text) in [
            (0, "0 B"),
            (65_536, "65536 B"),
            (3 << 19, "1.5 MiB"),
            (2 << 30, "2 GiB"),
            ((2 << 30) - 1, "1.99 GiB"),
            (10 << 30, "10 GiB"),
            (u64::MAX, "16777215.99 TiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn the_exact_form_reads_back() {
        for bytes in [
            0,
            1,
            65_537,
            3 << 19,
            2 << 30,
            (2 << 30) + 1,
            5 << 40,
            u64::MAX,
        ] {
            assert_eq!(parse_size(&exact_size(bytes)), Ok(bytes));
        }
        assert_eq!(exact_size(1536 << 20), "1536MiB");
    }
}
