//! What the controller is told, and on which thread it hears it.
//!
//! To wake a thread costs as much as the controller's work for dozens of objects. So whoever tells the controller something
//! while it rests has it work on the spot, and whoever finds it at work leaves the rest to that thread: at each time at most
//! one has it work, and nobody waits for it. A thread of its own is there for deadlines, for what takes long, and for what
//! is told by somebody who must go on at once.

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::controller::{Controller, Event};

/// Events after which a thread that has other things to do leaves what comes further to the controller's own.
const BURST: usize = 32;

/// On which thread the controller is to hear of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hear {
    /// On whichever has it work first: most often the one that tells, which holds no lock and may be made to wait for the
    /// log of memory.
    Anywhere,
    /// On the controller's own.
    Apart,
}

/// There is no controller any more.
#[derive(Debug)]
pub(super) struct Ended;

/// The way to the controller.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    /// For the controller's thread: there is work for it, or an earlier deadline.
    wake: Condvar,
}

#[derive(Default)]
struct State {
    events: VecDeque<(Event, Hear)>,
    /// The controller, while nobody has it work.
    resting: Option<Box<Controller>>,
    has_ended: bool,
    /// Until when the controller's thread sleeps, `None` for ever.
    sleeps_until: Option<Instant>,
}

/// The right to have the controller work. It ends with a controller that panics.
struct Shift<'a> {
    inbox: &'a Inbox,
    controller: Option<Box<Controller>>,
}

impl Inbox {
    /// From now on this controller is told. To be called once.
    pub(super) fn open(&self, controller: Controller) {
        self.state.lock().resting = Some(Box::new(controller));
    }

    /// Tells the controller something.
    ///
    /// # Errors
    /// [`Ended`] if there is none any more; `event` is dropped then.
    pub(super) fn tell(&self, event: Event, hear: Hear) -> Result<(), Ended> {
        let mut state = self.state.lock();
        if state.has_ended {
            drop(state);
            drop(event);
            return Err(Ended);
        }
        state.events.push_back((event, hear));
        if hear == Hear::Apart {
            // Who has it work now wakes the thread in the end.
            if state.resting.is_some() {
                self.wake.notify_one();
            }
        } else if let Some(controller) = state.resting.take() {
            drop(state);
            self.shift(controller).work(false);
        }
        Ok(())
    }

    fn shift(&self, controller: Box<Controller>) -> Shift<'_> {
        Shift {
            inbox: self,
            controller: Some(controller),
        }
    }

    /// The body of the controller's thread; returns when the controller has ended.
    pub(super) fn serve(&self) {
        let mut state = self.state.lock();
        while !state.has_ended {
            let has_events = !state.events.is_empty();
            let has_work = |controller: &mut Box<Controller>| {
                has_events
                    || controller
                        .next_deadline()
                        .is_some_and(|at| at <= Instant::now())
            };
            if let Some(controller) = state.resting.take_if(has_work) {
                drop(state);
                self.shift(controller).work(true);
                state = self.state.lock();
                continue;
            }
            let resting = state.resting.as_ref();
            state.sleeps_until = resting.and_then(|controller| controller.next_deadline());
            match state.sleeps_until {
                Some(until) => {
                    self.wake.wait_until(&mut state, until);
                }
                None => self.wake.wait(&mut state),
            }
        }
    }
}

impl Shift<'_> {
    /// Has the controller hear what it was told, all of it if this is its own thread.
    fn work(mut self, is_own: bool) {
        let mut heard = 0;
        while let Some(controller) = &mut self.controller {
            controller.end_overdue();
            let mut state = self.inbox.state.lock();
            let is_ours =
                |(_, hear): &(Event, Hear)| is_own || (*hear == Hear::Anywhere && heard < BURST);
            match state.events.front() {
                Some(event) if is_ours(event) => {}
                left => {
                    let deadline = controller.next_deadline();
                    let is_earlier = |at| state.sleeps_until.is_none_or(|until| at < until);
                    let is_wanted = left.is_some() || deadline.is_some_and(is_earlier);
                    state.resting = self.controller.take();
                    drop(state);
                    if is_wanted {
                        self.inbox.wake.notify_one();
                    }
                    return;
                }
            }
            let next = state.events.pop_front();
            drop(state);
            match next {
                Some((Event::Close, _)) | None => return,
                Some((event, _)) => controller.hear(event),
            }
            heard += 1;
        }
    }
}

impl Drop for Shift<'_> {
    fn drop(&mut self) {
        let Some(controller) = self.controller.take() else {
            return;
        };
        // Nobody is told that it has ended before all that it holds is let go of; what is told meanwhile goes the same way.
        drop(controller);
        let mut state = self.inbox.state.lock();
        state.has_ended = true;
        let unheard = std::mem::take(&mut state.events);
        drop(state);
        self.inbox.wake.notify_all();
        drop(unheard);
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Inbox")
            .field("events", &state.events.len())
            .field("has_ended", &state.has_ended)
            .finish_non_exhaustive()
    }
}
