use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use ondol_catalog::{
    BuiltTransform, Secrecy, TRANSFORMS, Transform, TransformRow, TransformedObject,
    linkme::distributed_slice,
};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, LessSafeKey, NONCE_LEN, Nonce, Tag};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::OFlags;
use serde_json::{Map, Value};

use crate::codec::parameters::Parameters;

#[distributed_slice(TRANSFORMS)]
#[linkme(crate = ondol_catalog::linkme)]
static AESGCM: TransformRow = TransformRow {
    id: 3,
    name: "aesgcm",
    summary: "Encrypts with AES-GCM, a key for each cache salt, bound to the object's key.",
    parameters: &[
        (
            "master_key_path",
            "file with the master key, which only its owner may read",
        ),
        (
            "master_key_format",
            "\"raw\": all bytes of the file, as LMCache reads it; \"hex\": hexadecimal digits (raw)",
        ),
        ("aes_bits", "128 or 256 (128)"),
        ("key_provider", "\"hkdf\", the only one (hkdf)"),
        (
            "accept_unbound",
            "whether LMCache's objects are read, which can be swapped undetected (false)",
        ),
        (
            "accept_plain",
            "whether objects are read that are not encrypted, such as those stored before (false)",
        ),
    ],
    build: |given| Ok(BuiltTransform::Bytes(Box::new(AesGcm::new(given)?))),
};

/// LMCache's frame, with no associated data.
const UNBOUND: u8 = 1;
/// The same frame, with the object's identity as associated data.
const BOUND: u8 = 2;
const HEADER_LEN: usize = 1 + NONCE_LEN;
const TAG_LEN: usize = 16;
const KEY_INFO: &[u8] = b"lmcache-l2-aesgcm-v1";
const MASTER_KEY_LEN: std::ops::RangeInclusive<usize> = 16..=1024;

/// A version, a random nonce, what is encrypted, and its tag.
struct AesGcm {
    master: Prk,
    algorithm: &'static Algorithm,
    accept_unbound: bool,
    accept_plain: bool,
}

impl AesGcm {
    fn new(given: &Map<String, Value>) -> Result<Self, String> {
        let mut parameters = Parameters::of("aesgcm", given);
        let provider = parameters.text("key_provider")?.unwrap_or("hkdf");
        if provider != "hkdf" {
            return Err(parameters.wrong("key_provider", &provider.into(), "\"hkdf\""));
        }
        let algorithm = match parameters.integer("aes_bits", 128..=256, 128)? {
            128 => &AES_128_GCM,
            256 => &AES_256_GCM,
            bits => return Err(parameters.wrong("aes_bits", &bits.into(), "128 or 256")),
        };
        let is_hex = match parameters.text("master_key_format")?.unwrap_or("raw") {
            "raw" => false,
            "hex" => true,
            format => {
                let expected = "\"raw\" or \"hex\"";
                return Err(parameters.wrong("master_key_format", &format.into(), expected));
            }
        };
        let path = parameters.text("master_key_path")?;
        let accept_unbound = parameters.flag("accept_unbound")?;
        let accept_plain = parameters.flag("accept_plain")?;
        parameters.finish()?;
        let path = path.ok_or("serde \"aesgcm\": master_key_path is missing; expected the path of a file with the master key")?;
        let master = read_master_key(path, is_hex)
            .map_err(|error| format!("serde \"aesgcm\": master_key_path is {path:?}: {error}"))?;
        Ok(Self {
            master: Salt::new(HKDF_SHA256, &[]).extract(&master),
            algorithm,
            accept_unbound,
            accept_plain,
        })
    }

    fn key(&self, salt: &str) -> Result<LessSafeKey, String> {
        let info = [KEY_INFO, salt.as_bytes()];
        let key = self.master.expand(&info, self.algorithm);
        let key = key.map_err(|_| "aesgcm: no key can be derived")?;
        Ok(LessSafeKey::new(key.into()))
    }

