//! The C header of native connectors, as far as a compiler sees it.

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

#[cfg(test)]
mod tests {
    use super::*;

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
