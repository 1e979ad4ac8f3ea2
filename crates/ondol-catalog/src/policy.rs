use std::fmt;
use std::ops::ControlFlow;

use linkme::distributed_slice;

/// The name under which a policy knows an object.
pub type EntryId = u64;

/// Decides in which order objects leave a full pool.
///
/// A policy orders ids and knows nothing else about them; whether a victim may really go (leases, pins) is for
/// the directory to say.
pub trait EvictionPolicy: Send + fmt::Debug {
    /// `entry` was committed. Ids are never reused.
    fn inserted(&mut self, entry: EntryId);

    /// `entry` was read. Reports may be late or, under load, missing; an id that is unknown is ignored.
    fn accessed(&mut self, entry: EntryId);

    /// `entry` is gone, by eviction or otherwise; an id that is unknown is ignored.
    fn removed(&mut self, entry: EntryId);

    /// Shows candidates to `visit`, the best victim first, until it breaks or none is left.
    fn victims(&self, visit: &mut dyn FnMut(EntryId) -> ControlFlow<()>);
}

/// An eviction policy that can be chosen by name.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Name in lower case, as `--policy` takes it.
    pub name: &'static str,
    /// The policy in one sentence.
    pub summary: &'static str,
    /// Makes one instance.
    pub build: fn() -> Box<dyn EvictionPolicy>,
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
