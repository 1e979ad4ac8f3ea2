/// Why a configuration or a store is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number that is too small or too large.
    #[error("{field} is {found}; expected a number from {least} to {most}{hint}")]
    Number {
        /// Which parameter.
        field: &'static str,
        /// Its value.
        found: f64,
        /// The smallest that it may be.
        least: f64,
        /// The largest that it may be.
        most: f64,
        /// What to do.
        hint: &'static str,
    },
    /// Two parameters say the same thing.
    #[error("max_size_gb and max_size_bytes are both given; expected one of them")]
    TwoSizes,
    /// An object that never fits.
    #[error("the object has {found} bytes; expected at most the capacity, {capacity}")]
    TooLarge {
        /// Its length.
        found: u64,
        /// The capacity in bytes.
        capacity: u64,
    },
    /// No room can be made now.
    #[error("there is no room for {found} bytes: all that is left is locked")]
    Locked {
        /// Bytes that were to be stored.
        found: u64,
    },
    /// The adapter is closed.
    #[error("the adapter is closed")]
    Closed,
}
