//! The C header of native connectors, as far as a compiler sees it.

use super::drift::{Drift, Level};

/// The header without comments and blank lines, each line with single spaces: what changes here changes what connectors
/// are compiled against.
pub fn normalise(header: &str) -> String {
    let mut code = String::with_capacity(header.len());
    let mut rest = header;
    while let Some(start) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        code.push_str(&rest[..start]);
        let comment = &rest[start..];
        rest = if comment.starts_with("/*") {
            code.push(' ');
            comment.find("*/").map_or("", |end| &comment[end + 2..])
        } else {
            comment.find('\n').map_or("", |end| &comment[end..])
        };
    }
    code.push_str(rest);
    let lines = code
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines
        .filter(|line| !line.is_empty())
        .map(|line| line + "\n")
        .collect()
}

/// Compares two normalised headers. Any difference is major: order and place of what stands there are part of it, and
/// connectors that were compiled before are not compiled again.
pub fn compare(old: &str, new: &str) -> Vec<Drift> {
    if old == new {
        return Vec::new();
    }
    let same = old.lines().zip(new.lines());
    let start = same.take_while(|(old, new)| old == new).count();
    let rest = |text: &str| {
        text.lines()
            .skip(start)
            .take(3)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let item = format!("connector ABI, line {}", start + 1);
    vec![Drift::new(Level::Major, item, &rest(old), &rest(new))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_change_places_are_a_major_change() {
        let (old, new) = ("int a;\nint b;\n", "int b;\nint a;\n");
        let drifts = compare(old, new);
        assert_eq!(crate::contract::drift::level(&drifts), Some(Level::Major));
        assert!(drifts[0].to_string().contains("line 1"), "{drifts:?}");
        assert_eq!(compare(old, &format!("{old}int c;\n")).len(), 1);
        assert_eq!(compare(old, old), []);
    }

    #[test]
    fn comments_are_no_part_of_the_interface() {
        let header =
            "/* What\n * it is */\n#define A 1 // one\n\nint  f(\tint /* how many */ n);\n";
        assert_eq!(normalise(header), "#define A 1\nint f( int n);\n");
        assert_eq!(normalise("int a;\n/* never ends"), "int a;\n");
    }

    #[test]
    fn what_a_compiler_sees_is_kept() {
        let before = normalise("struct row { int a; };");
        assert_ne!(before, normalise("struct row { int b; };"));
        assert_ne!(before, normalise("struct row { int a, b; };"));
    }
}
