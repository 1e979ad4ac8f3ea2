//! The habits of the house, as a library so that they can be tested.

#![forbid(unsafe_code)]

pub mod bench;
pub mod contract;
pub mod instructions;
pub mod licences;
pub mod new_plugin;
pub mod suite;
pub mod torture;
pub mod workspace;
