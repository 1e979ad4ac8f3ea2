use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::LogError;
use crate::{DeviceRecord, PoolId};

/// Which pool a log is of, and where its bytes lie: `pool.json` beside the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    const NAME: &str = "pool.json";

    /// The record in the directory of a log, if there is one.
    ///
    /// # Errors
    /// [`LogError::Io`] or [`LogError::PoolRecord`].
    pub fn load(dir: &Path) -> Result<Option<Self>, LogError> {
        let path = dir.join(Self::NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(LogError::io("read", &path)(error)),
        };
        match serde_json::from_slice(&bytes) {
            Ok(record) => Ok(Some(record)),
            Err(error) => Err(LogError::PoolRecord {
                file: path,
                reason: error.to_string(),
            }),
        }
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
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|error| LogError::PoolRecord {
            file: path.clone(),
            reason: error.to_string(),
        })?;
        bytes.push(b'\n');
        let write = || -> io::Result<()> {
            let mut file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(&bytes)?;
            file.sync_all()
        };
        write().map_err(LogError::io("write", &draft))?;
        ondol_catalog::failpoint!("log.pool_record_written");
        fs::rename(&draft, &path).map_err(LogError::io("write", &path))?;
        ondol_catalog::failpoint!("log.pool_record_renamed");
        super::files::sync_dir(dir)
    }
}
