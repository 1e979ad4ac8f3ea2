use std::fmt;
use std::sync::Arc;

use ondol_engine::{Engine, Session};
use ondol_protocol::{ClientId, ControlError, ControlPlane};
use ondol_shm::Process;

/// What a door needs of the engine behind it.
pub trait House: Send + Sync + fmt::Debug {
    /// Lets a client in that lives in `process`.
    ///
    /// # Errors
    /// [`ControlError`] is what the client is told.
    fn attach(self: Arc<Self>, process: &Process) -> Result<Arc<dyn Tenant>, ControlError>;

    /// Takes back everything that a client held whose process has ended; nothing if the client is not known. A call
    /// of the client that is running meanwhile, or comes later, must give it nothing new.
    fn client_died(&self, client: ClientId) -> Option<Reclaimed>;

    /// Names this start of the engine.
    fn incarnation(&self) -> u64;
}

/// A client's line to the engine, as the door holds it. Dropping it is leaving.
pub trait Tenant: ControlPlane {
    /// Whether the client has left and holds nothing any more, so that it can be forgotten.
    fn is_gone(&self) -> bool;
}

/// What a dead client held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Leases that had not ended.
    pub leases: u64,
    /// Pins.
    pub pins: u64,
    /// Granted pages, written or not.
    pub grants: u64,
}

impl House for Engine {
    fn attach(self: Arc<Self>, process: &Process) -> Result<Arc<dyn Tenant>, ControlError> {
        let session: Arc<Session> = Self::attach(&self, Some(process))?;
        Ok(session)
    }

    fn client_died(&self, client: ClientId) -> Option<Reclaimed> {
        let reclaimed = self.client_died(client)?;
        Some(Reclaimed {
            leases: reclaimed.leases,
            pins: reclaimed.pins,
            grants: reclaimed.grants,
        })
    }

    fn incarnation(&self) -> u64 {
        self.incarnation()
    }
}

impl Tenant for Session {
    fn is_gone(&self) -> bool {
        self.is_gone()
    }
}
