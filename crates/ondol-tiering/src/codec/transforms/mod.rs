//! Transforms; each is a row of the catalogue's table.

mod aesgcm;
mod checksum;
mod lz4;
mod zstd;
