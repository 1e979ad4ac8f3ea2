//! Objects that a client deletes are deleted in storage, too: else they would come back, or stand in the way of what is stored
//! under their names next.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ondol_host::l2::{Backend, BackendHealth};
use ondol_plugin::l2::ObjectKey;

use crate::attached::Attached;
use crate::error::TieringError;
use crate::store::BarredStores;

/// Readers soon let go of their locks; so long a pause at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// A backend that may have objects, whether it takes new ones or is draining.
pub(crate) struct Holder {
    pub(crate) id: u64,
    pub(crate) backend: Arc<Backend>,
    /// `None` while it is draining.
    pub(crate) attached: Option<Arc<Attached>>,
}

/// Waits until a backend stores none of the objects that are being deleted any more.
///
/// # Errors
/// [`TieringError::NotDeleted`]: what is still stored would come after the delete.
pub(crate) fn wait_for_stores(
    stores: &BarredStores,
    holder: &Holder,
    until: Instant,
) -> Result<(), TieringError> {
    if stores.wait(holder.id, &holder.backend, until) {
        return Ok(());
    }
    Err(TieringError::NotDeleted {
        backend: holder.backend.name().to_owned(),
        reason: "a store of it has not ended".to_owned(),
    })
}

/// Deletes these objects in a backend, and waits, until `until`, for those that are still being read. One that is out of use
/// serves nothing any more, but the next server finds in it what it keeps.
pub(crate) fn delete_in(
    holder: &Holder,
    mut names: Vec<ObjectKey>,
    until: Instant,
) -> Result<(), TieringError> {
    let backend = &holder.backend;
    let mut pause = Duration::from_millis(1);
    while !names.is_empty() {
        let failed = |reason: String| TieringError::NotDeleted {
            backend: backend.name().to_owned(),
            reason,
        };
        let lane = backend.health_of_lane();
        if lane.health == BackendHealth::Quarantined {
            if !backend.spec().persist_enabled {
                return Ok(());
            }
            let why = lane.reason.unwrap_or_default();
            return Err(failed(format!(
                "it is out of use ({why}) and may still have the object; remove the backend or restart the server once it works"
            )));
        }
        let result = match backend.delete(&names) {
            Ok(result) => result,
            // This call may have been the one that put it out of use.
            Err(_) if is_out_of_use(backend) => continue,
            Err(error) => return Err(failed(error.to_string())),
        };
        if let Some(attached) = &holder.attached {
            let gone: Vec<_> = result.gone.gather(&names).into_iter().cloned().collect();
            attached.note_deleted(&gone);
        }
        let failing =
            (0..names.len()).find(|at| !result.gone.test(*at) && !result.locked.test(*at));
        if let Some(at) = failing {
            return Err(failed(format!("{} is neither gone nor locked", names[at])));
        }
        names = result.locked.gather(&names).into_iter().cloned().collect();
        if let Some(name) = names.first() {
            if Instant::now() >= until {
                return Err(failed(format!("{name} is still being read")));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
    Ok(())
}

fn is_out_of_use(backend: &Backend) -> bool {
    backend.health_of_lane().health == BackendHealth::Quarantined
}
