use std::fmt;

/// A short name of an object's layout (model, dtype, shape, memory layout). Objects of different layouts have
/// different fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayoutFingerprint(pub [u8; 16]);

impl fmt::Debug for LayoutFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for LayoutFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What is known about an object besides its bytes; kept by the directory, never in the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectMeta {
    /// The layout under which the object was stored.
    pub layout: Option<LayoutFingerprint>,
    /// xxh3-64 of the bytes.
    pub checksum: Option<u64>,
}
