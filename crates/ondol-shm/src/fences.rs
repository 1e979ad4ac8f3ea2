//! The fences of this crate's lock-free protocols, so that a model can leave one out and show that it is needed.

use crate::sync::{Ordering, fence};

pub(crate) trait Fences {
    fn release() {
        fence(Ordering::Release);
    }
    fn acquire() {
        fence(Ordering::Acquire);
    }
    /// Also keeps a store before it from passing a load after it.
    fn full() {
        fence(Ordering::SeqCst);
    }
}

pub(crate) struct Real;
impl Fences for Real {}

#[cfg(all(test, loom))]
pub(crate) mod mutants {
    use super::Fences;

    pub(crate) struct NoRelease;
    impl Fences for NoRelease {
        fn release() {}
    }

    pub(crate) struct NoAcquire;
    impl Fences for NoAcquire {
        fn acquire() {}
    }

    pub(crate) struct NoFull;
    impl Fences for NoFull {
        fn full() {}
    }

    /// A fence that orders everything but a store before a load.
    pub(crate) struct WeakFull;
    impl Fences for WeakFull {
        fn full() {
            use crate::sync::{Ordering, fence};
            fence(Ordering::AcqRel);
        }
    }
}
