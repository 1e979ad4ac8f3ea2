//! The conformance suite of handler plugins.
//!
//! A [`Subject`] is the plugins of one package with the environment that switches them on; a [`Check`] is one thing
//! that they must withstand; what they do not withstand is in the [`Report`]. The macro
//! [`handler_conformance!`](crate::handler_conformance) makes a test of each check; [`run`] runs them all.
//!
//! Hooks are called on threads of their own, so a panic or a hang is reported with the hook's name and ends nothing
//! else. A hook that returns an error breaks a check as well: none of these situations is unusual, and in use errors in
//! a row put the plugin out of use.

mod call;
mod checks;
mod report;
mod subject;

pub use checks::Check;
pub use report::{Report, Violation};
pub use subject::Subject;

/// Runs every check.
pub fn run(subject: &Subject) -> Report {
    Check::ALL
        .into_iter()
        .map(|check| check.run(subject))
        .collect()
}

/// Makes a test of every [`Check`](crate::handler::Check) for the plugins of the package that this is written in.
///
/// `handler_conformance!(my_plugin)` names the library as `use` does; `environment:` is a list of pairs, or any
/// iterator of them, that switches the plugins on. It is evaluated anew for each test.
#[macro_export]
macro_rules! handler_conformance {
    ($library:ident $(,)?) => {
        $crate::handler_conformance!(
            $library,
            environment: ::std::iter::empty::<(&str, &str)>()
        );
    };
    ($library:ident, environment: $environment:expr $(,)?) => {
        fn handler_conformance_subject() -> $crate::handler::Subject {
            // Named, so that the linker keeps what the crate registers.
            use ::$library as _;
            $crate::handler::Subject::linked(env!("CARGO_PKG_NAME")).with_environment($environment)
        }

        $crate::handler_conformance!(@tests
            names_are_legal_and_unique: Names,
            nothing_configured_is_no_failure: EmptyEnvironment,
            the_environment_switches_a_plugin_on: Loading,
            objects_are_withstood: Objects,
            empty_batches_are_withstood: EmptyBatches,
            missed_keys_are_withstood: MissedKeys,
            unmapped_regions_are_withstood: UnmappedRegions,
            calls_from_many_threads_are_withstood: Threads,
            repeated_hints_change_nothing: Repetition,
            closing_is_withstood_at_any_time: Close,
            stage_results_are_true: Stage,
            statistics_are_an_object: Statistics,
        );
    };
    (@tests $($name:ident: $check:ident,)*) => {$(
        #[test]
        fn $name() {
            $crate::handler::Check::$check
                .run(&handler_conformance_subject())
                .assert();
        }
    )*};
}
