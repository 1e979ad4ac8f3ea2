//! The pins that this client made, so that each can be named when it is taken back or asked for again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_plugin::Key;
use ondol_protocol::{ControlError, ControlPlane, Pin, PinOutcome};
use parking_lot::Mutex;

use crate::error::may_be_done;

/// What is known about a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The engine has it.
    Made,
    /// It was asked for and not answered. Asked for again under its number, it is made once.
    Unsure,
    /// It was there, and that it be taken back was not answered.
    Undoing,
}

/// Pins by key. One that a call is about is not in here meanwhile, so that no two calls are about the same.
#[derive(Debug)]
pub(crate) struct Pins {
    next: AtomicU64,
    known: Mutex<HashMap<Key, Vec<(u64, Standing)>>>,
}

impl Pins {
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicU64::new(1),
            known: Mutex::default(),
        }
    }

    /// How many pins there are, as far as is known.
    pub(crate) fn count(&self) -> usize {
        self.known.lock().values().map(Vec::len).sum()
    }

    /// Pins objects; for each key whether it was there. A key whose pin was asked for and not answered is asked for
    /// the same pin again, so that repeating a call pins once.
    pub(crate) fn pin(
        &self,
        plane: &dyn ControlPlane,
        keys: &[Key],
    ) -> Result<Vec<bool>, ControlError> {
        self.undo(plane, keys)?;
        let proposed: Vec<_> = keys.iter().map(|key| self.propose(key)).collect();
        let pins: Vec<Pin> = proposed.iter().map(|(pin, _)| pin.clone()).collect();
        let answer = plane.pin(&pins).and_then(|outcomes| paired(keys, outcomes));
        ondol_catalog::failpoint!("client.pin.answered");
        match answer {
            Ok(outcomes) => {
                let outcomes: Vec<bool> = outcomes
                    .into_iter()
                    .map(|outcome| outcome == PinOutcome::Done)
                    .collect();
                let made = pins.into_iter().zip(&outcomes);
                made.filter(|(_, done)| **done)
                    .for_each(|(pin, _)| self.put(pin, Standing::Made));
                Ok(outcomes)
            }
            Err(error) => {
                for (pin, was_asked) in proposed {
                    if was_asked || may_be_done(&error) {
                        self.put(pin, Standing::Unsure);
                    }
                }
                Err(error)
            }
        }
    }

    /// Takes back one pin of each key; for each whether there was one.
    pub(crate) fn unpin(
        &self,
        plane: &dyn ControlPlane,
        keys: &[Key],
    ) -> Result<Vec<bool>, ControlError> {
        // First those of which something is in the air: this call may be the repetition of the one that was lost.
        let order = [Standing::Undoing, Standing::Unsure, Standing::Made];
        let mut unpinned = vec![false; keys.len()];
        let mut undone = Vec::new();
        let mut left: Vec<usize> = (0..keys.len()).collect();
        while !left.is_empty() {
            let of_key = |index: usize| Some((index, self.take(&keys[index], &order)?));
            let taken: Vec<_> = left.drain(..).filter_map(of_key).collect();
            let pins = taken.iter().map(|(_, pin)| pin.clone()).collect();
            let outcomes = self.take_back(plane, pins).inspect_err(|_| {
                // Of those of the rounds before, a repetition of this call must take no second one.
                undone
                    .drain(..)
                    .for_each(|pin| self.put(pin, Standing::Undoing));
            })?;
            for ((index, (pin, standing)), done) in taken.into_iter().zip(outcomes) {
                unpinned[index] = done;
                if done {
                    undone.push(pin);
                } else if standing == Standing::Unsure {
                    // It was never made; there may be another one of the same key.
                    left.push(index);
                }
            }
        }
        Ok(unpinned)
    }

    /// Takes back again what was being taken back when the answer was lost, so that a new pin is not mistaken for it.
    fn undo(&self, plane: &dyn ControlPlane, keys: &[Key]) -> Result<(), ControlError> {
        let mut undoing = Vec::new();
        for key in keys {
            undoing.extend(std::iter::from_fn(|| self.take(key, &[Standing::Undoing])));
        }
        self.take_back(plane, undoing).map(drop)
    }

    fn take_back(
        &self,
        plane: &dyn ControlPlane,
        taken: Vec<(Pin, Standing)>,
    ) -> Result<Vec<bool>, ControlError> {
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let pins: Vec<Pin> = taken.iter().map(|(pin, _)| pin.clone()).collect();
        let answer = plane
            .unpin(&pins)
            .and_then(|outcomes| paired(&pins, outcomes));
        ondol_catalog::failpoint!("client.unpin.answered");
        match answer {
            Ok(outcomes) => {
                let standings = taken.iter().map(|(_, standing)| *standing);
                let undone = outcomes.into_iter().zip(standings);
                Ok(undone
                    .map(|(outcome, standing)| {
                        // A pin goes only if its owner takes it back: what is gone went with the lost request.
                        outcome == PinOutcome::Done || standing == Standing::Undoing
                    })
                    .collect())
            }
            Err(error) => {
                for (pin, standing) in taken {
                    let unanswered = standing == Standing::Made && may_be_done(&error);
                    self.put(
                        pin,
                        if unanswered {
                            Standing::Undoing
                        } else {
                            standing
                        },
                    );
                }
                Err(error)
            }
        }
    }

    /// A pin to ask for, and whether it was asked for before.
    fn propose(&self, key: &Key) -> (Pin, bool) {
        if let Some((pin, _)) = self.take(key, &[Standing::Unsure]) {
            return (pin, true);
        }
        let pin = Pin {
            key: key.clone(),
            number: self.next.fetch_add(1, Ordering::Relaxed),
        };
        (pin, false)
    }

    /// Takes out a pin of the first of these standings of which the key has one.
    fn take(&self, key: &Key, standings: &[Standing]) -> Option<(Pin, Standing)> {
        let mut known = self.known.lock();
        let pins = known.get_mut(key)?;
        let place = standings
            .iter()
            .find_map(|wanted| pins.iter().position(|(_, standing)| standing == wanted))?;
        let (number, standing) = pins.swap_remove(place);
        if pins.is_empty() {
            known.remove(key);
        }
        let key = key.clone();
        Some((Pin { key, number }, standing))
    }

    fn put(&self, Pin { key, number }: Pin, standing: Standing) {
        let mut known = self.known.lock();
        known.entry(key).or_default().push((number, standing));
    }
}

