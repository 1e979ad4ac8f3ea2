use std::time::Duration;

/// What a stage achieved, summed over the plugins that took part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageResult {
    /// Keys asked for.
    pub requested_keys: u64,
    /// Keys found in memory.
    pub found_keys: u64,
    /// Found keys that the plugin could act on.
    pub eligible_keys: u64,
    /// Bytes made ready.
    pub prepared_bytes: u64,
    /// Ranges for which a hint was issued.
    pub issued_ranges: u64,
    /// Ranges for which the hint failed.
    pub failed_ranges: u64,
    /// Keys that the plugin left out.
    pub skipped_keys: u64,
    /// Time spent waiting.
    pub wait: Duration,
    /// What went wrong, if anything.
    pub error: Option<String>,
}

impl StageResult {
    /// A result that says that the stage of `requested_keys` keys failed.
    pub fn failed(requested_keys: u64, error: impl Into<String>) -> Self {
        Self {
            requested_keys,
            error: Some(error.into()),
            ..Self::default()
        }
    }

    /// Whether everything that was asked for is ready: keys were asked for, all were found and eligible, at
    /// least one range was issued, and nothing failed or was skipped.
    pub fn ready(&self) -> bool {
        self.requested_keys > 0
            && self.found_keys == self.requested_keys
            && self.eligible_keys == self.found_keys
            && self.issued_ranges > 0
            && self.failed_ranges == 0
            && self.skipped_keys == 0
            && self.error.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_strict() {
        let ready = StageResult {
            requested_keys: 2,
            found_keys: 2,
            eligible_keys: 2,
            issued_ranges: 1,
            ..StageResult::default()
        };
        assert!(ready.ready());
        let spoil: [fn(&mut StageResult); 7] = [
            |r| r.requested_keys = 3,
            |r| r.found_keys = 1,
            |r| r.eligible_keys = 1,
            |r| r.issued_ranges = 0,
            |r| r.failed_ranges = 1,
            |r| r.skipped_keys = 1,
            |r| r.error = Some("x".into()),
        ];
        for (index, spoil) in spoil.into_iter().enumerate() {
            let mut spoiled = ready.clone();
            spoil(&mut spoiled);
            assert!(!spoiled.ready(), "case {index}");
        }
        assert!(!StageResult::default().ready());
    }
}
