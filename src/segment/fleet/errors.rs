//! The errors of attached segments, and of their coordinator.

use crate::pg::ereport::{Report, quoted};
use pgrx::datum::Interval;
use pgrx::prelude::*;

fn wrong_state(message: String) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, message)
}

pub fn reserve_out_of_range(reserve: &Interval) -> Report {
    let seconds = reserve.as_micros() as f64 / 1e6;
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid reserve \"{seconds} s\""))
        .detail("It must be 2 seconds to 365 days.")
}

pub fn no_coordinator() -> Report {
    wrong_state("idgen.coordinator is not set".to_owned())
        .detail("An attached segment draws from the database that idgen.coordinator names.")
        .hint("Run ALTER SYSTEM SET idgen.coordinator = 'host=... dbname=... user=...'; SELECT pg_reload_conf();")
}

pub fn not_attached(tag: &str) -> Report {
    wrong_state(format!("segment \"{tag}\" is not attached"))
        .hint(format!("Attach it with SELECT segment_attach({});", quoted(tag)))
}

pub fn set_back(tag: &str, received: i64, max_id: i64) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_WARNING, format!("this coordinator has lost grants of segment \"{tag}\""))
        .detail(format!(
            "A server has received the value {received}, and max_id is {max_id}: a backup or a snapshot was restored in place."
        ))
        .hint("No server gets values until all attached servers have reported, which they do by themselves.")
}

/// A restore by a role that may not attach segments.
pub fn not_restored(tag: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_WARNING, format!("segment \"{tag}\" is restored without its attachment"))
        .detail("The role that restores it may not execute segment_attach().")
        .hint(format!("Ask a superuser to run SELECT segment_attach({});", quoted(tag)))
}

pub fn detached(tag: &str) -> Report {
    let tag_text = quoted(tag);
    wrong_state(format!("segment \"{tag}\" was detached"))
        .detail("Its values are those of the coordinator, which other servers draw from.")
        .hint(format!(
            "Run SELECT segment_attach({tag_text}); or, if no other server draws from it, \
             SELECT segment_alter({tag_text}, upper_bound => 9223372036854775807);"
        ))
}

pub fn exhausted(tag: &str) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
        format!("segment \"{tag}\" has reached its upper bound"),
    )
    .detail("The upper bound is that of the coordinator's segment, which has too few values left.")
    .hint(format!(
        "If the column has room for larger values, run SELECT segment_alter({}, upper_bound => ...); at the coordinator.",
        quoted(tag)
    ))
}

/// A setting that only the coordinator's tag has.
pub fn set_at_the_coordinator(tag: &str, setting: &str) -> Report {
    wrong_state(format!("cannot alter {setting} of segment \"{tag}\" while it is attached"))
        .detail("The coordinator's segment has this setting.")
        .hint("Run segment_alter() at the coordinator, or detach this segment first.")
}

/// At the coordinator.
pub fn may_not_serve(tag: &str, user: &str) -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
        format!("permission denied to act as a server of segment \"{tag}\""),
    )
    .hint(format!("Ask its owner to run SELECT segment_grant({}, {}, server => true);", quoted(tag), quoted(user)))
}

/// At the coordinator.
pub fn chained(tag: &str) -> Report {
    wrong_state(format!("segment \"{tag}\" of the coordinator is attached itself"))
        .detail("Values come from a segment that is attached to no other one.")
        .hint(format!(
            "At the coordinator, run SELECT segment_detach({}); or let idgen.coordinator name another database.",
            quoted(tag)
        ))
}

pub fn above_upper_bound(tag: &str, max_id: i64, upper_bound: i64) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid max_id \"{max_id}\""))
        .detail(format!("Values of segment \"{tag}\" end at {upper_bound}."))
}

/// The coordinator's own draws after a change of its history.
pub fn waits_for(tag: &str, servers: &str) -> String {
    // The names come last: a long text is cut.
    format!(
        "The history of this server has changed. Run segment_resume() if these servers have not reported the values of \
         segment \"{tag}\" that they have received, and are gone for good: {servers}."
    )
}
