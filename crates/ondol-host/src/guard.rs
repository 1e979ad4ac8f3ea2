use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// That a call panicked, and with which message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("panicked: {message}")]
pub struct Panicked {
    /// The panic's message, or a description of a payload that is no text.
    pub message: String,
}

/// Runs `call` and turns a panic into an error: the one place where a panic is caught.
///
/// The payload is dropped inside a second guard, since its `Drop` is foreign code too. Whatever of a plugin's
/// making comes out of `call` is still the plugin's: format and drop a plugin's error *inside* the call.
///
/// Unwind safety is asserted, not proven. The caller keeps the promise that makes it true: an instance that
/// panicked is never called again, so nobody sees the state in which the panic left it.
///
/// # Errors
/// [`Panicked`] if `call` panicked.
#[inline]
#[expect(
    clippy::disallowed_methods,
    reason = "this is the place that the lint points to"
)]
pub fn guarded<R>(call: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(bury)
}

#[cold]
#[expect(
    clippy::disallowed_methods,
    reason = "this is the place that the lint points to"
)]
fn bury(payload: Box<dyn Any + Send>) -> Panicked {
    let message = payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a payload that is no text".to_owned());
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        leak(second);
    }
    Panicked { message }
}

/// A payload born of dropping a payload may do the same again, without end.
#[expect(
    clippy::mem_forget,
    reason = "the only way to be rid of a value whose Drop panics each time"
)]
fn leak(payload: Box<dyn Any + Send>) {
    std::mem::forget(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nasty(u32);

    impl Drop for Nasty {
        fn drop(&mut self) {
            std::panic::panic_any(Nasty(self.0 + 1));
        }
    }

    #[test]
    fn messages_of_either_text_type_come_through() {
        let text = |result: Result<(), Panicked>| result.unwrap_err().message;
        assert_eq!(text(guarded(|| panic!("plain"))), "plain");
        assert_eq!(text(guarded(|| panic!("with {}", 1))), "with 1");
        assert_eq!(
            text(guarded(|| std::panic::panic_any(7))),
            "a payload that is no text"
        );
        assert_eq!(guarded(|| 5), Ok(5));
    }

    #[test]
    fn a_payload_that_panics_in_drop_again_and_again_is_survived() {
        let caught = guarded(|| std::panic::panic_any(Nasty(0)));
        assert_eq!(caught.unwrap_err().message, "a payload that is no text");
    }
}
