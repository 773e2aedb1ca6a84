//! The errors of attached segments, and of their coordinator.

use crate::pg::ereport::{errors, quoted};
use pgrx::datum::Interval;

errors! {
    fn set_back(tag: &str, received: i64, max_id: i64) {
        ERRCODE_WARNING: "this coordinator has lost grants of segment \"{tag}\"";
        detail: "A server has received the value {received}, and max_id is {max_id}: a backup or a snapshot was \
            restored in place.";
        hint: "No server gets values until all attached servers have reported, which they do by themselves.";
    }

    /// A restore by a role that may not attach segments.
    fn not_restored(tag: &str) {
        ERRCODE_WARNING: "segment \"{tag}\" is restored without its attachment";
        detail: "The role that restores it may not execute segment_attach().";
        hint: "Ask a superuser to run SELECT segment_attach({});", quoted(tag);
    }

    fn exhausted(tag: &str) {
        ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED: "segment \"{tag}\" has reached its upper bound";
        detail: "The upper bound is that of the coordinator's segment, which has too few values left.";
        hint: "If the column has room for larger values, run SELECT segment_alter({}, upper_bound => ...); at the \
            coordinator.", quoted(tag);
    }

    /// At the coordinator.
    fn may_not_serve(tag: &str, user: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "permission denied to act as a server of segment \"{tag}\"";
        hint: "Ask its owner to run SELECT segment_grant({}, {}, server => true);", quoted(tag), quoted(user);
    }

    fn above_upper_bound(tag: &str, max_id: i64, upper_bound: i64) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid max_id \"{max_id}\"";
        detail: "Values of segment \"{tag}\" end at {upper_bound}.";
    }

    fn reserve_out_of_range(reserve: &Interval) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid reserve \"{} s\"", reserve.as_micros() as f64 / 1e6;
        detail: "It must be 2 seconds to 365 days.";
    }

    fn no_coordinator() {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "idgen.coordinator is not set";
        detail: "An attached segment draws from the database that idgen.coordinator names.";
        hint: "Run ALTER SYSTEM SET idgen.coordinator = 'host=... dbname=... user=...'; SELECT pg_reload_conf();";
    }

    fn not_attached(tag: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "segment \"{tag}\" is not attached";
        hint: "Attach it with SELECT segment_attach({});", quoted(tag);
    }

    fn detached(tag: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "segment \"{tag}\" was detached";
        detail: "Its values are those of the coordinator, which other servers draw from.";
        hint: "Run SELECT segment_attach({0}); or, if no other server draws from it, \
            SELECT segment_alter({0}, upper_bound => 9223372036854775807);", quoted(tag);
    }

    /// A setting that only the coordinator's tag has.
    fn set_at_the_coordinator(tag: &str, setting: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "cannot alter {setting} of segment \"{tag}\" while it is attached";
        detail: "The coordinator's segment has this setting.";
        hint: "Run segment_alter() at the coordinator, or detach this segment first.";
    }

    /// At the coordinator.
    fn chained(tag: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "segment \"{tag}\" of the coordinator is attached itself";
        detail: "Values come from a segment that is attached to no other one.";
        hint: "At the coordinator, run SELECT segment_detach({}); or let idgen.coordinator name another database.",
            quoted(tag);
    }
}

/// The coordinator's own draws after a change of its history.
pub fn waits_for(tag: &str, servers: &str) -> String {
    // The names come last: a long text is cut.
    format!(
        "The history of this server has changed. Run segment_resume() if these servers have not reported the values of \
         segment \"{tag}\" that they have received, and are gone for good: {servers}."
    )
}
