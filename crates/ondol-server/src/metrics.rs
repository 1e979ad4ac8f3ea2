ondol_catalog::counters! {
    /// What one door counts.
    pub(crate) struct DoorCounters {
        accepted ACCEPTED "ondol_door_connections_accepted_total"
            "Connections that were served.";
        refused REFUSED "ondol_door_connections_refused_total"
            "Connections that were turned away: too many, a foreign user, a wrong first message.";
        stalled STALLED "ondol_door_connections_stalled_total"
            "Connections that were closed because a message did not come or go in time.";
        busy BUSY "ondol_door_connections_busy_total"
            "Connections that were closed because the messages of all together took too much memory.";
        bad_frames BAD_FRAMES "ondol_door_bad_frames_total"
            "Frames that were not a message of the protocol.";
        requests REQUESTS "ondol_door_requests_total"
            "Requests that were carried out or refused.";
        left LEFT "ondol_door_clients_left_total"
            "Clients that left of their own accord.";
        died DIED "ondol_door_clients_died_total"
            "Clients that were detached because their process had ended.";
        resumed RESUMED "ondol_door_clients_resumed_total"
            "Clients that outlived an earlier server and came back.";
        unknown UNKNOWN "ondol_door_clients_unknown_total"
            "Clients of an earlier server that came back and were not known.";
    }
}
