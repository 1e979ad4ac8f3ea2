//! Storage backends: fakes to write tests with.

pub mod fakes;

pub use fakes::{
    DropCounter, HeldLoad, HeldLookup, HeldStore, ManualAdapter, MapBackend, NullAdapter,
};
