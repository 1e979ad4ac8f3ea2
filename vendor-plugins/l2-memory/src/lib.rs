//! A storage backend in memory: the reference adapter.

#![forbid(unsafe_code)]
