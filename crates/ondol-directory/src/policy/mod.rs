//! Eviction policies; each is a row of the catalogue's table.

mod lru;
