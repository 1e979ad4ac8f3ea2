/// An error with its causes, each said once. Consumes it, as its destructor is foreign code.
#[cold]
pub(super) fn describe(error: anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_its_error_names_is_said_once() {
        let error = anyhow::anyhow!("disk full").context("cannot write /x: disk full");
        assert_eq!(
            describe(error.context("it does not open")),
            "it does not open: cannot write /x: disk full"
        );
    }
}
