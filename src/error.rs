//! Errors that several capabilities raise. Errors of one capability are in its room, in `errors.rs`.

use crate::pg::ereport::Report;
use crate::pg::recovery;
use pgrx::prelude::*;

pub fn null_argument(name: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED, format!("{name} must not be null"))
}

pub fn negative_count(count: i32) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("count must not be negative: \"{count}\""))
}

pub fn not_preloaded() -> Report {
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "idgen must be preloaded to generate ids",
    )
    .detail("All sessions issue ids from one place in shared memory, which is set up when the server starts.")
    .hint("Set shared_preload_libraries = 'idgen' in postgresql.conf (after others, separated by commas), and restart.")
}

fn standby() -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION, "cannot generate ids during recovery")
        .detail("This server is a standby: its primary issues the ids.")
        .hint("Connect to the primary, or promote this server.")
}

/// Raises 25006 during recovery. Once a session is enough: a server never goes back into recovery.
pub fn refuse_on_standby() {
    if recovery::is_in_progress() {
        standby().raise();
    }
}

pub fn timeout_out_of_range() -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, "timeout is out of range")
        .detail("It must be 0 to 24 days.")
}
