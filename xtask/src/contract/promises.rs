//! The numbered promises of `CONTRACT.md`: whether every test that is said to pin one exists.

use std::path::Path;

use anyhow::{Context, Result};

/// One row of the table of promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Its number, such as `C7`.
    pub number: String,
    /// The tests that pin it.
    pub tests: Vec<Test>,
}

/// A test named as `path/to/file.rs::function`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// The file, from the root of the checkout.
    pub file: String,
    /// The function, with any modules dropped.
    pub function: String,
}

/// The promises of a page: table rows whose first cell is `C` and a number and whose last cell names tests in
/// back quotes.
///
/// # Errors
/// Numbers that do not count from 1, and a name in back quotes that is no `file.rs::function`.
pub fn parse(page: &str) -> Result<Vec<Promise>> {
    let mut promises = Vec::new();
    for line in page.lines() {
        let Some(row) = line
            .trim()
            .strip_prefix('|')
            .and_then(|row| row.strip_suffix('|'))
        else {
            continue;
        };
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let number = cells[0];
        let Some(Ok(index)) = number.strip_prefix('C').map(str::parse::<usize>) else {
            continue;
        };
        // A further cell would not be shown by those that render the page.
        let [_, _, pinned] = cells[..] else {
            anyhow::bail!(
                "promise {number} has {} cells; expected 3: number, promise, tests",
                cells.len()
            );
        };
        anyhow::ensure!(
            index == promises.len() + 1,
            "promise {number} stands where C{} is due",
            promises.len() + 1
        );
        let tests = pinned.split('`').skip(1).step_by(2);
        let tests = tests.map(|name| test(name).with_context(|| format!("promise {number}")));
        promises.push(Promise {
            number: number.to_owned(),
            tests: tests.collect::<Result<_>>()?,
        });
    }
    anyhow::ensure!(!promises.is_empty(), "the page holds no promise");
    Ok(promises)
}

fn test(name: &str) -> Result<Test> {
    let parsed = name.rsplit_once("::").and_then(|(path, function)| {
        let end = path.find(".rs").map(|at| at + ".rs".len())?;
        Some(Test {
            file: path[..end].to_owned(),
            function: function.to_owned(),
        })
    });
    parsed.with_context(|| format!("`{name}` is no `path/to/file.rs::test`"))
}

/// The tests that do not exist under `root`, in one sentence each.
pub fn missing(promises: &[Promise], root: &Path) -> Vec<String> {
    let mut missing = Vec::new();
    for promise in promises {
        for test in &promise.tests {
            let text = std::fs::read_to_string(root.join(&test.file)).ok();
            let found = text
                .as_ref()
                .is_some_and(|text| defines(text, &test.function));
            if !found {
                let why = if text.is_some() {
                    "has no such function"
                } else {
                    "is not there"
                };
                missing.push(format!(
                    "{} is pinned by {}::{}, but the file {why}",
                    promise.number, test.file, test.function
                ));
            }
        }
    }
    missing
}

fn defines(text: &str, function: &str) -> bool {
    let needle = format!("fn {function}");
    text.match_indices(&needle).any(|(at, _)| {
        let next = text[at + needle.len()..].chars().next();
        matches!(next, Some('(' | '<'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Promises
| no. | promise | pinned by |
|---|---|---|
| C1 | One | `xtask/src/contract/promises.rs::tests::a_test_that_is_gone_is_found` |
| C2 | Two | |
";

    #[test]
    fn a_test_that_is_gone_is_found() {
        let root = crate::workspace::root().unwrap();
        let promises = parse(PAGE).unwrap();
        assert_eq!(promises.len(), 2);
        assert_eq!(promises[1].tests, []);
        assert_eq!(missing(&promises, &root), Vec::<String>::new());
        let part = PAGE.replace("is_gone_is_found", "is_gone");
        assert!(missing(&parse(&part).unwrap(), &root)[0].contains("no such function"));
        let file = PAGE.replace("promises.rs", "premises.rs");
        assert!(missing(&parse(&file).unwrap(), &root)[0].contains("not there"));
    }

    #[test]
    fn numbers_count_from_one_and_names_have_a_file() {
        assert!(
            parse(&PAGE.replace("C2", "C3"))
                .unwrap_err()
                .to_string()
                .contains("C2 is due")
        );
        parse(&PAGE.replace("promises.rs::tests", "promises")).unwrap_err();
        parse("# Nothing").unwrap_err();
        let error = parse(&PAGE.replace("| Two |", "| Two | more |")).unwrap_err();
        assert!(error.to_string().contains("C2 has 4 cells"), "{error}");
    }
}
