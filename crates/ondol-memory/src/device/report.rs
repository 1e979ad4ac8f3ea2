//! What the log says of a device that was opened: which pages it wanted, which it got, and why no others.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use ondol_shm::{HUGE_PAGE, sample_huge_pages};
use rustix::io::Errno;

use super::{Device, DeviceEnv, DeviceUri, base_page_size};
use crate::size::format_size;

/// Writes the one line about a device.
pub(super) fn log(device: &Device, env: &DeviceEnv) {
    let pages = Pages::of(device, env);
    let (device_name, capacity) = (&device.uri, format_size(device.capacity()));
    let (files, asked, got, why) = (device.backings.len(), pages.asked, pages.got, pages.why);
    match &device.filled {
        Some(filled) => tracing::info!(
            device = %device_name,
            capacity,
            files,
            pages_asked = asked,
            pages_got = got,
            why,
            seconds = filled.seconds,
            gb_per_second = device.capacity() as f64 / filled.seconds.max(1e-9) / 1e9,
            "memory device allocated"
        ),
        None => tracing::info!(
            device = %device_name,
            capacity,
            files,
            pages_asked = asked,
            pages_got = got,
            why,
            "memory device kept"
        ),
    }
}

/// The pages under a device, in words.
#[derive(Debug, PartialEq, Eq)]
struct Pages {
    asked: String,
    got: String,
    /// Why it did not get what was asked for.
    why: Option<String>,
}

impl Pages {
    fn of(device: &Device, env: &DeviceEnv) -> Self {
        let size = page_words(device.page_size);
        if let DeviceUri::Hugetlb { .. } | DeviceUri::Dax { .. } = device.uri {
            // Of these there are no others.
            let got = format!("pages of {size}");
            return Self {
                asked: got.clone(),
                got,
                why: None,
            };
        }
        if !device.volatile {
            let asked = format!("pages of {size}");
            let got = format!("{asked}, which the disk's file system may change");
            return Self {
                asked,
                got,
                why: None,
            };
        }
        let huge = page_words(HUGE_PAGE as u64);
        let base = page_words(base_page_size());
        let asked = format!("huge pages of {huge} where there are any");
        let sample = device
            .backings
            .first()
            .map(|file| sample_huge_pages(file.open_read()?.as_fd(), file.len()));
        let (got, why) = match sample {
            Some(Ok((_, 0))) => (
                format!("pages of {base}"),
                Some(format!("a file of the device is shorter than {huge}")),
            ),
            Some(Ok((found, places))) if found == places => (format!("huge pages of {huge}"), None),
            Some(Ok((0, _))) => (format!("pages of {base}"), Some(why_none(device, env))),
            Some(Ok((found, places))) => (
                format!("huge pages of {huge} at {found} of {places} places, else pages of {base}"),
                Some(why_none(device, env)),
            ),
            Some(Err(error)) => ("unknown".to_owned(), Some(error.to_string())),
            None => ("unknown".to_owned(), None),
        };
        Self { asked, got, why }
    }
}

fn page_words(bytes: u64) -> String {
    if bytes < 1 << 20 {
        format!("{} KiB", bytes >> 10)
    } else {
        format_size(bytes)
    }
}

/// Why a device of memory has not huge pages everywhere.
fn why_none(device: &Device, env: &DeviceEnv) -> String {
    let Some(filled) = &device.filled else {
        return "they were not given when the device was new".to_owned();
    };
    let setting = env
        .sysfs_root
        .join("kernel/mm/transparent_hugepage/shmem_enabled");
    let words = |error: &io::Error| match Errno::from_io_error(error) {
        Some(Errno::INVAL) => {
            let setting = fs::read_to_string(&setting).unwrap_or_default();
            format!(
                "the system gives none to files of memory (shmem_enabled is {:?}); Linux 6.1 or newer does unless that is \"deny\"",
                chosen(&setting)
            )
        }
        Some(Errno::NOMEM | Errno::AGAIN | Errno::BUSY) => {
            format!(
                "memory is too fragmented ({error}); start the server earlier after boot, or use hugetlb:"
            )
        }
        _ => error.to_string(),
    };
    filled
        .refused_huge_pages
        .as_ref()
        .map_or_else(|| "the system gave no more".to_owned(), words)
}

/// The word in brackets of a setting such as `always [madvise] never`.
fn chosen(setting: &str) -> &str {
    setting
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("not there", |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::super::allocate::Filled;
    use super::super::{OpenOptions, Predecessor};
    use super::*;

    fn open(uri: &str, env: &DeviceEnv, options: &OpenOptions) -> Device {
        Device::open(&uri.parse().unwrap(), env, options).unwrap()
    }

    fn refused(errno: Errno) -> Option<Filled> {
        Some(Filled {
            seconds: 1.0,
            refused_huge_pages: Some(errno.into()),
        })
    }

    #[test]
    fn a_device_that_did_not_get_what_it_asked_for_says_why() {
        let (env, options) = (DeviceEnv::default(), OpenOptions::default());
        let pages = Pages::of(&open("memfd:?size=16MiB", &env, &options), &env);
        assert!(pages.asked.contains("huge pages of 2 MiB"), "{pages:?}");
        let has_all = pages.got == "huge pages of 2 MiB";
        assert_eq!(pages.why.is_none(), has_all, "{pages:?}");
        // What a huge page does not fit into has none on any machine.
        let pages = Pages::of(&open("memfd:?size=1MiB", &env, &options), &env);
        assert_eq!(pages.got, "pages of 4 KiB");
        assert!(pages.why.unwrap().contains("shorter than 2 MiB"));
    }

    #[test]
    fn the_reason_tells_a_setting_from_want_of_memory() {
        let root = tempfile::tempdir().unwrap();
        let env = DeviceEnv {
            sysfs_root: root.path().to_owned(),
            ..DeviceEnv::default()
        };
        let mut device = open("memfd:?size=1MiB", &env, &OpenOptions::default());
        device.filled = refused(Errno::INVAL);
        assert!(why_none(&device, &env).contains("shmem_enabled is \"not there\""));
        let settings = root.path().join("kernel/mm/transparent_hugepage");
        fs::create_dir_all(&settings).unwrap();
        fs::write(
            settings.join("shmem_enabled"),
            "always never [deny] force\n",
        )
        .unwrap();
        assert!(why_none(&device, &env).contains("shmem_enabled is \"deny\""));
        device.filled = refused(Errno::NOMEM);
        assert!(why_none(&device, &env).contains("fragmented"));
        device.filled = None;
        assert!(why_none(&device, &env).contains("when the device was new"));
    }

    #[test]
    fn a_kept_device_is_looked_at_and_not_filled_again() {
        let root = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        let env = DeviceEnv {
            shm_root: root.path().to_owned(),
            ..DeviceEnv::default()
        };
        let first = open("shm:pool?size=8MiB", &env, &OpenOptions::default());
        assert!(first.filled.is_some());
        let (record, pages) = (first.record(), Pages::of(&first, &env));
        drop(first);
        let options = OpenOptions {
            predecessor: Predecessor::Keep(record),
            ..OpenOptions::default()
        };
        let kept = open("shm:pool", &env, &options);
        assert!(kept.was_kept() && kept.filled.is_none());
        assert_eq!(Pages::of(&kept, &env).got, pages.got);
    }
}
