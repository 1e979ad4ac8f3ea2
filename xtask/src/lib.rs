//! The habits of the house, as a library so that they can be tested.

#![forbid(unsafe_code)]

pub mod contract;
pub mod workspace;
