//! The errors of segments.

use crate::pg::ereport::{errors, quoted};
use crate::pg::session;
use idgen_core::segment::tag::{MAX_TAG_BYTES, TagDefinitionError};
use std::ops::RangeInclusive;

errors! {
    fn unknown(tag: &str) {
        ERRCODE_UNDEFINED_OBJECT: "segment \"{tag}\" does not exist";
        hint: "Create it with SELECT segment_create({});", quoted(tag);
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
        detail: "{error}";
    }

    fn no_worker(worker: &str) {
        ERRCODE_CONFIGURATION_LIMIT_EXCEEDED: "could not start the {worker} worker";
        detail: "{}", no_worker_text().0;
        hint: "{}", no_worker_text().1;
    }
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
