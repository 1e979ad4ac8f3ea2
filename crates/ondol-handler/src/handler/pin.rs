use ondol_plugin::Key;

use super::Handler;
use crate::HandlerError;

/// What keeps objects from eviction without an address.
impl Handler {
    /// Pins an object; `false` if there is none. The pin lasts until [`unpin`](Self::unpin), [`close`](Self::close)
    /// or the end of this process, also beyond a restart of the server unless that forgets this client.
    ///
    /// # Errors
    /// [`HandlerError`]; if [its outcome is unknown](HandlerError::is_outcome_unknown) the call can be repeated, and
    /// pins once.
    pub fn pin(&self, key: &Key) -> Result<bool, HandlerError> {
        Ok(self.batch_pin(std::slice::from_ref(key))? == [true])
    }

    /// Pins objects; one answer for each key, in order.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub fn batch_pin(&self, keys: &[Key]) -> Result<Vec<bool>, HandlerError> {
        self.on_line(|line| Ok(line.pins.pin(&*line.plane, keys)?))
    }

    /// Takes back one pin of this handler's; `false` if it has none on that object.
    ///
    /// # Errors
    /// [`HandlerError`]; if [its outcome is unknown](HandlerError::is_outcome_unknown) the call can be repeated, and
    /// takes one pin back.
    pub fn unpin(&self, key: &Key) -> Result<bool, HandlerError> {
        Ok(self.batch_unpin(std::slice::from_ref(key))? == [true])
    }

    /// Takes back pins; one answer for each key, in order.
    ///
    /// # Errors
    /// As [`unpin`](Self::unpin).
    pub fn batch_unpin(&self, keys: &[Key]) -> Result<Vec<bool>, HandlerError> {
        self.on_line(|line| Ok(line.pins.unpin(&*line.plane, keys)?))
    }
}
