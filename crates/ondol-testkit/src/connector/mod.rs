//! The conformance suite of native connectors.
//!
//! As for adapters (see [`l2`](crate::l2)): a [`Subject`] is a way to open a connector, a [`Check`] one thing that it must keep.
//! Connectors are driven directly, without the bridge that makes an adapter of them: what the bridge would have to make good
//! is found here.

mod checks;
mod driver;
mod subject;

pub use checks::Check;
pub use subject::Subject;

pub use crate::l2::{Capabilities, Report, Violation};

/// Runs every check.
pub fn run(subject: &Subject) -> Report {
    Check::ALL
        .into_iter()
        .map(|check| check.run(subject))
        .collect()
}

/// Makes a test of every [`Check`](crate::connector::Check) for a native connector.
///
/// ```ignore
/// ondol_testkit::connector_conformance!(
///     my_connector,
///     class: "MyConnector",
///     config: |dir| serde_json::json!({"path": dir}),
///     capabilities: ondol_testkit::l2::Capabilities::default().persisting(),
/// );
/// ```
///
/// `class` is the `class_name` that the connector is registered under, and `config` makes its parameters for a directory; with
/// the same directory it is the same storage. In place of both, `open: |dir| …` opens the connector by itself. Of the
/// capabilities, those that concern persistence, sizes (whether completions tell lengths), deletes and empty batches count.
#[macro_export]
macro_rules! connector_conformance {
    (open: $open:expr $(, capabilities: $capabilities:expr)? $(,)?) => {
        fn connector_conformance_subject() -> $crate::connector::Subject {
            let subject = $crate::connector::Subject::opened_by($open);
            $(let subject = subject.with_capabilities($capabilities);)?
            subject
        }

        $crate::connector_conformance!(@all);
    };
    ($library:ident, open: $open:expr $(, $($rest:tt)*)?) => {
        // Named, so that the linker keeps what the crate registers.
        use ::$library as _;
        $crate::connector_conformance!(open: $open $(, $($rest)*)?);
    };
    ($library:ident, class: $class:expr, config: $config:expr $(, capabilities: $capabilities:expr)? $(,)?) => {
        fn connector_conformance_subject() -> $crate::connector::Subject {
            use ::$library as _;
            let package = env!("CARGO_PKG_NAME");
            let subject = $crate::connector::Subject::linked(package, $class, $config);
            $(let subject = subject.with_capabilities($capabilities);)?
            subject
        }

        $crate::connector_conformance!(@all);
    };
    (@all) => {
        $crate::connector_conformance!(@tests
            the_descriptor_is_reset_by_a_drain: Descriptor,
            what_is_set_is_got: RoundTrip,
            each_request_completes_once_after_its_signal: Completions,
            objects_of_every_size_come_back: Sizes,
            large_batches_are_withstood: LargeBatches,
            empty_batches_are_withstood: EmptyBatches,
            missing_keys_do_not_exist: MissingKeys,
            a_page_that_is_too_small_is_not_filled: SmallPages,
            objects_are_visible_whole_or_not_at_all: Atomicity,
            buffers_are_let_go: Buffers,
            deleted_objects_are_gone: Deletion,
            calls_from_many_threads_are_withstood: Threads,
            a_restart_is_withstood: Restart,
            a_close_completes_every_request: Close,
            nothing_succeeds_after_a_close: AfterClose,
        );
    };
    (@tests $($name:ident: $check:ident,)*) => {$(
        #[test]
        fn $name() {
            $crate::connector::Check::$check
                .run(&connector_conformance_subject())
                .assert();
        }
    )*};
}