fn paired<T>(asked: &[T], outcomes: Vec<PinOutcome>) -> Result<Vec<PinOutcome>, ControlError> {
    if outcomes.len() == asked.len() {
        return Ok(outcomes);
    }
    Err(ControlError::Protocol(format!(
        "{} answers to {} pins came",
        outcomes.len(),
        asked.len()
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fake::{FakeEngine, FakePlane, Fault};

    /// An engine with one object, a client's line to it and the client's pins.
    struct Scene {
        engine: Arc<FakeEngine>,
        plane: Arc<FakePlane>,
        pins: Pins,
        key: Key,
    }

    impl Scene {
        fn new() -> Self {
            let engine = FakeEngine::new();
            let key = Key::integer(1);
            engine.put(&key);
            Self {
                plane: engine.attach(),
                engine,
                pins: Pins::new(),
                key,
            }
        }

        fn pin(&self) -> Result<bool, ControlError> {
            let keys = std::slice::from_ref(&self.key);
            Ok(self.pins.pin(&*self.plane, keys)? == [true])
        }

        fn unpin(&self) -> Result<bool, ControlError> {
            let keys = std::slice::from_ref(&self.key);
            Ok(self.pins.unpin(&*self.plane, keys)? == [true])
        }

        /// How often the object is pinned.
        fn count(&self) -> usize {
            self.engine.lock().pins_of(&self.key)
        }
    }

    fn faults() -> [(Fault, bool); 4] {
        [
            (Fault::AnswerLost, true),
            (Fault::RequestLost, true),
            (Fault::Error(ControlError::Failed("x".into())), true),
            (Fault::Error(ControlError::Refused("x".into())), false),
        ]
    }

    #[test]
    fn each_pin_is_one_and_each_unpin_takes_one() {
        let scene = Scene::new();
        assert_eq!(scene.unpin(), Ok(false));
        for count in 1..=3 {
            assert_eq!(scene.pin(), Ok(true));
            assert_eq!(scene.count(), count);
        }
        for count in (0..3).rev() {
            assert_eq!(scene.unpin(), Ok(true));
            assert_eq!(scene.count(), count);
        }
        assert_eq!(scene.unpin(), Ok(false));
        assert!(scene.pins.known.lock().is_empty());
    }

    #[test]
    fn what_is_not_there_is_not_pinned_and_leaves_nothing_behind() {
        let scene = Scene::new();
        let keys = [Key::integer(2), scene.key.clone(), scene.key.clone()];
        let pinned = scene.pins.pin(&*scene.plane, &keys);
        assert_eq!(pinned, Ok(vec![false, true, true]));
        assert_eq!(scene.count(), 2);
        let unpinned = scene.pins.unpin(&*scene.plane, &keys);
        assert_eq!(unpinned, Ok(vec![false, true, true]));
        assert_eq!(scene.count(), 0);
        assert!(scene.pins.known.lock().is_empty());
    }

    #[test]
    fn a_pin_that_is_repeated_after_any_failure_pins_once() {
        for first in faults() {
            for second in faults() {
                let scene = Scene::new();
                scene.engine.fail_next("pin", first.0.clone());
                scene.engine.fail_next("pin", second.0);
                assert!(scene.pin().is_err());
                assert!(scene.pin().is_err());
                assert_eq!(scene.pin(), Ok(true));
                assert_eq!(scene.count(), 1, "{:?}", first.0);
                assert_eq!(scene.unpin(), Ok(true));
                assert_eq!(scene.count(), 0);
                assert_eq!(scene.unpin(), Ok(false));
            }
        }
    }

    #[test]
    fn a_pin_that_was_not_answered_can_be_taken_back() {
        for (fault, is_known) in faults() {
            let was_made = fault == Fault::AnswerLost;
            let scene = Scene::new();
            scene.engine.fail_next("pin", fault);
            assert!(scene.pin().is_err());
            assert_eq!(scene.pins.known.lock().len(), usize::from(is_known));
            assert_eq!(scene.unpin(), Ok(was_made));
            assert_eq!(scene.count(), 0);
            assert_eq!(scene.unpin(), Ok(false));
        }
    }

    #[test]
    fn a_pin_that_was_never_made_does_not_stand_before_one_that_was() {
        let scene = Scene::new();
        assert_eq!(scene.pin(), Ok(true));
        scene.engine.fail_next("pin", Fault::RequestLost);
        assert!(scene.pin().is_err());
        assert_eq!((scene.unpin(), scene.count()), (Ok(true), 0));
        assert_eq!(scene.unpin(), Ok(false));
    }

    #[test]
    fn an_unpin_that_is_repeated_after_any_failure_takes_one() {
        for first in faults() {
            for second in faults() {
                let scene = Scene::new();
                assert_eq!((scene.pin(), scene.pin()), (Ok(true), Ok(true)));
                scene.engine.fail_next("unpin", first.0.clone());
                scene.engine.fail_next("unpin", second.0);
                assert!(scene.unpin().is_err());
                assert!(scene.unpin().is_err());
                assert_eq!(scene.unpin(), Ok(true));
                assert_eq!(scene.count(), 1, "{:?}", first.0);
                assert_eq!(scene.unpin(), Ok(true));
                assert_eq!(scene.count(), 0);
                assert_eq!(scene.unpin(), Ok(false));
            }
        }
    }

    #[test]
    fn a_pin_after_an_unpin_that_was_not_answered_stays() {
        for fault in [Fault::AnswerLost, Fault::RequestLost] {
            let scene = Scene::new();
            assert_eq!(scene.pin(), Ok(true));
            scene.engine.fail_next("unpin", fault);
            assert!(scene.unpin().is_err());
            assert_eq!(scene.pin(), Ok(true));
            assert_eq!(scene.count(), 1);
            assert_eq!(scene.unpin(), Ok(true));
            assert_eq!(scene.count(), 0);
            assert_eq!(scene.unpin(), Ok(false));
        }
    }
}
