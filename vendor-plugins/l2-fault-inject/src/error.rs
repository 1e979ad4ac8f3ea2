/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A share that is none.
    #[error("{field} is {found}; expected a share from 0 to 1")]
    Share {
        /// Which parameter.
        field: &'static str,
        /// Its value.
        found: f64,
    },
    /// A time that is none.
    #[error("{field} is {found}; expected milliseconds, 0 or more")]
    Milliseconds {
        /// Which parameter.
        field: &'static str,
        /// Its value.
        found: f64,
    },
}
