//! What the pages show is what compiles.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every block of code that stands under a marker `<!-- file: PATH -->`, with that path.
fn shown(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    for part in page.split("<!-- file: ").skip(1) {
        let (path, rest) = part.split_once(" -->\n").expect("the end of the marker");
        let code = rest
            .strip_prefix("```")
            .expect("a block of code behind the marker");
        let (_, code) = code.split_once('\n').expect("a line");
        let (code, _) = code.split_once("\n```").expect("the end of the block");
        blocks.push((path.to_owned(), format!("{code}\n")));
    }
    blocks
}

#[test]
fn files_are_shown_as_they_are() {
    let mut count = 0;
    for page in [
        "README.md",
        "docs/plugin-authors.md",
        "docs/custom-server.md",
        "docs/handler.md",
    ] {
        for (path, code) in shown(&read(page)) {
            assert!(
                read(&path).contains(&code),
                "{page} shows {path} as it was; copy it anew"
            );
            count += 1;
        }
    }
    assert!(count >= 6, "{count} blocks of code were found");
}

#[test]
fn links_lead_somewhere() {
    let mut pages = vec![
        root().join("README.md"),
        root().join("ARCHITECTURE.md"),
        root().join("CONTRIBUTING.md"),
    ];
    let docs = fs::read_dir(root().join("docs")).unwrap();
    pages.extend(
        docs.map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "md")),
    );
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") {
                continue;
            }
            let path = match file {
                "" => page.clone(),
                _ => page.parent().unwrap().join(file),
            };
            assert!(path.exists(), "{}: {target} is not there", page.display());
            if !heading.is_empty() {
                let anchors = fs::read_to_string(&path).unwrap();
                let found = anchors
                    .lines()
                    .filter(|line| line.starts_with('#'))
                    .any(|line| anchor(line) == heading);
                assert!(found, "{}: {target} has no such heading", page.display());
            }
        }
    }
}

/// The anchor of a heading, as it is made on GitHub and in the book.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
