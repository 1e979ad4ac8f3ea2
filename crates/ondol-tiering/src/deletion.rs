//! Objects that a client deletes are deleted in storage, too: else they would come back, or stand in the way of what is stored
//! under their names next.

use std::thread;
use std::time::{Duration, Instant};

use ondol_host::l2::BackendHealth;
use ondol_plugin::l2::ObjectKey;

use crate::attached::Attached;
use crate::error::TieringError;
use crate::store::BarredStores;

/// Readers soon let go of their locks; so long a pause at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Waits until a backend stores none of the objects that are being deleted any more.
///
/// # Errors
/// [`TieringError::NotDeleted`]: what is still stored would come after the delete.
pub(crate) fn wait_for_stores(
    stores: &BarredStores,
    attached: &Attached,
    until: Instant,
) -> Result<(), TieringError> {
    if stores.wait(attached, until) {
        return Ok(());
    }
    Err(TieringError::NotDeleted {
        backend: attached.backend.name().to_owned(),
        reason: "a store of it has not ended".to_owned(),
    })
}

/// Deletes these objects in a backend, and waits, until `until`, for those that are still being read. A backend that is out of
/// use is left out: it serves nothing any more.
pub(crate) fn delete_in(
    attached: &Attached,
    mut names: Vec<ObjectKey>,
    until: Instant,
) -> Result<(), TieringError> {
    let backend = &attached.backend;
    let mut pause = Duration::from_millis(1);
    while !names.is_empty() {
        if backend.health_of_lane().health == BackendHealth::Quarantined {
            return Ok(());
        }
        let failed = |reason: String| TieringError::NotDeleted {
            backend: backend.name().to_owned(),
            reason,
        };
        let result = backend.delete(&names);
        let result = result.map_err(|error| failed(error.to_string()))?;
        let gone: Vec<_> = result.gone.gather(&names).into_iter().cloned().collect();
        attached.note_deleted(&gone);
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
