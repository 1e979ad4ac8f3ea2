use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A disk so small that it can be filled: a file system of its own over a directory.
#[derive(Debug)]
pub struct SmallDisk {
    root: PathBuf,
    keep: bool,
}

impl SmallDisk {
    /// So many MiB at `root`.
    ///
    /// # Errors
    /// Whoever may not mount file systems.
    pub fn mount(root: &Path, mib: u64) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let options = std::ffi::CString::new(format!("size={mib}M,mode=0700"))?;
        mount("tmpfs", root, "tmpfs", MountFlags::empty(), Some(&*options))?;
        Ok(Self {
            root: root.to_owned(),
            keep: false,
        })
    }

    fn ballast(&self) -> PathBuf {
        self.root.join("ballast")
    }

    /// Leaves no byte free.
    ///
    /// # Errors
    /// Anything but that the disk is full.
    pub fn fill(&self) -> io::Result<()> {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.ballast())?;
        for len in [1 << 16, 1 << 12, 1] {
            let bytes = vec![0; len];
            loop {
                match file.write_all(&bytes) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Makes room again; whether it was full.
    ///
    /// # Errors
    /// What the file system says.
    pub fn free(&self) -> io::Result<bool> {
        match fs::remove_file(self.ballast()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Leaves it mounted, as evidence.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if !self.keep {
            let _ = unmount(&self.root, UnmountFlags::DETACH);
        }
    }
}
