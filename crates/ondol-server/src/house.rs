use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use ondol_engine::Adopted;
use ondol_engine::{Engine, Session};
use ondol_protocol::{ClientId, ControlError, ControlPlane};
use ondol_shm::Process;

/// What a door needs of the engine behind it.
pub trait House: Send + Sync + fmt::Debug {
    /// Lets a client in that lives in `process` and knows itself by `instance`.
    ///
    /// # Errors
    /// [`ControlError`] is what the client is told.
    fn attach(
        self: Arc<Self>,
        process: &Process,
        instance: [u8; 16],
    ) -> Result<Arc<dyn Tenant>, ControlError>;

    /// The clients that outlived the server before this one and have not come back; what they hold is kept for them.
    /// Asked once: whoever asks must tell of their deaths, as of those of other clients.
    fn take_adopted(&self) -> Vec<Adopted>;

    /// Lets a client of the server before this one back in. `lease_table` is what it passed; nothing is known of that
    /// file.
    ///
    /// # Errors
    /// [`ControlError`] is what the client is told; it may come back once more.
    fn resume(
        self: Arc<Self>,
        client: ClientId,
        lease_table: OwnedFd,
    ) -> Result<Arc<dyn Tenant>, ControlError>;

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
    fn attach(
        self: Arc<Self>,
        process: &Process,
        instance: [u8; 16],
    ) -> Result<Arc<dyn Tenant>, ControlError> {
        let session: Arc<Session> = Self::attach(&self, Some(process), instance)?;
        Ok(session)
    }

    fn take_adopted(&self) -> Vec<Adopted> {
        self.take_adopted()
    }

    fn resume(
        self: Arc<Self>,
        client: ClientId,
        lease_table: OwnedFd,
    ) -> Result<Arc<dyn Tenant>, ControlError> {
        let session: Arc<Session> = Self::resume(&self, client, lease_table)?;
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
