use ondol_protocol::LayoutFingerprint;
use sha2::{Digest, Sha256};

/// What the bytes of an object mean: who may read them as what.
///
/// ```
/// use ondol_handler::Layout;
///
/// let bf16 = Layout::new("llama-3.1-8b/rev7", "bf16", &[2, 32, 256, 8, 128], "nhd");
/// let fp8 = Layout { dtype: "fp8".into(), ..bf16.clone() };
/// assert_ne!(bf16.fingerprint(), fp8.fingerprint());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The model, by an identity that differs between checkpoints, not by a name that they share.
    pub model: String,
    /// The element type.
    pub dtype: String,
    /// The shape of the object's tensor.
    pub shape: Vec<u64>,
    /// The order of its dimensions in memory.
    pub layout: String,
}

impl Layout {
    /// A layout of these parts.
    pub fn new(model: &str, dtype: &str, shape: &[u64], layout: &str) -> Self {
        Self {
            model: model.into(),
            dtype: dtype.into(),
            shape: shape.into(),
            layout: layout.into(),
        }
    }

    /// The first 16 bytes of the SHA-256 of all parts, each preceded by its length: for model, dtype and layout a
    /// little-endian `u64` and the text, for the shape a little-endian `u64` and each dimension as one.
    pub fn fingerprint(&self) -> LayoutFingerprint {
        let mut hash = Sha256::new();
        for text in [&self.model, &self.dtype, &self.layout] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        hash.update((self.shape.len() as u64).to_le_bytes());
        self.shape
            .iter()
            .for_each(|dimension| hash.update(dimension.to_le_bytes()));
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&hash.finalize()[..16]);
        LayoutFingerprint(fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_the_documented_hash() {
        // Computed independently from the description above.
        let layout = Layout::new("m", "bf16", &[2, 3], "nhd");
        assert_eq!(
            layout.fingerprint().to_string(),
            "eb764c7f410b3f15ed750417f1b1cab0"
        );
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let fingerprints = [
            Layout::new("ab", "c", &[1, 2], "d"),
            Layout::new("a", "bc", &[1, 2], "d"),
            Layout::new("ab", "c", &[2, 1], "d"),
            Layout::new("ab", "c", &[1], "d"),
            Layout::new("ab", "c", &[1, 2], "e"),
        ]
        .map(|layout| layout.fingerprint());
        for (index, one) in fingerprints.iter().enumerate() {
            assert!(fingerprints[index + 1..].iter().all(|other| one != other));
        }
    }
}
