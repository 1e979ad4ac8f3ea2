//! A storage backend in a directory of files.
