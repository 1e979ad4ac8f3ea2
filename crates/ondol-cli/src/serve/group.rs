//! Groups of users by name.

use anyhow::Context;

const FILE: &str = "/etc/group";

/// The number of a group that is given as a number or as a name of `/etc/group`.
pub(super) fn find(text: &str) -> anyhow::Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let file = std::fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    number_of(text, &file).with_context(|| {
        format!("group is {text:?}; expected a name of {FILE}, or a number as `getent group NAME` prints it")
    })
}

/// A line is `NAME:PASSWORD:NUMBER:MEMBERS`.
fn number_of(name: &str, file: &str) -> Option<u32> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next()? == name;
        found.then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let file = "# comment\nkvm:x:36:\nkv:x:not\nkv:x:1001:a,b\nempty::7:\n";
        for (name, number) in [
            ("kv", Some(1001)),
            ("kvm", Some(36)),
            ("empty", Some(7)),
            ("k", None),
            ("", None),
        ] {
            assert_eq!(number_of(name, file), number, "{name:?}");
        }
    }
}
