use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::error::LogError;
use crate::{DeviceRecord, PoolId};

/// Which pool a log is of, and where its bytes lie: `pool.json` beside the log.
///
/// The file is for people to read, and not to write: a checksum is among its fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolRecord {
    /// The pool.
    pub pool: PoolId,
    /// The boot during which it was last served, as the kernel names it.
    pub boot: String,
    /// Whether all that it holds is on its devices at every moment, as `fsync` promises, and not only after a clean stop.
    #[serde(default)]
    pub fsync: bool,
    /// Its devices, in their order.
    pub devices: Vec<DeviceRecord>,
}

impl PoolRecord {
    pub(super) const NAME: &str = "pool.json";
    const CHECKSUM: &str = "checksum";

    /// The record in the directory of a log, if there is one.
    ///
    /// # Errors
    /// [`LogError::Io`], or [`LogError::Corrupt`] if it is not as it was written.
    pub fn load(dir: &Path) -> Result<Option<Self>, LogError> {
        let path = dir.join(Self::NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(LogError::io("read", &path)(error)),
        };
        Self::parse(&bytes).map(Some).map_err(|(found, expected)| {
            LogError::corrupt(&path, 0, found, format!("a record of a pool, {expected}"))
        })
    }

    /// The record of these bytes, or what they are and what they should be.
    fn parse(bytes: &[u8]) -> Result<Self, (String, String)> {
        let wrong = |error: serde_json::Error| (error.to_string(), "as it was written".to_owned());
        let mut fields: Value = serde_json::from_slice(bytes).map_err(wrong)?;
        let sum = fields
            .as_object_mut()
            .and_then(|fields| fields.remove(Self::CHECKSUM));
        let record: Self = serde_json::from_value(fields).map_err(wrong)?;
        let expected = record.checksum().map_err(wrong)?;
        match sum {
            Some(Value::String(found)) if found == expected => Ok(record),
            Some(found) => Err((
                format!("fields whose checksum is \"{expected}\""),
                format!("with the checksum {found} that it names"),
            )),
            // Of a version that wrote neither checksums nor runs.
            None if record.devices.iter().all(|device| device.runs().is_empty()) => Ok(record),
            None => Err(("no checksum".to_owned(), "with its checksum".to_owned())),
        }
    }

    /// Of the fields alone, however they are laid out in the file.
    fn checksum(&self) -> serde_json::Result<String> {
        Ok(format!("{:016x}", xxh3_64(&serde_json::to_vec(self)?)))
    }

    fn to_text(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct File<'a> {
            #[serde(flatten)]
            record: &'a PoolRecord,
            checksum: String,
        }
        let file = File {
            record: self,
            checksum: self.checksum()?,
        };
        Ok(serde_json::to_string_pretty(&file)? + "\n")
    }

    pub(super) fn remove(dir: &Path) -> Result<(), LogError> {
        super::files::remove_file(&dir.join(Self::NAME))
    }

    /// Puts the record in the place of the one before: whoever loads finds either, whole, whenever the machine ends.
    /// The directory is made if it is missing.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn save(&self, dir: &Path) -> Result<(), LogError> {
        super::files::make_dir(dir)?;
        let draft = dir.join("pool.json.draft");
        let path = dir.join(Self::NAME);
        let text = self
            .to_text()
            .map_err(|error| LogError::io("write", &path)(error.into()))?;
        let write = || -> io::Result<()> {
            ondol_catalog::failpoint!(
                "log.pool_record_write",
                Err(io::Error::other("failpoint log.pool_record_write"))
            );
            let mut file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(LogError::io("write", &draft))?;
        ondol_catalog::failpoint!("log.pool_record_written");
        fs::rename(&draft, &path).map_err(LogError::io("write", &path))?;
        ondol_catalog::failpoint!("log.pool_record_renamed");
        super::files::sync_dir(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, DeviceEnv, OpenOptions, RunId};

    fn record() -> PoolRecord {
        let uri = "memfd:pool?size=64KiB".parse().unwrap();
        let device = Device::open(&uri, &DeviceEnv::default(), &OpenOptions::default()).unwrap();
        let mut device = device.record();
        device.expect_runs([RunId(7)]);
        PoolRecord {
            pool: PoolId([0x5d; 16]),
            boot: "0d5c7f0e-1111-2222-3333-444455556666".to_owned(),
            fsync: true,
            devices: vec![device],
        }
    }

    #[test]
    fn no_flipped_bit_makes_another_record() {
        let dir = tempfile::tempdir().unwrap();
        let record = record();
        record.save(dir.path()).unwrap();
        let path = dir.path().join(PoolRecord::NAME);
        let whole = fs::read(&path).unwrap();
        assert_eq!(
            PoolRecord::load(dir.path()).unwrap().as_ref(),
            Some(&record)
        );
        let mut refused = 0;
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                fs::write(&path, &bytes).unwrap();
                match PoolRecord::load(dir.path()) {
                    // Between the fields.
                    Ok(found) => assert_eq!(found.as_ref(), Some(&record), "byte {at}, bit {bit}"),
                    Err(error @ LogError::Corrupt { .. }) => {
                        let text = error.to_string();
                        assert!(
                            text.contains("pool.json") && text.contains("--fresh"),
                            "{text}"
                        );
                        refused += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let words = whole.iter().filter(|byte| !byte.is_ascii_whitespace());
        assert!(refused >= words.count() * 7, "{refused}");
    }

    #[test]
    fn a_cut_or_extended_record_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let record = record();
        record.save(dir.path()).unwrap();
        let path = dir.path().join(PoolRecord::NAME);
        let text = fs::read_to_string(&path).unwrap();
        let without_sum: String = text
            .replace("],\n  \"checksum\"", "]\n  \"checksum\"")
            .lines()
            .filter(|line| !line.contains("checksum"))
            .collect();
        serde_json::from_str::<Value>(&without_sum).unwrap();
        for damaged in [
            "",
            &text[..text.len() / 2],
            &text.replace("\"boot\"", "\"more\": 1, \"boot\""),
            &text.replace("\"volatile\"", "\"more\": 1, \"volatile\""),
            &without_sum,
        ] {
            fs::write(&path, damaged).unwrap();
            let error = PoolRecord::load(dir.path()).unwrap_err();
            assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
        }
        // However it is laid out.
        fs::write(&path, text.replace('\n', " ")).unwrap();
        assert_eq!(PoolRecord::load(dir.path()).unwrap(), Some(record));
    }

    #[test]
    fn a_record_of_a_version_without_checksums_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"pool":"000102030405060708090a0b0c0d0e0f","boot":"x","fsync":false,"devices":
            [{"uri":"shm:pool?size=3MiB","volatile":true,"files":[{"len":3145728,"inode":7}]}]}"#;
        fs::write(dir.path().join(PoolRecord::NAME), text).unwrap();
        let record = PoolRecord::load(dir.path()).unwrap().unwrap();
        assert_eq!((record.boot.as_str(), record.devices.len()), ("x", 1));
        assert!(record.devices[0].runs().is_empty());
    }
}