    fn seal(
        &self,
        object: &TransformedObject<'_>,
        bytes: &[u8],
        nonce: [u8; NONCE_LEN],
    ) -> Result<Vec<u8>, String> {
        let mut frame = Vec::with_capacity(HEADER_LEN + bytes.len() + TAG_LEN);
        frame.push(BOUND);
        frame.extend(nonce);
        frame.extend(bytes);
        let tag = self.key(object.salt)?.seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(identity(object)),
            &mut frame[HEADER_LEN..],
        );
        let tag = tag.map_err(|_| format!("aesgcm: {} bytes are too many", bytes.len()))?;
        frame.extend(tag.as_ref());
        Ok(frame)
    }

    /// Decrypts a frame of this version.
    fn open(
        &self,
        salt: &str,
        identity: &[u8],
        frame: &[u8],
        limit: u64,
    ) -> Result<Vec<u8>, String> {
        let len = frame.len().checked_sub(HEADER_LEN + TAG_LEN);
        let len = len.filter(|len| *len as u64 <= limit).ok_or_else(|| {
            format!(
                "aesgcm: it has {} bytes; expected {} more than an object of at most {limit}",
                frame.len(),
                HEADER_LEN + TAG_LEN
            )
        })?;
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&frame[1..HEADER_LEN]);
        let (encrypted, tag) = frame[HEADER_LEN..].split_at(len);
        let refused = || {
            "aesgcm: it was changed, or is another object, or was encrypted with another key"
                .to_owned()
        };
        let tag = Tag::try_from(tag).map_err(|_| refused())?;
        let mut bytes = encrypted.to_vec();
        self.key(salt)?
            .open_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(identity),
                tag,
                &mut bytes,
                0..,
            )
            .map_err(|_| refused())?;
        Ok(bytes)
    }
}

impl Transform for AesGcm {
    fn encode(&self, object: &TransformedObject<'_>, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new()
            .fill(&mut nonce)
            .map_err(|_| "aesgcm: the system gives no random bytes")?;
        self.seal(object, bytes, nonce)
    }

    fn decode(
        &self,
        object: &TransformedObject<'_>,
        stored: &[u8],
        limit: u64,
    ) -> Result<Vec<u8>, String> {
        match stored.first() {
            Some(&BOUND) => self.open(object.salt, &identity(object), stored, limit),
            found => Err(format!(
                "aesgcm: the frame's version is {found:?}; expected {BOUND}"
            )),
        }
    }

    fn max_encoded_len(&self, len: u64) -> u64 {
        len.saturating_add((HEADER_LEN + TAG_LEN) as u64)
    }

    fn secrecy(&self) -> Secrecy {
        if self.accept_plain {
            Secrecy::Optional
        } else {
            Secrecy::Required
        }
    }

    fn decode_bare(&self, salt: &str, stored: &[u8], limit: u64) -> Result<Vec<u8>, String> {
        if !self.accept_unbound {
            return Err(
                "aesgcm: it has no trailer; LMCache's objects are read with \"accept_unbound\": true"
                    .to_owned(),
            );
        }
        match stored.first() {
            Some(&UNBOUND) => self.open(salt, &[], stored, limit),
            found => Err(format!(
                "aesgcm: it has no trailer, and the frame's version is {found:?}; expected {UNBOUND}"
            )),
        }
    }
}

/// Keys are not for logs.
impl fmt::Debug for AesGcm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AesGcm").finish_non_exhaustive()
    }
}

/// What an encrypted object is bound to: no two objects have the same.
fn identity(object: &TransformedObject<'_>) -> Vec<u8> {
    let mut identity = Vec::with_capacity(48 + object.name.len() + object.key.len());
    identity.extend((object.name.len() as u32).to_le_bytes());
    identity.extend(object.name.as_bytes());
    identity.extend((object.key.len() as u32).to_le_bytes());
    identity.push(object.key_tag);
    identity.extend(object.key);
    identity.extend(object.len.to_le_bytes());
    identity.push(object.layout.is_some().into());
    identity.extend(object.layout.unwrap_or_default());
    identity
}

fn read_master_key(path: &str, is_hex: bool) -> Result<Vec<u8>, String> {
    // So that a pipe without a writer is refused and not waited for.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is no plain file; expected one that holds the key".to_owned());
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "its mode is {mode:03o}, so that others than its owner may use it; expected 600 or 400: `chmod 600` it"
        ));
    }
    let mut bytes = Vec::new();
    // A hexadecimal digit is half a byte, and there may be white space at the end.
    let most = 2 * MASTER_KEY_LEN.end() + 64;
    let read = file.take(most as u64).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    let key = if is_hex {
        from_hex(&bytes).ok_or("it is not pairs of hexadecimal digits")?
    } else {
        bytes
    };
    if !MASTER_KEY_LEN.contains(&key.len()) {
        let (least, most) = MASTER_KEY_LEN.into_inner();
        return Err(format!(
            "the key has {} bytes; expected {least} to {most}",
            key.len()
        ));
    }
    Ok(key)
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, []) = text.trim_ascii().as_chunks::<2>() else {
        return None;
    };
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    pairs.iter().map(byte).collect()
}
