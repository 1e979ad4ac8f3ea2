use ondol_plugin::StageResult;

/// The sum of what the plugins that took part in a stage achieved.
///
/// Sums could hide a part that is not ready behind one that is more than ready, so such a part leaves an error.
#[derive(Default)]
pub(crate) struct Sum {
    total: Option<StageResult>,
    errors: Vec<String>,
}

impl Sum {
    pub(crate) fn add(&mut self, plugin: &str, requested: u64, part: StageResult) {
        let ready = part.ready();
        if part.requested_keys != requested {
            self.errors.push(format!(
                "{plugin}: answered for {} keys; {requested} were asked for",
                part.requested_keys
            ));
        }
        match &part.error {
            Some(error) => self.errors.push(format!("{plugin}: {error}")),
            None if !ready => self.errors.push(format!(
                "{plugin}: not ready ({} of {} found keys eligible, {} ranges issued, {} failed, {} keys skipped)",
                part.eligible_keys,
                part.found_keys,
                part.issued_ranges,
                part.failed_ranges,
                part.skipped_keys
            )),
            None => {}
        }
        let total = self.total.get_or_insert_default();
        let sum = |total: &mut u64, part: u64| *total = total.saturating_add(part);
        sum(&mut total.requested_keys, part.requested_keys);
        sum(&mut total.found_keys, part.found_keys);
        sum(&mut total.eligible_keys, part.eligible_keys);
        sum(&mut total.prepared_bytes, part.prepared_bytes);
        sum(&mut total.issued_ranges, part.issued_ranges);
        sum(&mut total.failed_ranges, part.failed_ranges);
        sum(&mut total.skipped_keys, part.skipped_keys);
        total.wait = total.wait.saturating_add(part.wait);
    }

    pub(crate) fn finish(self, requested: u64) -> StageResult {
        let Some(total) = self.total else {
            return StageResult::failed(
                requested,
                "no plugin staged the batch: none is loaded that does, or all declined",
            );
        };
        let error = (!self.errors.is_empty()).then(|| self.errors.join("; "));
        StageResult { error, ..total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(keys: u64) -> StageResult {
        StageResult {
            requested_keys: keys,
            found_keys: keys,
            eligible_keys: keys,
            prepared_bytes: 10,
            issued_ranges: 1,
            ..StageResult::default()
        }
    }

    fn combine(parts: impl IntoIterator<Item = StageResult>) -> StageResult {
        let mut sum = Sum::default();
        parts.into_iter().for_each(|part| sum.add("p", 2, part));
        sum.finish(2)
    }

    #[test]
    fn nobody_staging_is_never_ready() {
        let nobody = combine([]);
        assert!(!nobody.ready());
        assert_eq!(nobody.requested_keys, 2);
        assert!(nobody.error.unwrap().contains("no plugin staged"));
    }

    #[test]
    fn parts_that_are_all_ready_add_up_to_ready() {
        let both = combine([ready(2), ready(2)]);
        assert!(both.ready(), "{both:?}");
        assert_eq!(
            (both.requested_keys, both.prepared_bytes, both.issued_ranges),
            (4, 20, 2)
        );
    }

    #[test]
    fn a_part_that_is_not_ready_is_not_made_ready_by_another() {
        let nothing_issued = StageResult {
            issued_ranges: 0,
            ..ready(2)
        };
        let more_than_found = StageResult {
            found_keys: 3,
            eligible_keys: 3,
            ..ready(2)
        };
        let less_than_found = StageResult {
            found_keys: 1,
            eligible_keys: 1,
            ..ready(2)
        };
        let of_fewer_keys = ready(1);
        let failed = StageResult::failed(2, "device gone");
        for bad in [
            nothing_issued,
            more_than_found.clone(),
            of_fewer_keys,
            failed,
        ] {
            assert!(!combine([ready(2), bad.clone()]).ready(), "{bad:?}");
            assert!(!combine([bad.clone(), ready(2)]).ready(), "{bad:?}");
        }
        assert!(!combine([more_than_found, less_than_found]).ready());
    }

    #[test]
    fn counts_that_overflow_stay_at_the_most() {
        let huge = StageResult {
            prepared_bytes: u64::MAX,
            ..ready(2)
        };
        assert_eq!(combine([huge.clone(), huge]).prepared_bytes, u64::MAX);
    }
}
