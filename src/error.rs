//! Errors that several capabilities raise. Each capability has its own errors in its `errors.rs`.

use crate::pg::ereport::Report;
use crate::pg::recovery;
use idgen_core::lock::MAX_NAME_BYTES;
use pgrx::prelude::*;

pub fn null_argument(name: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED, format!("{name} must not be null"))
}

pub fn name_length(name: &str) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid name \"{name}\""))
        .detail(format!("A name has 1 to {MAX_NAME_BYTES} bytes, and this has {}.", name.len()))
}

pub fn negative_count(count: i32) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("count must not be negative: \"{count}\""))
}

pub fn not_preloaded() -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "idgen must be preloaded")
        .detail("All sessions share state in shared memory, which is allocated when the server starts.")
        .hint("Set shared_preload_libraries = 'idgen' and restart the server. Separate several libraries by commas.")
}

fn standby() -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION, "cannot generate ids during recovery")
        .detail("This server is a standby. Only its primary issues ids.")
        .hint("Connect to the primary, or promote this server.")
}

/// Raises 25006 during recovery. One check a session suffices: a server does not return to recovery.
pub fn refuse_on_standby() {
    if recovery::is_in_progress() {
        standby().raise();
    }
}

pub fn timeout_out_of_range() -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, "timeout is out of range")
        .detail("It must be 0 to 24 days.")
}
