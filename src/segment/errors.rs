//! The errors of segments, and of their coordinator.

use crate::pg::datum::stored_len;
use crate::pg::ereport::{Report, errors, quoted};
use crate::pg::session;
use idgen_core::segment::tag::{MAX_TAG_BYTES, TagDefinitionError, is_valid_tag_len};
use pgrx::datum::Interval;
use std::ops::RangeInclusive;

errors! {
    fn unknown(tag: &str) {
        ERRCODE_UNDEFINED_OBJECT: "segment \"{tag}\" does not exist";
        hint: "Create it with SELECT segment_create({}); if it had values before, add start => <one above all of them>.",
            quoted(tag);
    }

    fn exists(tag: &str) {
        ERRCODE_DUPLICATE_OBJECT: "segment \"{tag}\" already exists";
    }

    fn not_owner(tag: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "must be owner of segment \"{tag}\"";
    }

    fn may_not_draw(tag: &str, user: &str) {
        ERRCODE_INSUFFICIENT_PRIVILEGE: "permission denied for segment \"{tag}\"";
        hint: "Ask its owner to run SELECT segment_grant({}, {});", quoted(tag), quoted(user);
    }

    fn tag_length(tag: &str, bytes: usize) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid tag \"{tag}\"";
        detail: "A tag has 1 to {MAX_TAG_BYTES} bytes, and this has {bytes}.";
    }

    fn lowered(tag: &str, now: i64, lower: i64) {
        ERRCODE_INVALID_PARAMETER_VALUE: "max_id of segment \"{tag}\" cannot be lowered to {lower}";
        detail: "Values up to {now} may have been handed out.";
        hint: "To start again from a lower value, drop the segment and create it again.";
    }

    fn count_out_of_range(count: i64, range: RangeInclusive<i64>) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid count \"{count}\"";
        detail: "It must be {} to {}.", range.start(), range.end();
    }

    fn exhausted(tag: &str, upper_bound: i64) {
        ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED: "segment \"{tag}\" has reached its upper bound";
        detail: "Its values end at {upper_bound}, and fewer are left than the call wants.";
        hint: "If the column has room for larger values, run SELECT segment_alter({}, upper_bound => ...);",
            quoted(tag);
    }

    /// A refill keeps the message only.
    fn not_raised(tag: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "could not record values of segment \"{tag}\": a trigger has prevented it";
        detail: "A trigger that is not idgen's has kept a row of idgen.segment or idgen.segment_server as it was.";
        hint: "Find it with SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE NOT tgisinternal AND tgrelid IN \
            ('idgen.segment'::regclass, 'idgen.segment_server'::regclass); and drop it.";
    }

    fn changed_here(tag: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "segment \"{tag}\" was changed in this transaction";
        detail: "Other sessions draw from its old definition until the transaction commits.";
        hint: "Commit the transaction, then draw from the segment.";
    }

    fn in_parallel_worker(tag: &str) {
        ERRCODE_INVALID_TRANSACTION_STATE: "cannot draw from segment \"{tag}\" in a parallel worker";
        detail: "This transaction created the segment, and the leader counts its values until the commit.";
        hint: "Mark the function that calls segment_next as PARALLEL RESTRICTED, as segment_next is.";
    }

    fn timed_out(tag: &str, reason: String) {
        ERRCODE_LOCK_NOT_AVAILABLE: "no values of segment \"{tag}\" within idgen.segment_timeout";
        detail: "{}", reason;
        hint: "Remove the cause, then repeat the call.";
    }

    fn definition(error: TagDefinitionError) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid {} \"{}\"", error.field, error.value;
        detail: "{}", error.rule;
    }

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

    /// Of an attached segment.
    fn exhausted_at_coordinator(tag: &str) {
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
        hint: "Run SELECT segment_attach({0}); or give it values that the fleet never gets, by SELECT \
            segment_alter({0}, max_id => <the upper_bound at the coordinator>, upper_bound => ...);", quoted(tag);
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
        hint: "Let idgen.coordinator name the database that it draws from.";
    }

    fn detached_itself(tag: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "segment \"{tag}\" of the coordinator was detached from another one";
        detail: "It has no values left: those above its max_id are of the other one's servers.";
        hint: "Let idgen.coordinator name the database that it drew from.";
    }

    fn no_worker(worker: &str) {
        ERRCODE_CONFIGURATION_LIMIT_EXCEEDED: "could not start the {worker} worker";
        detail: "{}", no_worker_text().0;
        hint: "{}", no_worker_text().1;
    }
}

/// A tag that was not found. One that cannot be created gets the error of `segment_create`.
pub fn missing(tag: &str) -> Report {
    let bytes = stored_len(tag);
    if is_valid_tag_len(bytes) { unknown(tag) } else { tag_length(tag, bytes) }
}

/// The reason that is known for a time out before the worker has reported one.
pub fn silence(is_attached: bool) -> &'static str {
    match is_attached {
        true => "The supply worker has reported no error: it may be waiting for the coordinator or a disk.",
        false => "The refill worker has reported no error: it may be waiting for a disk or a synchronous standby.",
    }
}

pub const NO_WORKER: &str = "All slots of max_worker_processes are in use.";

/// The DETAIL and the HINT.
fn no_worker_text() -> (&'static str, &'static str) {
    match session::is_single_user() {
        true => ("Single-user mode has no background workers.", "Start the server, then repeat the call."),
        false => (NO_WORKER, "Raise max_worker_processes and restart."),
    }
}
