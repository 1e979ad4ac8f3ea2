//! Content that names its key and its writer, so that bytes of another object, of another writer or of none, or
//! half of each, can be told.

/// Length of the head: the key's hash and the writer.
const HEAD: usize = 16;

fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

fn word(seed: u64, index: u64) -> [u8; 8] {
    let mut x = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)).to_le_bytes()
}

fn seed(key: &str, writer: u64, len: usize) -> u64 {
    hash(key) ^ writer.rotate_left(32) ^ len as u64
}

/// Writes the content of `key` by `writer` into all of `bytes`.
pub fn fill(bytes: &mut [u8], key: &str, writer: u64) {
    let len = bytes.len();
    if len < HEAD {
        let content = word(hash(key), len as u64).into_iter().cycle();
        bytes
            .iter_mut()
            .zip(content)
            .for_each(|(byte, content)| *byte = content);
        return;
    }
    bytes[..8].copy_from_slice(&hash(key).to_le_bytes());
    bytes[8..HEAD].copy_from_slice(&writer.to_le_bytes());
    let seed = seed(key, writer, len);
    for (index, chunk) in (0..).zip(bytes[HEAD..].chunks_mut(8)) {
        chunk.copy_from_slice(&word(seed, index)[..chunk.len()]);
    }
}

/// Who wrote this content of `key`; 0 where it is too short to tell.
///
/// # Errors
/// What is wrong with the bytes.
pub fn check(bytes: &[u8], key: &str) -> Result<u64, String> {
    let len = bytes.len();
    let mut writer = 0;
    if len >= HEAD {
        let head = |start: usize| {
            bytes[start..start + 8]
                .iter()
                .rev()
                .fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
        };
        if head(0) != hash(key) {
            return Err(format!(
                "the bytes are not those of {key}: {:02x?}",
                &bytes[..HEAD]
            ));
        }
        writer = head(8);
    }
    let mut expected = vec![0; len];
    fill(&mut expected, key, writer);
    match expected
        .iter()
        .zip(bytes)
        .position(|(one, other)| one != other)
    {
        None => Ok(writer),
        Some(at) => Err(format!(
            "{key} by writer {writer} is not whole: byte {at} of {len} differs"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_told_from_any_other() {
        for len in [0, 1, 15, 17, 4099] {
            let mut bytes = vec![0; len];
            fill(&mut bytes, "k", 7);
            assert_eq!(check(&bytes, "k"), Ok(if len < HEAD { 0 } else { 7 }));
            if len > 0 {
                assert!(check(&bytes, "l").is_err(), "{len}");
                bytes[len - 1] ^= 1;
                assert!(check(&bytes, "k").is_err(), "{len}");
            }
        }
    }
}
