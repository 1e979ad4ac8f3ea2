use std::collections::BTreeMap;

use ondol_host::l2::EvictionSpec;
use ondol_plugin::l2::Usage;

use crate::Quotas;

/// What is to be deleted from a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Bytes, whose they may be.
    pub(super) bytes: u64,
    /// Bytes of each salt that has more than its quota.
    pub(super) by_salt: BTreeMap<String, u64>,
}

impl Plan {
    /// What is to go at this usage. `target` is where an eviction that has begun ends; it begins at the watermark, and ends when
    /// the part `eviction_ratio` of what was used then is gone below that.
    pub(super) fn new(
        usage: &Usage,
        spec: &EvictionSpec,
        quotas: &Quotas,
        target: &mut Option<u64>,
    ) -> Self {
        let used = usage.used_bytes;
        if let Some(watermark) = watermark(usage, spec)
            && used >= watermark
            && target.is_none()
        {
            let ratio = (used as f64 * spec.eviction_ratio) as u64;
            *target = Some(watermark.saturating_sub(ratio.max(1)));
        }
        if target.is_some_and(|target| used <= target) {
            *target = None;
        }
        let over = usage.bytes_by_salt.iter().filter_map(|(salt, bytes)| {
            let over = bytes.saturating_sub(quotas.limit(salt)?);
            (over > 0).then(|| (salt.clone(), over))
        });
        Self {
            bytes: target.map_or(0, |target| used - target),
            by_salt: over.collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0 && self.by_salt.is_empty()
    }

    /// Whether an object of this salt is to go; then its bytes are off the plan.
    pub(super) fn take(&mut self, salt: &str, bytes: u64) -> bool {
        let over = self.by_salt.get_mut(salt);
        if over.is_none() && self.bytes == 0 {
            return false;
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(over) = over {
            *over = over.saturating_sub(bytes);
            if *over == 0 {
                self.by_salt.remove(salt);
            }
        }
        true
    }
}

/// Bytes that may be stored before an eviction begins.
pub(super) fn headroom(usage: &Usage, spec: &EvictionSpec) -> u64 {
    watermark(usage, spec).map_or(u64::MAX, |watermark| {
        watermark.saturating_sub(usage.used_bytes)
    })
}

fn watermark(usage: &Usage, spec: &EvictionSpec) -> Option<u64> {
    let capacity = usage.capacity_bytes.filter(|capacity| *capacity > 0)?;
    Some((capacity as f64 * spec.trigger_watermark) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> EvictionSpec {
        EvictionSpec {
            policy: "lru".into(),
            trigger_watermark: 0.8,
            eviction_ratio: 0.2,
        }
    }

    fn usage(used_bytes: u64, by_salt: &[(&str, u64)]) -> Usage {
        let by_salt = by_salt
            .iter()
            .map(|(salt, bytes)| ((*salt).to_owned(), *bytes));
        Usage {
            used_bytes,
            capacity_bytes: Some(1000),
            bytes_by_salt: by_salt.collect(),
            ..Usage::default()
        }
    }

    #[test]
    fn eviction_begins_at_the_watermark_and_ends_a_part_below() {
        let quotas = Quotas::default();
        let mut target = None;
        let mut bytes = |used| Plan::new(&usage(used, &[]), &spec(), &quotas, &mut target).bytes;
        assert_eq!(bytes(799), 0);
        assert_eq!(bytes(800), 160, "800 - (800 - 160)");
        assert_eq!(bytes(700), 60, "it goes on below the watermark");
        assert_eq!(bytes(640), 0);
        assert_eq!(bytes(700), 0, "and begins anew at the watermark only");
    }

    #[test]
    fn a_backend_without_a_capacity_is_never_full() {
        let mut endless = usage(1 << 40, &[]);
        endless.capacity_bytes = None;
        let plan = Plan::new(&endless, &spec(), &Quotas::default(), &mut None);
        assert!(plan.is_empty());
        assert_eq!(headroom(&endless, &spec()), u64::MAX);
    }

    #[test]
    fn a_salt_over_its_quota_is_brought_down_below_the_watermark_too() {
        let quotas = Quotas::default();
        quotas.set_quota("a", 50);
        let usage = usage(200, &[("a", 80), ("b", 120)]);
        let mut plan = Plan::new(&usage, &spec(), &quotas, &mut None);
        assert_eq!((plan.bytes, plan.by_salt.get("a")), (0, Some(&30)));
        assert!(!plan.take("b", 20), "it has no quota");
        assert!(plan.take("a", 20) && plan.take("a", 20));
        assert!(plan.is_empty() && !plan.take("a", 20));
    }

    #[test]
    fn what_goes_for_a_quota_makes_room_as_well() {
        let quotas = Quotas::default();
        quotas.set_quota("a", 700);
        let usage = usage(800, &[("a", 800)]);
        let mut plan = Plan::new(&usage, &spec(), &quotas, &mut None);
        assert!(plan.take("a", 100));
        assert_eq!(plan.bytes, 60);
    }
}
