use hmac::{Hmac, KeyInit, Mac};
use ondol_plugin::{RegionId, RegionSpan};
use sha2::Sha256;

/// Length of a handle's token in bytes.
pub const TOKEN_BYTES: usize = 32;

/// The capability for a region: who can show it may ask for the memory behind it.
///
/// The token is HMAC-SHA256, under the server's secret, over id, offset and length as little-endian `u64`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionHandle {
    /// The region and its extent.
    pub span: RegionSpan,
    /// Proof that the server issued this handle.
    pub token: [u8; TOKEN_BYTES],
}

/// The secret under which a server signs its handles.
#[derive(Clone)]
pub struct HandleSecret([u8; 32]);

impl HandleSecret {
    /// A fresh secret from the system's random source.
    ///
    /// # Errors
    /// If the system has no randomness to give.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The secret that these bytes are.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, to be kept where only the server's user can read them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The handle of a region.
    pub fn sign(&self, span: RegionSpan) -> RegionHandle {
        let token = self.mac(span).finalize().into_bytes().into();
        RegionHandle { span, token }
    }

    /// Whether this secret signed the handle; takes the same time whatever differs.
    pub fn verify(&self, handle: &RegionHandle) -> bool {
        self.mac(handle.span).verify_slice(&handle.token).is_ok()
    }

    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
    fn mac(&self, span: RegionSpan) -> Hmac<Sha256> {
        let RegionSpan {
            region_id: RegionId(id),
            offset,
            length,
        } = span;
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        for part in [id, offset, length] {
            mac.update(&part.to_le_bytes());
        }
        mac
    }
}

impl std::fmt::Debug for HandleSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandleSecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_handle_is_refused() {
        let secret = HandleSecret::from_bytes([7; 32]);
        let span = RegionSpan {
            region_id: RegionId(7),
            offset: 4_194_304,
            length: 2_097_152,
        };
        let handle = secret.sign(span);
        assert!(secret.verify(&handle));
        let mut forged = [handle; 4];
        forged[0].span.region_id.0 += 1;
        forged[1].span.offset += 1;
        forged[2].span.length += 1;
        forged[3].token[31] ^= 1;
        assert!(forged.iter().all(|handle| !secret.verify(handle)));
        assert!(!HandleSecret::from_bytes([8; 32]).verify(&handle));
    }

    #[test]
    fn the_token_is_the_documented_mac() {
        // Computed independently: HMAC-SHA256(key = 00..1f, 7u64 ‖ 4194304u64 ‖ 2097152u64, little-endian).
        let secret = HandleSecret::from_bytes(std::array::from_fn(|i| i as u8));
        let span = RegionSpan {
            region_id: RegionId(7),
            offset: 4_194_304,
            length: 2_097_152,
        };
        let hex: String = secret
            .sign(span)
            .token
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hex,
            "2f517886a3da68abd2fe09b1eaca78afdbd0c1fcfff7527dffc76d0c75e4802d"
        );
    }
}
