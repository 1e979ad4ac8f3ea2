//! A storage backend that wraps another one and makes it fail.

#![forbid(unsafe_code)]
