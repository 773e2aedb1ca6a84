//! The errors of segments.

use crate::pg::ereport::{Report, quoted};
use crate::pg::session;
use idgen_core::segment::tag::{MAX_TAG_BYTES, TagDefinitionError};
use pgrx::prelude::*;
use std::ops::RangeInclusive;

pub fn unknown(tag: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT, format!("segment \"{tag}\" does not exist"))
        .hint(format!("Create it with SELECT segment_create({});", quoted(tag)))
}

pub fn exists(tag: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_DUPLICATE_OBJECT, format!("segment \"{tag}\" already exists"))
}

pub fn not_owner(tag: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE, format!("must be owner of segment \"{tag}\""))
}

pub fn may_not_draw(tag: &str, user: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE, format!("permission denied for segment \"{tag}\""))
        .hint(format!("Ask its owner to run SELECT segment_grant({}, {});", quoted(tag), quoted(user)))
}

pub fn tag_length(tag: &str, bytes: usize) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid tag \"{tag}\""))
        .detail(format!("A tag has 1 to {MAX_TAG_BYTES} bytes, and this has {bytes}."))
}

pub fn definition(error: TagDefinitionError) -> Report {
    let TagDefinitionError { field, value, .. } = &error;
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid {field} \"{value}\""))
        .detail(error.to_string())
}

pub fn row_trigger_only() -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
        "idgen.segment_row() must be called by the trigger of idgen.segment",
    )
}

pub fn lowered(tag: &str, now: i64, lower: i64) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        format!("max_id of segment \"{tag}\" cannot be lowered to {lower}"),
    )
    .detail(format!("Values up to {now} may have been handed out."))
    .hint("To start again from a lower value, drop the segment and create it again.")
}

pub fn count_out_of_range(count: i64, range: RangeInclusive<i64>) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid count \"{count}\"")).detail(format!(
        "It must be {} to {}.",
        range.start(),
        range.end()
    ))
}

pub fn exhausted(tag: &str, upper_bound: i64) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
        format!("segment \"{tag}\" has reached its upper bound"),
    )
    .detail(format!("Its values end at {upper_bound}, and fewer are left than the call wants."))
    .hint(format!(
        "If the column has room for larger values, run SELECT segment_alter({}, upper_bound => ...);",
        quoted(tag)
    ))
}

pub fn changed_here(tag: &str) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("segment \"{tag}\" was changed in this transaction"),
    )
    .detail("Other sessions draw from its old definition until the transaction commits.")
    .hint("Commit the transaction, then draw from the segment.")
}

pub fn in_parallel_worker(tag: &str) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_INVALID_TRANSACTION_STATE,
        format!("cannot draw from segment \"{tag}\" in a parallel worker"),
    )
    .detail("This transaction created the segment, and the leader counts its values until the commit.")
    .hint("Mark the function that calls segment_next as PARALLEL RESTRICTED, as segment_next is.")
}

/// The reason that is known for a time out before the worker has reported one.
pub fn silence(is_attached: bool) -> &'static str {
    match is_attached {
        true => "The supply worker has reported no error: it may be waiting for the coordinator or a disk.",
        false => "The refill worker has reported no error: it may be waiting for a disk or a synchronous standby.",
    }
}

pub fn timed_out(tag: &str, reason: String) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE,
        format!("no values of segment \"{tag}\" within idgen.segment_timeout"),
    )
    .detail(reason)
    .hint("Remove the cause, then repeat the call.")
}

pub const NO_WORKER: &str = "All slots of max_worker_processes are in use.";

pub fn no_worker(is_attached: bool) -> Report {
    let message = match is_attached {
        true => "could not start the supply worker",
        false => "could not start the refill worker",
    };
    let report = Report::new(PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED, message);
    if session::is_single_user() {
        report.detail("Single-user mode has no background workers.").hint("Start the server, then repeat the call.")
    } else {
        report.detail(NO_WORKER).hint("Raise max_worker_processes and restart.")
    }
}
