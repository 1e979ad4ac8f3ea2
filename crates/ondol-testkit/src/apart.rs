//! Foreign code on a thread of its own.

use std::any::Any;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What went wrong, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) place: String,
    pub(crate) what: String,
}

impl Complaint {
    /// The same, as it was found after something.
    pub(crate) fn after(mut self, what: &str) -> Self {
        self.what = format!("{} (after {what})", self.what);
        self
    }
}

pub(crate) type Outcome<T> = Result<T, Complaint>;

pub(crate) fn complaint<T>(place: &str, what: impl Into<String>) -> Outcome<T> {
    Err(Complaint {
        place: place.to_owned(),
        what: what.into(),
    })
}

/// Where in the foreign code a thread is.
#[derive(Clone, Debug)]
pub(crate) struct Whereabouts(Arc<Mutex<&'static str>>);

impl Whereabouts {
    pub(crate) fn set(&self, place: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }

    pub(crate) fn get(&self) -> &'static str {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work` on a thread of its own. A panic is its end, and so is the deadline: a thread that hangs is left alone.
pub(crate) fn apart<T: Send + 'static>(
    deadline: Duration,
    place: &'static str,
    work: impl FnOnce(&Whereabouts) -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    let at = Whereabouts(Arc::new(Mutex::new(place)));
    let (answer, wait) = channel();
    let thread = thread::spawn({
        let at = at.clone();
        move || {
            // Nobody listens any more if the deadline came first.
            let _ = answer.send(work(&at));
        }
    });
    match wait.recv_timeout(deadline) {
        Ok(outcome) => {
            let _ = thread.join();
            outcome
        }
        Err(RecvTimeoutError::Disconnected) => {
            let message = thread
                .join()
                .map_or_else(|payload| message(&*payload), |()| "no message".to_owned());
            complaint(at.get(), format!("panicked: {message}"))
        }
        Err(RecvTimeoutError::Timeout) => complaint(
            at.get(),
            format!("did not return within {deadline:?}; every wait needs a deadline"),
        ),
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a payload that is no text".to_owned())
}

/// Runs these side by side; all are joined, whatever the first of them says.
pub(crate) fn side_by_side<'a>(
    work: Vec<Box<dyn FnOnce() -> Outcome<()> + Send + 'a>>,
) -> Outcome<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = work.into_iter().map(|work| scope.spawn(work)).collect();
        let outcomes = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|payload| {
                complaint("backend", format!("panicked: {}", message(&*payload)))
            })
        });
        outcomes.collect::<Vec<_>>().into_iter().collect()
    })
}
