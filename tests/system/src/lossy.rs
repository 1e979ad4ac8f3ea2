use std::os::fd::OwnedFd;
use std::sync::Arc;

use ondol_plugin::Key;
use ondol_protocol::{
    Access, ClientInfo, Commit, CommitOutcomes, ControlError, ControlPlane, DeleteOutcome,
    EngineStats, Grant, GrantRequest, Hit, Listing, Pin, PinOutcome, RegionInfo, Retrieve,
    Retrieved, StaleReason,
};
use ondol_shm::RegionHandle;
use parking_lot::Mutex;

/// A call whose answer can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the call of its name")]
pub enum Call {
    Grant,
    ReturnPages,
    Commit,
    Retrieve,
    Locate,
    Pin,
    Unpin,
    Delete,
}

/// A line to an engine that carries calls out and loses answers: what a client sees whose server answers too late. It
/// passes no index on, so its client asks for everything.
#[derive(Debug)]
pub struct Lossy {
    inner: Arc<dyn ControlPlane>,
    lose: Mutex<Vec<Call>>,
}

impl Lossy {
    /// Loses nothing yet.
    pub fn new(inner: Arc<dyn ControlPlane>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            lose: Mutex::default(),
        })
    }

    /// Loses the answer to the next call of this kind.
    pub fn lose_next(&self, call: Call) {
        self.lose.lock().push(call);
    }

    /// Whether every answer that was to be lost is lost.
    pub fn is_done(&self) -> bool {
        self.lose.lock().is_empty()
    }

    fn pass<T>(&self, call: Call, answer: Result<T, ControlError>) -> Result<T, ControlError> {
        let mut lose = self.lose.lock();
        match lose.iter().position(|lost| *lost == call) {
            Some(place) => {
                lose.remove(place);
                Err(ControlError::TimedOut { waited_ms: 1 })
            }
            None => answer,
        }
    }
}

impl ControlPlane for Lossy {
    fn client(&self) -> ClientInfo {
        self.inner.client()
    }

    fn lease_table(&self) -> Result<OwnedFd, ControlError> {
        self.inner.lease_table()
    }

    fn regions(&self) -> Result<Vec<RegionInfo>, ControlError> {
        self.inner.regions()
    }

    fn open_backing(&self, region: &RegionHandle, access: Access) -> Result<OwnedFd, ControlError> {
        self.inner.open_backing(region, access)
    }

    fn grant(&self, request: GrantRequest) -> Result<Vec<Grant>, ControlError> {
        self.pass(Call::Grant, self.inner.grant(request))
    }

    fn return_pages(&self, pages: &[Grant]) -> Result<Vec<Result<(), StaleReason>>, ControlError> {
        self.pass(Call::ReturnPages, self.inner.return_pages(pages))
    }

    fn commit(&self, commits: &[Commit]) -> Result<CommitOutcomes, ControlError> {
        self.pass(Call::Commit, self.inner.commit(commits))
    }

    fn retrieve(&self, request: &Retrieve) -> Result<Retrieved, ControlError> {
        self.pass(Call::Retrieve, self.inner.retrieve(request))
    }

    fn locate(&self, keys: &[Key]) -> Result<Vec<Option<Hit>>, ControlError> {
        self.pass(Call::Locate, self.inner.locate(keys))
    }

    fn pin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError> {
        self.pass(Call::Pin, self.inner.pin(pins))
    }

    fn unpin(&self, pins: &[Pin]) -> Result<Vec<PinOutcome>, ControlError> {
        self.pass(Call::Unpin, self.inner.unpin(pins))
    }

    fn delete(&self, keys: &[Key]) -> Result<Vec<DeleteOutcome>, ControlError> {
        self.pass(Call::Delete, self.inner.delete(keys))
    }

    fn list(&self, after: Option<&Key>, limit: u32) -> Result<Listing, ControlError> {
        self.inner.list(after, limit)
    }

    fn stats(&self) -> Result<EngineStats, ControlError> {
        self.inner.stats()
    }

    fn ping(&self) -> Result<(), ControlError> {
        self.inner.ping()
    }

    fn leave(&self) -> Result<(), ControlError> {
        self.inner.leave()
    }
}
