//! What every handler plugin must withstand.

use std::sync::atomic::{AtomicU64, Ordering};

ondol_testkit::handler_conformance!(
    handler_access_trace,
    environment: [("ONDOL_ACCESS_TRACE", trace_file())],
);

/// A file of its own for each test.
fn trace_file() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(
        "{}/conformance-{}-{}.jsonl",
        env!("CARGO_TARGET_TMPDIR"),
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}
