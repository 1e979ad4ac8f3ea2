use ondol_plugin::Key;
use ondol_protocol::PinOutcome;

use super::Handler;
use crate::HandlerError;

/// What keeps objects from eviction without an address.
impl Handler {
    /// Pins an object; `false` if there is none. The pin lasts until [`unpin`](Self::unpin), [`close`](Self::close)
    /// or the end of this process.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn pin(&self, key: &Key) -> Result<bool, HandlerError> {
        Ok(self.batch_pin(std::slice::from_ref(key))? == [true])
    }

    /// Pins objects; one answer for each key, in order.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn batch_pin(&self, keys: &[Key]) -> Result<Vec<bool>, HandlerError> {
        let pinned = self.line()?.plane.pin(keys)?;
        Ok(pinned
            .into_iter()
            .map(|outcome| outcome == PinOutcome::Done)
            .collect())
    }

    /// Takes back one pin of this handler's; `false` if it has none on that object.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn unpin(&self, key: &Key) -> Result<bool, HandlerError> {
        Ok(self.batch_unpin(std::slice::from_ref(key))? == [true])
    }

    /// Takes back pins; one answer for each key, in order.
    ///
    /// # Errors
    /// [`HandlerError`].
    pub fn batch_unpin(&self, keys: &[Key]) -> Result<Vec<bool>, HandlerError> {
        let unpinned = self.line()?.plane.unpin(keys)?;
        Ok(unpinned
            .into_iter()
            .map(|outcome| outcome == PinOutcome::Done)
            .collect())
    }
}
