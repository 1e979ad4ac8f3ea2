use ondol_plugin::Key;
use ondol_plugin::l2::ObjectKey;

/// The name of an object in storage backends: LMCache's own for its keys, for any other key the `blake3` of tag and bytes
/// under the model `ondol`.
pub fn object_key(key: &Key) -> ObjectKey {
    let _ = key;
    unreachable!("not written yet")
}
