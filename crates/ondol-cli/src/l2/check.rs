//! `ondol l2 check`.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ondol_host::l2::{AdapterSpec, Backend, BackendHealth, TaskError, open};
use ondol_plugin::l2::{
    KvRank, ListRequest, LoadItem, LoadOutcome, LoadResult, LookupResult, ObjectKey, ObjectRef,
    PageMut, StoreItem,
};
use ondol_plugin::{Key, KeyTag};
use ondol_tiering::Trial;

use super::read_adapter;
use crate::output::{Table, stdout};

/// The model under which the object of a check is stored.
const MODEL: &str = "ondol-check";
const BODY_BYTES: usize = 64 << 10;
/// Pages of keys that are read to find the object again.
const MOST_PAGES: usize = 1000;

/// Open a storage backend without a server, and try it with an object of its own
///
/// Stores an object, looks it up, loads it, compares every byte, unlocks and deletes it, asks for the usage and the list
/// of objects, and closes the backend. Nothing is left behind, unless the backend cannot delete. The object goes through
/// `serde` as a server's would; `eviction` is checked, and nothing is evicted. The exit code is 1 if a step failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The backend, as for `ondol serve --l2-adapter`
    #[arg(value_name = "JSON", value_parser = read_adapter)]
    adapter: AdapterSpec,
    /// How long each step may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// What a step found, in words.
type Found = Result<String>;

/// The steps so far.
struct Report {
    table: Table,
    failed: bool,
}

