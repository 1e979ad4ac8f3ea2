use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use linkme::distributed_slice;

/// The name under which a policy knows an object.
pub type EntryId = u64;

/// Decides in which order objects leave where there is no room.
///
/// A policy orders ids; whether a victim may really go (leases, pins) is for its owner to say.
pub trait EvictionPolicy: Send + fmt::Debug {
    /// An object has come. Ids are never reused: an object that comes back has a new one, and is known by its
    /// fingerprint.
    fn inserted(&mut self, object: Admitted<'_>);

    /// `entry` was read. Reports may be late or, under load, missing; an id that is unknown is ignored.
    fn accessed(&mut self, entry: EntryId);

    /// `entry` is gone, by eviction or otherwise; an id that is unknown is ignored.
    fn removed(&mut self, entry: EntryId);

    /// Shows candidates to `visit`, the best victim first, each once, until it breaks or none is left. What was shown and is
    /// removed later counts as evicted, and may be remembered; what is removed without that was deleted.
    fn victims(&mut self, visit: &mut dyn FnMut(EntryId) -> ControlFlow<()>);
}

/// An object that has come, as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct Admitted<'a> {
    /// Its name from now on.
    pub id: EntryId,
    /// A hash of its key, the same each time it comes.
    pub fingerprint: u64,
    /// The bytes that go with it.
    pub bytes: u64,
    /// Whose it is: the cache salt of its name, often empty.
    pub salt: &'a str,
}

/// How many bytes the objects of a cache salt may have.
pub trait SaltLimits: Send + Sync + fmt::Debug {
    /// The limit of a salt in bytes; `None` if it has none.
    fn limit(&self, salt: &str) -> Option<u64>;
}

/// What a policy is told when it is made.
#[derive(Clone, Debug, Default)]
pub struct PolicyContext {
    /// Bytes that there is room for, if that is known; else a policy goes by the most that it has seen.
    pub capacity_bytes: Option<u64>,
    /// The limits of cache salts, if there are any.
    pub quotas: Option<Arc<dyn SaltLimits>>,
}

/// An eviction policy that can be chosen by name.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Name in lower case, as `--policy` takes it.
    pub name: &'static str,
    /// The policy in one sentence.
    pub summary: &'static str,
    /// Makes one instance.
    pub build: fn(&PolicyContext) -> Box<dyn EvictionPolicy>,
}

/// Every eviction policy that is linked in.
#[distributed_slice]
pub static POLICIES: [Policy];

/// Every eviction policy that is linked in, by name.
pub fn policies() -> Vec<&'static Policy> {
    crate::sorted_by_name(&POLICIES, |policy| policy.name)
}

/// The eviction policy of this name.
pub fn policy(name: &str) -> Option<&'static Policy> {
    POLICIES.iter().find(|policy| policy.name == name)
}
