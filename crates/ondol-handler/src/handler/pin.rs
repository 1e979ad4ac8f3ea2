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
        let line = self.line()?;
        let pins = line.pins.propose(keys);
        let result = line.plane.pin(&pins);
        match &result {
            Ok(outcomes) => {
                let absent = pins.iter().zip(outcomes);
                let absent = absent.filter(|(_, outcome)| **outcome == PinOutcome::Absent);
                absent.for_each(|(pin, _)| line.pins.forget(pin));
            }
            Err(error) if error.is_outcome_unknown() => {}
            Err(_) => pins.iter().for_each(|pin| line.pins.forget(pin)),
        }
        Ok(result?
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
        let line = self.line()?;
        let taken = line.pins.take(keys);
        let pins: Vec<_> = taken.iter().flatten().cloned().collect();
        if pins.is_empty() {
            return Ok(vec![false; keys.len()]);
        }
        let outcomes = line.plane.unpin(&pins);
        let outcomes = outcomes.inspect_err(|_| line.pins.restore(pins))?;
        let mut outcomes = outcomes.into_iter();
        let unpinned = taken
            .iter()
            .map(|pin| pin.is_some() && outcomes.next() == Some(PinOutcome::Done));
        Ok(unpinned.collect())
    }
}
