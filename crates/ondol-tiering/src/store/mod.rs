//! From memory to storage.
