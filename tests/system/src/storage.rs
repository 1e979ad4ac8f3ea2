use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::key;

/// What lies in the directory of an `fs` backend, in whichever layout.
#[derive(Debug, Default)]
pub struct StorageDir {
    /// Bytes of the files of objects: what the backend itself counts.
    pub bytes: u64,
    objects: BTreeMap<String, PathBuf>,
    /// Files that have no name of an object's yet.
    pub drafts: Vec<String>,
    /// Marks of processes that write.
    pub writers: usize,
}

impl StorageDir {
    /// Looks. Files that go meanwhile are not there.
    ///
    /// # Errors
    /// What the file system says.
    pub fn look(dir: &Path) -> io::Result<Self> {
        let mut contents = Self::default();
        contents.walk(dir)?;
        Ok(contents)
    }

    fn walk(&mut self, dir: &Path) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                self.walk(&entry.path())?;
            } else if name.ends_with(".tmp") {
                self.drafts.push(name);
            } else if name.ends_with(".writer") {
                self.writers += 1;
            } else if name.ends_with(".data") || name.ends_with(".kv") {
                match entry.metadata() {
                    Ok(file) => self.bytes += file.len(),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                }
                if let Some(hash) = hash_in(&name) {
                    self.objects.insert(hash, entry.path());
                }
            }
        }
        Ok(())
    }

    /// The file of an object, by the text of its key.
    pub fn file(&self, name: &str) -> Option<&Path> {
        self.objects.get(&hash_of(name)).map(PathBuf::as_path)
    }

    /// How many objects there are.
    pub fn objects(&self) -> usize {
        self.objects.len()
    }
}

/// What the file of an object of this name has in its own.
fn hash_of(name: &str) -> String {
    let object = ondol_tiering::object_key(&key(name));
    let hash = object.chunk_hash().iter();
    hash.map(|byte| format!("{byte:02x}")).collect()
}

/// `MODEL@RANK@GROUP@HASH.data` or `….kv`; nobody here uses salts.
fn hash_in(file: &str) -> Option<String> {
    let (name, _) = file.rsplit_once('.')?;
    Some(name.rsplit_once('@')?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_read_as_the_backend_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let hash = hash_of("k1");
        assert_eq!(hash.len(), 64);
        let shard = dir.path().join("objects/0a7");
        fs::create_dir_all(&shard).unwrap();
        let write = |path: &Path, bytes: usize| fs::write(path, vec![0; bytes]).unwrap();
        write(&shard.join(format!("ondol@01000100@0@{hash}.kv")), 7);
        let flat = format!("ondol@0x01000100@0@{}.data", hash_of("k2"));
        write(&dir.path().join(flat), 5);
        write(&dir.path().join(".ondol-l2-fs.json"), 100);
        write(&dir.path().join(".ondol-1-0.tmp"), 100);
        write(&dir.path().join(".ondol-1.writer"), 0);
        let contents = StorageDir::look(dir.path()).unwrap();
        assert_eq!(contents.bytes, 12);
        assert_eq!(contents.objects(), 2);
        assert!(contents.file("k1").is_some() && contents.file("k3").is_none());
        assert_eq!(contents.drafts, [".ondol-1-0.tmp"]);
        assert_eq!(contents.writers, 1);
    }
}
