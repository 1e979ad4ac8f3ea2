use ondol_catalog::{Counter, METRICS, Metric, MetricKind, linkme::distributed_slice};

macro_rules! counters {
    ($($field:ident $row:ident $name:literal $help:literal;)*) => {
        $(
            #[distributed_slice(METRICS)]
            #[linkme(crate = ondol_catalog::linkme)]
            static $row: Metric = Metric::new($name, MetricKind::Counter, $help);
        )*

        /// What one door counts.
        #[derive(Debug)]
        pub(crate) struct DoorCounters {
            $(pub(crate) $field: Counter,)*
        }

        impl DoorCounters {
            pub(crate) const fn new() -> Self {
                Self { $($field: Counter::new(&$row),)* }
            }

            pub(crate) fn all(&self) -> impl Iterator<Item = &Counter> {
                [$(&self.$field,)*].into_iter()
            }
        }
    };
}

counters! {
    accepted ACCEPTED "ondol_door_connections_accepted_total"
        "Connections that were served.";
    refused REFUSED "ondol_door_connections_refused_total"
        "Connections that were turned away: too many, a foreign user, a wrong first message.";
    stalled STALLED "ondol_door_connections_stalled_total"
        "Connections that were closed because a message did not come or go in time.";
    bad_frames BAD_FRAMES "ondol_door_bad_frames_total"
        "Frames that were not a message of the protocol.";
    requests REQUESTS "ondol_door_requests_total"
        "Requests that were carried out or refused.";
    left LEFT "ondol_door_clients_left_total"
        "Clients that left of their own accord.";
    died DIED "ondol_door_clients_died_total"
        "Clients that were detached because their process had ended.";
}
