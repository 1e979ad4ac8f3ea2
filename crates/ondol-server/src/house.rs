use std::fmt;
use std::sync::Arc;

use ondol_protocol::{ClientId, ControlError, ControlPlane, DetachReason, Reclaimed};
use ondol_shm::Process;

/// What a door needs of the engine behind it.
pub trait House: Send + Sync + fmt::Debug {
    /// Lets a client in. The engine may keep `process` to ask whether the client lives.
    ///
    /// # Errors
    /// [`ControlError`] is what the client is told.
    fn attach(self: Arc<Self>, process: Process) -> Result<Arc<dyn ControlPlane>, ControlError>;

    /// Forgets a client and reclaims everything it held. A client that is unknown holds nothing. A call of the
    /// client's session that is running meanwhile, or comes later, must give it nothing new.
    fn detach(&self, client: ClientId, reason: DetachReason) -> Reclaimed;

    /// Whether the engine still has something of the client's to keep: one that left is known for as long as its
    /// leases last.
    fn is_attached(&self, client: ClientId) -> bool;

    /// Names this start of the engine.
    fn incarnation(&self) -> u64;
}