impl Report {
    /// Does a step; whether it succeeded.
    fn step(&mut self, name: &str, step: impl FnOnce() -> Found) -> bool {
        let start = Instant::now();
        let found = step();
        let took = format!("{:.1}", start.elapsed().as_secs_f64() * 1e3);
        let is_fine = found.is_ok();
        let (state, found) = match found {
            Ok(found) => ("ok", found),
            Err(error) => ("FAILED", crate::explain(&error)),
        };
        self.table
            .row([name.to_owned(), state.to_owned(), took, found]);
        self.failed |= !is_fine;
        is_fine
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut report = Report {
        table: Table::new(["STEP", "RESULT", ">MS", "FOUND"]),
        failed: false,
    };
    let mut trial = None;
    report.step("serde", || {
        trial = Some(Trial::new(&args.adapter, false)?);
        Ok(transforms(&args.adapter))
    });
    let mut opened = None;
    report.step("open", || {
        let backend = open(&args.adapter, 0, &[])?;
        let found = opened.insert(backend).name().to_owned();
        Ok(found)
    });
    match (opened, trial) {
        (Some(backend), Some(trial)) => {
            let check = Check::new(backend, trial, Duration::from_secs(args.timeout))?;
            check.run(&mut report);
        }
        (Some(backend), None) => {
            backend.close(Duration::from_secs(args.timeout));
        }
        (None, _) => {}
    }
    let mut out = stdout();
    report.table.write(&mut out, "")?;
    out.flush()?;
    Ok(if report.failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// What becomes of an object before it is stored, in words.
fn transforms(spec: &AdapterSpec) -> String {
    let name = |map: &serde_json::Map<_, serde_json::Value>| {
        let name = map.get("type").and_then(serde_json::Value::as_str);
        name.unwrap_or_default().to_owned()
    };
    match &spec.transforms[..] {
        [] => "none".to_owned(),
        list => list.iter().map(name).collect::<Vec<_>>().join(", "),
    }
}

/// A round trip of one object.
struct Check {
    backend: Arc<Backend>,
    trial: Trial,
    timeout: Duration,
    /// The object as a server knows it, and as the backend does.
    key: Key,
    name: ObjectKey,
    bytes: Vec<u8>,
    /// What is stored of it.
    stored: ObjectRef,
}

impl Check {
    fn new(backend: Arc<Backend>, trial: Trial, timeout: Duration) -> Result<Self> {
        let mut hash = [0; 16];
        let mut bytes = vec![0; BODY_BYTES];
        getrandom::fill(&mut hash)?;
        // One half for who compresses.
        getrandom::fill(&mut bytes[..BODY_BYTES / 2])?;
        let name = ObjectKey::new(MODEL, KvRank::of_worker(0, 1)?, 0, hash, "")?;
        let key = Key::new(KeyTag::LmCache, name.to_string().as_bytes())?;
        let stored = trial.encode(&key, bytes.clone())?;
        Ok(Self {
            backend,
            trial,
            timeout,
            key,
            name,
            bytes,
            stored,
        })
    }

    fn stored_len(&self) -> u64 {
        self.stored.stored_len() as u64
    }

    fn run(&self, report: &mut Report) {
        let is_stored = report.step("store", || self.store());
        if is_stored {
            let is_found = report.step("lookup", || self.look_up());
            if is_found {
                let mut loaded = None;
                report.step("load", || self.load(&mut loaded));
                if let Some(page) = loaded {
                    report.step("compare", || self.compare(&page));
                }
            }
            report.step("list", || self.list());
            if is_found {
                report.step("unlock", || {
                    self.backend.unlock(vec![self.name.clone()]);
                    Ok(String::new())
                });
            }
        }
        // Also what was not stored for certain.
        let mut left = None;
        report.step("delete", || self.delete(&mut left));
        if is_stored && left.is_none() {
            report.step("lookup again", || self.is_gone());
        }
        report.step("usage", || self.usage());
        report.step("health", || self.health());
        report.step("close", || {
            let left = self.backend.close(self.timeout).abandoned;
            ensure!(left == 0, "{left} tasks did not end; expected none");
            Ok(String::new())
        });
        if let Some(left) = left {
            report
                .table
                .row(["note".to_owned(), String::new(), String::new(), left]);
        }
    }

    /// Waits for what a callback is given.
    fn wait<T: Send + 'static>(
        &self,
        submit: impl FnOnce(Box<dyn FnOnce(Result<T, TaskError>) + Send>),
    ) -> Result<T> {
        let (sender, receiver) = channel();
        submit(Box::new(move |result| {
            let _ = sender.send(result);
        }));
        Ok(receiver.recv().context("nobody answered")??)
    }

    fn store(&self) -> Found {
        let item = StoreItem {
            key: self.name.clone(),
            object: self.stored.clone(),
        };
        let result = self.wait(|done| self.backend.store(vec![item], self.timeout, done))?;
        Ok(format!("{} bytes transferred", result.0?))
    }

    fn ask(&self) -> Result<LookupResult> {
        let keys = vec![self.name.clone()];
        let result = self.wait(|done| self.backend.lookup(keys, self.timeout, done))?;
        match result.error {
            Some(error) => bail!(error),
            None => Ok(result),
        }
    }

    fn look_up(&self) -> Found {
        let result = self.ask()?;
        ensure!(result.found.test(0), "the object is not there");
        let expected = self.stored_len();
        match result.sizes[0] {
            0 => Ok("found; its length is not known".to_owned()),
            size if size == expected => Ok(format!("found, {size} bytes")),
            size => bail!("it is said to have {size} bytes; expected {expected}"),
        }
    }

    fn load(&self, loaded: &mut Option<PageMut>) -> Found {
        let item = LoadItem {
            key: self.name.clone(),
            page: PageMut::new(
                vec![0; self.stored.body().len()],
                self.stored.trailer().len(),
            ),
        };
        let result: LoadResult =
            self.wait(|done| self.backend.load(vec![item], self.timeout, done))?;
        let entry = result.0.into_iter().next().context("no outcome")?;
        match entry.outcome {
            LoadOutcome::Found(bytes) => {
                *loaded = entry.page;
                let expected = self.stored_len();
                ensure!(bytes == expected, "{bytes} bytes came; expected {expected}");
                Ok(format!("{bytes} bytes"))
            }
            LoadOutcome::Missing => bail!("the object is not there any more"),
            LoadOutcome::Corrupt(reason) => bail!("the object is corrupt: {reason}"),
            LoadOutcome::Failed(reason) => bail!(reason),
        }
    }

    fn compare(&self, page: &PageMut) -> Found {
        let (body, trailer) = page.parts();
        let loaded = [body, trailer].concat();
        let count = |found: &[u8], expected: &[u8]| {
            let pairs = found.iter().zip(expected);
            pairs.filter(|(found, expected)| found != expected).count()
        };
        let wrong = count(&loaded, &self.stored.to_vec());
        ensure!(wrong == 0, "{wrong} bytes are not what was stored");
        let object = self.trial.decode(&self.key, &loaded, BODY_BYTES as u64)?;
        ensure!(object == self.bytes, "decoding it gives another object");
        Ok("every byte is as it was stored".to_owned())
    }

    fn list(&self) -> Found {
        let mut request = ListRequest {
            model_name: Some(MODEL.to_owned()),
            page_size: 1000,
            cursor: None,
        };
        for _ in 0..MOST_PAGES {
            let page = match self.backend.list_keys(&request) {
                Ok(page) => page,
                Err(TaskError::Refused { reason, .. }) => {
                    return Ok(format!("not supported: {reason}"));
                }
                Err(error) => return Err(error.into()),
            };
            if page.entries.iter().any(|entry| entry.key == self.name) {
                return Ok("the object is listed".to_owned());
            }
            match page.next_cursor {
                Some(cursor) => request.cursor = Some(cursor),
                None => bail!("the object is not listed"),
            }
        }
        Ok("the list is too long to find the object in it".to_owned())
    }

    fn delete(&self, left: &mut Option<String>) -> Found {
        let stays = || format!("the object {} may be left behind", self.name);
        // An unlock is carried out by the lane, a delete is not.
        let until = Instant::now() + self.timeout;
        loop {
            let result = self
                .backend
                .delete(std::slice::from_ref(&self.name))
                .inspect_err(|_| *left = Some(stays()))?;
            if result.gone.test(0) {
                *left = None;
                return Ok("gone".to_owned());
            }
            *left = Some(stays());
            if !result.locked.test(0) {
                // Nothing else says so of a connector without this method.
                if self.backend.spec().type_name == "native_plugin" {
                    return Ok("not deleted: connectors need not be able to".to_owned());
                }
                bail!("the object was neither deleted nor is it locked");
            }
            ensure!(Instant::now() < until, "the object stays locked");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_gone(&self) -> Found {
        let result = self.ask()?;
        ensure!(!result.found.test(0), "the object is there still");
        Ok("not there any more".to_owned())
    }

    fn usage(&self) -> Found {
        let usage = self.backend.usage();
        let capacity = match usage.capacity_bytes {
            Some(bytes) => format!("of {bytes}"),
            None => "without a limit".to_owned(),
        };
        let known = if usage.is_complete {
            ""
        } else {
            "; not everything is counted yet"
        };
        Ok(format!(
            "{} objects, {} bytes {capacity}{known}",
            usage.objects, usage.used_bytes
        ))
    }

    fn health(&self) -> Found {
        let status = self.backend.status();
        let reason = status.reason.unwrap_or_default();
        match status.health {
            BackendHealth::Healthy if status.counts.breaches == 0 => {
                Ok(if status.adapter.read_only {
                    "healthy, read-only".to_owned()
                } else {
                    "healthy".to_owned()
                })
            }
            health => bail!("{health:?}: {reason}"),
        }
    }
}
