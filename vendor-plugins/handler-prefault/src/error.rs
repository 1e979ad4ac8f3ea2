/// Why the configuration is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The switch is neither on nor off.
    #[error("ONDOL_PREFAULT is {found:?}; expected 1, on or true, or else 0, off or false")]
    Switch {
        /// What the variable holds.
        found: String,
    },
    /// The budget is no size.
    #[error(
        "ONDOL_PREFAULT_PIN_BYTES is {found:?}; expected a whole number of bytes below 16 EiB, or one followed by KiB, MiB, GiB or TiB, such as 64MiB"
    )]
    PinBytes {
        /// What the variable holds.
        found: String,
    },
}
