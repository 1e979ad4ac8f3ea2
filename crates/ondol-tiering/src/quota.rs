use std::collections::BTreeMap;
use std::fmt;

use ondol_catalog::SaltLimits;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

/// How many bytes the objects of each cache salt may have.
///
/// As LMCache's `QuotaManager` (0.5.6), save that a salt without a quota of its own has the *default limit* everywhere.
/// LMCache's isolated eviction takes such a salt's limit for 0 and evicts all it has: a default limit of 0 does the same
/// here.
#[derive(Default)]
pub struct Quotas {
    table: RwLock<QuotaTable>,
    listeners: RwLock<Vec<Listener>>,
}

type Listener = Box<dyn Fn() + Send + Sync>;

/// All quotas, as they can be kept in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaTable {
    /// Bytes of a salt without a quota of its own; `None` is as much as there is room for.
    pub default_limit: Option<u64>,
    /// Bytes of each salt that has a quota of its own.
    pub quotas: BTreeMap<String, u64>,
}

impl Quotas {
    /// Gives a salt a quota in bytes, in place of the one that it had. 0 is a quota: nothing of the salt may stay.
    pub fn set_quota(&self, salt: &str, bytes: u64) {
        self.table.write().quotas.insert(salt.to_owned(), bytes);
        self.changed();
    }

    /// Takes a salt's own quota away; whether it had one.
    pub fn delete_quota(&self, salt: &str) -> bool {
        let had = self.table.write().quotas.remove(salt).is_some();
        self.changed();
        had
    }

    /// Whether a salt has a quota of its own.
    pub fn has_quota(&self, salt: &str) -> bool {
        self.table.read().quotas.contains_key(salt)
    }

    /// Salts that have a quota of their own, with its bytes, by name.
    pub fn list_quotas(&self) -> Vec<(String, u64)> {
        let table = self.table.read();
        let quotas = table.quotas.iter();
        quotas.map(|(salt, bytes)| (salt.clone(), *bytes)).collect()
    }

    /// Sets the limit in bytes of all salts that have no quota of their own; `None` is no limit.
    pub fn set_default_limit(&self, bytes: Option<u64>) {
        self.table.write().default_limit = bytes;
        self.changed();
    }

    /// The limit in bytes of a salt that has no quota of its own; `None` is no limit.
    pub fn default_limit(&self) -> Option<u64> {
        self.table.read().default_limit
    }

    /// The limit of a salt in bytes: its own, else the default, else none.
    pub fn limit(&self, salt: &str) -> Option<u64> {
        let table = self.table.read();
        table.quotas.get(salt).copied().or(table.default_limit)
    }

    /// Everything that was set.
    pub fn capture(&self) -> QuotaTable {
        self.table.read().clone()
    }

    /// Sets everything anew, in place of what was set.
    pub fn restore(&self, table: QuotaTable) {
        *self.table.write() = table;
        self.changed();
    }

    /// Whether any salt may have a limit.
    pub(crate) fn has_any(&self) -> bool {
        let table = self.table.read();
        table.default_limit.is_some() || !table.quotas.is_empty()
    }

    /// Calls `listener` after every change.
    pub(crate) fn on_change(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    fn changed(&self) {
        self.listeners.read().iter().for_each(|listener| listener());
    }
}

impl SaltLimits for Quotas {
    fn limit(&self, salt: &str) -> Option<u64> {
        Quotas::limit(self, salt)
    }
}

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.read().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_has_its_own_quota_else_the_default() {
        let quotas = Quotas::default();
        assert_eq!(quotas.limit("a"), None);
        quotas.set_default_limit(Some(0));
        quotas.set_quota("a", 10);
        quotas.set_quota("a", 20);
        quotas.set_quota("", 5);
        assert_eq!(quotas.limit("a"), Some(20));
        assert_eq!(quotas.limit(""), Some(5));
        assert_eq!(quotas.limit("b"), Some(0), "as LMCache takes it");
        assert!(quotas.has_quota("a") && !quotas.has_quota("b"));
        assert_eq!(quotas.list_quotas(), [(String::new(), 5), ("a".into(), 20)]);
        assert!(quotas.delete_quota("a"));
        assert!(!quotas.delete_quota("a"));
        assert_eq!(quotas.limit("a"), Some(0));
        quotas.set_default_limit(None);
        assert_eq!(quotas.limit("a"), None);
    }

    #[test]
    fn what_was_captured_is_restored_by_way_of_json() {
        let quotas = Quotas::default();
        quotas.set_default_limit(Some(7));
        quotas.set_quota("a", u64::MAX);
        let json = serde_json::to_string(&quotas.capture()).unwrap();
        assert_eq!(
            json,
            r#"{"default_limit":7,"quotas":{"a":18446744073709551615}}"#
        );
        let other = Quotas::default();
        other.set_quota("gone", 1);
        other.restore(serde_json::from_str(&json).unwrap());
        assert_eq!(other.capture(), quotas.capture());
        assert!(serde_json::from_str::<QuotaTable>(r#"{"quota":{}}"#).is_err());
    }
}
