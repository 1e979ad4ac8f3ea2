//! The conformance suites of storage backends, and fakes to write tests with.
//!
//! A [`Subject`] is a way to open an adapter, with its [`Capabilities`]; a [`Check`] is one thing that it must keep, on an
//! adapter of its own in a directory of its own; what it does not keep is in the [`Report`]. The macro
//! [`l2_conformance!`](crate::l2_conformance) makes a test of each check; [`run`] runs them all. Adapters are driven as the
//! core does it: by their descriptors, each result asked for once. A panic or a hang is reported with the name of the call and
//! ends nothing else.

mod checks;
mod driver;
pub mod fakes;
mod report;
pub(crate) mod samples;
mod subject;

pub use checks::Check;
pub use fakes::{
    DropCounter, HeldLoad, HeldLookup, HeldStore, ManualAdapter, MapBackend, NullAdapter,
};
pub use report::{Report, Violation};
pub use subject::{Capabilities, Subject};

/// Runs every check.
pub fn run(subject: &Subject) -> Report {
    Check::ALL
        .into_iter()
        .map(|check| check.run(subject))
        .collect()
}

/// Makes a test of every [`Check`](crate::l2::Check) for a storage adapter.
///
/// ```ignore
/// ondol_testkit::l2_conformance!(
///     my_backend,
///     config: |dir| serde_json::json!({"type": "my_backend", "path": dir}),
///     capabilities: ondol_testkit::l2::Capabilities::default().persisting(),
/// );
/// ```
///
/// The first argument is the library's name as `use` takes it; naming it is also what links the backend into the test.
/// `config` makes the JSON that opens the adapter on a directory; with the same directory it is the same storage.
/// `capabilities` may be left out. In place of `config`, `open: |dir| …` opens the adapter by itself, with or without a library
/// before it.
#[macro_export]
macro_rules! l2_conformance {
    (open: $open:expr $(, capabilities: $capabilities:expr)? $(,)?) => {
        fn l2_conformance_subject() -> $crate::l2::Subject {
            let subject = $crate::l2::Subject::opened_by($open);
            $(let subject = subject.with_capabilities($capabilities);)?
            subject
        }

        $crate::l2_conformance!(@all);
    };
    ($library:ident, open: $open:expr $(, $($rest:tt)*)?) => {
        // Named, so that the linker keeps what the crate registers.
        use ::$library as _;
        $crate::l2_conformance!(open: $open $(, $($rest)*)?);
    };
    ($library:ident, config: $config:expr $(, capabilities: $capabilities:expr)? $(,)?) => {
        fn l2_conformance_subject() -> $crate::l2::Subject {
            // Named, so that the linker keeps what the crate registers.
            use ::$library as _;
            let subject = $crate::l2::Subject::linked(env!("CARGO_PKG_NAME"), $config);
            $(let subject = subject.with_capabilities($capabilities);)?
            subject
        }

        $crate::l2_conformance!(@all);
    };
    (@all) => {
        $crate::l2_conformance!(@tests
            parameters_are_listed_and_named_when_they_are_wrong: Configuration,
            descriptors_are_three_and_reset: Descriptors,
            what_is_stored_comes_back: RoundTrip,
            results_are_there_before_the_signal_and_given_once: OneShot,
            objects_of_every_size_come_back: Sizes,
            large_batches_are_withstood: LargeBatches,
            empty_batches_are_withstood: EmptyBatches,
            one_key_several_times_is_withstood: Duplicates,
            missing_keys_are_not_found: MissingKeys,
            a_page_that_is_too_small_is_not_filled: SmallPages,
            objects_are_visible_whole_or_not_at_all: Atomicity,
            buffers_are_let_go: Buffers,
            locked_objects_are_not_deleted: Locks,
            deleted_objects_are_gone: Deletion,
            usage_is_right: Usage,
            listings_are_complete: Listing,
            cancelled_tasks_end: Cancel,
            calls_from_many_threads_are_withstood: Threads,
            a_restart_is_withstood: Restart,
            a_close_ends_every_task: Close,
            nothing_succeeds_after_a_close: AfterClose,
            eviction_stays_within_the_capacity: Eviction,
            it_is_healthy: Status,
        );
    };
    (@tests $($name:ident: $check:ident,)*) => {$(
        #[test]
        fn $name() {
            $crate::l2::Check::$check
                .run(&l2_conformance_subject())
                .assert();
        }
    )*};
}
