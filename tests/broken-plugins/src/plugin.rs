use std::fmt;
use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondol_plugin::{
    FactoryContext, HandlerPlugin, HandlerView, Hooks, RetrievedBatch, StageResult,
};
use serde_json::{Map, Value};

use crate::Probe;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    Panic,
    PanicPayload,
    Error,
    ErrorAlternating,
    ErrorDisplay,
    Hang,
    StageNone,
    StageShort,
    StatsHost,
}

pub(crate) struct Broken {
    fault: Fault,
    place: &'static str,
    deferred: Hooks,
    probe: Arc<Probe>,
    turn: AtomicU64,
}

/// An error that can not be shown.
#[derive(Debug)]
pub(crate) struct Unprintable;

/// A panic's payload whose destructor panics, with a payload of the same kind.
struct Payload;

impl Broken {
    pub(crate) fn boxed(
        context: &FactoryContext<'_>,
        fault: Fault,
        place: &'static str,
        deferred: Hooks,
    ) -> Box<dyn HandlerPlugin> {
        let probe = Probe::of(context);
        Box::new(Self {
            fault,
            place,
            deferred,
            probe,
            turn: AtomicU64::new(0),
        })
    }

    fn act(&self, place: &'static str) -> anyhow::Result<()> {
        self.probe.note(place);
        if self.place != place {
            return Ok(());
        }
        match self.fault {
            Fault::Panic => panic!("broken in {place}"),
            Fault::PanicPayload => panic_any(Payload),
            Fault::Error => anyhow::bail!("wrong in {place}"),
            Fault::ErrorAlternating
                if self.turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) =>
            {
                anyhow::bail!("wrong every other time")
            }
            Fault::ErrorDisplay => Err(Unprintable.into()),
            Fault::Hang => {
                self.probe.wait_until_open();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl HandlerPlugin for Broken {
    fn hooks(&self) -> Hooks {
        // `act` fails here by panic only.
        let _ = self.act("hooks");
        Hooks::ALL
    }

    fn deferred(&self) -> Hooks {
        let _ = self.act("deferred");
        self.deferred
    }

    fn on_init(&self, _: &dyn HandlerView) -> anyhow::Result<()> {
        self.act("on_init")
    }

    fn on_batch_retrieve(&self, _: &dyn HandlerView, _: &RetrievedBatch<'_>) -> anyhow::Result<()> {
        self.act("on_batch_retrieve")
    }

    fn on_prefetch(&self, _: &dyn HandlerView, _: &RetrievedBatch<'_>) -> anyhow::Result<()> {
        self.act("on_prefetch")
    }

    fn on_stage(
        &self,
        _: &dyn HandlerView,
        batch: &RetrievedBatch<'_>,
    ) -> anyhow::Result<Option<StageResult>> {
        self.act("on_stage")?;
        let keys = batch.len() as u64;
        let keys = match self.fault {
            Fault::StageNone => return Ok(None),
            Fault::StageShort => keys.saturating_sub(1),
            _ => keys,
        };
        Ok(Some(StageResult {
            requested_keys: keys,
            found_keys: keys,
            eligible_keys: keys,
            prepared_bytes: 8,
            issued_ranges: 1,
            ..StageResult::default()
        }))
    }

    fn on_close(&self, _: &dyn HandlerView) -> anyhow::Result<()> {
        self.act("on_close")
    }

    fn contribute_stats(&self) -> Option<Map<String, Value>> {
        let _ = self.act("contribute_stats");
        let key = if self.fault == Fault::StatsHost {
            "host"
        } else {
            "figure"
        };
        Some(Map::from_iter([(key.to_owned(), Value::from(1))]))
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        let _ = self.act("drop");
    }
}

impl fmt::Display for Unprintable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("unprintable")
    }
}

impl std::error::Error for Unprintable {}

impl Drop for Payload {
    fn drop(&mut self) {
        panic_any(Payload)
    }
}
